"""Run notebooks, slow cells included, and keep what they print: python tools/fill.py nbs/10_miners.ipynb ..."""

import os
import sys
from pathlib import Path

from execnb.nbio import read_nb, write_nb
from execnb.shell import CaptureShell
from fastcore.foundation import working_directory
from nbdev.config import get_config
from nbdev.process import extract_directives

FLAGS = {*get_config().tst_flags.split()} - {"slow"}  # `long` ones take many minutes, and are run by hand


def skipped(cell) -> bool:
    """Would `nbdev_test --flags slow` pass over this cell?"""
    if cell.cell_type != "code" or "nbdev_export(" in cell.source:
        return True
    found = extract_directives(cell, remove=False)
    return found.get("eval:", [""])[0].lower() == "false" or bool(FLAGS & found.keys())


def execute(path: Path):
    """A notebook with what its cells print now; what one of them raises is shown, and raised."""
    os.environ |= {"IN_TEST": "1", "TQDM_DISABLE": "1"}  # bars are not kept
    notebook = read_nb(path)
    for cell in notebook.cells:
        if cell.cell_type == "code" and not skipped(cell):
            cell.outputs = []  # the shell leaves those of a cell that prints nothing now
    shell = CaptureShell(path, mpl_format="png")  # nbdev's default, retina, stores four times the pixels
    try:
        with working_directory(path.parent):
            shell.run_all(notebook, exc_stop=True, preproc=skipped)
    except BaseException:
        print(shell.prettytb(path), file=sys.stderr)
        raise
    return notebook


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        write_nb(execute(path), path)

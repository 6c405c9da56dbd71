"""What the names of the registries stand for: hyperparameters, defaults, paper, formula, cost. For help and site."""

import ast
import csv
import json
import re
import textwrap
from functools import cache
from pathlib import Path

from dmlstudy.core.checks import hyperparameters_of
from dmlstudy.losses import LOSSES, loss_hyperparameters
from dmlstudy.metrics import CLASSES, CLUSTERING, DEFAULT, METRICS, NORMS, RETRIEVAL
from dmlstudy.miners import MINERS
from dmlstudy.regularizers import REGULARIZERS
from dmlstudy.samplers import SAMPLERS

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = {"loss": LOSSES, "miner": MINERS, "sampler": SAMPLERS, "regularizer": REGULARIZERS}
COMMON = ("self", "labels", "batch_size", "seed")  # of every sampler
NAME = r"[A-Z](?=\w*[a-z])[\w’'-]+(?:, [A-Z]\w+)*(?:\s+and [A-Z]\w+|\s+et\s+al\.)?"
PAPER = re.compile(rf"({NAME}),?\s+\(?((?:[A-Z]\w+ )?(?:20|19)\d\d)")


def cells(notebook: Path) -> list[tuple[str, str]]:  # kind, source; nbformat would take a second to load
    """The cells of a notebook."""
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in found]


@cache
def sections() -> dict[str, tuple[str, str, str]]:  # class -> notebook, title of the section, its text
    """The text that stands above each exported class, from the last title on."""
    found = {}
    for path in sorted((ROOT / "nbs").glob("[0-9]*.ipynb")):
        title = text = ""
        for kind, source in cells(path):
            if kind == "markdown":
                if head := re.search(r"^#{2,} (.+)", source, re.M):
                    title, text = head[1], ""
                text += source + "\n\n"
            elif source.startswith("#| export"):
                found |= {name: (path.stem, title, text) for name in re.findall(r"^class (\w+)", source, re.M)}
    return found


def paper(kind: type) -> str:
    """The first paper that the section of a class names."""
    found = PAPER.search(sections().get(kind.__name__, ("", "", ""))[2])
    return f"{' '.join(found[1].split())}, {found[2]}" if found else ""


def formula(kind: type) -> str:
    """The formulas of the section of a class."""
    return "\n\n".join(re.findall(r"\$\$.*?\$\$", sections()[kind.__name__][2], re.S))


def hyperparameters(what: str, name: str) -> dict:  # name -> default
    """The hyperparameters of a loss, miner, sampler or regularizer."""
    if what == "loss":
        return loss_hyperparameters(name)
    return {k: v for k, v in hyperparameters_of(REGISTRIES[what][name]).items() if k not in COMMON}


def called(what: str, name: str) -> str:
    """A name with its hyperparameters and their defaults, such as triplet(margin=0.2, squared=True)."""
    sizes = REGISTRIES[what][name].needs if what == "loss" else ()
    more = [f"{key}={default!r}" for key, default in hyperparameters(what, name).items()]
    return f"{name}({', '.join([*sizes, *more])})"


def lines(what: str) -> list[str]:
    """A line a name, for help."""
    return [f"{called(what, name)}{f'  {p}' if (p := paper(kind)) else ''}" for name, kind in REGISTRIES[what].items()]


def metric_lines() -> list[str]:
    """What `evaluate` can be asked for, for help: with a gallery, only without one, and what it measures unasked."""
    alone = [name for name in METRICS if name not in {**RETRIEVAL, **NORMS}]
    said = {"k, m: a number, as in recall@4": (), "always": [*RETRIEVAL, *NORMS]}
    said |= {"only without a gallery": alone, "only with labels": [*CLUSTERING, *CLASSES], "None": DEFAULT}
    text = [f"{when}: {', '.join(names)}" if names else when for when, names in said.items()]
    return [line for one in text for line in textwrap.wrap(one, 104, subsequent_indent="    ")]


@cache
def elsewhere() -> dict[str, tuple[str, str]]:  # class of pytorch-metric-learning -> loss, what has another name
    """The table of the tutorial "From pytorch-metric-learning"."""
    (source,) = (source for _, source in cells(ROOT / "nbs/tutorials/from_pml.ipynb") if "NAMES = {" in source)
    return ast.literal_eval(re.search(r"NAMES = (\{.*?^\})", source, re.S | re.M)[1])


def cost(name: str) -> str:
    """Time and memory of a loss as measured in `outputs/bench`; "" where it was not."""
    read = lambda file: [*csv.DictReader((ROOT / "outputs/bench" / file).open(encoding="utf-8"))]
    own = [r for r in read("losses.csv") if r["case"].partition(" (")[0] == name and r["device"] == "cpu"]
    shape = lambda batch: re.sub(r"C (\d+)", r"\1 classes", batch.replace(" x ", " × ").partition(", SPC")[0])
    said = list({shape(r["batch"]): f"{float(r['ours_ms']):.1f} ms for {shape(r['batch'])}" for r in own}.values())
    memory = [r for r in read("memory.csv") if r["loss"] == name and r["MB"]]
    return "; ".join(said + [f"{r['MB']} MB for {int(r['batch']):,} images" for r in memory])

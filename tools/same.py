"""Run notebooks, and name the cells that print something else than what is kept: python tools/same.py [NOTEBOOK ...].

Words must be the same. A number may differ by two in a hundred, or by one of the last decimal that is shown. A cell
tagged `varies` may print anything, such as a time. Where a cell trains on the spot, or shows what an earlier one
trained, words alone are compared, since another processor rounds otherwise; the tag `trained` says it where that is
not seen. Pictures and warnings are not compared. Without names: all notebooks that `nbdev_test --flags slow` would run.
"""

import ast
import html
import importlib
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from execnb.nbio import read_nb
from fill import execute, skipped

ROOT = Path(__file__).resolve().parents[1]
MARKUP = re.compile(r"<style.*?</style>|<[^>]*>", re.S)
TRAINING = {"fit", "train_steps", "run_batch", "record_for", "records_for", "compare", "pretrain", "step"}  # calls
CONTEXTS = ast.Load, ast.Store
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def text(cell) -> str:
    """What a cell prints, white space and the markup of tables aside."""
    shown = []
    for output in cell.get("outputs", []):
        if "image/png" in output.get("data", {}):  # its size in words depends on what the process has drawn before
            continue
        data = output.get("data", {"text/plain": output["text"] if output.get("name") == "stdout" else ""})
        kind = next((kind for kind in ("text/html", "text/markdown", "text/plain") if kind in data), None)
        said = "".join(data.get(kind, ""))
        shown.append(html.unescape(MARKUP.sub(" ", said)) if kind == "text/html" else said)
    return " ".join(" ".join(shown).split())


def close(kept: str, now: str) -> bool:
    """Two numbers as they are printed."""
    digits, _, power = kept.partition("e")
    decimals = len(digits.partition(".")[2])
    last = 1.001 * 10.0 ** (int(power or 0) - decimals) if decimals else 0.0
    return abs(float(kept) - float(now)) <= max(0.02 * abs(float(kept)), last)


def alike(kept: str, now: str, trained: bool = False) -> bool:
    """The same words, and numbers that are close, unless they are of a training on the spot."""
    same_words = NUMBER.sub("0", kept) == NUMBER.sub("0", now)
    return same_words and (trained or all(map(close, NUMBER.findall(kept), NUMBER.findall(now))))


def trains(sources: list[str]) -> list[bool]:
    """For each cell: does it train, or use a name that a training gave a value?"""
    names, found = set(), []
    for source in sources:
        nodes = [*ast.walk(ast.parse(re.sub(r"^[%!].*", "", source, flags=re.M)))]
        loads, stores = ({n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, c)} for c in CONTEXTS)
        called = {getattr(n.func, "attr", getattr(n.func, "id", "")) for n in nodes if isinstance(n, ast.Call)}
        found.append(bool(called & TRAINING or loads & names))
        names = names | stores if found[-1] else names - stores
    return found


def differing(path: Path) -> list[str]:
    """A line for each cell that prints something else."""
    kept, name = read_nb(path).cells, path.relative_to(ROOT)
    try:
        now = execute(path).cells
    except Exception as error:  # shown already
        return [f"{name} fails: {type(error).__name__}"]
    tags = lambda cell: cell.metadata.get("tags", [])
    fixed = lambda cell: not skipped(cell) and "varies" not in tags(cell)
    of_training = trains([cell.source if cell.cell_type == "code" else "" for cell in kept])
    found = [
        (i, text(a), text(b), of_training[i] or "trained" in tags(a))
        for i, (a, b) in enumerate(zip(kept, now, strict=True))
        if fixed(a)
    ]
    return [f"{name} cell {i}\n  kept: {a[:400]}\n  now:  {b[:400]}" for i, a, b, t in found if not alike(a, b, t)]


if __name__ == "__main__":
    every = [p for p in sorted((ROOT / "nbs").rglob("*.ipynb")) if not (p.parent / ".notest").exists()]
    asked = [Path(name).resolve() for name in sys.argv[1:]]
    paths = asked or [p for p in every if ".ipynb_checkpoints" not in p.parts]
    with ProcessPoolExecutor(min(2, len(paths))) as pool:  # by name: a notebook takes the place of __main__
        found = [line for lines in pool.map(importlib.import_module("same").differing, paths) for line in lines]
    print("\n".join(found))
    sys.exit(f"{len(found)} differ: fill them again with tools/fill.py, or mend the code" if found else None)

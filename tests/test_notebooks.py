"""The notebooks are sound as files, and hold to the house's rules."""

import json
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(p for p in (ROOT / "nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
PARAMETRISED = [p for p in NOTEBOOKS if p.parent.name in ("experiments", "paper")]


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_sound(path):
    nbformat.validate(nbformat.read(path, as_version=4))
    found = cells(path)
    ids = Counter(cell["id"] for cell in found)
    assert max(ids.values()) == 1, "two cells have one id"
    assert not any(o["output_type"] == "error" for c in found for o in c.get("outputs", [])), "an output is an error"
    assert not re.search(r"^(<{7}|>{7}) ", "\n".join(map(source, found)), re.M), "a merge left its marks"
    assert path.stat().st_size < 1_000_000, "larger than 1 MB: fewer or smaller pictures"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_opens_with_title_and_subtitle(path):
    first = source(cells(path)[0])
    assert re.match(r"# .+\n> .+", first), f"{path.name} begins with {first[:60]!r}"


def test_each_module_has_one_notebook():
    names = [m for p in NOTEBOOKS for c in cells(p) for m in re.findall(r"^#\|\s*default_exp (\S+)", source(c), re.M)]
    assert names and max(Counter(names).values()) == 1


def test_exported_cells_can_be_seen_whole():
    long = {
        f"{p.name} {c['id']}": n
        for p in NOTEBOOKS
        for c in cells(p)
        if re.match(r"#\|\s*export\n(?!PAGE)", source(c)) and (n := sum(map(bool, source(c).split("\n")))) > 70
    }
    assert not long, "the aim is 12 lines, and 45 at most where no signature asks for more"


@pytest.mark.parametrize("path", PARAMETRISED, ids=lambda p: p.stem)
def test_one_parameters_cell(path):
    tagged = [c for c in cells(path) if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    assert not any(re.match(r"#\|\s*export", source(c)) for c in cells(path)), "experiments export nothing"

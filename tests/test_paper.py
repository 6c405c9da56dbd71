"""Tables and figures have a notebook of their own name, come from records alone, and say where they are from."""

import json
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "nbs" / "paper").glob("*.ipynb"))
STEMS = {
    *(f"roth_table{i}" for i in range(1, 10)),
    *(f"roth_fig{i}" for i in range(1, 13)),
    *("sec_main", "sec_fig1", "sec_fig2", "sec_variance", "sec_theory", "sec_optimizers", "sec_attributes"),
    *(f"sec_table{i}" for i in range(1, 6)),
    *("roth_details", "sec_margins", "roth_corrections", "roth_memorization", "claims", "search", "protocol"),
}


ALONE = {"sec_theory", "sec_table3"}  # say nothing about runs: measured on the spot, or settings


def source(path: Path) -> str:
    return "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])


def test_stems():
    assert NOTEBOOKS and {p.stem for p in NOTEBOOKS} <= STEMS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_paper_notebooks_read_records_only(path):
    text = source(path)
    for room in ("train", "losses", "models", "miners", "batch"):
        assert f"dmlstudy.{room}" not in text or (path.stem, room) == ("sec_theory", "losses")
    assert "import torch" not in text or path.stem == "sec_theory"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_stand_beside(path):
    outputs = ROOT / "outputs"
    for stem in {"roth_details": ["roth_table4", "roth_table5", "roth_table6"]}.get(path.stem, [path.stem]):
        table, figure = outputs / "tables" / stem, outputs / "figures" / stem
        if table.with_suffix(".md").exists():
            text = table.with_suffix(".md").read_text()
            assert path.stem in ALONE or ("embedded" in text and "validation" in text)
            assert len(pd.read_csv(table.with_suffix(".csv"))) > 3
        else:
            assert min(figure.with_suffix(end).stat().st_size for end in (".png", ".pdf")) > 5000
        said = (outputs / "answers" / f"{stem}.md").read_text()
        assert any(c.isdigit() for c in said) and "nan" not in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_show_what_they_made(path):
    """A reader sees the table or figure without running anything."""
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    kinds = {kind for cell in cells for output in cell["outputs"] for kind in output.get("data", {})}
    assert cells[-1]["outputs"] and kinds & {"text/markdown", "text/html", "image/png"}

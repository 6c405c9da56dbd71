"""Tables and figures have a notebook of their own name, come from records alone, and say where they are from."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from grids import each

from dmlstudy.core.paths import asset
from dmlstudy.report.files import folder_of
from dmlstudy.report.page import DRAWN
from dmlstudy.report.tables import experiment_records, sampler_name, study_records
from dmlstudy.stats.intervals import t_interval
from dmlstudy.study.config import PROFILES, QUESTIONS, methods_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of
from dmlstudy.study.records import recorded_keys

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = folder_of("tables", "glyphs").parent
NOTEBOOKS = sorted(p for p in (ROOT / "nbs" / "experiments").glob("*/*.ipynb") if p.stem != "single")
DRAWING = {p.stem: p for p in NOTEBOOKS}
STEMS = {
    *(f"roth_table{i}" for i in range(1, 10)),
    *(f"roth_fig{i}" for i in range(1, 13)),
    *("sec_main", "sec_fig1", "sec_fig2", "sec_variance", "sec_theory", "sec_optimizers", "sec_attributes"),
    *(f"sec_table{i}" for i in range(1, 6)),
    *("sec_margins", "sec_grid", "sec_why", "roth_corrections", "roth_memorization"),
    *("claims", "search", "protocol", "inflation", "noise", "photos", "omniglot_few", "ledger", "tuned", "validation"),
    *("reality", "trials", "agreement", "decay", "sec_sign", "omniglot_all", "one_shot", "axes", "papers"),
    *("redrawn", "factors", "other_sets", "last_step", "reality_sets", "added", "rendered", "searches", "all_drawings"),
    *("errata", "placebo", "regularise", "unfrozen", "cars", "cars_objectives"),
}
GLYPHS = PROFILES["glyphs"]
SAMPLED = GLYPHS.experiments.get("samplers", {}).get("datasets", GLYPHS.datasets)  # a table for each
MADE = {  # notebooks that make several, and their stems
    "roth_details": ["roth_table4", "roth_table5", "roth_table6"],
    "roth_samplers": [f"roth_table{7 + GLYPHS.datasets.index(d)}" for d in SAMPLED],
    "roth_spectra": ["roth_fig8", "roth_fig10"],
    "roth_toys": ["roth_fig6", "roth_fig11"],
}
BESIDE = {"omniglot_few": ["omniglot_all"]}  # tables that stand in a notebook beside its own


ALONE = {
    "omniglot_few",
    "one_shot",
    "ledger",
    "tuned",
    "reality",
    "trials",
    "agreement",
    "decay",
    "sec_sign",
    "axes",
    "errata",
    "redrawn",
    "factors",
    "other_sets",
    "last_step",
    "reality_sets",
    "added",
    "rendered",
    "searches",
    "all_drawings",
    "validation",
    "sec_theory",
    "sec_table3",
    "photos",
    "papers",
    "cars",
    "cars_objectives",
    "placebo",
    "regularise",
    "unfrozen",
}  # measured on the spot, settings, no rendered letters


def source(path: Path) -> str:
    return "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])


def stems(path: Path) -> list[str]:
    return MADE.get(path.stem, [path.stem]) + BESIDE.get(path.stem, [])


@cache
def recorded() -> set[str]:
    return recorded_keys()


@cache
def found(experiment: str) -> tuple:
    return experiment_records(experiment, "glyphs")


@cache
def every() -> tuple:
    return study_records("glyphs")


def drawn(path: Path) -> bool:
    """Are there records to draw from? Those of a big batch may not be there yet."""
    asks = [ask if isinstance(ask, dict) else {"experiment": ask} for ask in QUESTIONS[path.stem]]
    runs = (run for ask in asks for run in all_runs(jobs_of(ask.get("profile", "glyphs"), [ask["experiment"]])))
    return not asks or any(run.key() in recorded() for run in runs)


@pytest.mark.slow
@pytest.mark.parametrize("toy", ["diagonal", "crossed"])
def test_toys_are_trained_again_to_about_the_same(toy, tmp_path, monkeypatch):
    """Their rounding differs between processors, and grows: means over seeds are compared, with their intervals."""
    from papermill import execute_notebook

    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    execute_notebook(ROOT / "nbs/experiments/roth/roth_toys.ipynb", None, {"toy": toy}, progress_bar=False)
    read = lambda folder: json.loads((folder / "records" / f"roth_toys_{toy}.json").read_text())["values"]
    before, again = read(ROOT / "outputs"), read(tmp_path)
    for variant, measures in before.items():
        for name, values in measures.items():
            low, high = t_interval(values, 0.9999)  # of one mean; two of them differ by the root of 2 more
            apart = abs(np.mean(again[variant][name]) - np.mean(values))
            assert apart <= max(0.03, (high - low) / 2**0.5), (variant, name)


def test_stems():
    assert NOTEBOOKS and {stem for p in NOTEBOOKS for stem in stems(p)} <= STEMS
    assert set(MADE) == set(DRAWN)
    assert all(len(DRAWN[name]) == len(made) for name, made in MADE.items() if name != "roth_samplers")


@each("name, path", DRAWING)
def test_paper_notebooks_read_records_only(name, path):
    text = source(path)
    for room in ("train", "losses", "models", "miners"):
        on_the_spot = (("sec_theory", "losses"), ("sec_theory", "train"))
        assert f"dmlstudy.{room}" not in text or (path.stem, room) in on_the_spot
    assert "import torch" not in text or path.stem in ("sec_theory", "roth_toys")  # trained on the spot


@each("name, path", DRAWING)
def test_outputs_stand_beside(name, path):
    if not drawn(path):
        return  # no records yet
    for stem in stems(path):
        table, figure = OUTPUTS / "tables" / stem, OUTPUTS / "figures" / stem
        if table.with_suffix(".md").exists():
            text = table.with_suffix(".md").read_text()
            assert path.stem in ALONE or ("embedded" in text and "validation" in text)
            assert len(pd.read_csv(table.with_suffix(".csv"))) > 3
        else:
            assert min(figure.with_suffix(end).stat().st_size for end in (".png", ".pdf")) > 5000
        said = (OUTPUTS / "answers" / f"{stem}.md").read_text()
        assert any(c.isdigit() for c in said) and "nan" not in said.split()


@each("name, file", lambda: {p.stem: p for p in (OUTPUTS / "answers").glob("*.md")})
def test_answers_are_sentences(name, file):
    said = file.read_text().strip()
    assert 8 <= len(said.split()) <= 35 and said[0].isalnum() and said.endswith(".")
    assert len(re.split(r"(?<=\.)\s+(?=[A-Z])", said)) <= 2


@each("name, path", DRAWING)
def test_an_answer_has_a_condition_that_may_fail(name, path, cells):
    """It is computed, and so are the numbers: no literal stands in their place."""
    if not drawn(path):
        return  # no records yet
    code = ast.parse("\n".join("".join(c["source"]) for c in cells(path) if c["cell_type"] == "code"))
    calls = [n for n in ast.walk(code) if isinstance(n, ast.Call)]
    found = [n for n in calls if isinstance(n.func, ast.Name) and n.func.id == "answer"]
    assert found and len({ast.dump(call.args[0]) for call in found}) == len(found)  # one of each table or figure
    for call in found:
        assert len(call.args) == 4 and not isinstance(call.args[3], ast.Constant) and call.keywords
        assert not any(isinstance(k.value, ast.Constant) for k in call.keywords)


@each("name, file", lambda: {p.stem: p for p in (OUTPUTS / "tables").glob("*.md")})
def test_tables_fit_on_a_page(name, file):
    heads = re.findall(r"^\|(.*)\|\n\| --- ", file.read_text(), re.MULTILINE)
    assert heads and max(len(head.split(" | ")) for head in heads) <= 10


@each("name, path", DRAWING)
def test_notebooks_show_what_they_made(name, path, cells):
    """A reader sees the table or figure without running anything."""
    if not drawn(path):
        return  # no records yet
    codes = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    kinds = {kind for cell in codes for output in cell["outputs"] for kind in output.get("data", {})}
    assert codes[-1]["outputs"] and kinds & {"text/markdown", "text/html", "image/png"}


def reference(stem: str) -> tuple[str, set]:
    """The first column of a table, and the rows of it that the paper prints."""
    number = int(stem.removeprefix("roth_table"))
    name = {1: "roth2020_table1.csv", 3: "roth2020_table3.csv"}.get(number)
    name = name or ("roth2020_samplers.csv" if number > 6 else "roth2020_methods.csv")
    table = pd.read_csv(asset(name))
    if number in (1, 3):
        return table.columns[0], {*table.iloc[:, 0]}
    if number > 6:
        loss = table["loss"].replace("Margin (D)", "Margin (D, beta=1.2)")
        rows = loss + ", " + table["sampler"]
        return "method", {*rows[table["dataset"] == ("cub200", "cars196", "sop")[number - 7]]}
    return "method", {*table.loc[table["dataset"] == {5: "cars196", 6: "sop"}.get(number, "cub200"), "method"]}


@each("name, path", DRAWING)
def test_rows_of_the_paper(name, path):
    if "roth_table" not in "".join(stems(path)) or not drawn(path):
        return  # no table of Roth et al., or no records yet
    for stem in stems(path):
        column, rows = reference(stem)
        place = int(stem.removeprefix("roth_table")) - 4  # Tables 4 to 6 are of one data set each, 7 to 9 of samplers
        sets = GLYPHS.datasets[place : place + 1] if 0 <= place < 3 else GLYPHS.datasets
        wanted = {name for dataset in sets for name in methods_of("glyphs", dataset)}
        asked = {row for row in rows if (name := row.rpartition(", ")[0] or row) not in METHODS or name in wanted}
        assert asked <= {*pd.read_csv(OUTPUTS / "tables" / f"{stem}.csv")[column]}, stem


@each("stem", ["roth_table2", *MADE["roth_details"], *MADE["roth_samplers"], "sec_main"])
def test_numbers_are_those_of_the_records(stem):
    """A table's means, against the records without the code of tables between."""
    sampled = stem in MADE["roth_samplers"]
    if not drawn(Path("roth_samplers" if sampled else "roth_table2")):
        return  # no records yet
    records, results = found("samplers") if sampled else every()
    if stem in ("roth_table2", "sec_main"):
        results = pd.concat([*(study_records(name)[1] for name in ("cars_last_block", "omniglot_confirm")), results])
    if sampled:
        names = {r["key"]: f"{r['run']['method']}, {sampler_name(r['run'])}" for r in records}
        results = results.assign(method=results["key"].astype(str).map(names))
    by = ["dataset", "method", "metric", "selection"]
    table = pd.read_csv(OUTPUTS / "tables" / f"{stem}.csv")
    values = results[results["metric"].isin(table["metric"])].groupby(by, observed=True)["value"]
    both = table.set_index(by).join(pd.DataFrame({"own": values.mean(), "seeds": values.count()}))
    assert len(both) == len(table) > 20 and (both["n"] == both["seeds"]).all()
    assert (both["mean"] - both["own"]).abs().max() < 1e-5 * both["own"].abs().max()


def test_the_readme_has_the_numbers_of_now():
    """Its cells are executed after the notebooks of tables and figures."""
    readme = " ".join((ROOT / "README.md").read_text().split())
    for stem, row in {"other_sets": ("G6", "grocery"), "ledger": ("Z1", "mean"), "tuned": ("V1", "mean")}.items():
        table = pd.read_csv(OUTPUTS / "tables" / f"{stem}.csv").set_index(["id", "of"])
        assert "{effect:+.2f} [{low:+.2f}, {high:+.2f}]".format(**table.loc[row]) in readme, stem
    cars = pd.read_csv(OUTPUTS / "tables" / "cars_objectives.csv").set_index(["id", "of"])
    for name in ("U1", "U2", "U5", "U6"):  # at an edge of their rates
        assert "{effect:+.2f} [{low:+.2f}, {high:+.2f}] ‡".format(**cars.loc[name, "mean"]) in readme

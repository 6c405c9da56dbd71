"""Papermill runs the questions and the notebook of one run, whose parameters are the fields of a run."""

import ast
import dataclasses
import inspect
import json
import re
from pathlib import Path

import pytest
from grids import each

from dmlstudy.study.config import PROFILES, QUESTIONS, run_of
from dmlstudy.study.executor import history
from dmlstudy.study.records import load_record, read_batch
from dmlstudy.study.run import Run, make_run

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "nbs" / "experiments").glob("*/*.ipynb"))


def parameters(path: Path) -> dict[str, tuple]:
    """Name -> type, default and comment, as they stand in the parameters cell."""
    (cell,) = [c for c in json.loads(path.read_text())["cells"] if "parameters" in c["metadata"].get("tags", [])]
    return annotated("".join(cell["source"]))


def annotated(source: str) -> dict[str, tuple]:
    out = {}
    for line in source.splitlines():
        if found := re.match(r"\s*(\w+): ([\w| ]+) = (.+?)  # (.+)$", line):
            out[found[1]] = (found[2], ast.literal_eval(found[3]), found[4])
    return out


def fields() -> dict[str, tuple]:
    return annotated("".join(inspect.getsource(part) for part in reversed(Run.__mro__[:-1])))


def test_fields_are_read_rightly():
    assert {n: default for n, (_, default, _) in fields().items()} == {
        f.name: f.default for f in dataclasses.fields(Run)
    }


def test_single_has_every_field_of_a_run():
    assert parameters(ROOT / "nbs" / "experiments" / "methods" / "single.ipynb") == fields()


def test_every_experiment_is_asked_by_a_question():
    """Of every profile: those that a question names, and those of the profile that it is drawn for."""
    assert {*QUESTIONS} | {"single"} == {p.stem for p in NOTEBOOKS}
    said = [ask if isinstance(ask, dict) else {"experiment": ask} for asks in QUESTIONS.values() for ask in asks]
    plain = {ask["experiment"] for ask in said if "profile" not in ask}
    named = {(ask["profile"], ask["experiment"]) for ask in said if "profile" in ask}
    # by pages that train nothing, for it takes a GPU or hours
    shown = {
        "cars_whole",
        "cars_frozen",
        "cars_last_block",
        "omniglot_placebo",
        "omniglot_regularised",
        "omniglot_unfrozen",
    }
    for name, profile in PROFILES.items():
        assert name in shown or {e for e in profile.experiments if (name, e) not in named} <= plain
    assert all(experiment in PROFILES[name].experiments for name, experiment in named)


def test_questions_that_pages_name_are_there():
    pages = [*ROOT.glob("*.md"), ROOT / "nbs/index.ipynb", ROOT / "nbs/article.ipynb", *ROOT.glob("nbs/tutorials/*")]
    named = [
        q
        for p in pages
        for words in re.findall(r"--questions ((?:\w+ )*\w+)[` ]", p.read_text())
        for q in words.split()
    ]
    assert {"roth_samplers", "omniglot_few"} < {*named} and {*named} <= {*QUESTIONS}, {*named} - {*QUESTIONS}


@each("name, path", {p.stem: p for p in NOTEBOOKS})
def test_a_question_asks_for_what_it_reads(name, path, cells):
    """Its first cell asks in its own name, and each sweep that it reads is among what is asked."""
    code = "\n".join("".join(c["source"]) for c in cells(path) if c["cell_type"] == "code")
    asks = QUESTIONS.get(path.stem, [])
    assert (f'ask("{path.stem}", profile, datasets, seeds, methods, train)' in code) == bool(asks)
    asked = {ask if isinstance(ask, str) else ask["experiment"] for ask in asks}
    assert {*re.findall(r'experiment_records\("(\w+)"', code)} <= asked


@pytest.mark.slow
def test_papermill_runs_a_question(tmp_path, monkeypatch):
    """What is missing is trained, merged into the profile's records, and drawn; the second time nothing is trained."""
    import nbformat
    from papermill import execute_notebook

    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    source, target = ROOT / "nbs" / "experiments" / "roth" / "roth_table2.ipynb", tmp_path / "out.ipynb"
    given = {"profile": "drill", "seeds": 1, "methods": "Softmax; Contrastive (D)"}
    for _ in range(2):
        execute_notebook(source, target, given, kernel_name="python3", progress_bar=False)
        runs = [run_of("drill", "glyphs_fine", method, 1) for method in ("Softmax", "Contrastive (D)")]
        assert [record["key"] for record in read_batch("drill")] == sorted(run.key() for run in runs)
        assert all(len(history(run)) == 2 for run in runs)  # begun and done, once
        done = nbformat.read(target, as_version=4)
        assert not any(o.output_type == "error" for c in done.cells if c.cell_type == "code" for o in c.outputs)
    assert "Softmax" in (tmp_path / "outputs/drill/tables/roth_table2.md").read_text()


@pytest.mark.slow
def test_papermill_runs_single(tmp_path, monkeypatch):
    from papermill import execute_notebook

    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    fields = {"dataset": "glyphs_many", "method": "Triplet (S)", "steps": 4, "eval_every": 2, "lr": 1e-3}
    source, said = (
        ROOT / "nbs" / "experiments" / "methods" / "single.ipynb",
        {"kernel_name": "python3", "progress_bar": False},
    )
    execute_notebook(source, tmp_path / "out.ipynb", fields, **said)
    assert load_record(make_run(fields))["curves"]["test"]["step"] == [0, 2, 4]


def test_the_index_links_every_question_once():
    cells = json.loads((ROOT / "nbs/experiments/00_index.ipynb").read_text())["cells"]
    linked = re.findall(r"\]\((\w+/\w+\.ipynb)\)", "".join("".join(cell["source"]) for cell in cells))
    assert sorted(linked) == sorted(str(path.relative_to(ROOT / "nbs/experiments")) for path in NOTEBOOKS)

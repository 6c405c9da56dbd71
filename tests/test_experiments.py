"""Parameters of the experiment notebooks are the fields of a run, and papermill runs them."""

import ast
import dataclasses
import inspect
import json
import re
from pathlib import Path

import nbformat
import pytest
from papermill import execute_notebook

from dmlstudy.core import Run, make_run
from dmlstudy.records import load_record
from dmlstudy.study import EXPERIMENTS, PROFILES, run_of

ROOT = Path(__file__).resolve().parents[1]
OWN = {("search", "seed")}  # whose defaults are their own
OWN |= {(name, "dataset") for name in ("halves", "sizes", "axes", "sec_controls")}
    ("search", "seed"),
    *((name, "dataset") for name in ("halves", "sizes", "axes", "sec_controls")),
}  # whose defaults are their own
NOTEBOOKS = sorted((ROOT / "nbs" / "experiments").glob("*.ipynb"))


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


FIELDS = annotated("".join(inspect.getsource(part) for part in reversed(Run.__mro__[:-1])))


def test_fields_are_read_rightly():
    assert {n: default for n, (_, default, _) in FIELDS.items()} == {f.name: f.default for f in dataclasses.fields(Run)}


def test_single_has_every_field_of_a_run():
    assert parameters(ROOT / "nbs" / "experiments" / "single.ipynb") == FIELDS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_parameters_mean_what_the_fields_mean(path):
    given = parameters(path)
    if path.stem != "single" and "seed" in given:  # an experiment is asked for each seed of a profile
        kind, default, comment = given.pop("seed")
        usual = default == 0 and FIELDS["seed"][2].startswith(comment)
        assert kind == "int" and (usual or (path.stem, "seed") in OWN)
    for name, (kind, default, comment) in given.items():
        if name in FIELDS:
            assert kind == FIELDS[name][0]
            if (path.stem, name) not in OWN:
                assert (default, comment) == FIELDS[name][1:]


def test_every_experiment_of_a_profile_has_a_notebook():
    found = {p.stem for p in NOTEBOOKS}
    assert {name for profile in PROFILES.values() for name in profile.experiments} <= found
    assert found <= {*EXPERIMENTS, "single"}


@pytest.mark.slow
def test_papermill_runs_objectives(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    source, target = ROOT / "nbs" / "experiments" / "objectives.ipynb", tmp_path / "out.ipynb"
    given = {"profile": "smoke", "dataset": "glyphs_fine", "seed": 3, "methods": "Softmax; ImageNet"}
    execute_notebook(source, target, given, kernel_name="python3", progress_bar=False)
    run = run_of("smoke", "glyphs_fine", "Softmax", 3)
    assert load_record(run)["run"]["seed"] == 3
    done = nbformat.read(target, as_version=4)
    assert not any(o.output_type == "error" for c in done.cells if c.cell_type == "code" for o in c.outputs)
    assert sum("image/png" in o.get("data", {}) for c in done.cells if c.cell_type == "code" for o in c.outputs) == 1


def test_papermill_runs_single(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    fields = {"dataset": "glyphs_many", "method": "Triplet (S)", "steps": 4, "eval_every": 2, "lr": 1e-3}
    source, said = ROOT / "nbs" / "experiments" / "single.ipynb", {"kernel_name": "python3", "progress_bar": False}
    execute_notebook(source, tmp_path / "out.ipynb", fields, **said)
    assert load_record(make_run(fields))["curves"]["test"]["step"] == [0, 2, 4]

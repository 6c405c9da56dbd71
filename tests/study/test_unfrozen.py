"""Headline effects with the whole network trained: with whose choices, and that they were registered first (set 23)."""

import hashlib
from dataclasses import asdict

import pytest
from registered import check_registered

from dmlstudy.evidence.preregistered import read_ledger
from dmlstudy.study.config import PROFILES, tuned
from dmlstudy.study.plan import all_runs, jobs_of

NAME = "omniglot_unfrozen"


@pytest.fixture(scope="module")
def runs() -> list:
    return all_runs(jobs_of(NAME))


def test_registered_runs_stay_what_they_are(runs):
    keys = {run.key() for run in runs}
    assert len(keys) == 160
    assert hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:12] == "a76bb6f29c6b"


def test_both_sides_take_the_choice_of_the_method_with_nothing_added(runs):
    """Search 5 + s of set 20 for replicate s; what is added has its published weight."""
    pairs = read_ledger(23)["pairs"]
    base = {a: b for name in ("sec", "rho", "smoothing") for a, b in pairs[name]}
    chosen = tuned(PROFILES["omniglot_placebo"])["omniglot_few"]
    assert {run.method for run in runs} == {*base} | {*base.values()}
    for run in runs:
        fields = chosen[base.get(run.method, run.method)]["best trial, 20"][run.replicate - 150]
        assert all(getattr(run, name) == value for name, value in fields.items())
        recipe, eta = run.recipe(), 1.0 if run.method == "T + SEC" else 0.5
        assert (recipe["regularizer"] or {}).get("eta") == (eta if run.method.endswith("SEC") else None)
        assert run.p_switch == (0.3 if run.method.startswith("R-") else None)
        assert recipe["loss"].get("label_smoothing") in (None, 0.1 if run.method == "CrossEntropy" else 0.0)


def test_frozen_and_whole_networks_differ_in_that_alone(runs):
    cells = {(run.method, run.replicate, run.train_stem): asdict(run) for run in runs}
    for (method, replicate, whole), fields in cells.items():
        assert fields | {"train_stem": not whole} == cells[method, replicate, not whole]


def test_set_23_was_registered_before_its_runs(runs):
    records = check_registered(NAME, "ledger_23.toml", "tuned_unfrozen.json")
    assert {record["key"] for record in records} <= {run.key() for run in runs}

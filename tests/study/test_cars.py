"""Set 22: what is recorded was asked for, by clean code that held its claims, with the rates that its rule chooses."""

import json
import subprocess
from pathlib import Path

import pytest

from dmlstudy.study.config import PROFILES, run_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of
from dmlstudy.study.records import read_batch

ROOT = Path(__file__).resolve().parents[2]
NAME, FILE = "cars_whole", "dmlstudy/assets/ledger_22.toml"
git = lambda *words: subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def records():
    return read_batch(NAME)


def test_set_22_was_registered_before_its_runs(records):
    commits = {r["made"]["git"] for r in records}
    assert all(commit and not commit.endswith("+") for commit in commits)
    for commit in commits:
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            pytest.skip("the history is not here")
        assert git("show", f"{commit}:{FILE}").stdout == (ROOT / FILE).read_text(encoding="utf-8")
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def test_rates_of_set_22_are_those_that_its_rule_chooses(records):
    """Six trials, measured on validation classes alone; the best rate of each protocol is that of all its runs."""
    trials = {run.key(): run for run in all_runs(jobs_of(NAME, ["rates"]))}
    of = {r["key"]: r for r in records if r["run"]["measure"] == "validation"}
    assert {*of} == {*trials} and len(of) == 6 and all([*r["curves"]] == ["validation"] for r in of.values())
    score = {
        (METHODS[run.method].protocol, run.lr): max(of[key]["curves"]["validation"]["recall@1"])
        for key, run in trials.items()
    }
    best = {p: max((m, lr) for (q, lr), m in score.items() if q == p)[1] for p in ("roth", "sec")}
    trained = [r for r in records if r["key"] not in of]
    whole = {r: {x["run"]["method"] for x in trained if x["run"]["replicate"] == r} for r in PROFILES[NAME].replicates}
    assert {len(rows) for rows in whole.values()} <= {0, 4, 5, 6, 7}, "a replicate has all four rows or none"
    for record in trained:
        run = record["run"]
        fields = {"lr": best[METHODS[run["method"]].protocol], "replicate": run["replicate"]}
        assert run_of(NAME, run["dataset"], run["method"], None, **fields).key() == record["key"], json.dumps(run)


def test_the_time_of_a_run_is_not_that_of_another_kind_of_device(monkeypatch):
    """Seconds of a GPU are no estimate where there is none, and the other way round."""
    from dmlstudy.study import executor as batch

    kinds = lambda: {r["made"]["device"].startswith("cpu") for r in batch.each_known() if r["made"].get("device")}
    monkeypatch.setattr(batch, "_devices", lambda: [])
    assert kinds() == {True}
    monkeypatch.setattr(batch, "_devices", lambda: ["0"])
    assert kinds() == {False}

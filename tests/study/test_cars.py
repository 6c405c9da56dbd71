"""Sets 22 and 24: what is recorded was asked for, by clean code that held its claims, at rates that its rule chose."""

import json

import pytest
from registered import check_registered

from dmlstudy.evidence.preregistered import read_ledger
from dmlstudy.study.config import run_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of


@pytest.fixture(scope="module", params=[22, 24])
def recorded(request) -> tuple[str, list[dict]]:
    """The profile of a set of claims, and its records."""
    name = read_ledger(request.param)["profile"]
    return name, check_registered(name, f"ledger_{request.param}.toml")


def test_rates_are_those_that_the_rule_of_the_set_chooses(recorded):
    """Six trials, measured on validation classes alone; the best rate of each protocol is that of all its runs."""
    name, records = recorded
    trials = {run.key(): run for run in all_runs(jobs_of(name, ["rates"]))}
    of = {r["key"]: r for r in records if r["run"]["measure"] == "validation"}
    assert {*of} == {*trials} and len(of) == 6 and all([*r["curves"]] == ["validation"] for r in of.values())
    score = {
        (METHODS[run.method].protocol, run.lr): max(of[key]["curves"]["validation"]["recall@1"])
        for key, run in trials.items()
    }
    best = {p: max((m, lr) for (q, lr), m in score.items() if q == p)[1] for p in ("roth", "sec")}
    for record in (r for r in records if r["key"] not in of):
        run = record["run"]
        fields = {"lr": best[METHODS[run["method"]].protocol], "replicate": run["replicate"]}
        fields |= {"p_switch": run["p_switch"]} if run["p_switch"] is not None else {}  # the sweep of Figure 7
        assert run_of(name, run["dataset"], run["method"], None, **fields).key() == record["key"], json.dumps(run)


def test_replicates_of_set_22_have_all_four_rows_or_none():
    records = check_registered("cars_whole", "ledger_22.toml")
    rows = {(r["run"]["replicate"], r["run"]["method"]) for r in records if r["run"]["measure"] is None}
    assert {sum(a == b for a, _ in rows) for b in range(10, 15)} <= {0, 4, 5, 6, 7}


@pytest.mark.slow
def test_the_time_of_a_run_is_not_that_of_another_kind_of_device(monkeypatch):
    """Seconds of a GPU are no estimate where there is none, and the other way round."""
    from dmlstudy.study import executor as batch

    kinds = lambda: {r["made"]["device"].startswith("cpu") for r in batch.each_known() if r["made"].get("device")}
    monkeypatch.setattr(batch, "_devices", lambda: [])
    assert kinds() == {True}
    monkeypatch.setattr(batch, "_devices", lambda: ["0"])
    assert kinds() == {False}

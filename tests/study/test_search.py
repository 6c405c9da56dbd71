"""Several searches for each method: what they try, what they choose, and that they were registered first (set 20)."""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from registered import check_registered, git

from dmlstudy.evidence.preregistered import read_ledger
from dmlstudy.report import page
from dmlstudy.study import plan, records
from dmlstudy.study.config import PROFILES, tuned
from dmlstudy.study.methods import METHODS
from dmlstudy.study.search import (
    choices,
    choices_file,
    chosen_by_search,
    planned,
    scores,
    search_runs,
    tried_in_box,
    unsearched,
)

ROOT = Path(__file__).resolve().parents[2]
NAME, DATASET = "omniglot_placebo", "omniglot_few"
PROFILE = PROFILES[NAME]


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Of all trials."""
    return {run.key() for at in PROFILE.searches for run in search_runs(NAME, DATASET, None, (), at)}


def test_registered_trials_stay_what_they_are(keys):
    """A change of a box, of points or of the protocol would ask for other runs than those that were registered."""
    assert len(keys) == 2900
    assert hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:12] == "96a7de4eb489"


@pytest.mark.parametrize("method", PROFILE.methods)
def test_published_settings_and_weight_0_are_tried_first(method):
    base = PROFILE.search["inside"].get(method)
    for at in PROFILE.searches[:3]:
        tried = [fields for _, fields in tried_in_box(NAME, DATASET, method, at)]
        assert len(tried) == 20 and tried[1 if base else 0].keys() == {"lr"}
        if base:
            own = [fields for _, fields in tried_in_box(NAME, DATASET, base, at)]
            assert tried[::2] == [{"method": base, **fields} for fields in own[::2]]
            assert not any("method" in fields for fields in tried[1::2])
            for n in PROFILE.search["budgets"]:  # of the base as many as of its own, or one more
                assert [f.get("method") for f in tried[:n]].count(base) == -(-n // 2)


def trials(at: int, score) -> list[dict]:
    curve = lambda v: {"step": [0, 200], "recall@1": [0.0, v], "map@r": [0.0, v]}
    runs = search_runs(NAME, DATASET, None, (), at)
    return [{"key": run.key(), "curves": {"validation": curve(score(run))}} for run in runs]


def test_a_method_never_chooses_worse_than_its_base_among_shared_trials(keys):
    rng = np.random.default_rng(0)
    noise = {key: float(value) for key, value in zip(sorted(keys), rng.random(len(keys)), strict=True)}
    records = trials(130, lambda run: noise[run.key()])
    table = choices(NAME, records).set_index(["method", "choice"])
    assert len(table) == len(PROFILE.methods) * 4 and {*table.index} == {*table.index.unique()}
    some = [record for record in records if record["key"] != records[0]["key"]]  # a trial of two methods is missing
    assert len(choices(NAME, some)) == len(table) - 2 * 4
    for method in PROFILE.methods:
        runs = search_runs(NAME, DATASET, None, [method], 130)
        for n in PROFILE.search["budgets"]:
            best = max(runs[:n], key=lambda run: noise[run.key()])
            fields = table.loc[(method, f"best trial, {n}"), "fields"]
            assert fields["lr"] == best.lr and (fields.get("eta") == 0) == (best.method + " + SEC" == method)
    run = planned(NAME, choices_file(table.reset_index()), DATASET).query("part == 'searches'")["run"]
    assert len(run) == 3 * len(PROFILE.methods) and {r.seed for r in run} == {1140, 1141, 1142}


def test_no_choice_of_several_is_taken_for_the_profile_s():
    from dmlstudy.study.search import unsearched

    assert unsearched(NAME, DATASET, ["SHT"]) == ["SHT"]


@pytest.mark.parametrize("part", ["trials", "runs"])
def test_set_20_was_registered_before_its_trials_and_runs(keys, part):
    """What is there is of clean code that held the claims as they are now (and the choices), and was asked for."""
    stem, choices_too = (f"{NAME}_search", ()) if part == "trials" else (NAME, ("tuned_placebo.json",))
    records = check_registered(stem, "ledger_20.toml", *choices_too)
    wanted = keys if part == "trials" else {run.key() for run in plan.all_runs(plan.jobs_of(NAME))}
    assert {r["key"] for r in records} <= wanted
    curves = ["validation"] if part == "trials" else ["test", "train", "validation"]
    assert all(sorted(r["curves"]) == curves for r in records)
    if part == "trials":
        assert len(records) < len(keys) or tuned(PROFILE) == choices_file(choices(NAME, records))


@pytest.mark.parametrize("method", ["Contrastive (D)", "SHT", "MS", "CrossEntropy (label_smoothing=0)"])
def test_trials_measured_on_more_classes_are_those_of_set_20(method):
    """Of clean code of this history; equal before training, and on average the same after it (on another processor)."""
    file = ROOT / f"outputs/records/validation_{''.join(filter(str.isalnum, method)).lower()}.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert {*found} == {r.key() for at in range(130, 136) for r in search_runs(NAME, DATASET, None, [method], at)}
    for commit in {trial["git"] for trial in found.values()}:
        assert not commit.endswith("+")
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0:
            assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    first = {r["key"]: r["curves"]["validation"]["recall@1"] for r in records.each_record(f"{NAME}_search")}
    again, before = (np.array([*map(of, found)]) for of in (lambda key: found[key]["validation"], first.get))
    assert abs(again - before)[:, 0].max() < 1e-6 and abs((again - before).mean()) < 0.003


@pytest.mark.parametrize("version", [20, 21, 23, 24])
def test_a_set_names_at_most_four_primary_claims_each_also_by_map(version):
    claims = read_ledger(version)["claim"]
    primary = [claim for claim in claims if claim.get("primary")]
    assert 1 <= len(primary) <= 4
    for claim in primary:
        assert any((c["pairs"], c["metric"], c["over"]) == (claim["pairs"], "map@r", claim["over"]) for c in claims)


@pytest.fixture
def made_up(monkeypatch) -> dict:
    """Choices as ten searches could have made them."""
    each = {f"best trial, {n}": [{"lr": 1e-4 * (s + 1)} for s in range(10)] for n in PROFILE.search["budgets"]}
    found = {DATASET: {method: each for method in PROFILE.methods}}
    monkeypatch.setattr(plan, "tuned", lambda profile: found)
    return found


def test_the_choices_of_several_searches_are_trained_as_planned(monkeypatch, made_up):
    """The profile asks for the planned runs, and for none before its searches are made."""
    (job,) = plan.jobs_of(NAME)
    assert job.runs() == [*dict.fromkeys(planned(NAME, made_up, DATASET)["run"])]
    assert {run.method for run in plan.all_runs(plan.jobs_of(NAME, methods=["SHT"]))} == {"SHT"}
    monkeypatch.setattr(plan, "tuned", lambda profile: {})
    with pytest.raises(ValueError, match=f"no search has chosen for 19 rows: dmlstudy tune --profile {NAME}"):
        plan.runs_of("choices", NAME, DATASET, None)


def test_many_runs_have_short_records(monkeypatch, tmp_path, made_up):
    """Two thousand runs of 8 KB would not fit into a file of 5 MB."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    run = plan.all_runs(plan.jobs_of(NAME))[0]
    curve = {"step": [0, 200], "recall@1": [0.1, 0.2], "nmi": [0.3, 0.4], "map@r": [0.5, 0.6]}
    curves = {"test": curve, "validation": curve, "train": {"step": [0, 200], "rho": [0.1, 0.2], "inter": [1.0, 1.0]}}
    records.save_record({"key": run.key(), "run": asdict(run), "curves": curves, "made": {}, "spectra": {}})
    page.collect(NAME)
    (kept,) = records.read_batch(NAME)
    short = {"step": [0, 200], "recall@1": [0.1, 0.2], "map@r": [0.5, 0.6]}
    assert kept["curves"] == {"test": short, "validation": short, "train": {"step": [0, 200], "rho": [0.1, 0.2]}}
    assert (
        kept.keys() == {"key", "run", "made", "curves", "format"}
        and records.load_record(run)["curves"]["test"] == curve
    )


def test_a_loss_of_ones_own_is_tuned_by_one_search_among_rows_of_ten(monkeypatch):
    """All its trials were trained, and then it ran at its defaults; a row of the study waits for all ten."""
    monkeypatch.setitem(METHODS, "Mine", replace(METHODS["Softmax"], source="0123"))
    for method in ("Mine", "Softmax"):
        trials = search_runs(NAME, DATASET, None, [method])
        rise = lambda run: {"step": [0, 1], "recall@1": [0.0, -abs(np.log(run.lr / 2e-4))], "map@r": [0.0, 0.0]}
        found = [{"key": run.key(), "run": asdict(run), "curves": {"validation": rise(run)}} for run in trials]
        chosen = chosen_by_search(NAME, found, [method])
        assert (chosen != {}) == (method == "Mine")
        if chosen:
            assert 1e-4 < chosen[DATASET]["Mine"]["lr"] < 4e-4


def test_a_replicate_without_a_search_of_its_own_waits_for_it():
    """It was trained at the protocol's rate, which passed for what a search had chosen."""
    first, *_ = PROFILES["omniglot_redrawn"].replicates
    asked = lambda *draw: unsearched("omniglot_redrawn", "omniglot_few", ["SHT"], *draw)
    assert (asked(), asked(first), asked(30)) == ([], [], ["SHT"])


def test_trials_of_a_box_have_a_score_each():
    """By any rule, though trials are lean; folds of one point are one trial."""
    runs = search_runs("omniglot_objectives", "omniglot_few", None, ["Contrastive (D)"])
    curve = lambda run: {"step": [0, 1], "recall@1": [0.0, run.lr], "map@r": [0.0, run.lr]}
    found = [{"run": asdict(run), "curves": {"validation": curve(run)}} for run in runs]
    for rule in ("validation", "last", "window"):
        table = scores(found, rule)
        assert len(table) == 20 and {*table["folds"]} == {len(runs) / 20}

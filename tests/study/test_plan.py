"""Profiles are sound, and what they use was chosen on validation classes by recorded trials."""

import json
import os
import random
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from tiers import sample

from dmlstudy.core.paths import asset, root
from dmlstudy.data import DATASETS
from dmlstudy.report.files import tidy
from dmlstudy.report.tables import profile_records
from dmlstudy.stats.intervals import t_interval
from dmlstudy.study.config import EXPERIMENTS, PROFILES, methods_of, run_of, setting_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import jobs_of, runs_of
from dmlstudy.study.records import batch_file, lean, migrated, read_batch, versions
from dmlstudy.study.run import make_run
from dmlstudy.study.search import choose, scores, search_runs, trials
from dmlstudy.study.selection import selected
from dmlstudy.train import device_name, fit

on_records = pytest.mark.skipif(not batch_file("glyphs").is_file(), reason=f"{batch_file('glyphs')} is not there yet")


@pytest.mark.parametrize("name", sample(PROFILES, [name for name in PROFILES if name != "glyphs"]))  # the largest
def test_every_run_of_a_profile_can_be_made(name):
    profile = PROFILES[name]
    assert set(profile.methods) <= METHODS.keys()
    assert {*profile.experiments} <= EXPERIMENTS.keys()
    assert {*profile.datasets, *(d for e in profile.experiments.values() for d in e.get("datasets", ()))} <= {*DATASETS}
    for experiment in profile.experiments:
        runs = [run for job in jobs_of(name, [experiment]) for run in job.runs()]
        assert runs and len({run.key() for run in runs}) == len(runs)
        for run in (r for r in runs if r.train_classes and not r.replacement):  # a fifth of the classes is held out
            assert run.batch_size // run.samples_per_class <= run.train_classes * 4 // 5, run.method


def test_paper_profile_is_the_published_protocol():
    roth, sec = run_of("paper", "sop", "Softmax"), run_of("paper", "cars196", "SHT + SEC")
    assert (roth.batch_size, roth.samples_per_class, roth.embed_dim, roth.lr) == (112, 2, 128, 1e-5)
    assert (roth.weight_decay, roth.steps, roth.optimizer, roth.fold) == (4e-4, 100 * 531, "adam", None)
    assert (sec.batch_size, sec.samples_per_class, sec.embed_dim, sec.head) == (120, 3, 512, "bn")
    assert (sec.lr, sec.lr_decay, sec.milestones, sec.steps, sec.replacement) == (1e-5, 0.5, "0.5,0.75", 8000, False)


def test_tuned_values_are_what_the_search_chose():
    assert choose(read_batch("glyphs_search")) == json.loads(asset("tuned_glyphs.json").read_text())


@on_records
def test_search_never_saw_the_seeds_of_the_study_and_gave_equal_budgets():
    records = read_batch("glyphs_search")
    search = PROFILES["glyphs"].search
    assert {r["run"]["seed"] for r in records} == {*search["seeds"]}
    assert not {*search["seeds"]} & {*PROFILES["glyphs"].replicates}
    assert not any(r["run"].get("replicate") for r in records), "the official split, which no replicate is"
    table = scores(records)
    assert set(table["folds"]) == {len(search["folds"])}
    budgets = table.groupby(["dataset", "method"]).size().reset_index(name="trials")
    for _, row in budgets.iterrows():
        assert row["trials"] == (5 if METHODS[row["method"]].protocol == "roth" else 10), row.to_dict()
    for dataset in PROFILES["glyphs"].datasets:
        searched = {m for m in methods_of("glyphs", dataset) if METHODS[m].loss}
        assert set(budgets[budgets["dataset"] == dataset]["method"]) == searched


def test_trials_see_validation_classes_only():
    for profile in ("glyphs_search", "photos_search"):
        records = read_batch(profile) if batch_file(profile).is_file() else []
        assert all([*r["curves"]] == ["validation"] and r["run"]["measure"] == "validation" for r in records)
        assert len(scores(records)) == len(records) / 2


@pytest.mark.slow
@on_records
def test_committed_records_are_those_of_the_profile():
    runs = {run.key(): run for job in jobs_of("glyphs") for run in job.runs()}
    records = {r["key"]: r for r in profile_records("glyphs")[0]}
    assert records.keys() == runs.keys()
    for key, record in records.items():
        assert make_run(record["run"]) == runs[key]
    kept = [
        {r["key"] for r in read_batch(name)} for name in ("glyphs", "glyphs_pipeline", "glyphs_sec", "other_sets_tuned")
    ]
    assert sum(map(len, kept)) == len({*runs}) and {*runs} == set().union(*kept), "each stands in one file"


@on_records
def test_records_look_like_learning():
    """What anyone would check first: chance, floor, start and end are where they must be."""
    records = profile_records("glyphs")[0]
    settings = {r["key"]: setting_of("glyphs", make_run(r["run"])) for r in records}
    table = tidy("glyphs", records, settings).query("metric == 'recall@1' and selection == 'validation'")
    table = table[(table["setting"] == "") & table["method"].isin(PROFILES["glyphs"].methods)]
    by = ["dataset", "method"]
    mean, over_draws = (getattr(table.groupby(by, observed=True)["value"], s)().unstack() for s in ("mean", "std"))
    trained = [m for m in mean.columns if METHODS[m].loss]
    chance = {"glyphs_fine": 29 / 2879, "glyphs_cross": 29 / 2939, "glyphs_many": 5 / 3773}
    for dataset, row in mean.iterrows():
        if np.isnan(row["Untrained"]):  # a set of the rows of SEC alone
            continue
        assert row["Untrained"] > 2 * chance[dataset]
        assert row["ImageNet"] > row["Untrained"] + 0.1
        assert (row[trained] > row["ImageNet"]).all()
    assert (mean[trained].std(axis=1) > over_draws[trained].mean(axis=1)).all()
    plain = [r for r in records if not settings[r["key"]] and METHODS[r["run"]["method"]].miner is None]
    for losses in [r["terms"]["total"] for r in plain if r["run"]["steps"]]:
        assert losses[-1] < losses[0]


def made_here() -> list[dict]:
    """Trained runs on data of the project, of a processor and a PyTorch like these, short ones first."""
    here = device_name(torch.device("cpu")), versions()["torch"]
    every = [r for name in PROFILES if batch_file(name).is_file() for r in read_batch(name)]
    every = [r for r in every if r["run"]["dataset"].startswith(("glyphs", "omniglot")) and r["run"]["steps"]]
    found = [r for r in every if (r["made"]["device"], r["made"]["versions"]["torch"]) == here]
    return sorted(found, key=lambda r: r["made"]["seconds"])


@pytest.mark.slow
@on_records
def test_committed_records_are_made_again_to_the_last_bit():
    """Three of them, short ones too, where they were made on a processor and a PyTorch like these."""
    alike = made_here()
    if not alike:
        pytest.skip("no committed record was made on a processor and a PyTorch like these")
    for record in random.Random(0).sample(alike[: len(alike) // 2 + 1], min(3, len(alike))):
        again = fit(make_run(record["run"]), "cpu")
        again = migrated(again if "terms" in record else lean(again))  # as it is kept
        assert make_run(again["run"]) == make_run(record["run"])  # which may be older than some field
        for part in record.keys() - {"made", "run"}:
            assert json.dumps(again[part]) == json.dumps(record[part]), f"{part} of {record['key']}"


OTHER = {  # instructions of another kind than a record's: what a run does on another processor
    "AVX512": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
AGAIN = """
import json, sys, torch
from dmlstudy.study.run import make_run
from dmlstudy.train import device_name, fit
print(device_name(torch.device("cpu")))
for run in json.load(sys.stdin):
    run["eval_every"] = run["steps"]  # measured at both ends alone: training is the same
    print(fit(make_run(run), "cpu")["curves"]["test"]["recall@1"][-1])
"""


@pytest.mark.slow(180)
@on_records
def test_other_processors_find_the_same_on_average():
    """Twenty recorded runs on drawings: the mean paired difference, with its 90 % interval."""
    kept = [r for name in ("omniglot", "omniglot_confirm") for r in read_batch(name) if r["run"]["steps"]]
    short = sorted(kept, key=lambda r: r["made"]["seconds"])[: len(kept) // 4]
    sample = random.Random(0).sample(short, 20)  # ten leave an interval of .4 now and then
    kinds = {re.search(r"AVX\w+", r["made"]["device"])[0] for r in short}
    env = os.environ | OTHER[kinds.pop()]
    assert not kinds, "drawings were trained on processors of two kinds"
    runs = json.dumps([r["run"] for r in sample])
    out = subprocess.run([sys.executable, "-c", AGAIN], input=runs, capture_output=True, text=True, env=env, check=True)
    device, *found = out.stdout.split("\n")[:21]
    assert device != sample[0]["made"]["device"], "the instructions are the same"
    once = [r["curves"]["test"]["recall@1"][-1] for r in sample]
    change = 100 * np.subtract([float(value) for value in found], once)
    assert change.any(), "nothing differs to the last bit: no other instructions were used"
    low, high = t_interval(change, 0.9)
    assert -0.3 < low < high < 0.3, f"{change.round(2)}"


@pytest.mark.parametrize("name", [name for name in PROFILES if PROFILES[name].search])
def test_each_trial_measures_validation_classes_on_the_folds_of_the_search(name):
    """These may be others than those of the profile's runs."""
    method = next(m for m in PROFILES[name].methods if m in METHODS and METHODS[m].loss)
    found = search_runs(name, PROFILES[name].datasets[0], 0, [method])
    assert [*dict.fromkeys(run.fold for run in found)] == PROFILES[name].search["folds"]
    assert {run.measure for run in found} == {"validation"}


def test_experiments_split_by_method():
    assert [r.method for r in runs_of("objectives", "smoke", "glyphs_fine", 0, "SHT; Softmax")] == ["SHT", "Softmax"]


@on_records
def test_selection_is_never_better_than_best_on_test():
    for record in profile_records("glyphs")[0]:
        best, chosen = selected(record, "best_test"), selected(record, "validation")
        assert all(best[m] >= chosen[m] for m in ("recall@1", "map_c", "recall@2") if m in best)


def test_methods_are_run_where_they_have_a_protocol():
    """Without a choice of data sets; a chosen one without a protocol is refused."""
    jobs = jobs_of("paper", seeds=[0], methods=["Softmax", "SHT", "SimCLR"])
    assert [(job.dataset, job.methods) for job in jobs] == [
        *((name, "Softmax; SHT") for name in ("cub200", "cars196", "sop")),
        ("inshop", "SHT"),
        ("cifar10", "SimCLR"),
    ]
    assert {run.method for job in jobs for run in job.runs()} == {"Softmax", "SHT", "SimCLR"}
    with pytest.raises(
        ValueError, match="the paper of SHT has no protocol for cifar10, but for cub200, cars196, sop, inshop"
    ):
        jobs_of("paper", datasets=["cifar10"], methods=["SHT"])[0].runs()
    for make in (run_of, trials):
        with pytest.raises(
            ValueError,
            match="'drill' has no protocol for SimCLR; these have: smoke, glyphs, glyphs_sec, .*omniglot_simclr, paper",
        ):
            make("drill", "glyphs_fine", "SimCLR")


def test_an_edited_method_is_another_run(monkeypatch):
    """Also where the edit is a default of the loss, of the miner, or of the sampler."""
    from dmlstudy.study import methods

    run = make_run(method="Margin (D, beta=1.2)")
    for part, name in (("loss", "margin"), ("miner", "distance"), ("sampler", "spc")):
        edited = {**methods.DEFAULTS[part], name: {**methods.DEFAULTS[part][name], "edited": True}}
        with monkeypatch.context() as patch:
            patch.setitem(methods.DEFAULTS, part, edited)
            changed = run.key()
        assert changed != run.key()


def test_the_time_of_the_papers_protocols_can_be_told():
    """The last cell of the training bench, which no other test runs."""
    cells = json.loads((root() / "nbs/bench/train.ipynb").read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    imports = [line for source in sources for line in source.splitlines() if line.startswith(("import ", "from "))]
    (estimate,) = [source for source in sources if "SIZES = {" in source]
    space = {"table": pd.DataFrame({"case": [""]}), "GPU": False, "speeds": (1000,)}
    exec("\n".join([*imports, estimate]), space)
    runs = {name: row["runs trained"] for name, row in space["estimate"].items()}
    everything = [run for job in jobs_of("paper") for run in job.runs() if run.steps and run.dataset != "cifar10"]
    priced = (runs["Roth et al., Tables 4 to 6"], runs["SEC, main table and tuplet margin loss, 5 seeds"])
    assert sum(priced) == len(everything) and all(row["1,000 images/s"] for row in space["estimate"].values())

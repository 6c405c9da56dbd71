"""The second ledger and all later ones: written before their replicates, and recomputed from the records alone."""

import json
import statistics
import subprocess
from collections import Counter
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from grids import Recipes
from scipy import stats

from dmlstudy.cli import main
from dmlstudy.core.paths import asset
from dmlstudy.evidence.preregistered import _rows, asked, effects, judge, judged, read_ledger, still_open
from dmlstudy.report.files import tidy
from dmlstudy.stats.decisions import VERDICTS
from dmlstudy.study.config import run_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of
from dmlstudy.study.search import chosen_by_search
from dmlstudy.study.selection import selected

ROOT = Path(__file__).resolve().parents[2]
# version -> its table in outputs/tables
TABLES = {2: "ledger", 3: "tuned", 4: "reality", 5: "sec_sign", 6: "factors", 7: "other_sets", 8: "last_step"}
TABLES |= {9: "other_sets_rates", 10: "reality_sets", 11: "added", 12: "reality_sets", 13: "rendered"}
TABLES |= dict.fromkeys((14, 15, 16), "searches") | {17: "all_drawings", 18: "sec_simclr"}
TABLES |= {19: "photos_rows"}


def records_of(version: int) -> list[dict]:
    """The records that a ledger asks about; its profile may have others, too."""
    profile = read_ledger(version)["profile"]
    file = ROOT / f"outputs/records/{profile}.jsonl"
    found = [json.loads(line) for line in file.open(encoding="utf-8")]
    if version not in (13, 19):
        return found
    keys = {run.key() for run in all_runs(jobs_of(profile, ["objectives", "sec_main"]))}
    if version == 19:
        return [r for r in found if r["key"] in keys]
    keys -= seen()
    return [*RECORDS[9], *(r for r in found if r["key"] in keys)]


@cache
def seen() -> set[str]:
    """Keys of the replicates that ledger 13 asks about, and that were trained before it."""
    return {r["key"] for r in RECORDS[9]}


RECORDS = Recipes({version: partial(records_of, version) for version in TABLES})  # read when first asked for
LEDGER = Recipes({2: read_ledger})


def git(*words: str) -> subprocess.CompletedProcess:
    """Ask the history; claims and records are compared by their commits, so all of it must be here."""
    shallow = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True)
    assert shallow.stdout.strip() != b"true", "these tests need the whole history: git fetch --unshallow"
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    "version, file",
    [
        (2, "ledger_2.toml"),
        (3, "ledger_3.toml"),
        (3, "tuned_omniglot.json"),
        (4, "ledger_4.toml"),
        (5, "ledger_5.toml"),
        (6, "ledger_6.toml"),
        (7, "ledger_7.toml"),
        (8, "ledger_8.toml"),
        (8, "tuned_last.json"),
        (9, "ledger_9.toml"),
        (9, "tuned_glyphs.json"),
        (10, "ledger_10.toml"),
        (10, "tuned_sets.json"),
        (11, "ledger_11.toml"),
        (12, "ledger_12.toml"),
        (12, "tuned_all.json"),
        (13, "ledger_13.toml"),
        (13, "tuned_glyphs.json"),
        (14, "ledger_14.toml"),
        (14, "tuned_wider.json"),
        (15, "ledger_15.toml"),
        (15, "tuned_pooled.json"),
        (16, "ledger_16.toml"),
        (16, "tuned_ends.json"),
        (17, "ledger_17.toml"),
        (18, "ledger_18.toml"),
        (19, "ledger_19.toml"),
        (19, "tuned_photos.json"),
    ],
)
def test_the_ledger_was_there_before_its_records(version, file):
    """Each record is of clean, committed code that held the file as it is now, and of a replicate that was new."""
    file, records = f"dmlstudy/assets/{file}", [r for r in RECORDS[version] if version != 13 or r["key"] not in seen()]
    assert records and all(r["run"]["replicate"] >= 10 for r in records)
    commits = {r["made"]["git"] for r in records}
    assert all(commit and not commit.endswith("+") for commit in commits), "made from code that was not committed"
    assert all(len(r["made"].get("code", "of no digest")) == 12 for r in records)  # older ones have a digest, too
    known = [commit for commit in commits if git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0]
    if len(known) < len(commits):
        pytest.skip("the history is not here")
    for commit in commits:
        assert git("show", f"{commit}:{file}").stdout == (ROOT / file).read_text(encoding="utf-8")
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def test_the_search_of_the_third_ledger_saw_other_draws_and_no_test_class(committed_records):
    trials = committed_records("omniglot_tuned_search")
    assert {r["run"]["replicate"] for r in trials} == {101} and all([*r["curves"]] == ["validation"] for r in trials)
    methods = Counter(r["run"]["method"] for r in trials)
    assert {*methods} == {r["run"]["method"] for r in RECORDS[3]} and {*methods.values()} == {40}
    chosen = json.loads((ROOT / "dmlstudy/assets/tuned_omniglot.json").read_text())
    assert chosen == chosen_by_search("omniglot_tuned", trials)


def test_the_search_of_the_fourth_ledger_was_there_before_its_records(committed_records):
    """Choices of an objective are in the commit that its records were made by, and follow from its trials."""
    trials = committed_records("omniglot_objectives_search")
    assert {r["run"]["replicate"] for r in trials} == {101} and all([*r["curves"]] == ["validation"] for r in trials)
    file = "dmlstudy/assets/tuned_objectives.json"
    chosen = json.loads((ROOT / file).read_text())
    assert chosen == chosen_by_search("omniglot_objectives", trials)
    assert {r["run"]["replicate"] for r in RECORDS[4]} <= {*range(20, 40)}
    for commit in {r["made"]["git"] for r in RECORDS[4]}:
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            pytest.skip("the history is not here")
        then = json.loads(git("show", f"{commit}:{file}").stdout)["omniglot_few"]
        trained = {r["run"]["method"] for r in RECORDS[4] if r["made"]["git"] == commit} - {"ImageNet"}
        assert trained and all(then[method] == chosen["omniglot_few"][method] for method in trained)


def test_each_search_drawn_anew_saw_other_draws_and_its_choice_follows_from_its_trials(committed_records):
    trials = committed_records("omniglot_redrawn_search")
    assert all([*r["curves"]] == ["validation"] and r["run"]["fold"] == 0 for r in trials)
    drawn = Counter((r["run"]["method"], r["run"]["replicate"]) for r in trials)
    assert len(drawn) == 9 * 8 and {*drawn.values()} == {20} and {at for _, at in drawn} == {*range(110, 118)}
    chosen = json.loads((ROOT / "dmlstudy/assets/tuned_redrawn.json").read_text())
    assert chosen == chosen_by_search("omniglot_redrawn", trials)
    for i, fields in enumerate(chosen["omniglot_few"]["SHT + SEC"]):
        run = run_of("omniglot_redrawn", "omniglot_few", "SHT + SEC", None, replicate=10 + i)
        assert (run.lr, run.eta) == (fields["lr"], fields["eta"])


def test_searches_in_wider_boxes_choose_from_their_trials_alone_and_together(committed_records):
    """The mean of a draw's trials does not matter where draws choose together: some characters are easier."""
    trials = committed_records("omniglot_wider_search")
    assert all([*r["curves"]] == ["validation"] and r["run"]["fold"] == 0 for r in trials)
    drawn = Counter((r["run"]["method"], r["run"]["replicate"]) for r in trials)
    assert len(drawn) == 8 * 10 and {*drawn.values()} == {20} and {at for _, at in drawn} == {*range(120, 130)}
    read = lambda name: json.loads((ROOT / f"dmlstudy/assets/{name}.json").read_text())
    assert read("tuned_wider") == chosen_by_search("omniglot_wider", trials)
    assert read("tuned_pooled") == chosen_by_search("omniglot_pooled", trials)
    assert read("tuned_best_trial") == chosen_by_search("omniglot_best_trial", trials)
    ends = committed_records("omniglot_ends_search")
    assert {r["run"]["replicate"] for r in ends} == {104} and len(ends) == 5 * 20 * 2
    assert read("tuned_ends") == chosen_by_search("omniglot_ends", ends)
    for r in trials:
        if r["run"]["replicate"] == 125:
            for name in ("recall@1", "map@r"):
                r["curves"]["validation"][name] = [v + 0.05 for v in r["curves"]["validation"][name]]
    assert read("tuned_pooled") == chosen_by_search("omniglot_pooled", trials)


def test_the_gains_of_the_sixth_ledger_are_what_the_papers_print():
    """Tables 7 to 9 on CUB200-2011, and the rebuttal's Table 5 on CARS196 beside its main table."""
    claims = {claim["id"]: claim for claim in read_ledger(6)["claim"]}
    table = pd.read_csv(asset("roth2020_samplers.csv")).query("dataset == 'cub200' and metric == 'R@1'")
    names = table["loss"].replace({"Margin (D)": "Margin (D, beta=1.2)"})
    of = table.assign(loss=names).set_index(["loss", "sampler"])["mean"]
    for method, gain in claims["F1"]["gains"].items():
        assert gain == pytest.approx(of[method, "SPC-2"] - of[method, "SPC-4"])
    for row, gain in claims["F2"]["gains"].items():
        method = row.removesuffix(" | sampler=frd")
        assert gain == pytest.approx(of[method, "FRD"] - of[method, "SPC-2"])
    main = pd.read_csv(asset("sec2020_main.csv")).query("dataset == 'cars196' and loss == 'SHT' and metric == 'R@1'")
    alone = main.set_index("regularizer")["value_percent"]["none"]
    heads = pd.read_csv(asset("sec2020_table5_bnwn.csv")).set_index("variant")["R@1"]
    with_sec = [heads["SEC"] - alone, heads["BN+SEC"] - heads["BN"], heads["WN+SEC"] - heads["WN"]]
    assert [*claims["F13"]["gains"].values()] == pytest.approx(with_sec)
    assert [*claims["F15"]["gains"].values()] == pytest.approx([heads["BN"] - alone, heads["WN"] - alone])


def recalls(method: str, replicate: int, head: float = 1.0) -> list[float]:  # at each evaluation
    wanted = method, replicate, head
    (found,) = (
        r["curves"]["test"]["recall@1"]
        for r in RECORDS[2]
        if (r["run"]["method"], r["run"]["replicate"], r["run"]["head_lr_factor"]) == wanted
    )
    return found


def best(*run) -> float:
    return max(recalls(*run))


def last(*run) -> float:
    return recalls(*run)[-1]


@pytest.mark.parametrize(
    "cell, value",
    [
        (("W1", "Contrastive (D)"), lambda r: best("R-Contrastive (D)", r) - best("Contrastive (D)", r)),
        (("W2", "Margin (D, beta=0.6)"), lambda r: last("R-Margin (D, beta=0.6)", r) - last("Margin (D, beta=0.6)", r)),
        (("W7", "Triplet (R)"), lambda r: best("Triplet (D)", r) - best("Triplet (R)", r)),
        (("Z1", "T"), lambda r: best("T + SEC", r) - best("T", r)),
        (("Z2", "MS"), lambda r: last("MS + SEC", r) - last("MS", r)),
        (("Z3", "NNP"), lambda r: best("NNP + SEC", r, 5.0) - best("NNP", r, 5.0)),
        (
            ("Z1", "mean"),
            lambda r: statistics.mean(best(f"{m} + SEC", r) - best(m, r) for m in ("T", "SHT", "NNP", "MS")),
        ),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_from_the_records_alone(cell, value):
    """Recall is a share of 1 in the records; the interval is a t interval at the level of the look."""
    check_cell(2, cell, value)


def check_cell(version, cell, value):
    table = pd.read_csv(ROOT / f"outputs/tables/{TABLES[version]}.csv").set_index(["id", "of"])
    row = table.loc[cell]
    look = int(row["look"])
    levels = {5: {5: 0.05}, 10: {5: 0.0133, 10: 0.0377}, 20: {5: 0.0047, 10: 0.0133, 20: 0.0377}}
    firsts = {4: 20, 5: 50, 7: 70, 8: 80, 9: 90, 10: 95, 11: 85, 12: 45, 13: 90, 14: 70, 15: 70, 16: 70, 17: 60}
    firsts |= {18: 65, 19: 90}
    level, first = levels[read_ledger(version)["cap"]][look], firsts.get(version, 10)
    values = [100 * value(r) for r in range(first, first + look)]
    mean, half = statistics.mean(values), stats.t.isf(level / 2, look - 1) * statistics.stdev(values) / look**0.5
    assert row[["effect", "low", "high"]].tolist() == pytest.approx([mean, mean - half, mean + half], abs=2e-3)


def stopped(method: str, replicate: int, metric="recall@1", version: int = 3, dataset: str = "omniglot_few") -> float:
    """The mean of three evaluations around the best one on held-out classes, step 0 apart."""
    wanted = method, replicate, dataset
    (curves,) = (
        r["curves"]
        for r in RECORDS[version]
        if tuple(r["run"][name] for name in ("method", "replicate", "dataset")) == wanted
    )
    part, _, name = metric.rpartition("/")
    held, test = curves["validation"]["recall@1"][1:], curves[part or "test"][name][1:]
    first = min(max(held.index(max(held)) - 1, 0), len(held) - 3)
    return statistics.mean(test[first : first + 3])


@pytest.mark.parametrize(
    "cell, value",
    [
        (("V1", "Contrastive (D)"), lambda r: stopped("R-Contrastive (D)", r) - stopped("Contrastive (D)", r)),
        (("V3", "SHT"), lambda r: stopped("SHT + SEC", r) - stopped("SHT", r)),
        (("V6", "MS + L2"), lambda r: stopped("MS + SEC", r) - stopped("MS + L2", r)),
        (("V7", "Softmax"), lambda r: stopped("Softmax", r) - stopped("Contrastive (D)", r)),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_of_tuned_rows_from_the_records_alone(cell, value):
    check_cell(3, cell, value)


@pytest.mark.parametrize("version, claim", [(14, "I1"), (15, "J1")])
def test_cells_of_searches_in_wider_boxes_from_the_records_alone(version, claim):
    gain = lambda r, loss: stopped(f"{loss} + SEC", r, version=version) - stopped(loss, r, version=version)
    check_cell(version, (claim, "T"), lambda r: gain(r, "T"))
    check_cell(version, (claim, "mean"), lambda r: statistics.mean(gain(r, m) for m in ("T", "SHT", "NNP", "MS")))


@pytest.mark.parametrize(
    "cell, against, metric",
    [
        (("X1", "ProxyAnchor"), "Contrastive (D)", "recall@1"),
        (("X2", "SmoothAP"), "Softmax", "recall@1"),
        (("X5", "Circle"), "Contrastive (D)", "map@r"),
        (("X7", "Hyperbolic (sphere)"), "Hyperbolic", "recall@1"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_of_objectives_from_the_records_alone(cell, against, metric):
    one, other = (against, cell[1]) if cell[0] == "X7" else (cell[1], against)  # X7 names the control
    check_cell(4, cell, lambda r: stopped(one, r, metric, 4) - stopped(other, r, metric, 4))


RATES = (5e-5, 2e-4, 8e-4, 3.2e-3)


def crossed(method: str, replicate: int, head: str, lr: float) -> dict:  # curves of a run of the fifth ledger
    wanted = method, replicate, head, lr
    (curves,) = (
        r["curves"]
        for r in RECORDS[5]
        if tuple(r["run"][name] for name in ("method", "replicate", "head", "lr")) == wanted
    )
    return curves


def ends(method: str, replicate: int, head: str, rates=RATES) -> float:
    """At the last step, mean over rates."""
    return statistics.mean(crossed(method, replicate, head, lr)["test"]["recall@1"][-1] for lr in rates)


def at_own_rate(method: str, replicate: int, head: str) -> float:
    """The mean of both evaluations after step 0, at the rate whose held-out characters are best on these."""
    runs = [crossed(method, replicate, head, lr) for lr in RATES]
    held = [sum(sum(c["validation"][name][1:]) for name in ("recall@1", "map@r")) for c in runs]
    return statistics.mean(runs[held.index(max(held))]["test"]["recall@1"][1:])


@pytest.mark.parametrize(
    "cell, value",
    [
        (("Y3", "SHT"), lambda r: ends("SHT + SEC", r, "bn") - ends("SHT", r, "bn")),
        (
            ("Y5", "MS"),
            lambda r: (
                (ends("MS + SEC", r, "bn") - ends("MS", r, "bn"))
                - (ends("MS + SEC", r, "linear") - ends("MS", r, "linear"))
            ),
        ),
        (("Y8", "SHT"), lambda r: at_own_rate("SHT + SEC", r, "bn") - at_own_rate("SHT", r, "bn")),
        (("Y9", "MS"), lambda r: at_own_rate("MS + SEC", r, "linear") - at_own_rate("MS", r, "linear")),
        (
            ("Y13", "SHT + GE"),
            lambda r: ends("SHT + SEC", r, "linear", RATES[1:3]) - ends("SHT + GE", r, "linear", RATES[1:3]),
        ),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_of_several_settings_from_the_records_alone(cell, value):
    check_cell(5, cell, value)


def curve(version: int, method: str, replicate: int, dataset: str) -> list[float]:  # recall@1 at each evaluation
    wanted = method, replicate, dataset
    (found,) = (
        r["curves"]["test"]["recall@1"]
        for r in RECORDS[version]
        if tuple(r["run"][name] for name in ("method", "replicate", "dataset")) == wanted
    )
    return found


SWITCHED = [(f"R-{m}", m) for m in ("Contrastive (D)", "Margin (D, beta=1.2)", "Triplet (D)")]
ALL_SWITCHED = [*SWITCHED, *((f"R-{m}", m) for m in ("Margin (D, beta=0.6)", "SNR (D)"))]
WITH_SEC = [(f"{m} + SEC", m) for m in ("T", "SHT", "NNP", "MS")]


@pytest.mark.parametrize(
    "version, cell, rule, pairs",
    [
        (7, ("G1", "glyphs_many"), max, SWITCHED),
        (7, ("G2", "grocery"), lambda found: found[-1], SWITCHED),
        (7, ("G6", "glyphs_fine"), max, WITH_SEC),
        (7, ("G7", "glyphs_cross"), lambda found: found[-1], WITH_SEC),
        (7, ("G8", "glyphs_many"), max, [("Softmax", "Contrastive (D)")]),
        (8, ("L1", "Hyperbolic"), lambda found: found[-1], [("Hyperbolic", "Contrastive (D)")]),
        (8, ("L2", "CrossEntropy"), lambda found: found[-1], [("CrossEntropy", "Softmax")]),
        (9, ("H2", "glyphs_many"), lambda found: found[-1], SWITCHED),
        (9, ("H7", "glyphs_shop"), max, WITH_SEC),
        (13, ("T2", "SoftTriple, glyphs_cross"), lambda found: found[-1], [("SoftTriple", "Contrastive (D)")]),
        (13, ("T7", "glyphs_many"), max, [(f"{m} + L2", m) for m in ("T", "SHT", "NNP", "MS")]),
        (13, ("T10", "glyphs_cross"), max, [("TML + SEC", "TML")]),
        (10, ("O3", "EPSHN, grocery"), lambda found: found[-1], [("EPSHN", "Contrastive (D)")]),
        (17, ("D2", "mean"), lambda found: found[-1], ALL_SWITCHED),
        (17, ("D7", "mean"), max, WITH_SEC),
        (19, ("Q3", "NPair"), lambda found: found[-1], [("NPair", "Contrastive (D)")]),
        (19, ("Q5", "mean"), max, ALL_SWITCHED),
        (19, ("Q13", "mean"), max, [(f"{m} + SEC", f"{m} + L2") for m in ("T", "SHT", "NNP", "MS")]),
        (11, ("B2", "Contrastive + memory"), lambda found: found[-1], [("Contrastive + memory", "Contrastive")]),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_of_other_sets_and_of_the_last_step_from_the_records_alone(version, cell, rule, pairs):
    at = lambda method, r: rule(curve(version, method, r, set_of(version, cell)))
    check_cell(version, cell, lambda r: statistics.mean(at(one, r) - at(other, r) for one, other in pairs))


def set_of(version: int, cell: tuple) -> str:
    if version in (7, 9, 10, 13):
        return cell[1].rpartition(", ")[2]
    return {12: "omniglot", 17: "omniglot", 19: "grocery"}.get(version, "omniglot_few")


@pytest.mark.parametrize(
    "version, cell, pairs",
    [
        (9, ("H3", "glyphs_fine"), SWITCHED),
        (9, ("H9", "glyphs_cross"), WITH_SEC),
        (13, ("T1", "SNR (D), glyphs_fine"), [("SNR (D)", "Contrastive (D)")]),
        (13, ("T9", "glyphs_shop"), [(f"{m} + SEC", f"{m} + L2") for m in ("T", "SHT", "NNP", "MS")]),
        (10, ("O1", "CrossEntropy, glyphs_many"), [("CrossEntropy", "Contrastive (D)")]),
        (10, ("O2", "SmoothAP, grocery"), [("SmoothAP", "Softmax")]),
        (19, ("Q1", "Angular"), [("Angular", "Contrastive (D)")]),
        (19, ("Q14", "mean"), WITH_SEC),
        (12, ("P1", "ROADMAP"), [("ROADMAP", "Contrastive (D)")]),
        (16, ("K1", "HIST (distribution)"), [("HIST (distribution)", "Contrastive (D)")]),
        (11, ("B1", "MultiSimilarity + memory"), [("MultiSimilarity + memory", "MultiSimilarity")]),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_of_stopped_runs_from_the_records_alone(version, cell, pairs):
    at = lambda method, r: stopped(method, r, version=version, dataset=set_of(version, cell))
    check_cell(version, cell, lambda r: statistics.mean(at(one, r) - at(other, r) for one, other in pairs))


def test_cells_between_visits_from_the_records_alone():
    gain = lambda one, other, r: (
        stopped(one, r, "visits/recall@1", 19, "grocery") - stopped(other, r, "visits/recall@1", 19, "grocery")
    )
    check_cell(19, ("Q2", "NPair"), lambda r: gain("NPair", "Contrastive (D)", r))
    check_cell(19, ("Q15", "mean"), lambda r: statistics.mean(gain(one, other, r) for one, other in WITH_SEC))


@pytest.mark.parametrize("claim, metric", [("E1", "linear_accuracy"), ("E3", "recall@1")])
def test_cells_of_simclr_from_the_records_alone(claim, metric):
    def mean(method, replicate):  # over four rates, at the last step
        own = [r for r in RECORDS[18] if (r["run"]["method"], r["run"]["replicate"]) == (method, replicate)]
        assert sorted(r["run"]["lr"] for r in own) == [1e-4, 1e-3, 1e-2, 1e-1]
        return statistics.mean(r["curves"]["test"][metric][-1] for r in own)

    check_cell(18, (claim, "SimCLR"), lambda r: mean("SimCLR + SEC", r) - mean("SimCLR", r))


@pytest.mark.parametrize(
    "profile, file, sets, replicate, folds",
    [
        ("other_sets_objectives", "tuned_sets.json", ["glyphs_many", "grocery"], 102, 2),
        ("omniglot_all_objectives", "tuned_all.json", ["omniglot"], 103, 1),
    ],
)
def test_a_search_of_rates_saw_no_test_class_and_its_choice_follows(
    committed_records, profile, file, sets, replicate, folds
):
    trials = committed_records(f"{profile}_search")
    assert {r["run"]["replicate"] for r in trials} == {replicate}
    assert all([*r["curves"]] == ["validation"] for r in trials)
    counts = Counter((r["run"]["dataset"], r["run"]["method"]) for r in trials)
    assert {*counts.values()} == {5 * folds} and len(counts) == 12 * len(sets)
    chosen = json.loads((ROOT / f"dmlstudy/assets/{file}").read_text())
    assert chosen == chosen_by_search(profile, trials) and [*chosen] == sets
    drawn = json.loads((ROOT / "dmlstudy/assets/tuned_objectives.json").read_text())["omniglot_few"]
    for method, fields in chosen[sets[-1]].items():  # the rest is as the trials on 80 characters chose it
        run = run_of(profile, sets[-1], method, None, replicate=95)
        assert [*fields] == ["lr"] and (run.lr, run.loss_args) == (fields["lr"], drawn[method].get("loss_args"))
        assert run.samples_per_class == drawn[method].get("samples_per_class", METHODS[method].samples_per_class)


def test_the_choice_for_the_last_step_follows_from_the_trials_of_the_fourth_ledger(committed_records):
    trials = committed_records("omniglot_objectives_search")
    chosen = json.loads((ROOT / "dmlstudy/assets/tuned_last.json").read_text())
    assert chosen == chosen_by_search("omniglot_last", trials)
    one = next(r for r in trials if r["run"]["method"] == "Softmax")
    values = selected({**one, "curves": {"train": one["curves"]["validation"], **one["curves"]}}, "last")
    assert values["validation/recall@1"] == one["curves"]["validation"]["recall@1"][-1]


def test_a_ledger_of_several_sets_asks_each_of_them():
    questions = list(asked(read_ledger(7)))
    assert Counter(q["dataset"] for q in questions) == dict.fromkeys(read_ledger(7)["datasets"], 9)
    assert all(q["of"] == q["dataset"] for q in questions)
    some = Counter((q["id"], q["of"]) for q in asked(read_ledger(9)))  # a claim may name its sets
    assert {*some.values()} == {1} and ("H7", "glyphs_shop") in some and ("H1", "glyphs_shop") not in some
    assert ("O2", "EPSHN, grocery") in {(q["id"], q["of"]) for q in asked(read_ledger(10))}
    alone = list(asked(read_ledger(7) | {"datasets": ["grocery"]}))
    assert {q["of"] for q in alone} == {"mean"} and {q["dataset"] for q in alone} == {"grocery"}

    nothing = pd.DataFrame(columns=["dataset", "method", "setting", "replicate", "metric", "selection", "value"])
    todo = still_open(read_ledger(7), judged(read_ledger(7), nothing))
    assert len(todo) == 9 * 4
    for (claim, dataset), runs in todo.items():
        assert {run.dataset for run in runs} == {dataset} and {run.replicate for run in runs} == {*range(70, 75)}
        assert len(runs) == 5 * {"G6": 8, "G7": 8, "G8": 2, "G9": 2, "G4": 8, "G5": 8}.get(claim, 6)


def test_what_was_not_searched_is_not_trained(monkeypatch, capsys):
    """The defaults of a row would pass for what its search chose."""
    from dmlstudy.study.config import PROFILES

    monkeypatch.setitem(PROFILES, "omniglot_objectives", replace(PROFILES["omniglot_objectives"], tuned=None))
    ledger = read_ledger(4)
    nothing = pd.DataFrame(columns=["dataset", "method", "setting", "replicate", "metric", "selection", "value"])
    assert still_open(ledger, judged(ledger, nothing)) == {}
    words = [
        "run",
        "--profile",
        "omniglot_objectives",
        "--methods",
        "Softmax; Circle",
        "--replicates",
        "20",
        "--dry-run",
    ]
    assert main(words) == 2
    assert "no search has chosen for 2 rows: dmlstudy tune --profile omniglot_objectives" in capsys.readouterr().err


PLANTED = {"recall@1": 0.0, "recall@2": 0.5, "recall@4": 1.0, "map@r": 2.0}  # metric -> effect in sizes of interest
STUDIES, DRAWS = 100, 10


def written(folder: Path, methods: list[str], values: dict) -> pd.DataFrame:
    """The values of runs that were written as record lines, and read back; values: metric -> (replicates, methods)."""
    run = asdict(run_of(LEDGER[2]["profile"], LEDGER[2]["dataset"], methods[0]))
    with (folder / "records.jsonl").open("w") as file:
        for r in range(STUDIES * DRAWS):
            for j, method in enumerate(methods):
                curves = {part: {name: [0.0, v[r, j]] for name, v in found.items()} for part, found in values.items()}
                record = {"key": f"{r:06}{j:06}", "run": run | {"method": method, "replicate": r, "seed": r}}
                record |= {"curves": {part: {"step": [0, 1]} | found for part, found in curves.items()}}
                file.write(json.dumps(record) + "\n")
    return tidy(LEDGER[2]["profile"], map(json.loads, (folder / "records.jsonl").open()))


def shares(question: dict, values: pd.DataFrame) -> pd.DataFrame:
    """Metric by verdict: how many of the studies get it."""
    few = values[values["selection"] == question["rule"]].astype({"method": str, "setting": str, "metric": str})
    studies, found = few.groupby(few["replicate"] // DRAWS), {}
    for metric in PLANTED:
        q = question | {"metric": metric, "printed": None}
        said = [judge(q, own, LEDGER[2]["cap"])["verdict"] for _, own in studies]
        found[metric] = pd.Series(said).value_counts(normalize=True)
    return pd.DataFrame(found).T.reindex(columns=VERDICTS).fillna(0)


def errors_are_as_declared(found: pd.DataFrame, half: float = 0.0377 / 2) -> None:
    """A bound errs in half of the last look's level: in a hundred studies rarely more than six times."""
    most = stats.binom.isf(1e-3, STUDIES, half) / STUDIES
    none, less, size, twice = (found.loc[metric] for metric in PLANTED)
    assert none["positive, size open"] <= most and none["reversed"] <= most and none["above delta"] == 0
    assert less["above delta"] <= most and less["reversed"] <= most
    assert size["above delta"] <= most and size["negligible"] <= most and size["reversed"] == 0
    assert twice[["negligible", "reversed"]].max() == 0 and twice["above delta"] > 0.9
    assert none["negligible"] > 0.9  # the noise leaves room for a verdict


@pytest.mark.slow
@pytest.mark.parametrize("over", ["mean", "every"])
def test_planted_gains_get_their_verdicts_from_records_on(over, tmp_path):
    """None, half the size of interest, the size, twice: record lines, tidy values, verdicts."""
    rng = np.random.default_rng(7)
    question = next(q for q in asked(LEDGER[2]) if q["id"] == "Z2" and q["of"] == over)
    methods = [method for pair in question["rows"] for method in pair]  # with SEC, without
    found = {}
    for metric, sizes in PLANTED.items():
        base = 0.6 + 0.02 * rng.normal(size=(STUDIES * DRAWS, 4))
        gain = (question["delta"] * sizes + 0.3 * rng.normal(size=base.shape)) / 100
        found[metric] = np.stack([base + gain, base], 2).reshape(len(base), 8)
    values = {"test": found, "train": {"recall@1": np.ones((len(base), 8))}}
    errors_are_as_declared(shares(question, written(tmp_path, methods, values)))


@pytest.mark.slow
def test_planted_correlations_get_their_verdicts_from_records_on(tmp_path):
    rng = np.random.default_rng(8)
    question = next(q for q in asked(LEDGER[2]) if q["id"] == "W5")
    methods, shape = _rows(question), (STUDIES * DRAWS, len(_rows(question)))
    decay = rng.normal(size=shape)
    decay = (decay - decay.mean(1, keepdims=True)) / decay.std(1, keepdims=True)
    found = {}
    for metric, sizes in PLANTED.items():  # each replicate has its own correlation, around the planted one
        r = (question["delta"] * sizes + 0.1 * rng.normal(size=(len(decay), 1))).clip(-1, 1)
        other = rng.normal(size=shape)
        other -= other.mean(1, keepdims=True) + decay * (other * decay).mean(1, keepdims=True)
        other /= other.std(1, keepdims=True)
        found[metric] = 0.6 + 0.02 * (question["sign"] * r * decay + np.sqrt(1 - r**2) * other)
    values = {"test": found, "train": {"rho": 0.4 + 0.1 * decay, "recall@1": np.ones(shape)}}
    errors_are_as_declared(shares(question, written(tmp_path, methods, values)))


def test_a_replicate_that_lacks_a_run_ends_the_count():
    question = next(q for q in asked(LEDGER[2]) if q["id"] == "Z2" and q["of"] == "T")
    rows = [(r, m, "recall@1", "last", 0.5, "") for r in range(10, 18) for m in ("T", "T + SEC")]
    names = ["replicate", "method", "metric", "selection", "value", "setting"]
    table = pd.DataFrame(rows, columns=names)
    assert effects(question, table).shape == (1, 8)
    assert effects(question, table[(table["replicate"] != 13) | (table["method"] != "T")]).shape == (1, 3)

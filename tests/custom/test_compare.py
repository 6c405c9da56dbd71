"""Where a loss of one's own stands, against the committed records read without the room's code."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dmlstudy import compare
from dmlstudy.custom import compare as comparison
from dmlstudy.custom import losses as own
from dmlstudy.custom.compare import _trial_jobs
from dmlstudy.report.tables import profile_records
from dmlstudy.stats.decisions import verdict
from dmlstudy.stats.intervals import t_interval
from dmlstudy.study.config import PROFILES, setting_of
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs
from dmlstudy.study.run import make_run
from dmlstudy.study.selection import selected

DRAWS = [90, 91, 92, 93, 94]


@pytest.fixture(scope="module")
def scores() -> dict[str, list[float]]:
    """Method -> recall@1 in % of its plain runs on one set, by replicate."""
    found = {}
    for record in profile_records("glyphs")[0]:
        run = record["run"]
        if run["dataset"] == "glyphs_fine" and run["replicate"] in DRAWS and not setting_of("glyphs", make_run(run)):
            found.setdefault(run["method"], {})[run["replicate"]] = 100 * selected(record, "validation")["recall@1"]
    return {method: [own[seed] for seed in DRAWS] for method, own in found.items() if {*own} == {*DRAWS}}


@pytest.fixture(scope="module")
def table():
    return comparison.standing(["Triplet (D)"], ["glyphs_fine"], DRAWS).set_index("method")


@pytest.mark.slow
def test_differences_are_paired_by_seed(table, scores):
    whole = table[table["seeds"] == len(DRAWS)]  # some rows have fewer
    assert len(whole) > 20 and {*whole.index} == {m for m in scores if METHODS[m].loss}
    for method, row in whole.iterrows():
        assert row["recall@1"] == pytest.approx(np.mean(scores[method]))
        if method != comparison.AGAINST[0]:
            d = np.subtract(scores[method], scores[comparison.AGAINST[0]])
            half = stats.t.isf(0.0047 / 2, 4) * d.std(ddof=1) / 5**0.5  # the first of three looks
            assert row[["difference", "difference low", "difference high"]].tolist() == pytest.approx(
                [d.mean(), d.mean() - half, d.mean() + half], rel=1e-3
            )


def test_the_best_row_may_be_best_and_the_worst_may_not(table):
    ordered = table.sort_values("recall@1")["may be best"]
    assert ordered.iloc[-1] and not ordered.iloc[0]
    assert [*table.index[table["yours"]]] == ["Triplet (D)"]
    assert {*table.index[table["baseline"]]} == {*comparison.AGAINST}


def test_the_sentence_has_the_word_and_the_numbers_of_the_interval(table):
    row = table.loc["Triplet (D)"]
    told = comparison.verdicts(table.reset_index())
    word = comparison.COMPARED[verdict(row["difference low"], row["difference high"], comparison.SIZE)]
    numbers = f"recall@1 {row['difference']:+.1f} [{row['difference low']:+.1f}, {row['difference high']:+.1f}]"
    assert len(told) == 2 and f"{numbers}: {word}; MAP@R " in told[0]


def test_a_row_without_runs_is_left_out():
    found = comparison.standing(["Triplet (D)"], ["glyphs_fine"], [90, 77])
    assert len(found) > 20 and (found["seeds"] == 1).all() and np.isnan(found["difference low"]).all()
    assert comparison.standing(["Triplet (D)"], ["glyphs_fine"], [77]).empty


# ---- a table of its own, by hand ----


def values(*recalls, first=90):
    """What a run reached, by draw: recall@1, and a third of it as MAP@R, in %."""
    draws = range(first, first + len(recalls))
    return pd.DataFrame({"recall@1": recalls, "map@r": np.divide(recalls, 3)}, draws) * 100


def test_a_row_has_its_means_and_differences_of_common_draws():
    """The first baseline gives the difference, a second one has its own columns."""
    mine, first = values(0.5, 0.6, 0.7, first=91), values(1.0, 0.4, 0.55, 0.6)
    others = {"difference": first, "difference to Second": values(0.5, first=91)}
    row = comparison.effect_row(mine, others, t_interval, lambda d: comparison._mean(d, False))
    d = np.array([10.0, 5.0, 10.0])
    half = stats.t.isf(0.025, 2) * d.std(ddof=1) / 3**0.5
    assert [row["recall@1"], row["map@r"]] == pytest.approx([60.0, 20.0])
    ends = [row["difference"], row["difference low"], row["difference high"]]
    assert ends == pytest.approx([d.mean(), d.mean() - half, d.mean() + half])
    assert row["map@r difference"] == pytest.approx(d.mean() / 3) and row["difference to Second"] == 0
    assert row["low"] >= 0 and row["high"] <= 100


def test_a_mean_of_replicates_is_that_of_the_look():
    """Seven replicates of twenty: the interval of the look after five, and the mean of these five."""
    d = np.array([1.0, 2.0, 3.0, 2.0, 1.0, 50.0, 50.0])
    mean, low, high = comparison._mean(d, True)
    half = stats.t.isf(0.0047 / 2, 4) * d[:5].std(ddof=1) / 5**0.5
    assert [mean, low, high] == pytest.approx([1.8, 1.8 - half, 1.8 + half])
    early = comparison._mean(d[:4], True)
    assert early[0] == 2 and np.isnan(early[1:]).all()


def test_only_rows_with_all_draws_may_be_best():
    """A row with fewer draws, or with others, is not told from the best: it is not asked."""
    rows = {"good": values(0.8, 0.82, 0.81), "near": values(0.79, 0.83, 0.81), "bad": values(0.2, 0.21, 0.2)}
    rows |= {"short": values(0.9, 0.91), "other": values(0.9, 0.9, 0.91, first=95)}
    found = comparison._may_be_best(rows, "recall@1", lambda d: comparison._mean(np.asarray(d), False))
    assert {*found} == {"good", "near"}


def test_usual_draws_are_those_that_both_baselines_have(monkeypatch):
    """Of a profile with replicates; where no run is recorded, the first five."""
    have = {(m, n) for m in comparison.AGAINST for n in (20, 22)} | {(comparison.AGAINST[0], 21)}
    monkeypatch.setattr(comparison, "recorded", lambda run: (run.method, run.replicate) in have)
    assert comparison.usual_draws(comparison.RACE, ["omniglot_few"]) == [20, 22]
    monkeypatch.setattr(comparison, "recorded", lambda run: False)
    assert comparison.usual_draws(comparison.RACE, ["omniglot_few"]) == [20, 21, 22, 23, 24]


def test_rows_are_ordered_by_their_mean(table):
    assert table["recall@1"].is_monotonic_decreasing


@pytest.fixture
def no_row_stays():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def test_two_of_one_name_are_refused(no_row_stays):
    from pytorch_metric_learning import losses, miners

    mined = own.Own(losses.CircleLoss(), miner=miners.MultiSimilarityMiner())
    with pytest.raises(ValueError, match=r"two of yours have the name CircleLoss: .*name="):
        compare(own.Own(losses.CircleLoss()), mined, profile="drill", baselines=["Softmax"])


def test_what_is_searched_for_a_loss_of_ones_own():
    """Of a pooled search all draws choose together: with those of the first alone nothing was chosen, in silence."""
    n_trials = lambda profile: len(all_runs(_trial_jobs(["Softmax"], [PROFILES[profile].datasets[0]], profile)))
    assert [n_trials(name) for name in ("omniglot_pooled", "omniglot_wider", "omniglot_objectives")] == [200, 20, 40]
    assert n_trials("omniglot_defaults") == 0, "its search has no file of choices"
    assert _trial_jobs(["Softmax"], ["folder:/somewhere"], "photos") == []


def test_the_sentence_counts_the_replicates_that_its_numbers_are_of():
    """Seven of twenty: the look after five."""
    table = comparison.standing(["CrossEntropy"], ["omniglot_few"], range(20, 27), comparison.RACE, others=())
    said, row = comparison.verdicts(table)[0], table.set_index("method").loc["CrossEntropy"]
    assert "against Contrastive (D)" in said and said.endswith("(replicates: 5).") and row["seeds"] == 7

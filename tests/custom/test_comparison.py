"""Where a loss of one's own stands, against the committed records read without the room's code."""

import numpy as np
import pytest
from scipy import stats

from dmlstudy import compare, comparison, own
from dmlstudy.core import make_run
from dmlstudy.methods import METHODS
from dmlstudy.records import selected
from dmlstudy.study import setting_of
from dmlstudy.tables import profile_records
from dmlstudy.verdicts import verdict

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
    word = comparison.WORDS[verdict(row["difference low"], row["difference high"], comparison.SIZE)]
    numbers = f"recall@1 {row['difference']:+.1f} [{row['difference low']:+.1f}, {row['difference high']:+.1f}]"
    assert len(told) == 2 and f"{numbers}: {word}; MAP@R " in told[0]


def test_a_row_without_runs_is_left_out():
    found = comparison.standing(["Triplet (D)"], ["glyphs_fine"], [90, 77])
    assert len(found) > 20 and (found["seeds"] == 1).all() and np.isnan(found["difference low"]).all()
    assert comparison.standing(["Triplet (D)"], ["glyphs_fine"], [77]).empty


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

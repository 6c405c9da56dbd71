"""The first ledger and its verdicts: what it asks can be asked, and what is committed follows from it."""

import inspect

import numpy as np
import pandas as pd
import pytest
from grids import each

from dmlstudy.core.paths import outputs
from dmlstudy.evidence import paper_claims as claims
from dmlstudy.evidence.paper_claims import Effect, evaluate_claims, read_claims, verdict_of
from dmlstudy.study.methods import METHODS


def ledger() -> dict[str, dict]:
    return {claim["id"]: claim for claim in read_claims()}


@pytest.fixture(scope="module")
def committed() -> pd.DataFrame:
    return pd.read_csv(outputs() / "claims.csv")


@each("name, claim", ledger)
def test_a_claim_can_be_asked(name, claim):
    """Its test exists and takes its arguments, its methods exist, and a direction has a size that matters."""
    asked = inspect.signature(getattr(claims, claim["test"]))
    asked.bind(None, **claim["args"])
    named = [v for k, v in claim["args"].items() if k in ("a", "b", "methods", "named")]
    named += [[v] for k, v in claim["args"].items() if k in ("base", "zero")]
    assert {m for some in named for m in some if m} <= {*METHODS}
    assert claim["direction"] in "+-0" and claim["threshold"] >= 0
    assert claim["direction"] != "0" or claim["threshold"] > 0, "nothing lies within a band of no width"


def test_every_verdict_follows_from_its_interval(committed):
    """By the words of the rule, written out again."""
    assert {*committed["id"]} == {*ledger()} and len(committed) > 100
    for row in committed.itertuples():
        if row.verdict == "not asked":
            assert np.isnan(row.effect)
            continue
        null, t = ledger()[row.id]["null"], row.threshold
        turn = -1 if row.direction == "-" else 1
        value = turn * (row.effect - null)
        low, high = sorted((turn * (row.low - null), turn * (row.high - null)))
        inside = low > -t and high < t
        if row.direction == "0":
            apart = abs(value) >= t and not low <= 0 <= high
            word = "reproduced" if inside else "contradicted" if apart else "inconclusive"
        else:
            there, against = low > 0 and value >= t, high < 0
            word = "reproduced" if there else "not reproduced" if inside else "inconclusive"
            word = "contradicted" if against and not inside else word
        assert row.verdict == word, (row.id, row.dataset)


def test_a_wider_interval_never_says_more():
    """From any verdict, widening leads to `inconclusive`."""
    for direction in "+-0":
        for value in (-2.0, -0.5, 0.0, 0.5, 2.0):
            said = [verdict_of(Effect(value, value - w, value + w, 5), direction, 1.0) for w in (0.1, 1.5, 4.0, 9.0)]
            firm = [word for word in said if word != "inconclusive"]
            assert said[-1] == "inconclusive" and said[: len(firm)] == firm


def test_where_no_runs_are_nothing_is_asked():
    runs = pd.DataFrame({"dataset": ["glyphs_fine"], "main": [True], "method": ["Softmax"], "seed": [0]})
    table = evaluate_claims(runs.assign(**{"recall@1": 0.5}), [ledger()["R3a"]])
    assert table["verdict"].tolist() == ["not asked"]


def test_a_mean_over_pairs_is_of_the_seeds_that_all_pairs_have():
    gains = [("a", seed, 0.05) for seed in range(5)] + [("b", seed, 0.01) for seed in range(2)]
    rows = [(m + "+" * side, seed, side * gain) for m, seed, gain in gains for side in (0, 1)]
    runs = pd.DataFrame(rows, columns=["method", "seed", "recall@1"]).assign(main=True)
    found = claims.difference(runs, ["a+", "b+"], ["a", "b"])
    assert (found.value, found.n, found.of) == (pytest.approx(0.03), 2, "")
    assert claims.difference(runs[(runs["method"].str[0] == "a") | (runs["seed"] > 4)], ["b+"], ["b"]) is None


def test_a_pair_with_one_seed_leaves_a_claim_about_every_loss_open():
    """The verdict was that of the other pairs where they came first."""
    gains = [*zip("aaaaab", (0, 1, 2, 3, 4, 0), (0.050, 0.051, 0.049, 0.050, 0.052, 0.020), strict=True)]
    rows = [(m + "+" * side, seed, side * gain) for m, seed, gain in gains for side in (0, 1)]
    runs = pd.DataFrame(rows, columns=["method", "seed", "recall@1"]).assign(main=True)
    found = [claims.difference(runs, [m + "+" for m in order], [*order], every="+") for order in ("ab", "ba")]
    assert [(e.value, e.n, verdict_of(e, "+", 0.005)) for e in found] == [(pytest.approx(0.02), 1, "inconclusive")] * 2
    less = claims.difference(runs[runs["method"].str[0] == "a"], ["a"], ["a+"], every="-")
    assert less.value == pytest.approx(-0.0504) and less.low < less.value < less.high < 0


@pytest.fixture
def linked() -> pd.DataFrame:
    """Ten methods with three seeds and three metrics."""
    rng, names = np.random.default_rng(0), [f"m{i}" for i in range(10)]
    rows = [(m, seed, *rng.random(3)) for m in names for seed in range(3)]
    return pd.DataFrame(rows, columns=["method", "seed", "recall@1", "rho", "ratio"]).assign(main=True)


def test_methods_without_a_common_seed_have_no_link(linked):
    """Five of seed 0 and five of seed 1, as from two machines half-way, ended in a division by zero."""
    names = [*dict.fromkeys(linked["method"])]
    halves = linked[linked["seed"] == linked["method"].isin(names[:5])]
    assert claims.link(linked, names, "rho").n == 10 and claims.link(halves, names, "rho") is None


def test_links_are_compared_over_the_methods_that_have_every_metric(linked):
    """A method that lacks one was a KeyError; under eight are not compared."""
    names = [*dict.fromkeys(linked["method"])]
    some = linked.assign(ratio=linked["ratio"].mask(linked["method"] == "m3"))
    of = lambda runs, methods=names: claims.stronger_link(runs, methods, "rho", "ratio")
    assert of(some).n == 9 and of(some) == of(linked[linked["method"] != "m3"])
    assert of(some, names[:8]) is None and of(linked, names[:8]).n == 8 and of(linked.drop(columns="ratio")) is None


def test_a_profile_without_runs_leaves_every_claim_unasked():
    """What is computed stands on the empty table, too, as on that of a profile that holds out no classes."""
    runs = pd.DataFrame(columns=["dataset", "main"]).assign(**{"theory/E1": 1e-7, "theory/E2c": -1.0})
    assert {*evaluate_claims(runs, read_claims())["verdict"]} <= {"not asked"}
    assert claims.computed(runs, "theory/E1") is None and claims.interaction(runs, ["a"], ["b"], "lr", [1, 2]) is None


@pytest.mark.parametrize("held", [[], [np.nan]], ids=["no column", "no values"])
def test_several_rates_without_validation_classes_are_refused(held):
    """Where another data set has the values that choose the rate, nothing was asked, without a word."""
    rows = [(m, seed, lr, 0.5 + lr) for m in "ab" for seed in range(3) for lr in (0.1, 0.2)]
    runs = pd.DataFrame(rows, columns=["method", "seed", "lr", "recall@1"]).assign(main=True, loss_lr=None)
    runs = runs.assign(**{f"validation/{name}": v for name in ("recall@1", "map@r") for v in held})
    with pytest.raises(ValueError, match="a has several runs of one seed: the claim has to say in `args` which"):
        claims.difference(runs, ["a"], ["b"])

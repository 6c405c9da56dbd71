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

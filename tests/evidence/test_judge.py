"""Pre-registered questions, effects and verdicts, on values that are written by hand."""

import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dmlstudy.evidence.preregistered import (
    asked,
    changed_by_new_classes,
    effects,
    judge,
    new_classes,
    read_ledger,
    still_open,
    with_named_settings,
)
from dmlstudy.stats.decisions import over_sets
from dmlstudy.stats.intervals import crossed_interval
from dmlstudy.stats.sequential import LOOKS

PAIRS = {"two": [["A+", "A"], ["B+", "B"]], "against one": [["A", "C"], ["B", "C"]]}
CLAIM = {"id": "G", "effect": "gain", "metric": "recall@1", "rule": "last", "delta": 0.5, "pairs": "two"}
FIRST = 10  # replicate


def questions(**claim):
    """Of a set of claims with one claim in it."""
    own = {"dataset": "here", "pairs": PAIRS, "settings": {"rates": ["slow", "fast"]}}
    return [*asked(own | {"claim": [CLAIM | claim]})]


def table(scores, metric="recall@1", rule="last", setting="", first=FIRST):
    """Values as the study has them: method -> score of each replicate, as a share of 1."""
    rows = [(m, setting, first + i, metric, rule, v) for m, values in scores.items() for i, v in enumerate(values)]
    return pd.DataFrame(rows, columns=["method", "setting", "replicate", "metric", "selection", "value"])


SCORES = {"A+": [0.52, 0.55, 0.53, 0.58, 0.56, 0.54, 0.91], "A": [0.5, 0.52, 0.51, 0.53, 0.52, 0.51, 0.5]}
SCORES |= {"B+": [0.41, 0.44, 0.40, 0.43, 0.45, 0.41, 0.91], "B": [0.4, 0.41, 0.39, 0.41, 0.42, 0.4, 0.4]}
GAINS = {row: [100 * (a - b) for a, b in zip(SCORES[f"{row}+"], SCORES[row], strict=True)] for row in "AB"}


# ---- questions ----


def test_a_claim_is_asked_of_each_pair_of_their_mean_and_of_every_one():
    found = [(q["of"], q["over"], q["rows"]) for q in questions(over=["each", "mean", "every"])]
    first, second = PAIRS["two"]
    pairs = PAIRS["two"]
    assert found == [
        ("A", "each", [first]),
        ("B", "each", [second]),
        ("mean", "mean", pairs),
        ("every", "every", pairs),
    ]


def test_pairs_with_one_baseline_have_the_names_of_the_others():
    assert [q["of"] for q in questions(over=["each"], pairs="against one")] == ["A", "B"]


def test_a_claim_over_rates_names_its_settings_and_all_of_them():
    (question,) = questions(setting="rates", less="other", rates="equal")
    assert (question["setting"], question["less"]) == ("rates, equal rates", "other, equal rates")
    assert question["settings"] == ["slow", "fast", "other"]
    assert questions()[0]["settings"] == [""] and questions()[0]["scale"] == 100
    with pytest.raises(ValueError, match="way to ask 'some'"):
        questions(over=["some"])


# ---- effects ----


def test_a_gain_is_a_difference_of_each_replicate_in_points():
    (question,) = questions()
    assert effects(question, table(SCORES)) == pytest.approx(np.array([GAINS["A"], GAINS["B"]]))
    (question,) = questions(sign=-1, scale=1.0)
    assert effects(question, table(SCORES)) == pytest.approx(-np.array([GAINS["A"], GAINS["B"]]) / 100)


@pytest.mark.parametrize("less", ["narrow", ""])  # the plain setting, too
def test_a_gain_may_be_less_that_of_another_setting(less):
    (question,) = questions(setting="wide", less=less, over=["mean"])
    narrow = {m: [v / 4 for v in values] for m, values in SCORES.items()}
    values = pd.concat([table(SCORES, setting="wide"), table(narrow, setting=less)])
    assert effects(question, values) == pytest.approx(0.75 * np.array([GAINS["A"], GAINS["B"]]))


def test_what_is_lost_is_the_best_on_test_less_the_last():
    (question,) = questions(metric="lost")
    best = {m: [v + 0.1 * ("+" in m) for v in values] for m, values in SCORES.items()}
    found = effects(question, pd.concat([table(SCORES), table(best, rule="best_test")]))
    assert found == pytest.approx(np.full((2, 7), 10.0))


def test_a_correlation_is_one_over_methods_in_each_replicate():
    (question,) = questions(effect="correlation", **{"with": "rho"}, sign=-1)
    rho = {m: [v**2 + 0.1 * i * ("B" in m) for i, v in enumerate(values)] for m, values in SCORES.items()}
    found = effects(question, pd.concat([table(SCORES), table(rho, metric="rho")]))
    by_hand = [-np.corrcoef([SCORES[m][i] for m in SCORES], [rho[m][i] for m in SCORES])[0, 1] for i in range(7)]
    assert found == pytest.approx(np.array([by_hand]))


@pytest.mark.parametrize("missing", ["row", "value"])
def test_replicates_count_up_to_the_first_that_lacks_something(missing):
    """Of one method, or of one setting of several; later replicates do not count either."""
    (question,) = questions()
    values = table(SCORES)
    at = (values["method"] == "B+") & (values["replicate"] == FIRST + 3)
    values = values[~at] if missing == "row" else values.assign(value=values["value"].mask(at))
    assert effects(question, values).shape == (2, 3)
    assert effects(question, values[values["replicate"] != FIRST + 1]).shape == (2, 1)


# ---- verdicts ----


def t_ends(values, level):
    half = stats.t.isf(level / 2, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values) - half, statistics.mean(values) + half


def test_a_verdict_is_that_of_the_look_that_was_reached():
    """Seven replicates: with a cap of ten the look after five counts, at its own level; the seventh is not seen."""
    question = questions(over=["each"])[0]
    found = judge(question, table(SCORES), 10)
    low, high = t_ends(GAINS["A"][:5], LOOKS[10][5])
    assert (found["n"], found["look"], found["verdict"]) == (7, 5, "above delta")
    assert [found["effect"], found["low"], found["high"]] == pytest.approx([np.mean(GAINS["A"][:5]), low, high])
    found = judge(question, table(SCORES), 5)
    assert found["n"] == 5 and [found["low"], found["high"]] == pytest.approx(t_ends(GAINS["A"][:5], 0.05))
    nothing = judge(question, table({m: v[:4] for m, v in SCORES.items()}), 10)
    assert (nothing["look"], nothing["verdict"]) == (0, "open") and np.isnan(nothing["effect"])


def test_of_every_effect_the_smallest_is_judged():
    """The lowest lower end, and the lowest upper end at a level that is shared among the pairs."""
    found = judge(questions(over=["every"])[0], table(SCORES), 5)
    ends = [t_ends(GAINS[row][:5], 0.05)[0] for row in "AB"], [t_ends(GAINS[row][:5], 0.025)[1] for row in "AB"]
    assert found["effect"] == pytest.approx(np.mean(GAINS["B"][:5])) and np.mean(GAINS["B"][:5]) < 3
    assert [found["low"], found["high"]] == pytest.approx([*map(min, ends)])


def test_evidence_is_counted_in_the_direction_of_the_claim():
    towards, away = (judge(questions(over=["each"], sign=s)[0], table(SCORES), 5) for s in (1, -1))
    assert towards["e"] > 20 and away["e"] == 0 and away["verdict"] == "reversed"


def test_evidence_for_every_effect_is_the_least_of_them():
    """A precise effect may have the smallest mean by chance beside one that is all noise: of both, the noise counts."""
    scores = {"A+": [0.51, 0.5101, 0.5099, 0.5102, 0.51], "A": [0.5] * 5, "B": [0.4] * 5}
    scores["B+"] = [0.5, 0.38, 0.52, 0.39, 0.45]  # a larger mean, about nothing
    precise, noise = (judge(q, table(scores), 5)["e"] for q in questions(over=["each"]))
    found = judge(questions(over=["every"])[0], table(scores), 5)
    assert found["effect"] == pytest.approx(1.004) and found["e"] == noise < 20 < precise


def test_a_mean_says_what_other_losses_may_expect_unless_they_share_a_row():
    found = judge(questions(over=["mean"])[0], table(SCORES), 5)
    errors = [statistics.stdev(GAINS[row][:5]) / 5**0.5 for row in "AB"]
    over = over_sets([np.mean(GAINS[row][:5]) for row in "AB"], errors)
    assert [found["over_low"], found["over_high"]] == pytest.approx([over["low"], over["high"]])
    shared = judge(questions(over=["mean"], pairs="against one")[0], table(SCORES | {"C": SCORES["A+"]}), 5)
    assert np.isnan(shared["over_low"]) and np.isfinite(shared["low"])
    assert np.isnan(judge(questions(over=["every"])[0], table(SCORES), 5)["over_low"])


def tables_of(row, replicate, rng):
    """Hits of 30 classes of ten queries each."""
    return rng.binomial(10, 0.5 + 0.05 * ("+" in row), 30), np.full(30, 10)


def test_new_classes_are_judged_at_the_level_of_the_look():
    """And only where the effect is a plain gain of recall@1."""
    rng, replicates = np.random.default_rng(0), range(FIRST, FIRST + 7)
    hits = {("", row, r, "last"): tables_of(row, r, rng) for row in SCORES for r in replicates}
    question = questions(over=["each"])[0]
    d = np.array([hits["", "A+", r, "last"][0] - hits["", "A", r, "last"][0] for r in replicates[:5]], float)
    expected = crossed_interval(100 * d, np.full(30, 10), None, 1 - LOOKS[10][5])[1:]
    found = judge(question, table(SCORES), 10, (hits, None))
    assert [found["new_low"], found["new_high"]] == pytest.approx([*expected])
    assert new_classes(question, hits, replicates[:5], None, 1 - LOOKS[10][5]) == pytest.approx(expected)
    other = pd.concat([table(SCORES), table(SCORES, metric="map@r")])
    assert np.isnan(judge(questions(over=["each"], metric="map@r")[0], other, 10, (hits, None))["new_low"])
    wide = pd.DataFrame({"id": ["G", "H"], "of": ["A", "B"], "verdict": ["above delta", "open"], "delta": 0.5})
    wide = wide.assign(new_low=[0.2, -1.0], new_high=[3.0, 1.0])
    said = "For new characters 1 of 2 verdicts would be others: G A (increase (size uncertain) for larger than δ)."
    assert changed_by_new_classes(wide) == said


# ---- several settings under one name ----


def test_a_name_of_settings_means_their_mean_or_the_one_that_validation_chooses():
    """Each row at its own rate by the mean of both scores under the window; a row that lacks a rate is left out."""
    rates = {"slow": {"A+": [0.5, 0.6], "A": [0.4, 0.4]}, "fast": {"A+": [0.7, 0.2], "A": [0.1, 0.3], "B": [0.9, 0.9]}}
    held = {"slow": {"A+": [0.3, 0.9], "A": [0.5, 0.5]}, "fast": {"A+": [0.4, 0.1], "A": [0.6, 0.4]}}
    parts = [table(scores, setting=name) for name, scores in rates.items()]
    for metric in ("validation/recall@1", "validation/map@r"):
        parts += [table(scores, metric, "window", name) for name, scores in held.items()]
    found = with_named_settings(pd.concat(parts), {"rates": ["slow", "fast"]})
    plain = found[(found["metric"] == "recall@1") & (found["selection"] == "last")]
    read = lambda setting: plain[plain["setting"] == setting].set_index(["method", "replicate"])["value"].to_dict()
    at = lambda *values: dict(zip([("A+", 10), ("A+", 11), ("A", 10), ("A", 11)], values, strict=True))
    assert read("rates, equal rates") == pytest.approx(at(0.6, 0.4, 0.25, 0.35))
    assert read("rates, own rates") == pytest.approx(at(0.7, 0.6, 0.1, 0.4))
    assert read("slow") == pytest.approx(at(0.5, 0.6, 0.4, 0.4))


# ---- what more replicates may decide ----


@pytest.fixture(scope="module")
def second():
    """The second set of claims, and its questions."""
    return read_ledger(2), [*asked(read_ledger(2))]


@pytest.mark.parametrize(
    "verdict, look, replicates",
    [
        ("open", 0, 5),
        ("open", 5, 10),
        ("positive, size open", 5, 10),
        ("open", 20, 0),
        ("above delta", 5, 0),
        ("negligible", 5, 0),
        ("reversed", 5, 0),
    ],
)
def test_an_open_effect_needs_all_runs_up_to_its_next_look(second, verdict, look, replicates):
    own, listed = second
    rows = [{"verdict": verdict if q["id"] == "W7" else "above delta", "look": look} for q in listed]
    found = still_open(own, pd.DataFrame(rows))
    assert len(found) == (sum(q["id"] == "W7" for q in listed) if replicates else 0)
    for (claim, of), runs in found.items():
        assert claim == "W7" and {run.replicate for run in runs} == {*range(10, 10 + replicates)}
        (question,) = (q for q in listed if (q["id"], q["of"]) == (claim, of))
        assert {run.method for run in runs} == {m for pair in question["rows"] for m in pair}


def test_only_the_claims_that_are_named_are_asked_again(second):
    own, listed = second
    open_all = pd.DataFrame([{"verdict": "open", "look": 5} for _ in listed])
    assert {claim for claim, _ in still_open(own, open_all, ["Z1"])} == {"Z1"}
    with pytest.raises(ValueError, match="claim 'Z0'"):
        still_open(own, open_all, ["Z0"])

"""Intervals cover what they say, from both sides; rules look where they say: each test fails for a wrong neighbour."""

import numpy as np
import pandas as pd
import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.custom.embedding_files import class_intervals
from dmlstudy.custom.export import _Best
from dmlstudy.data.loaders import Feed, splits_of
from dmlstudy.stats.intervals import correlation, correlation_interval, crossed_interval, search_interval
from dmlstudy.stats.sequential import LOOKS, e_value, look_interval, race, sequence_interval
from dmlstudy.study.run import make_run
from dmlstudy.study.selection import SELECTIONS, places
from dmlstudy.train import fit
from dmlstudy.train.state import start

TINY = {"dataset": "glyphs_many", "steps": 3, "eval_every": 3, "images_per_class": 4}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.slow
def test_sequences_and_looks_cover_at_all_times(rng):
    values = rng.normal(size=(100_000, 50))
    missed = np.zeros(len(values), bool)
    for n in range(3, 51):
        low, high = sequence_interval(values[:, :n], 1e-9)
        missed |= (low > 0) | (high < 0)
        assert ((e_value(values[:, :n], 1e-9) > 20) == ((low > 0) | (high < 0))).all()
    assert 0.022 < missed.mean() < 0.032
    for cap, looks in LOOKS.items():
        bounds = [look_interval(values[:, :n], cap, 1e-9)[:2] for n in looks]
        missed = np.any([(low > 0) | (high < 0) for low, high in bounds], axis=0).mean()
        assert 0.045 < missed < 0.053  # measured: 4.9, 4.7, 5.0, 5.1 %


@pytest.mark.slow
def test_the_best_stays_in_the_race(rng):
    lost = 0
    for _ in range(300):
        drawn, stays = rng.normal(size=(20, 30)) + rng.normal(size=30), np.ones(20, bool)  # all alike
        seen = np.full((20, 30), np.nan)
        for n in range(30):
            seen[stays, n] = drawn[stays, n]
            stays = race(seen[:, : n + 1], 1e-9)
        lost += not stays[0]
    assert lost <= 9  # 5 % would be 15; a t interval loses it in some 14 %


@pytest.mark.slow
def test_replicates_and_classes_are_covered(rng):
    for r, c, e in ((0.3, 1, 1), (1, 0.1, 0.1), (0.1, 1, 1)):
        shapes = (r, (20_000, 10, 1)), (c, (20_000, 1, 30)), (e, (20_000, 10, 30))
        _, low, high = crossed_interval(sum(s * rng.normal(size=shape) for s, shape in shapes), np.ones(30))
        assert 0.94 < ((low <= 0) & (0 <= high)).mean() < 0.962


def test_few_groups_are_covered(rng):
    """Degrees of freedom are those of what there is least of: with R - 1 at least, five groups had 90 %."""
    for groups in (3, 5):
        shapes = (0.3, (10_000, 20, 1)), (1, (10_000, 1, groups)), (1, (10_000, 20, groups))
        _, low, high = crossed_interval(sum(s * rng.normal(size=shape) for s, shape in shapes), np.ones(groups))
        assert 0.935 < ((low <= 0) & (0 <= high)).mean() < 0.965, groups


def judged(validation: list, test: list) -> dict:
    """Curves whose validation and test classes may disagree."""
    steps = [10 * i for i in range(len(test))]
    scores = {"validation": validation, "test": test, "train": [0.0] * len(test)}
    return {part: {"step": steps, "recall@1": s, "map@r": s} for part, s in scores.items()}


def test_each_rule_looks_at_its_own_classes():
    curves = judged(validation=[9, 1, 5, 2, 0], test=[0, 1, 2, 3, 1])
    assert [places(curves, rule) for rule in SELECTIONS] == [[0], [1, 2, 3], [3], [4]]


def at_start(**fields):
    run = make_run(TINY, **fields)
    return start(run, Feed(run, splits_of(run), torch.device("cpu")), torch.device("cpu"))


@pytest.mark.slow
def test_the_kept_weights_are_those_of_the_best_validation_step():
    state, hook, weights = at_start(method="Softmax"), _Best(), {}
    hook.begin(state)
    for step, (validation, test) in enumerate([(0.1, 0.1), (0.5, 0.2), (0.3, 0.9)]):
        for part, score in (("validation", validation), ("test", test), ("train", test)):
            for name, value in (("recall@1", score), ("map@r", score), ("step", step)):
                state.curves.setdefault(part, {}).setdefault(name, []).append(value)
        with torch.no_grad():
            for parameter in state.network.model.parameters():
                parameter.fill_(step)
        if step:
            hook.measured(state, step, {})
        weights[step] = {n: v.clone() for n, v in state.network.model.state_dict().items()}
    assert all(torch.equal(v, weights[1][n]) for n, v in hook.weights.items())


@pytest.mark.slow
def test_tuples_are_drawn_by_the_seed_of_the_run():
    """The tuples of a step are those that a generator of the run's own seed draws, and no other seed's."""
    seen = []

    class Look:
        def before_step(self, state, now):
            mine = lambda seed: state.objective.mine(now.f, now.labels, generator(seed, "tuples", state.step))
            same = [all(map(torch.equal, now.triplets, mine(seed))) for seed in (state.run.seed, 0)]
            seen.append(same)

    fit(make_run(TINY, method="Triplet (R)", seed=1), device="cpu", hooks=[Look()])
    assert seen == [[True, False]] * 3


def test_validation_shares_no_class_and_no_image_with_training():
    for dataset in ("glyphs_fine", "glyphs_many"):
        for fold in (0, 2, 4):
            parts = splits_of(make_run(TINY, dataset=dataset, fold=fold))
            train, held = ({*parts[name].class_names} for name in ("train", "validation"))
            whole = {*splits_of(make_run(TINY, dataset=dataset, fold=None))["train"].class_names}
            assert held and not train & held and train | held == whole


def test_intervals_of_retrieval_hear_of_distractors():
    """Each value lies inside its interval, and the search is done anew for each."""
    rng = np.random.default_rng(0)
    f, y = rng.normal(size=(40, 1, 3)) + 0.5 * rng.normal(size=(40, 5, 3)), np.repeat(np.arange(40), 5)
    table = pd.DataFrame(class_intervals(f.reshape(-1, 3), y, ["recall@1", "nmi"]))
    assert ((table["low"] < table["value"]) & (table["value"] < table["high"])).all()


def test_the_interval_over_searches_counts_searches_and_replicates(rng):
    """By loops over pairs of runs: two runs go together where they share the search or the replicate."""
    y, n, k = rng.normal(size=(10, 3)) + rng.normal(size=(10, 1)), 10, 3
    z, at = y - y.mean(), [(s, (s + j) % n, j) for s in range(n) for j in range(k)]
    pairs = [(a, b, z[a[0], a[2]] * z[b[0], b[2]]) for a in at for b in at]
    search = sum(v for a, b, v in pairs if a[0] == b[0]) / k**2 / (n * (n - 1))
    replicate = sum(v for a, b, v in pairs if a[1] == b[1]) / k**2 / (n * (n - 1))
    single = sum(v for a, b, v in pairs if a == b) / (n * k * (n * k - 1))
    mean, low, high = search_interval(y)
    half = 2.2621571 * max(search, replicate, search + replicate - single) ** 0.5
    assert (low, high) == pytest.approx((y.mean() - half, y.mean() + half)) and mean == pytest.approx(y.mean())


def test_a_correlation_is_of_the_methods_that_have_all_values(rng):
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(12, 3))
    some = np.delete(x, 4, 0), np.delete(y, 4, 0)
    x[4, 1] = np.nan
    found, wanted = (correlation_interval(a, b, np.random.default_rng(0)) for a, b in ((x, y), some))
    assert np.isfinite(found).all() and found == wanted
    assert np.isnan(correlation_interval(x[:8], y[:8], rng)[1:]).all()  # seven are left


def test_where_nothing_is_drawn_there_is_no_interval(rng):
    """One replicate to draw replicates from gave an interval of no width."""
    x, y = rng.normal(size=(2, 12, 5))
    for one in (x[:, :1], x[:, 0]):
        value, *bounds = correlation_interval(one, y[:, :1], rng, over=("replicates",))
        assert np.isfinite(value) and np.isnan(bounds).all()
    assert np.isfinite(correlation_interval(x[:, :1], y[:, :1], rng, over=("methods", "replicates"))).all()
    assert np.isfinite(correlation_interval(x, y[:, :1], rng, over=("replicates",))).all()


def test_no_spread_over_classes_is_no_interval():
    """An embedding that finds every image of every class has no error to judge by."""
    labels = np.arange(100) // 4
    (row,) = class_intervals(np.eye(25)[labels], labels, ["recall@1"])
    assert row["value"] == 1 and np.isnan([row["low"], row["high"]]).all()


@pytest.mark.parametrize("kind", ["pearson", "spearman"])
def test_what_does_not_vary_has_no_correlation(kind):
    """Rounding gave -1 for two constants."""
    constant, rising = np.full(12, 0.1), np.arange(12.0)
    both = correlation(np.stack([constant, rising, rising]), np.stack([np.full(12, 0.3), constant, rising]), kind=kind)
    assert np.isnan(both[:2]).all() and both[2] == 1
    with pytest.raises(ValueError, match="There is no kind of correlation 'kendall'"):
        correlation(rising, rising, kind="kendall")

"""Statistics, sequences and verdicts by hand, and coverage from both sides: each test fails for a wrong neighbour."""

import numpy as np
import pytest

from dmlstudy.stats.decisions import against_print, e_bh, every_interval, over_sets, verdict
from dmlstudy.stats.intervals import (
    correlation_interval,
    crossed_interval,
    paired_differences,
    rank_intervals,
    seeds_needed,
    t_interval,
    tied_with_best,
    variance_components,
)
from dmlstudy.stats.sequential import e_value, look_interval, race, sequence_interval


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_equal_rows_are_called_worse_in_five_percent(rng):
    """A one-sided quantile, or that of one pair, is off by far more than the bounds allow."""
    for rows, n in ((5, 5), (18, 3), (18, 10)):
        tables = 2 * rng.normal(size=(20_000, 1, n)) + rng.normal(size=(20_000, rows, n))
        assert 0.044 < 1 - tied_with_best(tables).all(-1).mean() < 0.056


def test_ranks_agree_with_ties_and_with_each_other(rng):
    values = np.linspace(0, 8, 6)[:, None] + rng.normal(size=(6, 5))
    low, high = rank_intervals(values)
    assert (low <= high).all() and low.min() == 1 and high.max() == 6
    assert ((low == 1) == tied_with_best(values)).all() and not tied_with_best(values).all()
    mirrored = rank_intervals(-values)
    assert (mirrored[0] == 7 - high).all() and (mirrored[1] == 7 - low).all()


def test_seeds_are_drawn_for_each_method_and_replicates_for_all(rng):
    shifted, y = np.arange(11)[:, None] + 10 * np.arange(5), np.r_[0, 2, 1, 3:11]
    value, low, high = correlation_interval(shifted, y, rng, over=("replicates",))
    assert low == pytest.approx(value) and high == pytest.approx(value)
    _, low, high = correlation_interval(shifted, y, rng, over=("seeds",))
    assert high - low > 0.2


def test_values_by_hand():
    """Quantiles from printed tables: t of two degrees of freedom, and the size of a paired test at one deviation."""
    assert [float(v) for v in t_interval([1, 2, 3])] == pytest.approx([2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5], 1e-4)
    assert paired_differences({0: 1.0, 1: 5.0}, {1: 2.0, 0: 0.5, 2: 9.0}).tolist() == [0.5, 3.0]
    assert seeds_needed(1.0, 1.0) == 10 and seeds_needed(0.5, 1.0) == 34
    found = variance_components(np.add.outer([0.0, 2.0], [0.0, 0.0, 3.0]), ["seeds", "classes"])
    assert [found[name][0] for name in ("seeds", "classes", "residual")] == pytest.approx([2, 3, 0])


def test_replicates_and_classes_are_covered_from_both_sides(rng):
    z = rng.normal(size=(4000, 10, 1)) + rng.normal(size=(4000, 1, 30)) + rng.normal(size=(4000, 10, 30))
    _, low, high = crossed_interval(z, np.ones(30))
    assert 0.935 < ((low <= 0) & (0 <= high)).mean() < 0.967


def test_bounds_hold_at_all_times_and_looks_are_the_declared_ones(rng):
    values, missed = rng.normal(size=(5000, 40)), np.zeros(5000, bool)
    for n in range(3, 41):
        low, high = sequence_interval(values[:, :n], 1e-9)
        missed |= (low > 0) | (high < 0)
    assert 0.015 < missed.mean() < 0.037
    assert (e_value(values[:, :2], 1e-9) == 1).all() and e_value(values[:, :3], 1e-9).std() > 0
    low, high, reached = look_interval(values[:, :9], 10, 1e-9)
    assert reached == 5 and np.array_equal(low, look_interval(values[:, :5], 10, 1e-9)[0])
    half = 4.2366 * values[:, :5].std(1, ddof=1) / 5**0.5  # t of four degrees of freedom, 1.33 % in both tails
    assert np.allclose((high - low) / 2, half, rtol=1e-3)


def test_a_race_is_held_at_the_level_of_all_its_rivals():
    """A rival is out at the level of one, and stays where twenty run."""
    noise = np.tile([-1.0, 1.0], 5)
    bound = lambda level: -sequence_interval(noise, 1e-9, level)[0]
    behind = (bound(0.95) + bound(1 - 0.05 / 19)) / 2 + noise
    assert race(np.stack([behind, 0 * noise]), 1e-9).tolist() == [True, False]
    many = np.stack([behind, *[0 * noise] * 19])
    assert race(many, 1e-9).all()


def test_verdicts_by_hand():
    cases = {(1.1, 2): "above delta", (0.5, 2): "positive, size open", (-0.9, 0.9): "negligible"}
    cases |= {(-2, -0.5): "reversed", (-0.5, 2): "open", (-2, 0.5): "open", (0.2, 0.8): "negligible"}
    assert {bounds: verdict(*bounds, 1.0) for bounds in cases} == cases
    said = ["as large as printed", "smaller than printed", "holds the printed effect"]
    assert against_print(0.1, 2, -1.0) == "opposite to printed" and against_print(-1, 2, -1.0) == "as large as printed"
    assert [against_print(*bounds, 1.0) for bounds in ((1.5, 2), (-1, 0.5), (0.5, 2))] == said
    for e, marked in (([39, 0], 0), ([41, 0], 1), ([21, 21], 2), ([19, 19], 0), ([41, np.nan], 1), ([21, np.nan], 1)):
        assert e_bh(np.array(e, float)).sum() == marked
    assert not e_bh(np.full(3, np.nan)).any() and not e_bh(np.zeros(3)).any()
    assert verdict(np.nan, -1, 1) == verdict(1.5, np.nan, 1) == "open" and against_print(np.nan, np.nan, 1) == ""


def test_sets_of_one_family_count_once():
    one = over_sets([1.0, 3.0, 8.0], [0.5, 0.5, 0.5])
    twice = over_sets([1.0, 3.0, 3.0, 8.0], [0.5] * 4, ["a", "b", "b", "c"])
    assert (
        one == pytest.approx(twice, nan_ok=True) and one["families"] == 3 and one["mean"] == pytest.approx(4, abs=0.1)
    )


def test_what_is_said_of_every_effect_waits_for_the_one_without_an_interval():
    """A single value was passed over where it came second, and so every effect was called positive."""
    firm, alone = np.array([5.0, 5.1, 4.9]), np.array([2.0])
    assert np.isnan([every_interval(order, t_interval) for order in ([firm, alone], [alone, firm])]).all()
    wide = t_interval(firm, 1 - 0.05 / 2)[1]  # of two effects
    assert every_interval([firm, firm + 1], t_interval) == pytest.approx((t_interval(firm)[0], wide))

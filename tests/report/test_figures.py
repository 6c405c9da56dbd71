"""What figures are drawn from, against plain loops over records."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dmlstudy.report.figures import by_method, correlations, paired, scatter_with_fit, spectra
from dmlstudy.stats.intervals import t_interval


def results(**values) -> pd.DataFrame:
    """Method -> value of seeds 0, 1, ... (None: no such run), under two rules; under `last` half of it."""
    rows = [
        ("d", method, "recall@1", rule, seed, v * factor)
        for method, seeds in values.items()
        for seed, v in enumerate(seeds)
        for rule, factor in (("validation", 1), ("last", 0.5))
        if v is not None
    ]
    return pd.DataFrame(rows, columns=["dataset", "method", "metric", "selection", "seed", "value"])


def test_means_are_of_the_first_rule_that_there_is():
    table = results(A=[0.2, 0.4, 0.6])
    low, high = t_interval(np.array([20, 40, 60]))
    found = by_method(table, "d", "recall@1", scale=100).loc["A"]
    assert found[["mean", "low", "high", "n"]].tolist() == pytest.approx([40, low, high, 3])
    assert by_method(table, "d", "recall@1", "last").loc["A", "mean"] == pytest.approx(0.2)
    assert by_method(table[table["selection"] == "last"], "d", "recall@1").loc["A", "mean"] == pytest.approx(0.2)


def test_pairs_are_of_one_seed():
    """A seed that one of the two lacks is left out, so a difference of their means would be another number."""
    table = results(A=[0.5, 0.7, 0.9], B=[0.4, None, 0.7])
    found = paired(table, "d", "recall@1", "A", "B")
    assert (found["mean"], found["n"]) == (pytest.approx((0.1 + 0.2) / 2), 2)
    assert paired(table, "d", "recall@1", "A", "A")["mean"] == 0
    assert paired(table, "d", "recall@1", "A", "missing")["n"] == 0


def test_correlations_need_five_points_that_have_both():
    x, y = [1, 2, 3, 4, np.nan, 6], [1, 2, 3, np.nan, 5, 6]
    assert correlations(x, y)["n"] == 4 and np.isnan(correlations(x, y)["pearson"])
    assert correlations(range(5), range(5))["spearman"] == pytest.approx(1)


def test_a_point_stands_where_its_method_is():
    ax = Figure().subplots()
    y = pd.DataFrame({"mean": [1.0, 2.0, 4.0], "low": [0.0, 1.0, 3.0], "high": [2.0, 3.0, 5.0]}, index=["A", "B", "C"])
    scatter_with_fit(ax, pd.Series({"B": 5.0, "A": 7.0, "other": 0.0}), y, colour=lambda m: "k", names=False)
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    assert [[7, 1]] in drawn and [[5, 2]] in drawn and [[5, 1], [5, 3]] in drawn
    assert not any(x == 0 or y == 4 for line in drawn[:4] for x, y in line), "C has no x, and the other no value"


def test_a_ratio_of_spectra_is_of_one_seed():
    curve = {"step": [0, 5], "recall@1": [0, 1]}
    record = lambda m, s, v: {
        "run": {"method": m, "seed": s}, "curves": {"train": curve}, "spectra": {"train": {"5": v}}
    }  # fmt: skip
    values = {
        ("A", 0): [0.6, 0.4],
        ("A", 1): [0.9, 0.1],
        ("A", 2): [0.7, 0.3],
        ("B", 1): [0.5, 0.5],
        ("B", 0): [0.3, 0.7],
    }
    records, ax = [record(m, s, np.array(v)) for (m, s), v in values.items()], Figure().subplots()
    np.testing.assert_allclose(spectra(ax, records, "A", "B"), [[2, 4 / 7], [1.8, 0.2]])
    assert len(spectra(ax, records, "A")) == 3
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), np.mean([v for (m, _), v in values.items() if m == "A"], 0))
    longer = [*records, record("A", 3, np.array([0.5, 0.3, 0.2]))]  # a draw whose smallest class has more images
    np.testing.assert_allclose(spectra(ax, longer, "A"), [[0.6, 0.4], [0.9, 0.1], [0.7, 0.3], [0.5, 0.3]])

"""Tables: which values are marked as the best."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dmlstudy.report.tables import intervals, mark_ties, ties


@pytest.fixture
def scores():
    """One method has a seed that the others lack."""
    values = {"good": [0.80, 0.81, 0.79], "mid": [0.70, 0.71, 0.69], "bad": [0.50, 0.51, 0.49, 0.99]}
    return pd.DataFrame({m: pd.Series(v) for m, v in values.items()}).T


def test_a_seed_that_one_method_alone_has_decides_nothing(scores):
    marked = mark_ties(pd.Series({m: m for m in scores.index}), scores)
    assert marked.to_dict() == {"good": "**good**", "mid": "mid", "bad": "bad"}
    long = scores.rename_axis("method").melt(var_name="seed", ignore_index=False).dropna().reset_index()
    found = ties(long.assign(dataset="d", metric="recall@1", selection="last")).set_index("method")["tied"]
    assert found.to_dict() == {"good": True, "mid": False, "bad": False}


def test_a_method_that_lacks_a_seed_is_not_marked(scores):
    scores.loc["good", 2] = None
    assert mark_ties(pd.Series({m: m for m in scores.index}), scores)["good"] == "good"


def test_an_interval_is_of_the_values_that_are_there():
    """One NaN in one of two rows with as many values ended in an error."""
    values = pd.DataFrame(
        [("a", 1.0), ("a", np.nan), ("b", 1.0), ("c", 1.0), ("c", 2.0), ("c", np.nan)], columns=["method", "value"]
    )
    found = intervals(values, ("method",)).set_index("method")
    assert found["n"].tolist() == [1, 1, 2] and found["half"].isna().tolist() == [True, True, False]
    assert found.at["c", "half"] == pytest.approx(0.5 * stats.t.isf(0.025, 1))


def test_one_seed_marks_nothing():
    values = pd.DataFrame([[3.0], [2.0]], index=["a", "b"])
    assert mark_ties(values[0].map(str), values).tolist() == ["3.0", "2.0"]
    assert mark_ties(values[0].map(str), values.assign(again=values[0] + [0.1, 0.0])).tolist() != ["3.0", "2.0"]


def test_an_interval_is_of_the_combinations_that_are_there(monkeypatch):
    """Older pandas made a row of every combination of the categories."""
    table = pd.DataFrame({"dataset": list("ab"), "method": list("xy"), "value": [1.0, 2.0]}, dtype="category")
    table, plain = table.astype({"value": float}), pd.DataFrame.groupby
    older = lambda self, by, **more: plain(self, by, **{"observed": False} | more)
    monkeypatch.setattr(pd.DataFrame, "groupby", older)
    assert intervals(table, ("dataset", "method"))["n"].tolist() == [1, 1]

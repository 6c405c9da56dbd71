"""Tables: which values are marked as the best."""

import pandas as pd
import pytest

from dmlstudy.report.tables import mark_ties, ties


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

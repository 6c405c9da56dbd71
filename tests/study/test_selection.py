"""Which evaluation counts: at the ends of a run, at its start, and where nothing was validated."""

import pytest

from dmlstudy.study.selection import SELECTIONS, places, search_score


def curves(*scores, steps=None, **more):
    """Curves whose parts have equal scores if nothing else is said."""
    steps = steps or [10 * i for i in range(len(scores))]
    parts = {"train": scores, "validation": scores, "test": scores} | more
    return {part: {"recall@1": [*values], "step": steps} for part, values in parts.items() if values}


@pytest.mark.parametrize(
    "scores, found",
    [
        ((9, 1, 2, 8, 3, 1), [2, 3, 4]),  # the start is no part of a window
        ((0, 9, 2, 8, 3, 1), [1, 2, 3]),
        ((0, 1, 2, 8, 3, 9), [3, 4, 5]),
        ((0, 9, 9, 9, 9, 9), [1, 2, 3]),  # the first of equal ones
        ((5, 4, 3), [1, 2]),
        ((5, 4), [1]),
        ((5,), [0]),
    ],
)
def test_a_window_is_three_evaluations_after_the_start(scores, found):
    assert places(curves(*scores), "window") == found


def test_the_start_may_be_the_best_but_no_part_of_a_window():
    assert places(curves(9, 1, 2, 3), "validation") == [0] == places(curves(9, 1, 2, 3), "best_test")
    assert places(curves(9, 1, 8, 3, steps=[5, 10, 15, 20]), "window") == [0, 1, 2]  # no evaluation at step 0


def test_of_equal_evaluations_the_first_counts():
    assert places(curves(1, 7, 7, 3), "validation") == [1]


def test_without_validation_two_rules_have_nothing_to_look_at():
    found = {rule: places(curves(3, 1, 2, validation=None), rule) for rule in SELECTIONS}
    assert found == {"validation": [], "window": [], "best_test": [0], "last": [2]}
    with pytest.raises(ValueError, match="selection 'best'"):
        places(curves(1, 2), "best")


def test_a_search_compares_the_mean_of_two_scores():
    assert search_score({"validation/recall@1": 0.6, "validation/map@r": 0.2, "recall@1": 0.9}) == pytest.approx(0.4)

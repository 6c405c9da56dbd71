"""A search: the box of a row, the trials that fill it, and the choice, by hand and by loops."""

from dataclasses import replace

import numpy as np
import pytest

from dmlstudy.study.methods import METHODS, Method
from dmlstudy.study.search_space import box_of, fitted_best, in_box, run_fields, unit_points

SEARCH = {"lr": (1e-5, 1e-3), "p_switch": (0.0, 0.6), "eta": {"sec": (0.05, 5.0), "l2": (1e-4, 1.0)}}


def test_a_box_has_the_axes_of_what_a_row_is_made_of():
    """Learning rate and the loss's axes; p_switch of a row that switches, evenly spaced; eta of its regularizer."""
    plain = {"lr": (1e-5, 1e-3, True), "neg_margin": (0.2, 1.4, False), "samples_per_class": (2, 8, True)}
    assert box_of(METHODS["Contrastive (D)"], SEARCH) == plain
    assert box_of(METHODS["R-Contrastive (D)"], SEARCH) == plain | {"p_switch": (0.0, 0.6, False)}
    triplet = {"lr": (1e-5, 1e-3, True), "margin": (0.05, 1.0, True), "samples_per_class": (2, 8, True)}
    assert box_of(METHODS["T + SEC"], SEARCH) == triplet | {"eta": (0.05, 5.0, True)}
    assert box_of(replace(METHODS["T + SEC"], regularizer="ring"), SEARCH) == triplet  # no range: its own weight


@pytest.mark.parametrize("margin, searched", [(0.04, False), (0.05, True), (1.0, True), (1.5, False)])
def test_an_axis_that_cannot_hold_the_rows_own_value_is_left_out(margin, searched):
    assert ("margin" in box_of(Method("triplet", "random", loss_args={"margin": margin}), SEARCH)) == searched


def test_a_profile_may_widen_the_axes_of_a_loss_or_a_regularizer():
    wider = SEARCH | {"axes": {"triplet": {"margin": (0.01, 4.0)}, "sec": {"lr": (1e-6, 1e-2)}, "l2": {"lr": (1, 2)}}}
    box = box_of(METHODS["T + SEC"], wider)
    assert (box["margin"], box["lr"]) == ((0.01, 4.0, True), (1e-6, 1e-2, True))
    with pytest.raises(ValueError, match="no axis|There is no axis"):
        box_of(METHODS["T + SEC"], SEARCH | {"axes": {"triplet": {"scale": (1, 2)}}})


def test_points_of_a_cube_are_points_of_a_box():
    """On a logarithmic axis half of the way is the geometric mean; ends are ends; three digits."""
    box = {"lr": (1e-4, 1e-2, True), "beta": (0.5, 1.5, False)}
    found = in_box(box, np.array([[0, 0], [0.5, 0.5], [1, 1], [0.25, 0.12345]]))
    assert found == [
        {"lr": 1e-4, "beta": 0.5},
        {"lr": 1e-3, "beta": 1.0},
        {"lr": 1e-2, "beta": 1.5},
        {"lr": 0.000316, "beta": 0.623},
    ]


def test_points_fill_a_cube_evenly():
    """Of 32 points in three dimensions each half of each axis has 16, each quarter 8; a seed moves them."""
    points = unit_points(32, 3, seed=1)
    for parts in (2, 4, 8):
        for axis in points.T:
            assert (np.bincount((axis * parts).astype(int), minlength=parts) == 32 // parts).all()
    assert np.array_equal(unit_points(20, 3, seed=1), points[:20]) and not np.array_equal(unit_points(32, 3, 2), points)
    with pytest.raises(ValueError, match="trials of the search must be an integer, at least 1; got 0"):
        unit_points(0, 3, seed=0)


@pytest.mark.parametrize(
    "name, point, fields",
    [
        ("Contrastive (D)", {"lr": 1e-4, "neg_margin": 0.7}, {"lr": 1e-4, "loss_args": "neg_margin=0.7"}),
        ("Contrastive (D)", {"lr": 1e-4, "samples_per_class": 2.9}, {"lr": 1e-4, "samples_per_class": 4}),
        ("Contrastive (D)", {"lr": 1e-4, "samples_per_class": 2.8}, {"lr": 1e-4, "samples_per_class": 2}),
        ("Contrastive (D)", {"lr": 1e-4, "samples_per_class": 8}, {"lr": 1e-4, "samples_per_class": 8}),
        ("R-Contrastive (D)", {"lr": 2e-4, "p_switch": 0.3}, {"lr": 2e-4, "p_switch": 0.3}),
        ("T + SEC", {"lr": 2e-4, "eta": 0.5}, {"lr": 2e-4, "eta": 0.5}),
        ("Softmax", {"lr": 2e-4, "loss_lr": 50.0}, {"lr": 2e-4, "loss_lr": 0.01}),  # times the network's
        ("Softmax", {"lr": 2e-4}, {"lr": 2e-4, "loss_lr": 0.02}),  # a hundred times it, where it is not searched
    ],
)
def test_a_point_as_a_run_has_it(name, point, fields):
    assert run_fields(METHODS[name], point) == fields


def test_a_whole_number_stays_one():
    row = Method("fast_ap", loss_args={})
    assert run_fields(row, {"lr": 1e-3, "bins": 7.6}) == {"lr": 1e-3, "loss_args": "bins=8"}
    row = Method("mine", loss_args={"size": 1_000_000})
    assert run_fields(row, {"lr": 1e-3, "size": 2.34e6}) == {"lr": 1e-3, "loss_args": "size=2340000"}


# ---- the choice ----


def surface(points, top):
    """A smooth score with its best at a point."""
    return 0.6 - ((points - top) ** 2 @ np.array([1.0, 0.5]))


def noise(n, size):
    return size * np.random.default_rng(3).normal(size=n)


def test_the_choice_is_the_top_of_the_surface_and_not_the_luckiest_trial():
    points, top = unit_points(24, 2, seed=0), np.array([0.35, 0.7])
    choice, share = fitted_best(points, surface(points, top) + noise(24, 0.02))
    assert np.abs(choice - top).max() < 0.1 and 0.8 < share < 1
    lucky, at = surface(points, top), np.abs(points - top).max(1).argsort()[12]
    lucky[at] = 0.61  # a trial elsewhere was lucky, and is the best
    choice, _ = fitted_best(points, lucky)
    assert lucky.argmax() == at and np.abs(choice - top).max() < 0.15 < np.abs(choice - points[at]).max()


def test_where_no_surface_fits_the_best_trial_is_chosen():
    points, scores = unit_points(24, 2, seed=0), noise(24, 1.0)
    choice, share = fitted_best(points, scores)
    assert np.array_equal(choice, points[scores.argmax()]) and share < 0.3
    choice, share = fitted_best(points, surface(points, np.array([0.5, 0.5])), enough=1.0)
    assert np.array_equal(choice, points[surface(points, np.array([0.5, 0.5])).argmax()])


def test_the_share_is_that_of_trials_left_out_one_by_one():
    """A ridge regression on squares and products, made anew without each trial; the mean without it is the rival."""
    points = unit_points(16, 2, seed=1)
    scores, penalty = surface(points, np.array([0.4, 0.4])) + noise(16, 0.05), 0.3
    v = 2 * points - 1
    x = np.column_stack([np.ones(16), v, v[:, 0] ** 2, v[:, 0] * v[:, 1], v[:, 1] ** 2])
    held = penalty * np.diag([0, 1, 1, 1, 10, 1.0])
    missed, rival = [], []
    for i in range(16):
        rest = np.arange(16) != i
        w = np.linalg.solve(x[rest].T @ x[rest] + held, x[rest].T @ scores[rest])
        missed.append(scores[i] - x[i] @ w)
        rival.append(scores[i] - scores[rest].mean())
    share = 1 - np.sum(np.square(missed)) / np.sum(np.square(rival))
    assert fitted_best(points, scores, penalties=(penalty,))[1] == pytest.approx(share)


def test_the_choice_stays_among_trials_where_the_surface_is_not_known():
    """A surface that rises to a corner without trials: less its standard error, its top is nearer to them."""
    points = 0.5 * unit_points(24, 2, seed=4)
    scores = points.sum(1) + noise(24, 0.08)
    choice, share = fitted_best(points, scores)
    assert share > 0.3 and choice.max() < 0.7  # without the error it would be above

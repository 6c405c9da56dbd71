"""Same or different: the threshold and its errors against loops, and lists of pairs that have no interval."""

import json
import math

import numpy as np
import pytest
import torch

from dmlstudy.metrics.verification import accepted, draw_pairs, least_error, verification


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_no_threshold_is_wrong_on_fewer_pairs(rng):
    """All thresholds that differ in what they accept are tried, ties of distances included."""
    for n in (1, 2, 7, 60):
        distance, same = rng.integers(0, 8, n) / 4, rng.random(n) < 0.6
        wrong = lambda t: int(np.sum((distance <= t) != same))  # noqa: B023
        tried = [-1.0, *(np.unique(distance))]
        assert wrong(least_error(distance, same)) == min(map(wrong, tried))
        thresholds, right, mistaken = accepted(distance, same)
        assert [int(np.sum(same & (distance <= t))) for t in thresholds] == right.tolist()
        assert [int(np.sum(~same & (distance <= t))) for t in thresholds] == mistaken.tolist()


def test_accepted_at_a_share_of_wrong_ones_by_a_loop(rng):
    """tar@x: the greatest share of same pairs accepted by a threshold that accepts at most x of the others."""
    f, labels = rng.normal(size=(60, 3)), np.arange(60) % 6
    pairs = [(i, j, int(labels[i] == labels[j])) for i in range(60) for j in range(i)]
    found = verification(f, labels, pairs, far=(0.3, 0.1, 0.02))
    z = f / np.linalg.norm(f, axis=1, keepdims=True)
    distance = np.array([np.linalg.norm(z[i] - z[j]) for i, j, _ in pairs])
    same = np.array([one for *_, one in pairs], bool)
    for most in (0.3, 0.1, 0.02):
        cuts = [t for t in [-1.0, *distance] if (distance[~same] <= t).mean() <= most]
        assert found[f"tar@{most:g}"] == pytest.approx(max((distance[same] <= t).mean() for t in cuts), abs=0.005)


def test_each_part_is_judged_by_the_threshold_of_the_others(rng):
    """A loop over the parts of the pairs that are drawn."""
    y = np.repeat(np.arange(30), 5)
    f = rng.normal(size=(30, 8))[y] + rng.normal(size=(150, 8))
    pairs, part = draw_pairs(y, 10, np.random.default_rng(3))
    z = f / np.linalg.norm(f, axis=1, keepdims=True)
    distance, same = np.linalg.norm(z[pairs[:, 0]] - z[pairs[:, 1]], axis=1), pairs[:, 2] == 1
    right = 0
    for k in range(10):
        t = least_error(distance[part != k], same[part != k])
        right += int(np.sum((distance[part == k] <= t) == same[part == k]))
    assert verification(f, y, seed=3)["accuracy"] == pytest.approx(right / len(pairs), abs=2 / len(pairs))


def test_threshold_of_a_collapsed_embedding_is_a_number():
    """All distances are 0 and no threshold is better than another: a number, so that the record is JSON."""
    pairs = [(0, 1, 1), (2, 3, 1), (0, 2, 0), (1, 3, 0), (1, 2, 0), (0, 3, 0)]
    found = verification(torch.ones(4, 3), torch.tensor([0, 0, 1, 1]), pairs, folds=2)
    assert found["threshold"] == -1 and found["accuracy"] == pytest.approx(4 / 6)
    assert math.isfinite(json.loads(json.dumps(found["threshold"], allow_nan=False)))


def test_a_list_whose_parts_share_classes_in_either_place_has_no_interval(rng):
    """Shared in the second place alone: a look at the first would not see it."""
    y = np.repeat(np.arange(60), 4)
    f = rng.normal(size=(60, 8))[y] + 0.6 * rng.normal(size=(240, 8))
    same = [(4 * c, 4 * c + 1, 1) for c in range(60)]
    for across in (lambda c: c - 1, lambda c: c // 6 * 6 + (c + 1) % 6):  # of the part before; of the same part
        for turn in (1, -1):
            pairs = same + [(*(4 * c, 4 * (across(c) % 60) + 2)[::turn], 0) for c in range(60)]
            found = verification(f, y, pairs)
            assert np.isnan(found["low"]) == np.isnan(found["high"]) == (across(6) == 5)


def test_one_fold_is_no_lack_of_classes():
    with pytest.raises(ValueError, match="takes 4 classes of two or more images, 2 folds; got 20, 1"):
        draw_pairs(np.arange(60) // 3, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    "more, said",
    [
        ({"pairs": [[0.5, 1, 1], [0, 2, 0]]}, "rows of integers"),
        ({"pairs": np.empty((0, 3))}, "rows of integers"),
        ({"folds": 2.5}, "folds of the verification must be an integer, at least 2"),
        ({"far": [0.1, -1]}, r"far\[1\] of the verification must be a number, at least 0 and at most 1; got -1"),
    ],
)
def test_wrong_pairs_and_parts_are_refused(more, said, rng):
    f, labels = torch.from_numpy(rng.normal(size=(60, 4))), torch.arange(60) % 12
    with pytest.raises(ValueError, match=said):
        verification(f, labels, **more)

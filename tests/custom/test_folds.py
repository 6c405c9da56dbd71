"""Folds of classes: each step by hand, and folders whose truth is known, with a winner or without."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from dmlstudy import folds
from dmlstudy.folds import (
    PARTS,
    best_said,
    chosen_place,
    chosen_values,
    classes_needed,
    draws,
    fold_interval,
    fold_threshold,
    leader,
    linear_layer,
    training_said,
)
from dmlstudy.metrics.verification import draw_pairs, least_error

# ---- each step by hand ----


def test_the_interval_of_folds_is_wider_by_the_share_of_test_classes():
    """The corrected resampled t: 1/J and the ratio of test to training classes; one fold says nothing."""
    values = np.array([1.0, 3.0, 2.0, 6.0])
    half = stats.t.isf(0.025, 3) * values.std(ddof=1) * (1 / 4 + 1 / 3) ** 0.5
    assert fold_interval(values, 1 / 3) == pytest.approx((3 - half, 3 + half))
    assert fold_interval(values[:1], 1 / 3) == (-np.inf, np.inf)


def test_the_classes_that_are_needed_grow_with_the_square_of_the_error():
    """Five per cent for a wrong yes on both sides, a chance of 80 % for a right one."""
    values = np.array([1.0, 3.0, 2.0, 6.0])
    error = values.std(ddof=1) * (1 / 4 + 1 / 3) ** 0.5
    expected = 24 * ((stats.t.isf(0.025, 3) + stats.t.isf(0.2, 3)) * error / 2) ** 2
    assert classes_needed(values, 1 / 3, 24, 2.0) == pytest.approx(expected)
    assert np.isnan(classes_needed(values[:1], 1 / 3, 24, 2.0)) and np.isnan(classes_needed([1, 1], 1 / 3, 24, 2.0))


def test_rows_that_cannot_be_told_from_the_best_are_named_nearest_first():
    rows = {"far": [10, 11, 10, 11], "near": [58, 62, 59, 61], "best": [60, 61, 62, 60], "middle": [40, 75, 50, 70]}
    assert leader(rows, 1 / 3) == ("best", ["near", "middle"])
    assert leader({"a": [1, 2], "b": [1, 2]}, 1 / 3) == ("a", ["b"])
    assert leader({"a": [1, 2]}, 1 / 3) == ("a", [])


@pytest.mark.parametrize(
    "gain, answer",
    [
        ([6, 7, 8, 7], "Yes. The network"),
        ([0.1, 0.2, 0.1, 0.2], "No: it brings less than 2 points."),  # surely above 0, and not worth it
        ([-6, -7, -8, -7], "No: training makes it worse."),
        ([9, -8, 7, -5], "Undecided on 24 classes."),
    ],
)
def test_the_answer_is_that_of_the_interval(gain, answer):
    frozen = np.array([50.0, 51, 52, 53])
    said, keep = training_said(frozen + gain, frozen, 1 / 3, 24)
    assert said.startswith(f"Should you train at all? {answer}") and keep == answer.startswith("Yes")


def parts_of(rng, parts=4, classes=6, images=8):
    """Embeddings and labels of test parts whose classes overlap."""
    labels = np.repeat(np.arange(classes), images)
    found = []
    for _ in range(parts):
        f = rng.normal(size=(classes, 8))[labels] + 0.9 * rng.normal(size=(len(labels), 8))
        found.append((f.astype(np.float32), labels))
    return found


def test_the_error_of_a_threshold_is_that_of_classes_it_has_not_seen():
    """Each part by the threshold of the others, in a loop; the threshold that is given is that of all."""
    parts, drawn = parts_of(np.random.default_rng(0)), []
    for f, y in parts:
        z, (pairs, _) = f / np.linalg.norm(f, axis=1, keepdims=True), draw_pairs(y, 10, np.random.default_rng(0))
        drawn.append((np.linalg.norm(z[pairs[:, 0]] - z[pairs[:, 1]], axis=1), pairs[:, 2] == 1))
    errors = []
    for i, (distance, same) in enumerate(drawn):
        others = [pair for j, pair in enumerate(drawn) if j != i]
        cut = least_error(np.concatenate([d for d, _ in others]), np.concatenate([s for _, s in others]))
        errors.append(np.mean((distance <= cut) != same))
    found = fold_threshold(parts, 1 / 3)
    everything = [np.concatenate(column) for column in zip(*drawn, strict=True)]
    assert found["threshold"] == pytest.approx(least_error(*everything), abs=1e-5)
    assert found["error"] == pytest.approx(np.mean(errors), abs=0.003) and 0.1 < found["error"] < 0.4
    ends = np.clip(fold_interval(errors, 1 / 3), 0, 1)
    assert [found["low"], found["high"]] == pytest.approx([*ends], abs=0.01)


def test_a_threshold_takes_four_classes_of_two_images_in_each_of_two_parts():
    parts = parts_of(np.random.default_rng(0), parts=2, classes=4, images=2)
    assert fold_threshold(parts, 1 / 3) and fold_threshold(parts[:1], 1 / 3) is None
    f, y = parts[0]
    assert fold_threshold([parts[1], (f[:7], y[:7])], 1 / 3) is None  # one class has a single image


def test_a_linear_layer_makes_the_covariance_within_classes_round():
    """With many images it is the inverse root of that covariance, of mean weight 1, and centres the features."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(50), 100)
    mix = rng.normal(size=(5, 5))
    f = torch.from_numpy(5 * rng.normal(size=(50, 5))[labels] + rng.normal(size=(5000, 5)) @ mix + 3)
    W, b = linear_layer(f, torch.from_numpy(labels))
    out = f @ W.double().T + b
    rest = out - torch.stack([out[i * 100 : (i + 1) * 100].mean(0) for i in range(50)])[labels]
    S = rest.T @ rest / len(rest)
    assert torch.allclose(S / S.trace() * 5, torch.eye(5).double(), atol=0.05)
    assert W.diagonal().mean().item() == pytest.approx(1, rel=1e-5) and out.mean(0).abs().max() < 1e-3
    assert torch.allclose(W, W.T, atol=1e-5)


def test_few_images_leave_the_features_nearly_as_they_are():
    """Three classes of two images in 20 dimensions: the covariance is shrunk towards a round one."""
    f = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    W, _ = linear_layer(f, torch.arange(6) // 2)
    values = torch.linalg.eigvalsh(W)
    assert W.isfinite().all() and 0 < values.max() < 3 * values.min()


def test_each_round_has_its_own_parts(monkeypatch):
    """Four replicates a round, none twice; a folder that names its test classes is repeated by seeds."""
    monkeypatch.setattr(folds, "load_folder", lambda name: SimpleNamespace(whole={"mine": "all", "split": None}[name]))
    found = draws("mine", [0, 1])
    assert found == [(None, replicate) for replicate in range(1, 2 * PARTS + 1)]
    assert draws("split", [0, 1]) == [(0, 0), (1, 0)]


def test_of_equal_evaluations_the_first_is_kept():
    """By recall@1 on validation classes, then MAP@R, then the earlier step; without validation classes the last one."""
    curves = {"recall@1": [0.5, 0.7, 0.7, 0.7, 0.6], "map@r": [0.9, 0.3, 0.4, 0.4, 0.8]}
    train = {"step": [0, 10, 20, 30, 40]}
    assert chosen_place({"train": train, "validation": curves}) == 2
    assert chosen_place({"train": train}) == 4


def test_a_row_is_judged_on_validation_classes():
    """The mean of both scores there, at the chosen step, whatever the test classes say."""
    curve = lambda *values: {"recall@1": [*values], "map@r": [*values], "step": [0, 10]}
    curves = {"train": curve(0.8, 0.7), "validation": curve(0.1, 0.5), "test": curve(0.9, 0.2)}
    found = chosen_values({"curves": curves})
    assert found["judged"] == pytest.approx(0.5) and found["recall@1"] == 0.2 and not found["start kept"]


# ---- folders whose truth is known ----

ROUNDS = 2


def folder(rng, classes: int, gains: list[float], images: int = 20) -> dict[str, list[float]]:
    """Recall@1 of rows in %, fold by fold: classes and images that suit a row, luck of a training, drawn classes.

    A row's hits vary between classes by 4 points, between trainings by .5, and as single images do; a training that
    lacks some classes suffers with them. Images are hard or easy in all rounds; .36 of their noise is of the round.
    """
    k, table = len(gains), []
    suits, image = rng.normal(size=(k, classes)), rng.normal(size=(k, classes)) / images**0.5
    for _ in range(ROUNDS):
        part, fresh = rng.permutation(classes) % PARTS, rng.normal(size=(k, classes)) / images**0.5
        for p in range(PARTS):
            test = part == p
            learnt = 0.5 * rng.normal(size=k) + 0.25 * suits[:, ~test].mean(1) * np.sqrt((~test).sum())
            hits = 4 * suits[:, test] + 24 * (0.8 * image[:, test] + 0.6 * fresh[:, test])
            table.append(60 + np.array(gains) + learnt + hits.mean(1))
    return dict(zip("abcdefg", np.transpose(table).tolist(), strict=False))


def share(said: str, n: int, *folder_of) -> float:
    rng = np.random.default_rng(0)
    return np.mean([best_said(folder(rng, *folder_of), 1 / 3).startswith(said) for _ in range(n)])


@pytest.mark.parametrize("classes", [24, 200])
@pytest.mark.parametrize("gains", [[0, 0], [0, 0, 0], [0, 0, 0, -10], [0] * 7])
def test_no_winner_where_there_is_none(classes, gains):
    assert share("The best row is", 600, classes, gains) <= 0.07  # 5 %, and two errors of 600 draws


@pytest.mark.parametrize(
    "classes, gains, often",
    [
        (1200, [2, 0], 0.8),
        pytest.param(2800, [2, 0, 0], 0.8, marks=pytest.mark.slow),
        pytest.param(6000, [2] + [0] * 6, 0.7, marks=pytest.mark.slow),
    ],
)
def test_two_points_are_found_at_the_stated_size(classes, gains, often):
    """Among seven rows more classes help little: the luck of a training stays."""
    assert share("The best row is a,", 300, classes, gains) >= often


def test_twenty_four_classes_leave_two_points_undecided():
    assert share("No row is the best", 300, 24, [2, 0]) >= 0.85


def test_the_answer_on_training_is_right():
    """Wrong answers are rare; the size that is named as needed decides."""
    rng = np.random.default_rng(1)
    answers = lambda classes, gain: [
        training_said(t["b"], t["a"], 1 / 3, classes)[0].split("? ")[1].split()[0].strip(".:")
        for t in (folder(rng, classes, [0, gain]) for _ in range(300))
    ]
    assert answers(24, 0).count("Yes") <= 0.05 * 300
    assert answers(24, 2).count("Undecided") >= 0.8 * 300
    assert answers(1200, 2).count("Yes") >= 0.8 * 300
    said = [training_said(t["b"], t["a"], 1 / 3, 24)[0] for t in (folder(rng, 24, [0, 2]) for _ in range(200))]
    needed = [int(s.split("at least ")[1].split()[0].replace(",", "")) for s in said if "at least" in s]
    assert 200 < np.median(needed) < 1200  # luck of a training stays, so it takes more


def test_the_interval_covers():
    rng = np.random.default_rng(2)
    hit = lambda t: (lambda low, high: low <= 2 <= high)(*fold_interval(np.subtract(t["a"], t["b"]), 1 / 3))
    assert np.mean([hit(folder(rng, 24, [2, 0])) for _ in range(1000)]) > 0.935

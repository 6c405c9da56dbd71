"""Folds of classes: each step by hand, and folders whose truth is known, with a winner or without."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from dmlstudy.custom import cross_validation as folds
from dmlstudy.custom.compare import leader
from dmlstudy.custom.cross_validation import (
    AS_IT_IS,
    LDA,
    PARTS,
    WHITENED,
    Folds,
    chosen_place,
    chosen_values,
    classes_needed,
    fold_answers,
    fold_change,
    fold_interval,
    fold_threshold,
    training_said,
    whitening,
)

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
    change = lambda d: fold_change(d, 1 / 3)
    assert leader(rows, change) == ("best", ["near", "middle"])
    assert leader({"a": [1, 2], "b": [1, 2]}, change) == ("a", ["b"]) and leader({"a": [1, 2]}, change) == ("a", [])


def parts_of(rng, parts=4, classes=6, images=8):
    """Embeddings and labels of test parts whose classes overlap a little."""
    labels = np.repeat(np.arange(classes), images)
    found = []
    for _ in range(parts):
        f = rng.normal(size=(classes, 8))[labels] + 0.4 * rng.normal(size=(len(labels), 8))
        found.append((f.astype(np.float32), labels))
    return found


@pytest.mark.parametrize("visits", [False, True])
def test_the_distance_to_cut_at_is_judged_on_classes_that_did_not_choose_it(visits):
    """Each part by the cut of the others, in a loop over all pairs; the cut that is given is that of all.

    Where there are visits, images of one visit, here two copies of an image, are no pairs.
    """
    parts, pairs = parts_of(np.random.default_rng(0)), []
    if visits:
        parts = [(np.repeat(f, 4, 0)[::2], np.repeat(y, 4)[::2], np.arange(2 * len(y)) // 2) for f, y in parts]
    for f, y, *visit in parts:
        z = f / np.linalg.norm(f, axis=1, keepdims=True)
        of = visit[0] if visits else np.arange(len(y))
        ends = [(i, j) for i in range(len(y)) for j in range(len(y)) if of[i] != of[j]]
        pairs.append(np.array([(np.linalg.norm(z[i] - z[j]), y[i] == y[j]) for i, j in ends]))

    def cut(some):
        some, best, hits = some[some[:, 0].argsort(kind="stable")], 0.0, 0
        for n, (distance, same) in enumerate(some, 1):
            hits += same
            best = distance if hits >= 0.9 * n else best
        return best

    shares = []
    for i, own in enumerate(pairs):
        near = own[own[:, 0] <= cut(np.concatenate([p for j, p in enumerate(pairs) if j != i]))]
        shares.append(near[:, 1].mean())
    found = fold_threshold(parts, 1 / 3)
    assert found["threshold"] == pytest.approx(cut(np.concatenate(pairs)), abs=2e-3)
    assert found["precision"] == pytest.approx(np.mean(shares), abs=0.01) and 0.8 < found["precision"] < 1
    ends = np.clip(fold_interval(shares, 1 / 3), 0, 1)
    assert [found["low"], found["high"]] == pytest.approx([*ends], abs=0.03)
    assert ("images of other visits, " in folds.threshold_said(found)) == visits


def test_a_distance_to_cut_at_takes_four_classes_of_two_images_in_each_of_two_parts():
    rng = np.random.default_rng(0)
    assert fold_threshold(parts_of(rng, parts=1), 1 / 3) is None
    assert (
        fold_threshold(parts_of(rng, classes=3), 1 / 3) is None
        and fold_threshold(parts_of(rng, images=1), 1 / 3) is None
    )


def test_lda_makes_classes_round_and_whitening_all_images():
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(5000) // 100
    spread = torch.randn(5, 5, generator=rng)
    f = 3 * torch.randn(50, 5, generator=rng)[labels] + torch.randn(5000, 5, generator=rng) @ spread
    for row, y in ((LDA, labels), (WHITENED, torch.zeros_like(labels))):
        W, b = whitening(f, labels if row == LDA else None)(1e-6)
        out = f.double() @ W.double().T + b
        rest = out - torch.stack([out[y == c].mean(0) for c in y.unique()])[y]
        S = rest.T @ rest / len(rest)
        assert torch.allclose(S / S.trace() * 5, torch.eye(5).double(), atol=0.05), row
        assert W.diagonal().mean().item() == pytest.approx(1, rel=1e-5) and out.mean(0).abs().max() < 1e-3


def test_a_large_ridge_leaves_the_features_nearly_as_they_are():
    f = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
    W, _ = whitening(f, torch.arange(6) // 2)(1.0)
    values = torch.linalg.eigvalsh(W)
    assert W.isfinite().all() and 0 < values.max() < 3 * values.min()


def test_each_round_has_its_own_parts(monkeypatch):
    """Four replicates a round, none twice; a folder that names its test classes is repeated by seeds."""
    monkeypatch.setattr(folds, "load_folder", lambda name: SimpleNamespace(whole={"mine": "all", "split": None}[name]))
    assert Folds("mine", (0, 1)).draws == [(None, replicate) for replicate in range(1, 2 * PARTS + 1)]
    assert Folds("mine", (0, 1), parts=1).draws == [(None, 1)]
    assert Folds("split", (0, 1)).draws == [(0, 0), (1, 0)] and Folds("split", (0, 1)).ratio == 0


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
    """A metric of rows in %, fold by fold: classes and images that suit a row, luck of a training, drawn classes.

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


def best(n: int, *folder_of) -> list[str]:
    """The method that is the best in each of n folders; empty where several may be."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n):
        first, tied = leader(folder(rng, *folder_of), lambda d: fold_change(d, 1 / 3))
        found.append("" if tied else first)
    return found


@pytest.mark.parametrize("classes", [24, 200])
@pytest.mark.parametrize("gains", [[0, 0], [0, 0, 0], [0, 0, 0, -10], [0] * 7])
def test_no_winner_where_there_is_none(classes, gains):
    assert best(600, classes, gains).count("") >= 0.93 * 600  # 5 %, and two errors of 600 folders


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
    assert best(300, classes, gains).count("a") >= often * 300


def test_twenty_four_classes_leave_two_points_undecided():
    assert best(300, 24, [2, 0]).count("") >= 0.85 * 300


def both(rng, classes: int, recall: float, precision: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A trained and a frozen network's recall@1 and MAP@R, fold by fold, with these gains; luck of each its own."""
    first, several = folder(rng, classes, [0, recall]), folder(rng, classes, [0, precision])
    return tuple(pd.DataFrame({"recall@1": first[row], "map@r": several[row]}) for row in "ba")


def answers(classes: int, recall: float, precision: float, n: int = 100) -> list[str]:
    rng = np.random.default_rng(1)
    said = (training_said(*both(rng, classes, recall, precision), 1 / 3, classes)[0] for _ in range(n))
    return [text.removeprefix("Should you train? ").split(". Trained")[0] for text in said]


def test_a_gain_nowhere_is_rarely_called_one():
    """Two metrics may gain by luck, each in 2.5 %."""
    said = answers(24, 0, 0)
    assert sum(s.startswith("Yes") for s in said) <= 0.08 * len(said)
    assert sum(s.startswith("Inconclusive on 24 classes") for s in said) >= 0.85 * len(said)


def test_a_gain_in_map_at_r_only_is_a_gain_for_several_neighbours():
    said = answers(80, 0, 10)
    assert said.count("Yes, if you show several neighbours") >= 0.9 * len(said)
    assert said.count("Yes, for the first neighbour alone") == 0


def test_a_gain_in_both_is_a_gain():
    assert answers(80, 10, 10).count("Yes") >= 95


def test_a_gain_that_costs_the_first_neighbour_depends():
    said = answers(80, -10, 10)
    assert said.count("It depends: better if you show several neighbours, worse for the first neighbour alone") >= 90


@pytest.mark.slow
def test_the_number_of_classes_that_is_named_decides():
    assert answers(1200, 2, 2).count("Yes") >= 70
    rng = np.random.default_rng(1)
    said = [training_said(*both(rng, 24, 2, 2), 1 / 3, 24)[0] for _ in range(200)]
    needed = [int(s.split("takes about ")[1].split()[0].replace(",", "")) for s in said if "takes about" in s]
    assert 200 < np.median(needed) < 1200  # luck of a training stays, so it takes more


@pytest.mark.parametrize(
    "gains, exported",
    [
        ({"Triplet (D)": (0, 10)}, "Triplet (D)"),  # in MAP@R only: the trained network
        ({"Triplet (D)": (0, 0)}, AS_IT_IS),
        ({"Triplet (D)": (9, 10)}, "Triplet (D)"),
        ({"Triplet (D)": (-12, 10)}, AS_IT_IS),  # one gains, the other loses
        ({LDA: (0, 10), "Triplet (D)": (0, 10)}, LDA),  # what costs seconds does as well
        ({LDA: (8, 8), "Triplet (D)": (16, 16)}, "Triplet (D)"),
    ],
)
def test_what_is_exported(gains, exported):
    rng, n = np.random.default_rng(3), 20
    found = []
    for _ in range(n):
        names = [AS_IT_IS, WHITENED, LDA, "Triplet (D)"]
        of = [gains.get(row, (0, 0)) for row in names]
        first, several = (folder(rng, 80, [g[i] for g in of]) for i in (0, 1))
        rows = [
            {"row": row, "draw": str(d), "recall@1": first[k][d], "map@r": several[k][d], "start kept": False}
            | {"judged": 50 + sum(gains.get(row, (0, 0))) - (row == WHITENED)}
            for row, k in zip(names, "abcd", strict=True)
            for d in range(ROUNDS * PARTS)
        ]
        found.append(fold_answers(pd.DataFrame(rows), 1 / 3, 80)[1])
    assert found.count(exported) >= 0.85 * n, found


def test_the_interval_covers():
    rng = np.random.default_rng(2)
    hit = lambda t: (lambda low, high: low <= 2 <= high)(*fold_interval(np.subtract(t["a"], t["b"]), 1 / 3))
    assert np.mean([hit(folder(rng, 24, [2, 0])) for _ in range(1000)]) > 0.935

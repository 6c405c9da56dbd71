"""Folders whose truth is known: no winner where there is none, the better row where there is one."""

import numpy as np
import pytest

from dmlstudy.folds import best_said, chosen_place, chosen_values, fold_interval, training_said

ROUNDS, PARTS = 2, 4


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
    "classes, gains, often", [(1200, [2, 0], 0.8), (2800, [2, 0, 0], 0.8), (6000, [2] + [0] * 6, 0.7)]
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

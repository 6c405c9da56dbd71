"""Parts of a data set share no class, and draws differ: each test fails for a wrong neighbour."""

import numpy as np
import pytest
import torch

from dmlstudy.data.splits import (
    Data,
    Split,
    drawn_classes,
    drawn_folds,
    first_of_each_class,
    keep_classes,
    long_tail,
    take,
    wrong_labels,
)

NAMES = tuple(f"class {c}" for c in range(20))
TOY = Split(torch.arange(80), torch.arange(80) % 20, NAMES)


def test_each_class_is_held_out_once():
    for folds in (None, drawn_folds(TOY, 3)):
        parts = [Data("toy", TOY, folds=folds).validation(fold) for fold in range(5)]
        held = [name for _, part in parts for name in part.class_names]
        assert sorted(held) == sorted(NAMES)
        for train, part in parts:
            assert {*train.class_names} == {*NAMES} - {*part.class_names} and len(part) == 4 * len(part.class_names)


def test_replicates_differ_in_classes_and_folds():
    drawn = [drawn_classes(TOY, r, 10) for r in range(4)]
    assert all(d == sorted({*d}) and len(d) == 10 for d in drawn) and len({*map(tuple, drawn)}) == 4
    folds = [drawn_folds(TOY, r) for r in range(4)]
    assert all(f.bincount().tolist() == [4] * 5 for f in folds) and len({tuple(f.tolist()) for f in folds}) == 4
    assert len({tuple(Data("toy", TOY).replicate(r, 10).train.class_names) for r in range(4)}) == 4


def test_the_first_images_of_each_class():
    assert first_of_each_class(TOY, 2).images.tolist() == [*range(40)]


def test_wrong_labels_are_wrong_and_drawn_anew():
    many = Split(torch.arange(4000), torch.arange(4000) % 20, NAMES)
    found = [wrong_labels(many, 0.4, seed) for seed in range(3)]
    for split in found:
        wrong = split.labels != many.labels
        assert wrong.sum() == 1600 and split.images is many.images
        assert 50 <= split.labels[wrong].bincount(minlength=20).min() <= split.labels[wrong].bincount().max() <= 115
    assert len({tuple(split.labels.tolist()) for split in found}) == 3
    assert wrong_labels(many, 0.4, 1).labels.equal(found[1].labels)


@pytest.mark.parametrize("share", [0.0, 0.005])
def test_so_small_a_share_that_no_label_is_wrong_changes_none(share):
    assert wrong_labels(TOY, share).labels.equal(TOY.labels)


def test_images_of_an_array_are_taken_whole():
    pixels = np.arange(6 * 4 * 4 * 3, dtype=np.uint8).reshape(6, 4, 4, 3)
    split = Split(pixels, torch.arange(6) // 2, ("a", "b", "c"))
    for chosen in ([4, 1], [3], []):
        np.testing.assert_array_equal(take(split, torch.tensor(chosen, dtype=torch.long)).images, pixels[chosen])
    np.testing.assert_array_equal(keep_classes(split, [1]).images, pixels[2:4])


def test_a_long_tail_is_drawn_anew():
    many = Split(torch.arange(4000), torch.arange(4000) % 20, NAMES)
    found = [long_tail(many, 20, seed) for seed in range(3)]
    sizes = [200 * 20 ** (-place / 19) for place in range(20)]
    for split in found:
        kept = split.counts().sort(descending=True).values
        assert kept.tolist() == [round(size) for size in sizes] and split.labels.equal(split.images % 20)
    assert len({tuple(split.counts().tolist()) for split in found}) == 3


def test_parts_of_cross_validation_have_their_classes():
    split = Split(torch.zeros(24, 1, 2, 2, dtype=torch.uint8), torch.arange(24) // 2, [*"abcdefghijkl"])
    data = Data("mine", split, split, whole=split)
    assert [len(data.replicate(r).train.class_names) for r in (1, 4)] == [9, 9] and data.replicate(0) is data
    for r in (0, 1):
        with pytest.raises(ValueError, match="cross-validation chooses the classes of mine"):
            data.replicate(r, 3)

"""Parts of a data set share no class, and draws differ: each test fails for a wrong neighbour."""

import torch

from dmlstudy.data.splits import Data, Split, drawn_classes, drawn_folds, first_of_each_class

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

"""The embedded data sets: disjoint, deterministic, cached safely."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dmlstudy.data import DATASETS, make_data
from dmlstudy.data.glyphs import (
    CHECKSUMS,
    JITTER,
    LOOK_ALIKE,
    RECIPES,
    bitmap,
    checksum,
    class_lists,
    derive_classes,
    load_parts,
    random_stream,
    render,
    render_set,
    similarity,
)
from dmlstudy.data.splits import keep_classes


@pytest.mark.parametrize("name", RECIPES)
def test_set_is_drawn_to_the_byte(name):
    assert checksum(render_set(name)) == CHECKSUMS[name]


def test_set_is_the_same_in_another_process():
    code = "from dmlstudy.data.glyphs import checksum, render_set; print(checksum(render_set('glyphs_shop')))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == CHECKSUMS["glyphs_shop"]


def test_classes_are_what_the_recipe_gives():
    assert derive_classes() == class_lists()


@pytest.mark.parametrize("name", RECIPES)
def test_no_test_class_is_seen_in_training(name):
    recipe, lists = RECIPES[name], class_lists()
    train, test, before = (set(lists[k]) for k in (recipe.train, recipe.test, "pretrain"))
    assert not train & test and not test & before and not train & before
    assert similarity(sorted(test), sorted(train)).max() <= LOOK_ALIKE
    assert similarity(sorted(test), sorted(before)).max() <= LOOK_ALIKE


@pytest.mark.parametrize("name", RECIPES)
def test_counts_and_types(name):
    data, recipe = make_data(name), RECIPES[name]
    assert data.train.images.dtype == torch.uint8 and data.train.images.shape[1:] == (4, 24, 24)
    assert data.train.counts().unique().tolist() == [recipe.train_images]
    for split in (data.test, data.query, data.gallery):
        if split is not None:
            assert split.images.shape[1:] == (1, 24, 24)
            assert split.counts().unique().tolist() == [recipe.test_images]


@pytest.mark.parametrize("name", DATASETS)
def test_folds_cover_the_training_classes(name):
    if name not in RECIPES:
        pytest.skip("needs the data set on disk")
    data = make_data(name)
    seen = [set(data.validation(fold)[1].class_names) for fold in range(5)]
    assert set.union(*seen) == set(data.train.class_names) and sum(map(len, seen)) == len(data.train.class_names)
    rest, held_out = data.validation(2)
    assert not set(rest.class_names) & set(held_out.class_names)
    assert len(rest) + len(held_out) == len(data.train)


def test_keep_classes_takes_the_right_images():
    split = make_data("glyphs_fine").test
    part = keep_classes(split, [3, 10])
    for new, old in enumerate([3, 10]):
        assert torch.equal(part.images[part.labels == new], split.images[split.labels == old])


@pytest.mark.parametrize("damage", [b"", b"half a file", "truncate", "flip"])
def test_damaged_cache_is_drawn_again(tmp_path, damage):
    good = load_parts("glyphs_shop", tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    whole = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(whole[: len(whole) // 2])
    elif damage == "flip":
        file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 255]) + whole[-4:])
    else:
        file.write_bytes(damage)
    again = load_parts("glyphs_shop", tmp_path)
    assert checksum(again) == checksum(good) == CHECKSUMS["glyphs_shop"]
    assert file.read_bytes() == whole


def test_harder_jitter_moves_images_farther():
    maps = np.stack([bitmap(ord("R"), "DejaVuSans")] * 200)
    spread = [
        render(maps, JITTER[level], random_stream("test", level)).astype(float).std(axis=0).mean() for level in JITTER
    ]
    assert spread == sorted(spread)

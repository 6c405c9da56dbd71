"""The embedded data sets: disjoint, deterministic, cached safely."""

import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from disks import small_disk
from tiers import sample

from dmlstudy.core.paths import cache_dir
from dmlstudy.data import DATASETS, glyphs, make_data
from dmlstudy.data.glyphs import CHECKSUMS, RECIPES, checksum, class_lists, load_parts, render_set
from dmlstudy.data.splits import keep_classes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shop():
    return render_set("glyphs_shop")


@pytest.fixture
def drawn(shop, monkeypatch):
    """Where a test draws the shop once more, it is handed the one that was drawn for all."""
    monkeypatch.setattr(glyphs, "render_set", lambda name: shop)


@pytest.mark.parametrize("name", sample(RECIPES, ["glyphs_shop"]))
def test_set_is_drawn_to_the_byte(name, shop):
    assert checksum(shop if name == "glyphs_shop" else render_set(name)) == CHECKSUMS[name]


@pytest.mark.slow
def test_classes_are_what_the_recipe_gives():
    """The notebook that derives them compares them with those that ship, in a slow cell."""
    run = [Path(sys.executable).with_name("nbdev_test"), "--path", "nbs/43_data.glyphs.ipynb", "--flags", "slow"]
    told = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_no_test_class_is_seen_in_training(name):
    recipe, lists = RECIPES[name], class_lists()
    train, test, before = (set(lists[k]) for k in (recipe.train, recipe.test, "pretrain"))
    assert not train & test and not test & before and not train & before


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


@pytest.mark.parametrize("damage", [b"", "truncate", "flip"])
def test_damaged_cache_is_drawn_again(tmp_path, damage, drawn):
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


@pytest.mark.parametrize("trouble", ["full", "for reading only", "not a folder"])
def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path, trouble, drawn):
    place = tmp_path / "cache"
    if trouble == "not a folder":
        place.write_text("")
        disk = nullcontext()
    else:
        disk = small_disk(place, 64)
    with disk as mount:
        if trouble == "for reading only":
            assert mount("-o", "remount,ro")
        with pytest.warns(UserWarning, match=f"could not be written.*{place}/glyphs_shop-.* drawn again"):
            assert checksum(load_parts("glyphs_shop", place)) == CHECKSUMS["glyphs_shop"]


@pytest.mark.skipif(os.name != "posix", reason="modes are those of Unix")
def test_a_cached_set_is_as_open_to_others_as_the_umask_says(tmp_path, drawn):
    before = os.umask(0o022)
    try:
        load_parts("glyphs_shop", tmp_path)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o644}


@pytest.mark.skipif(os.name != "posix", reason="users have numbers on Unix")
def test_without_a_home_the_cache_is_in_the_temporary_folder(monkeypatch):
    [monkeypatch.delenv(name, raising=False) for name in ("HOME", "XDG_CACHE_HOME", "DMLSTUDY_CACHE")]
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # whom no list of users knows
    assert cache_dir() == Path(tempfile.gettempdir()).resolve() / "dmlstudy-54321"

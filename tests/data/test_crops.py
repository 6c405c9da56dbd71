"""CARS196 cropped and small: made from the official lists, never taken for the whole images, never passed on."""

import re
import subprocess
from pathlib import Path

import pytest
from miniatures import build, own_cache  # noqa: F401, the fixture is used by all tests here
from PIL import Image

from dmlstudy.custom.galleries import gallery
from dmlstudy.data import prepare as module
from dmlstudy.data.formats import load_images, locate, read_images
from dmlstudy.data.prepare import prepare
from dmlstudy.study.config import PROFILES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.*It is taken all the same:UserWarning")  # miniatures are not complete


@pytest.mark.parametrize(
    "layout, images", [("official list", 12), ("official halves", 12), ("official halves, test list outside", 12)]
)
def test_crops_are_made_from_every_official_layout(tmp_path, layout, images):
    build("cars196", layout, tmp_path)
    assert prepare("cars196_crops", tmp_path)["files"] == images
    place, data = read_images("cars196_crops", tmp_path)
    assert place.layout == "class folders" and data.train.class_names + data.test.class_names == tuple(
        "001 002 003 004".split()
    )
    whole = read_images("cars196", tmp_path)[1]
    assert data.train.labels.tolist() == whole.train.labels.tolist(), "the official classes, in their order"
    assert {data.train.images[i].size for i in range(len(data.train))} == {(128, 128)}
    assert "files" not in prepare("cars196_crops", tmp_path), "crops that are there are not made again"


def test_crops_that_were_stopped_are_begun_again(tmp_path, monkeypatch):
    build("cars196", "official list", tmp_path)
    seen, read = [], module.open_image
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "open_image", lambda path: read(path) if seen.append(path) or len(seen) < 6 else stop())
        prepare("cars196_crops", tmp_path)
    assert len(seen) == 6 and not locate("cars196_crops", tmp_path)
    assert prepare("cars196_crops", tmp_path)["files"] == 12
    assert len([*tmp_path.rglob("*crops/*/*.jpg")]) == 12 and locate("cars196_crops", tmp_path)


def stop():
    raise KeyboardInterrupt


def test_class_folders_have_no_boxes(tmp_path):
    build("cars196", "class folders in images", tmp_path)
    with pytest.raises(ValueError, match="class folders have no boxes; the crops need cars_annos.mat"):
        prepare("cars196_crops", tmp_path)


def test_crops_are_not_the_whole_images(tmp_path):
    """Class folders of 128 x 128 pixels under cars196/ are refused with the name of the folder they belong to."""
    build("cars196", "class folders", tmp_path)
    for file in tmp_path.rglob("*.jpg"):
        Image.new("RGB", (128, 128)).save(file)
    with pytest.raises(ValueError, match="put their folders under cars196_crops/"):
        load_images("cars196", tmp_path)
    (tmp_path / "cars196").rename(tmp_path / "cars196_crops")
    assert len(load_images("cars196_crops", tmp_path, strict=False).train) == 6


def test_git_keeps_the_records_of_every_profile():
    """All but those that only try things out, and the papers' own data, which nobody has trained on here."""
    ignored = lambda name: (
        not subprocess.run(["git", "check-ignore", "-q", f"outputs/records/{name}.jsonl"], cwd=ROOT).returncode
    )
    lost = [name for profile in PROFILES for name in (profile, f"{profile}_search") if ignored(name)]
    assert {name.removesuffix("_search") for name in lost} == {"drill", "smoke", "paper"}


def test_git_holds_no_image_but_named_figures():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    images = [name for name in listed if re.search(r"\.(png|jpe?g|webp|gif|pdf|svg|tiff?|bmp|heic|avif)$", name, re.I)]
    known = r"outputs/(figures|bench)/[a-z0-9_]+\.(png|pdf)"
    assert [name for name in images if not re.fullmatch(known, name)] == []
    assert not [name for name in listed if "cars196" in name and not name.endswith((".md", ".csv"))]


def test_galleries_refuse_the_images_of_cars(tmp_path):
    build("cars196_crops", "class folders", tmp_path)
    data = load_images("cars196_crops", tmp_path, strict=False)
    with pytest.raises(ValueError, match="none of its images may be passed on"):
        gallery(data.train.images, [[1], [0]], data.train.labels.tolist()[:2], rows=[0])

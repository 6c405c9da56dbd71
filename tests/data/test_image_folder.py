"""Images of one's own, from an empty folder: mixed sizes and modes, one broken, one class of one."""

import io
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageDraw
from tiers import sample, short_photos

from dmlstudy import cli
from dmlstudy.data import make_data
from dmlstudy.data.image_folder import (
    _SAME,
    _alike,
    _look,
    _twins,
    folder_rows,
    folder_summary,
    load_folder,
    resolve_folder,
)
from dmlstudy.data.images import open_image
from dmlstudy.study.config import PROFILES


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Eleven classes of coloured noise, each with a colour of its own."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for c, colour in enumerate(rng.integers(40, 215, (11, 3))):
        folder = tmp_path / "photos" / f"colour {c}"
        folder.mkdir(parents=True)
        for i in range(5 if c else 1):
            size = (*rng.integers(40, 200, 2), 3)
            image = Image.fromarray((colour + rng.normal(0, 30, size)).clip(0, 255).astype(np.uint8))
            mode, end = [("RGB", "jpg"), ("L", "png"), ("RGBA", "png"), ("CMYK", "jpg"), ("P", "png")][i]
            image.convert(mode).save(folder / f"{i}.{end}")
    (tmp_path / "photos/colour 3/broken.jpg").write_bytes(b"\xff\xd8 no picture")
    return tmp_path


def test_the_plan_says_what_is_in_a_folder(photos, capsys):
    place = f"folder:{photos / 'photos'}"
    words = ["run", "--datasets", place, f"{place}/", "--seeds", "0", "--jobs", "1"]  # named twice, it is one
    assert cli.main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "left out: colour 0/0.jpg (the only image of its class)" in told
    assert "all   10 classes, 50 images (5 to 5 a class, median 5)" in told and "left out: colour 3/broken.jpg" in told
    assert "pictures that are in two classes: 0" in told and "20 runs on 1 workers" in told


@pytest.mark.slow
def test_a_folder_needs_no_clone(photos):
    """The package alone, with no notebooks beside it, as pip installs it."""
    shutil.copytree(Path(cli.__file__).parent, photos / "site/dmlstudy")
    words = ["run", "--datasets", "folder:photos", "--seeds", "0", "--jobs", "1", "--dry-run"]
    call = [sys.executable, "-c", "import sys, dmlstudy; sys.exit(dmlstudy.main())", *words]
    env = {**os.environ, "PYTHONPATH": str(photos / "site"), "DMLSTUDY_ROOT": str(photos)}
    done = subprocess.run(call, cwd=photos, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "20 runs on 1 workers" in done.stdout, done.stderr


@pytest.mark.parametrize("steps", sample([4, None], [4]))  # None: those of the profile
def test_methods_are_ranked_on_a_folder(photos, capsys, monkeypatch, steps):
    if steps:
        monkeypatch.setitem(PROFILES, "photos", short_photos(steps, rates=1))
    words = ["run", "--datasets", f"folder:{photos / 'photos'}", "--seeds", "0", "--jobs", "1", "--methods", "Softmax"]
    assert cli.main(words) == 0
    told = capsys.readouterr().out
    (table,) = (photos / "outputs/custom/tables").glob("photos*.csv")
    rows = pd.read_csv(table).set_index("method")
    assert {*rows.index} == {"frozen features", "frozen features, whitened", "frozen features, LDA", "Softmax"}
    assert "recall@1, %" in told and "First answer, provisional" in told and "too few classes to choose" in told
    stages = [line.split(" begins; about ")[0] for line in told.splitlines() if " begins; about " in line]
    assert stages == ["features", "first answer", "folds", "verdict and export"]  # one method: its search comes first
    assert rows["recall@1"].between(35, 100).all()  # two or three classes of five images
    if steps:
        return  # what follows is tested with the profile's steps
    assert cli.main(words) == 0
    assert "4 runs, 4 of them recorded; 0 to train" in capsys.readouterr().out
    assert cli.main(["status"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"verdict and export\* +0 ", said) and re.search(r" folds +4 +4 +0 +0", said)


def test_other_pictures_of_equal_size_are_another_data_set(photos):
    """Names and sizes alone would give the same: uncompressed pictures of one shape have one size."""
    place = photos / "bitmaps"
    for c in range(10):
        (place / f"{c}").mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (20, 20), (c, i, 0)).save(place / f"{c}/{i}.bmp")
    before = resolve_folder(f"folder:{place}")
    Image.new("RGB", (20, 20), "white").save(place / "0/0.bmp")
    assert resolve_folder(f"folder:{place}") != before


def test_a_name_with_a_tab_is_refused_before_anything_is_trained(photos):
    """It would part a line of an exported model's list of names."""
    first = next((photos / "photos").rglob("*.*"))
    first.rename(first.with_name(f"a\tb{first.suffix}"))
    with pytest.raises(ValueError, match=r"holds .*a\\tb.*, with a tab or a line break in its name: rename it"):
        folder_rows(photos / "photos")


@pytest.mark.parametrize(
    "name, said",
    [
        ("nowhere", "there is no folder"),
        ("photos/colour 1", "holds no images in class folders"),
        ("list.csv", "list.csv, line 2: the image or its label is missing"),
        ("nul.csv", "nul.csv, line 2: the image or its label holds a tab, a line break or a zero byte"),
        ("tab.csv", "tab.csv, line 2: the image or its label holds a tab, a line break or a zero byte"),
        ("listed", "labels.csv, line 2: ../nul.csv lies outside of the folder that the list belongs to"),
        ("two.csv", "two.csv, classes of two or more images: 1 to train on, 1 to test on; 10 are needed"),
        ("none.csv", "none.csv, classes of two or more images: 0 to train on, 0 to test on; 10 are needed"),
        ("comma.csv", "comma.csv, line 2: it is longer than the first; a name with a comma stands in quotes"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(photos, capsys, name, said):
    (photos / "list.csv").write_text("image,label\nphotos/colour 1/0.jpg,\n")
    (photos / "nul.csv").write_text("image,label\na\0.jpg,1\n")
    (photos / "tab.csv").write_text('image,label\na.jpg,"one\ttwo"\n')
    (photos / "listed").mkdir()
    (photos / "listed/labels.csv").write_text("image,label\n../nul.csv,1\n")
    rows = [f"photos/colour {c}/{i}.{'jpg' if i == 0 else 'png'},{c}" for c in (1, 2) for i in (0, 1)]
    (photos / "two.csv").write_text("\n".join(["image,label", *rows]))
    (photos / "none.csv").write_text("\n".join(["image,label", *(row.replace("/", "\\") for row in rows)]))
    (photos / "comma.csv").write_text("image,label\nphotos/colour 1/0.jpg,red, dark\n")
    assert cli.main(["run", "--datasets", f"folder:{photos / name}", "--dry-run"]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


@pytest.mark.parametrize(
    "columns", ["image,label,split", "path,class,split", "Filename,Category,Subset", "image,path,label,class,set"]
)
def test_columns_may_have_other_usual_names(tmp_path, columns):
    names = columns.lower().split(",")
    one = {"image": "a.jpg", "path": "a.jpg", "filename": "a.jpg", "label": "x", "class": "x", "category": "x"}
    one |= dict.fromkeys(("split", "subset", "set"), "Val")
    wrong = {"path": "b.jpg", "class": "y"} if "image" in names else {}
    (tmp_path / "list.csv").write_text(f"{columns}\n{','.join((one | wrong)[n] for n in names)}\n")
    assert folder_rows(tmp_path / "list.csv") == [("x", "a.jpg", "train", "")]


def test_a_list_without_labels_says_what_they_may_be_called(tmp_path):
    (tmp_path / "list.csv").write_text("path,size\na.jpg,3\n")
    with pytest.raises(ValueError, match=r"no column label \(label, or class or category"):
        folder_rows(tmp_path / "list.csv")


def test_a_list_in_the_folder_says_which_images_there_are(photos):
    paths = [path for c in range(1, 11) for path in sorted((photos / f"photos/colour {c}").glob("[01].*"))]
    rows = [f"{path.relative_to(photos / 'photos')},{path.parent.name[-1]}" for path in paths]
    (photos / "photos/labels.csv").write_text("\n".join(["image,label", *rows]))
    data = load_folder(resolve_folder(f"folder:{photos / 'photos'}"))
    assert len(data.train) + len(data.test) == 20 and "photos#" in data.name


def test_what_telephones_write_is_read_and_named_where_it_cannot_be(photos, monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    with Image.open(photos / "photos/colour 2/0.jpg") as image:
        image.convert("RGB").save(photos / "photos/colour 2/phone.HEIC", quality=95)
        image.convert("RGB").save(photos / "photos/colour 2/web.avif", quality=95)
    name = resolve_folder(f"folder:{photos / 'photos'}")
    read = load_folder(name)
    paths = {str(path) for split in (read.train, read.test) for path in split.images.paths}
    assert {"colour 2/phone.HEIC", "colour 2/web.avif"} <= paths
    whole = open_image(photos / "photos/colour 2/phone.HEIC")
    jpeg = open_image(photos / "photos/colour 2/0.jpg")
    assert whole.size == jpeg.size and np.abs(np.asarray(whole, int) - np.asarray(jpeg, int)).mean() < 8
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # as where it is not installed
    with pytest.raises(ValueError, match=r"phone.HEIC cannot be read: HEIC needs pillow-heif: pip install"):
        open_image(photos / "photos/colour 2/phone.HEIC")


def drawing(rng, size=160):
    """Some strokes on white, as people draw characters."""
    image = Image.new("L", (size, size), 255)
    for _ in range(rng.integers(2, 5)):
        ImageDraw.Draw(image).line([*map(float, rng.integers(10, size - 10, 6))], fill=0, width=4)
    return image


def saved(place, images):
    place.mkdir(parents=True, exist_ok=True)
    for i, (image, end) in enumerate(images):
        image.save(place / f"{i}.{end}")


def noise(rng, mode, size=64):
    pixels = rng.normal(0.5, 0.25, (8, 8, 4)).clip(0, 1)
    pixels[..., 3] = 1
    rgba = Image.fromarray((255 * pixels).astype(np.uint8), "RGBA").resize((size, size))
    if mode == "I;16":
        grey = np.asarray(rgba.convert("L"), np.uint16)
        return Image.fromarray((grey * 257).astype(np.uint16))
    return rgba.convert("RGB").quantize(200) if mode == "P" else rgba.convert(mode)


@pytest.mark.parametrize("mode", ["I;16", "RGBA", "LA", "P", "drawings"])
def test_different_pictures_of_any_mode_are_no_twins(tmp_path, mode):
    rng = np.random.default_rng(0)
    for c in range(10):
        make = (lambda: drawing(rng)) if mode == "drawings" else (lambda: noise(rng, mode))
        saved(tmp_path / "own" / f"{c}", [(make(), "png") for _ in range(2)])
    data = load_folder(resolve_folder(f"folder:{tmp_path / 'own'}"))
    assert _twins(data) == [] and data.whole.groups is None


def test_a_character_with_one_stroke_more_is_no_twin(tmp_path):
    drawings = [drawing(np.random.default_rng(c)) for c in range(10)]
    for c, other in enumerate(drawings[1:] + drawings[:1]):
        more = other.copy()
        ImageDraw.Draw(more).line([50, 20, 110, 20], fill=0, width=4)
        saved(tmp_path / "own" / f"{c}", [(drawings[c], "png"), (more, "png")])
    assert _twins(load_folder(resolve_folder(f"folder:{tmp_path / 'own'}"))) == []


def test_the_same_picture_at_another_size_or_quality_is_a_twin(tmp_path):
    rng = np.random.default_rng(1)
    images = [noise(rng, "RGB", 128) for _ in range(20)]
    for c in range(10):
        saved(tmp_path / "own" / f"{c}", [(image, "png") for image in images[2 * c : 2 * c + 2]])
    images[0].resize((80, 80)).save(tmp_path / "own/5/small.png")
    images[1].save(tmp_path / "own/6/poor.jpg", quality=40)
    data = load_folder(resolve_folder(f"folder:{tmp_path / 'own'}"))
    assert sorted(_twins(data)) == [("0/0.png", "5/small.png"), ("0/1.png", "6/poor.jpg")]


def test_pale_pictures_of_little_contrast_are_the_same_as_themselves():
    pixels = np.random.default_rng(0).integers(253, 256, (50, 768)).astype(np.float16)
    first, second = _alike(pixels, pixels, _SAME)
    assert first.tolist() == second.tolist() == [*range(50)]


def test_a_burst_is_found_by_the_camera_s_clock(tmp_path):
    rng, start = np.random.default_rng(2), datetime(2024, 5, 1, 12, 0)
    for c in range(10):
        for i, seconds in enumerate((0, 2, 4, 60)):  # three within two seconds of each other, one later
            image, exif = noise(rng, "RGB"), Image.Exif()
            exif.get_ifd(0x8769)[36867] = f"{start + timedelta(seconds=seconds):%Y:%m:%d %H:%M:%S}"
            (tmp_path / "own" / f"{c}").mkdir(parents=True, exist_ok=True)
            image.save(tmp_path / "own" / f"{c}" / f"{i}.jpg", exif=exif)
    data = load_folder(resolve_folder(f"folder:{tmp_path / 'own'}"))
    assert sorted(data.whole.groups.bincount().tolist()) == [1] * 10 + [3] * 10
    assert "near-duplicates (same picture, scene or burst): 30 images in 10 groups" in folder_summary(data)


@pytest.mark.parametrize("taken", ["0000:00:00 00:00:00", "2024:02:30 10:00:00", "2024:01:01 24:00:00", "yesterday"])
def test_a_clock_that_was_never_set_says_nothing(tmp_path, taken):
    image, exif = noise(np.random.default_rng(0), "RGB"), Image.Exif()
    exif.get_ifd(0x8769)[36867] = taken
    image.save(tmp_path / "a.jpg", exif=exif)
    assert np.isnan(_look(tmp_path / "a.jpg")[1])


@pytest.mark.parametrize("end", ["jpg", "png"])
def test_a_damaged_note_of_the_camera_says_nothing(tmp_path, end):
    image = noise(np.random.default_rng(0), "RGB")
    image.save(tmp_path / f"a.{end}", exif=b"Exif\0\0no TIFF at all, but text", dpi=(72, 72))
    thumbnail, seconds = _look(tmp_path / f"a.{end}")
    assert thumbnail.shape == (768,) and np.isnan(seconds)


def test_what_lies_elsewhere_than_images_of_a_class_is_named(photos):
    place = photos / "photos"
    for path in ("colour 1/2024/05/deep.jpg", "beside.png", "colour 2/notes.txt", "colour 2/.hidden.jpg", "README.md"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(place / path, "PNG")  # whatever its name says
    Image.new("RGB", (20, 20)).save(place / "colour 1/windows.jfif", "JPEG")
    left, read = load_folder(resolve_folder(f"folder:{place}")).left_out, {row[1] for row in folder_rows(place)}
    deep, beside = left["colour 1/2024/05/deep.jpg"], left["beside.png"]
    assert deep == beside == "neither in the folder of a class nor in one below it"
    assert left["colour 2/notes.txt"].startswith("no file that ends in .jpg") and "README.md" not in left
    assert not any("hidden" in path for path in left) and "colour 1/windows.jfif" in read


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_thumbnails_that_were_cut_off_are_made_again(photos, content):
    name = resolve_folder(f"folder:{photos / 'photos'}")
    groups = load_folder(name).whole.groups
    for file in (kept := [*(photos / "cache/looks").glob("*.npz")]):
        file.write_bytes(content)
    load_folder.cache_clear()
    again = load_folder(name).whole.groups
    assert kept and (groups is again is None or groups.equal(again))


def test_a_folder_is_read_anew_when_it_has_changed(photos, monkeypatch):
    monkeypatch.chdir(photos)
    before = len(make_data("folder:photos").whole)
    Image.new("RGB", (20, 20), "white").save(photos / "photos/colour 5/new.png")
    assert len(make_data("folder:photos").whole) == before + 1


@pytest.mark.parametrize("how", ["folders", "column"])
def test_visits_part_query_and_gallery(tmp_path, how):
    rng, lines = np.random.default_rng(3), ["image;label;date"]
    for c in range(10):
        for visit in ("may", "june"):
            saved(tmp_path / "own" / f"{c}" / visit, [(noise(rng, "RGB"), "png") for _ in range(2)])
            lines += [f"own/{c}/{visit}/{i}.png;{c};{visit}" for i in (0, 1)]
    (tmp_path / "list.csv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    data = load_folder(resolve_folder(f"folder:{tmp_path / ('own' if how == 'folders' else 'list.csv')}"))
    assert data.visits and data.whole.groups.bincount().tolist() == [20, 20]
    assert "visits: 2; each image is searched among those of other visits" in folder_summary(data)
    assert {*data.replicate(1).test.groups.tolist()} == {0, 1}


def test_folders_train_and_test_are_a_split(tmp_path, capsys):
    rng = np.random.default_rng(4)
    for part, classes in (("train", range(6)), ("val", range(6, 8)), ("test", range(8, 11))):
        for c in classes:
            saved(tmp_path / "own" / part / f"{c}", [(noise(rng, "RGB"), "png") for _ in range(2)])
    data = load_folder(resolve_folder(f"folder:{tmp_path / 'own'}"))
    assert (data.test.class_names, len(data.train.class_names), data.whole) == (("10", "8", "9"), 8, None)
    for part in ("train", "test"):
        saved(tmp_path / "flat" / part, [(noise(rng, "RGB"), "png") for _ in range(3)])
    assert cli.main(["run", "--datasets", f"folder:{tmp_path / 'flat'}", "--dry-run"]) == 2
    assert "with a split of your own" in capsys.readouterr().err


@pytest.mark.slow
def test_names_that_are_not_utf_8_and_pictures_in_lab_end_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(5)
    for c in range(10):
        saved(tmp_path / "own" / f"{c}", [(noise(rng, "RGB"), "png") for _ in range(3)])
    os.rename(os.fsencode(tmp_path / "own/3/0.png"), os.fsencode(tmp_path) + b"/own/3/caf\xe9.png")
    os.rename(os.fsencode(tmp_path / "own/4"), os.fsencode(tmp_path) + b"/own/stra\xdfe")
    Image.new("LAB", (40, 40)).save(tmp_path / "own/5/lab.tif")
    name = resolve_folder(f"folder:{tmp_path / 'own'}")
    data = load_folder(name)
    assert len(data.whole) + len(data.left_out) == 31 and {*data.left_out} <= {"5/lab.tif"}  # by Pillow's version
    assert os.fsdecode(b"3/caf\xe9.png") in data.whole.images.paths
    assert cli.main(["run", "--datasets", f"folder:{tmp_path / 'own'}", "--dry-run", "--jobs", "0"]) == 0
    assert "10 classes, 3" in capsys.readouterr().out


def test_a_name_that_is_not_utf_8_is_printed_as_it_is(photos, monkeypatch):
    """A note among the images that an old program wrote, named in a terminal that takes nothing but UTF-8."""
    open(os.fsencode(photos / "photos/colour 3") + b"/caf\xe9.txt", "w").close()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert cli.main(["run", "--datasets", f"folder:{photos / 'photos'}", "--dry-run", "--jobs", "0"]) == 0
    sys.stdout.flush()
    assert b"caf\xe9.txt" in sys.stdout.buffer.getvalue()


@pytest.mark.parametrize(
    "text, said",
    [
        ('image,label\na.jpg,x\n"b.jpg,x\nc.jpg,x\n', "line 3: a quotation mark is opened and not closed"),
        ("image;label\na.jpg;\n", "line 2: the image or its label is missing"),
        ("image\tlabel\n\tx\n", "line 2: the image or its label is missing"),
        ("image,label\n\n\na.jpg,x\nb.jpg,\n", "line 5: the image or its label is missing"),
    ],
)
def test_lists_of_other_programs_are_read(tmp_path, text, said):
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(ValueError, match=re.escape(said)):
        folder_rows(tmp_path / "list.csv")


def test_lists_with_other_marks_and_a_byte_order_mark(tmp_path):
    for text, kind in (("image;label\na.jpg;x\n", "utf-8-sig"), ("path\tclass\na.jpg\tx\n", "utf-16")):
        (tmp_path / "list.csv").write_text(text, encoding=kind)
        assert folder_rows(tmp_path / "list.csv") == [("x", "a.jpg", "", "")]


def test_a_folder_named_as_a_data_set_is_offered(photos, capsys, monkeypatch):
    monkeypatch.chdir(photos)
    assert cli.main(["run", "--datasets", "photos", "--profile", "drill", "--dry-run"]) == 2
    assert "There is no data set 'photos'. For the images in this folder: folder:photos" in capsys.readouterr().err

"""Images of one's own, from an empty folder: mixed sizes and modes, one broken, one class of one."""

import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from dmlstudy import cli
from dmlstudy.data.files import open_image
from dmlstudy.data.folder import folder_rows, load_folder, resolve_folder


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


def test_methods_are_ranked_on_a_folder(photos, capsys):
    words = ["run", "--datasets", f"folder:{photos / 'photos'}", "--seeds", "0", "--jobs", "1"]
    assert cli.main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "left out: colour 0/0.jpg (the only image of its class)" in told
    assert "all   10 classes, 50 images (5 to 5 a class, median 5)" in told and "left out: colour 3/broken.jpg" in told
    assert "pictures that are in two classes: 0" in told and "20 runs on 1 workers" in told
    assert cli.main([*words, "--methods", "Softmax"]) == 0
    told = capsys.readouterr().out
    (table,) = (photos / "outputs/custom/tables").glob("photos*.csv")
    rows = pd.read_csv(table).set_index("method")
    assert {*rows.index} == {"network as it is", "linear layer", "Softmax"} and "recall@1, %" in told
    assert rows["recall@1"].between(35, 100).all()  # two or three classes of five images
    assert cli.main([*words, "--methods", "Softmax"]) == 0
    assert "4 runs, 4 of them recorded; 0 to train" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    "name, said",
    [
        ("nowhere", "there is no folder"),
        ("photos/colour 1", "holds no images in class folders"),
        ("list.csv", "list.csv, line 2: the image or its label is missing"),
        ("nul.csv", "nul.csv, line 2: the name of the image holds a zero byte"),
        ("listed", "labels.csv, line 2: ../nul.csv lies outside of the folder that the list belongs to"),
        ("two.csv", "two.csv, classes of two or more images: 1 to train on, 1 to test on; 10 are needed"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(photos, capsys, name, said):
    (photos / "list.csv").write_text("image,label\nphotos/colour 1/0.jpg,\n")
    (photos / "nul.csv").write_text("image,label\na\0.jpg,1\n")
    (photos / "listed").mkdir()
    (photos / "listed/labels.csv").write_text("image,label\n../nul.csv,1\n")
    rows = [f"photos/colour {c}/{i}.{'jpg' if i == 0 else 'png'},{c}" for c in (1, 2) for i in (0, 1)]
    (photos / "two.csv").write_text("\n".join(["image,label", *rows]))
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
    assert folder_rows(tmp_path / "list.csv") == [("x", "a.jpg", "train")]


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

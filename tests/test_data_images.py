"Image data sets in every layout, broken ones, archives, decoded copies, transforms and two training steps"

import http.server
import io
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile

import numpy as np
import pytest
import torch
import torchvision.transforms as T
from disks import small_disk
from PIL import Image, ImageDraw, ImageFont, ImageOps
from scipy.io import savemat
from scipy.stats import ks_2samp
from torch import nn
from torch.utils.data import DataLoader

from dmlstudy import cli
from dmlstudy.core import generator, write_atomically
from dmlstudy.data import files as module
from dmlstudy.data import layouts, make_data
from dmlstudy.data.archives import ADDRESSES, checksums, download, unpack
from dmlstudy.data.files import Decoded, Files, open_image, short_side, unreadable, verify, write_decoded
from dmlstudy.data.layouts import ARCHIVES, LAYOUTS, SOURCES, class_order, count, find, load_images, read_images
from dmlstudy.data.prepare import check, prepare, usable
from dmlstudy.data.splits import Split, first_of_each_class
from dmlstudy.data.transforms import (
    SCALINGS,
    TRANSFORMS,
    BatchTransform,
    Pixels,
    Views,
    draw_box,
    draw_boxes,
    groups_of_sizes,
    make_transform,
    pad_pixels,
    padded,
)
from dmlstudy.models.backbones import freeze_batchnorm, make_backbone


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))


pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete

# miniature data sets -----------------------------------------------------------------------------------------------


def glyph(text, size=(60, 44)):
    "A photograph of a word"
    color = tuple(torch.randint(0, 200, (3,), generator=generator(0, "color", text)).tolist())
    image = Image.new("RGB", size, (240, 235, 220))
    ImageDraw.Draw(image).text(
        (size[0] / 2, size[1] / 2), text, font=ImageFont.load_default(20), fill=color, anchor="mm"
    )
    return image


def photograph(width, height, seed=0):
    "Smooth noise"
    small = torch.randint(0, 256, (6, 8, 3), generator=generator(seed, "photograph")).numpy().astype(np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def jpeg(path, text=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    glyph(text or path.stem).save(path, quality=95)


def text(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


BIRDS = [f"{i:03}.{name}" for i, name in enumerate(("Auk", "Owl", "Tern", "Wren"), 1)]


def cub(base, lists):
    names = [f"{bird}/{bird[4:]}_{j}.jpg" for bird in BIRDS for j in range(3)]
    for name in names:
        jpeg(base / name if lists is None else base / "images" / name)
    if lists:
        text(base / "images.txt", *(f"{i} {name}" for i, name in enumerate(names, 1)))
        text(base / "image_class_labels.txt", *(f"{i} {int(name[:3])}" for i, name in enumerate(names, 1)))
        text(base / "classes.txt", *(f"{int(bird[:3])} {bird}" for bird in BIRDS))
    else:
        text(base / ("._x" if lists is None else "images/._x"))
        text(base / (f"{BIRDS[0]}/._Auk_0.jpg" if lists is None else f"images/{BIRDS[0]}/._Auk_0.jpg"))


CARS = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van Minivan 2012", "Audi V8 Sedan 1994"]


def mat(path, **variables):
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, variables)


def notes(rows, **extra):
    "A struct array of annotations as Matlab writes it"
    kinds = [(key, "O") for key in rows[0]]
    return np.array([tuple(row.values()) for row in rows], dtype=kinds)[None]


def cars(base, kind):
    names = np.array(CARS, dtype=object)[None]
    if kind == "list":
        rows = [
            {"relative_im_path": f"car_ims/{i:06}.jpg", "bbox_x1": 1, "class": i % 4 + 1, "test": i % 2}
            for i in range(12)
        ]
        mat(base / "cars_annos.mat", annotations=notes(rows), class_names=names)
        [jpeg(base / row["relative_im_path"]) for row in rows]
    elif kind in ("devkit", "outside"):
        mat(base / "devkit/cars_meta.mat", class_names=names)
        rows = [{"bbox_x1": 1, "class": i % 4 + 1, "fname": f"{i:05}.jpg"} for i in range(8)]
        mat(base / "devkit/cars_train_annos.mat", annotations=notes(rows))
        test = base / ("devkit" if kind == "devkit" else "") / "cars_test_annos_withlabels.mat"
        mat(test, annotations=notes(rows[:4]))
        [jpeg(base / "cars_train" / row["fname"]) for row in rows]
        [jpeg(base / "cars_test" / row["fname"], "t" + row["fname"]) for row in rows[:4]]
    else:
        parts = {"images": ["images"], "halves": ["train", "test"], "plain": [""]}[kind]
        folders = ["9", "10", "11", "100"] if kind != "halves" else ["009", "010", "011", "100"]
        [jpeg(base / part / name / f"{part}{j}.jpg") for part in parts for name in folders for j in range(3)]


def sop(base, lists, images):
    header, number = "image_id class_id super_class_id path", 0
    for split, classes in (("train", (1, 2)), ("test", (3, 4))):
        rows = []
        for item in classes:
            for j in range(3):
                kind, number = ("bicycle_final", "sofa_final")[item % 2], number + 1
                rows.append(f"{number} {item} {item % 2 + 1} {kind}/{item}_{j}.JPG")
                jpeg(base / images / kind / f"{item}_{j}.JPG")
        text(base / lists / f"Ebay_{split}.txt", header, *rows)


def inshop(base, partition, images):
    rows = []
    for item, splits in (
        (7, ["train"] * 3),
        (2, ["train"] * 3),
        (5, ["query", "gallery"] * 2),
        (4, ["gallery", "query"]),
    ):
        for j, split in enumerate(splits):
            rows.append(f"img/WOMEN/Dresses/id_{item:08}/0{j}_1_front.jpg id_{item:08} {split}")
            jpeg(base / images / rows[-1].split()[0], f"{item}{j}")
    text(base / partition, len(rows), "image_name item_id evaluation_status", *rows)


def cifar(base, binary):
    base.mkdir(parents=True)
    for k, part in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = torch.randint(0, 256, (4, 3072), generator=generator(k, "cifar")).numpy().astype(np.uint8)
        labels = [(k + i) % 10 for i in range(4)]
        if binary:
            rows = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], 1)
            (base / f"{part}.bin").write_bytes(rows.tobytes())
        else:
            (base / part).write_bytes(pickle.dumps({b"data": pixels, b"labels": labels}, protocol=2))


KINDS_OF = {"Gala": "Apple", "Kaiser": "Pear", "Anjou": "Pear", "Milk": "Milk"}  # fine class -> coarse class
COARSE = ("Apple", "Pear", "Milk")
VISITS = {"train": 2, "val": 1, "test": 3}  # photographs of each class


def grocery(base):
    for visit, n in VISITS.items():
        rows = []
        for i, (name, kind) in enumerate(KINDS_OF.items()):
            for j in range(n):
                rows.append(f"{visit}/Food/{name}/{name}_{j:03}.jpg, {i}, {COARSE.index(kind)}")
                jpeg(base / rows[-1].split(",")[0], f"{name[:2]}{visit}{j}")
        text(base / f"{visit}.txt", *rows)
    rows = [f"{name},{i},{kind},{COARSE.index(kind)},/i.jpg,/d.txt" for i, (name, kind) in enumerate(KINDS_OF.items())]
    text(base / "classes.csv", "Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int)", *rows)


BUILD = {  # data set, layout -> where in the root, builder
    ("cub200", "official lists"): ("cub200/CUB_200_2011", lambda b: cub(b, True)),
    ("cub200", "class folders in images"): ("cub200", lambda b: cub(b, False)),
    ("cub200", "class folders"): ("CUB_200_2011", lambda b: cub(b, None)),
    ("cars196", "official list"): ("cars196", lambda b: cars(b, "list")),
    ("cars196", "official halves"): ("stanford_cars", lambda b: cars(b, "devkit")),
    ("cars196", "official halves, test list outside"): (".", lambda b: cars(b, "outside")),
    ("cars196", "class folders in images"): ("cars196", lambda b: cars(b, "images")),
    ("cars196", "class folders in halves"): ("car_data", lambda b: cars(b, "halves")),
    ("cars196", "class folders"): ("cars196", lambda b: cars(b, "plain")),
    ("sop", "official lists"): ("Stanford_Online_Products", lambda b: sop(b, "", "")),
    ("sop", "lists in Info_Files"): ("online_products", lambda b: sop(b, "Info_Files", "images")),
    ("inshop", "official folders"): ("In-shop", lambda b: inshop(b, "Eval/list_eval_partition.txt", "Img")),
    ("inshop", "official list, images beside it"): ("inshop", lambda b: inshop(b, "Eval/list_eval_partition.txt", "")),
    ("inshop", "list and images"): ("inshop", lambda b: inshop(b, "list_eval_partition.txt", "")),
    ("cifar10", "python"): ("cifar-10-batches-py", lambda b: cifar(b, False)),
    ("grocery", "official lists"): ("GroceryStoreDataset-master/dataset", grocery),
    ("grocery_alternate", "official lists"): ("GroceryStoreDataset-master/dataset", grocery),
    ("cifar10", "binary"): ("cifar10/cifar-10-batches-bin", lambda b: cifar(b, True)),
}


def build(name, layout, root):
    where, builder = BUILD[name, layout]
    builder(root / where)
    return root


def splits_of(data):
    return {k: getattr(data, k) for k in SOURCES[data.name]["splits"]}


def accept(monkeypatch, name, data):
    "Let the miniature's numbers be the published ones"
    numbers = {k: (len(part.class_names), len(part)) for k, part in splits_of(data).items()}
    monkeypatch.setitem(SOURCES[name], "splits", numbers)
    if name.startswith("grocery"):
        monkeypatch.setitem(SOURCES[name], "lists", {visit: n * len(KINDS_OF) for visit, n in VISITS.items()})


def test_every_layout_has_a_miniature():
    assert set(BUILD) == {(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts}


@pytest.mark.parametrize(("name", "layout"), BUILD, ids=map(", ".join, BUILD))
def test_layout_is_found_loaded_and_checked(name, layout, tmp_path, monkeypatch):
    assert not find(name, tmp_path)
    build(name, layout, tmp_path)
    place = find(name, tmp_path)
    assert place and place.layout == layout and str(place.folder) in str(place)
    data = load_images(name, tmp_path, strict=False)
    parts = splits_of(data)
    for part in parts.values():
        assert len(part) and part.counts().min() > 0 or name == "cifar10"
        image = part[0][0]
        assert image.mode == "RGB" if name != "cifar10" else image.shape == (3, 32, 32)
    if name != "cifar10":
        train, test = parts["train"], parts["query" if name == "inshop" else "test"]
        assert len(train.class_names) == len(test.class_names) == 2
        assert not set(train.class_names) & set(test.class_names)
        assert not set(train.images.paths) & set(test.images.paths)
    with pytest.raises(ValueError, match="strict=False, or --no-strict, takes it"):
        load_images(name, tmp_path)
    report = check(name, tmp_path)
    assert not report.ok and "not usable as it is" in str(report) and not report.bad
    accept(monkeypatch, name, data)
    assert len(load_images(name, tmp_path).train) == len(data.train)
    report = check(name, tmp_path)
    assert report.ok and "all is well" in str(report) and str(report).count("as published") == len(count(data))


def test_layouts_of_cub_give_the_same_split(tmp_path):
    loaded = []
    for i, layout in enumerate(LAYOUTS["cub200"]):
        loaded.append(load_images("cub200", build("cub200", layout, tmp_path / str(i)), strict=False))
    names = [[path.rsplit("/", 1)[1] for path in data.train.images.paths] for data in loaded]
    assert names[0] == names[1] == names[2] == [f"{bird}_{j}.jpg" for bird in ("Auk", "Owl") for j in range(3)]
    assert len({data.train.class_names for data in loaded}) == 1
    assert all(torch.equal(loaded[0].test.labels, data.test.labels) for data in loaded)


def test_cars_take_both_official_halves_and_the_official_order(tmp_path):
    devkit = load_images("cars196", build("cars196", "official halves", tmp_path / "a"), strict=False)
    assert devkit.train.class_names == tuple(CARS[:2]) and devkit.test.class_names == tuple(CARS[2:])
    assert devkit.train.images.paths[:3] == ("cars_test/00000.jpg", "cars_train/00000.jpg", "cars_train/00004.jpg")
    pooled = load_images("cars196", build("cars196", "official list", tmp_path / "b"), strict=False)
    assert pooled.test.images.paths == tuple(f"car_ims/{i:06}.jpg" for i in (2, 6, 10, 3, 7, 11))


@pytest.mark.parametrize("lists", [True, False])
def test_car_folders_by_name_follow_the_official_names_if_there(tmp_path, lists):
    base = tmp_path / "cars196"
    for name in CARS:
        jpeg(base / "images" / name.replace("/", "") / "0.jpg", name)
    if lists:
        mat(base / "devkit/cars_meta.mat", class_names=np.array(CARS, dtype=object)[None])
    data = load_images("cars196", tmp_path, strict=False)
    plain = [name.replace("/", "") for name in CARS]
    want = plain if lists else sorted(plain, key=str.encode)
    assert [*data.train.class_names, *data.test.class_names] == want and want[0] != sorted(plain, key=str.lower)[0]


def test_class_order():
    assert class_order([str(i) for i in range(196)]) == [str(i) for i in range(196)]
    assert class_order([f"{i:03}" for i in reversed(range(196))]) == [f"{i:03}" for i in range(196)]
    assert class_order(["1.a", "01.b", "x"]) == ["01.b", "1.a", "x"]  # no order of numbers: bytes
    assert class_order(["Übel", "zebra", "Alpha"]) == ["Alpha", "zebra", "Übel"]


def test_query_and_gallery_share_classes(tmp_path):
    data = load_images("inshop", build("inshop", "list and images", tmp_path), strict=False)
    assert data.train.class_names == ("id_00000002", "id_00000007") and data.test is None
    assert data.query.class_names == data.gallery.class_names == ("id_00000004", "id_00000005")
    assert data.query.labels.tolist() == [1, 1, 0] and data.gallery.labels.tolist() == [1, 1, 0]


def test_cifar_is_read_in_order(tmp_path):
    a = load_images("cifar10", build("cifar10", "python", tmp_path / "a"), strict=False)
    b = load_images("cifar10", build("cifar10", "binary", tmp_path / "b"), strict=False)
    assert "decoded" not in prepare("cifar10", tmp_path / "a", decoded=True)
    assert torch.equal(a.train.images, b.train.images) and torch.equal(a.test.labels, b.test.labels)
    assert a.train.labels.tolist() == [(k + i) % 10 for k in range(5) for i in range(4)]
    pixels = torch.randint(0, 256, (4, 3072), generator=generator(5, "cifar"))
    assert torch.equal(a.test.images, pixels.view(4, 3, 32, 32).to(torch.uint8))


def test_a_grocery_is_split_by_class_and_by_visit(tmp_path):
    data = load_images("grocery", build("grocery", "official lists", tmp_path), strict=False)
    assert (data.train.class_names, data.test.class_names) == (("Gala", "Kaiser"), ("Anjou", "Milk"))
    assert len(data.train) == len(data.test) == 2 * sum(VISITS.values())
    assert {path.split("/")[0] for path in data.query.images.paths} == {"val", "test"}
    assert {path.split("/")[0] for path in data.gallery.images.paths} == {"train"}
    assert sorted(data.query.images.paths + data.gallery.images.paths) == sorted(data.test.images.paths)
    for split in (data.train, data.test, data.query, data.gallery, *data.validation(1, folds=2)):
        for part in (split, first_of_each_class(split, 1)):
            kinds = [KINDS_OF[part.class_names[c]] for c in part.labels]
            assert [part.coarse_names[c] for c in part.coarse] == kinds and part.coarse_names == COARSE
    with pytest.raises(ValueError, match="2 labels need as many coarse ones; got 1"):
        Split([0, 0], torch.tensor([0, 0]), ("a",), torch.tensor([0]))


@pytest.mark.parametrize("top", ["GroceryStoreDataset/dataset", "GroceryStoreDataset-fc80ba9/dataset", "dataset"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_grocery_is_prepared_from_any_archive_of_its_repository(tmp_path, top, kind, capsys):
    grocery(tmp_path / "source" / top)
    archive = shutil.make_archive(tmp_path / "g", kind, tmp_path / "source")
    words = ["data", "prepare", "grocery", "--root", str(tmp_path / "root"), "--archive", archive]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "MIT licence" in said and "Klasson, Zhang and Kjellström (WACV 2019)" in said and "28 files" in said
    place = find("grocery", tmp_path / "root")
    assert (
        place.folder == tmp_path / "root/grocery" / top and len(read_images("grocery", tmp_path / "root")[1].test) == 12
    )


def test_a_broken_or_missing_photograph_is_named(tmp_path, monkeypatch, capsys):
    root = build("grocery", "official lists", tmp_path)
    accept(monkeypatch, "grocery", read_images("grocery", root)[1])
    assert make_data("grocery", root).left_out == {} and check("grocery", root).ok and usable("grocery", root) is None
    base = root / "GroceryStoreDataset-master/dataset"
    (base / "val/Food/Milk/Milk_000.jpg").unlink()
    (base / "test/Food/Gala/Gala_001.jpg").write_bytes(b"")
    assert "1 of 24 listed images are not there, such as " in usable("grocery", root)
    assert cli.main(["data", "check", "grocery", "--root", str(root)]) == 1
    assert capsys.readouterr().out.count("    val/Food/Milk/Milk_000.jpg: FileNotFound") == 1
    assert cli.main(["data", "check", "grocery", "--root", str(root), "--no-strict"]) == 0
    with pytest.warns(UserWarning, match="2 of 24 images cannot be read: .*Gala_001.jpg .*Milk_000.jpg"):
        data = make_data("grocery", root, strict=False)
    assert {*data.left_out} == {"val/Food/Milk/Milk_000.jpg", "test/Food/Gala/Gala_001.jpg"}
    assert [len(s) for s in (data.train, data.test, data.query, data.gallery)] == [11, 11, 7, 4]
    assert len(data.test.coarse) == 11


@pytest.mark.skipif(not find("grocery"), reason="needs the photographs in DMLSTUDY_DATA")
def test_the_real_grocery():
    data = load_images("grocery")
    assert [(len(s), len(s.class_names)) for s in (data.train, data.test)] == [(3051, 41), (2370, 40)]
    assert [len(data.query), len(data.gallery), len(data.test.coarse_names)] == [1208, 1162, 43]
    assert data.train.class_names[0] == "Golden-Delicious" and data.test.class_names[-1] == "Zucchini"
    for split in (data.train, data.test, data.query, data.gallery):
        for i in range(0, len(split), 97):
            assert split.class_names[split.labels[i]] == split.images.paths[i].split("/")[-2]
    assert usable("grocery") is None and min(data.test.images[0].size) > 300


# broken data sets --------------------------------------------------------------------------------------------------


def test_a_pickle_that_is_a_program_is_refused(tmp_path):
    root = build("cifar10", "python", tmp_path)
    (root / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps({b"data": print}, protocol=2))
    with pytest.raises(ValueError, match="asks for __builtin__.print"):
        load_images("cifar10", root)
    assert "asks for __builtin__.print" in str(check("cifar10", root))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_data_set_says_where_it_was_looked_for(name, tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        load_images(name, tmp_path)
    said = str(error.value)
    assert f"{name} was not found below {tmp_path}" in said and (SOURCES[name]["page"] or "served no more") in said
    assert all(f"missing {need}" in said for need in {needs[0] for needs, _ in LAYOUTS[name].values()})
    assert not check(name, tmp_path).ok and str(check(name, tmp_path)).startswith(said)


def test_missing_parts_are_named(tmp_path):
    root = build("cub200", "official lists", tmp_path)
    (root / "cub200/CUB_200_2011/classes.txt").unlink()
    for bird in BIRDS:  # without numbers the class folders do not help
        (root / f"cub200/CUB_200_2011/images/{bird}").rename(root / f"cub200/CUB_200_2011/images/{bird[4:]}")
    with pytest.raises(FileNotFoundError, match="CUB_200_2011 as official lists: missing classes.txt\n"):
        load_images("cub200", root)


def test_an_empty_class_is_refused(tmp_path):
    root = build("cub200", "class folders in images", tmp_path)
    (root / "cub200/images/003.Empty").mkdir()
    with pytest.raises(ValueError, match="1 of 5 classes have no image: 003.Empty"):
        load_images("cub200", root, strict=False)
    assert "1 of 5 classes have no image: 003.Empty" in str(check("cub200", root))


def test_a_test_list_without_classes_is_explained(tmp_path):
    root = build("cars196", "official halves", tmp_path)
    rows = [{"bbox_x1": 1, "fname": "00000.jpg"}] * 2
    mat(root / "stanford_cars/devkit/cars_test_annos_withlabels.mat", annotations=notes(rows))
    with pytest.raises(ValueError, match="has no classes"):
        load_images("cars196", root, strict=False)


@pytest.mark.parametrize(
    ("name", "layout", "file", "old", "new", "says"),
    [
        ("sop", "official lists", "Ebay_test.txt", " 3 ", " 1 ", "1 classes are in .*, such as sofa 1"),
        (
            "inshop",
            "list and images",
            "list_eval_partition.txt",
            "id_00000004 q",
            "id_00000007 q",
            "such as id_00000007",
        ),
    ],
)
def test_classes_shared_by_training_and_test_are_refused(tmp_path, monkeypatch, name, layout, file, old, new, says):
    (path,) = build(name, layout, tmp_path).rglob(file)
    path.write_text(path.read_text().replace(old, new))
    accept(monkeypatch, name, read_images(name, tmp_path)[1])
    with pytest.raises(ValueError, match=says):
        make_data(name, tmp_path)
    assert "in training and in test" in str(check(name, tmp_path)) and not check(name, tmp_path).ok
    with pytest.warns(UserWarning, match=says):
        assert make_data(name, tmp_path, strict=False).left_out == {}


def test_usable_says_what_a_run_would_stop_at(tmp_path, monkeypatch):
    (tmp_path / "images/1.shapes").mkdir(parents=True)
    glyph("x").save(tmp_path / "images/1.shapes/x.png")
    glyph("y").save(tmp_path / "images/1.shapes/y.png")
    assert "test: 1 classes, 2 images, not 100 and 5,924" in usable("cub200", tmp_path)
    assert "missing classes.csv" in usable("grocery", tmp_path) and usable("glyphs_fine", tmp_path) is None
    accept(monkeypatch, "cub200", read_images("cub200", tmp_path)[1])
    monkeypatch.setattr(module, "open_image", lambda path: pytest.fail("read"))
    assert usable("cub200", tmp_path) is None


CUB_LISTS = "cub200/CUB_200_2011/{}.txt"
LISTS = {  # what is broken: data set, layout, file, content -> damaged content, what the message says
    "no label": ("cub200", "official lists", CUB_LISTS.format("image_class_labels"),
                 lambda b: b.split(b"\n", 1)[1], "has no line for image 1"),
    "unknown class": ("cub200", "official lists", CUB_LISTS.format("image_class_labels"),
                      lambda b: b.replace(b"1 1\n", b"1 77\n", 1), "gives image 1 the class '77'"),
    "one column": ("cub200", "official lists", CUB_LISTS.format("images"), lambda b: b + b"77\n", "line 13 .*1 of 2"),
    "no number": ("cub200", "official lists", CUB_LISTS.format("classes"),
                  lambda b: b.replace(b"2 ", b"x ", 1), "line 2 .*'x' is not a number"),
    "number twice": ("cub200", "official lists", CUB_LISTS.format("images"),
                     lambda b: b.replace(b"2 001", b"1 001", 1), "line 2 .*'1' is there twice"),
    "Latin-1": ("cub200", "official lists", CUB_LISTS.format("images"),
                lambda b: b.replace(b"Auk_1", b"A\xe9k", 1), "line 2 .*utf-8"),
    "short line": ("sop", "official lists", "Stanford_Online_Products/Ebay_train.txt",
                   lambda b: b + b"5 6\n", "line 8 .*2 of 4"),
    "path out": ("cub200", "official lists", CUB_LISTS.format("images"),
                 lambda b: b.replace(b"1 001.Auk", b"1 ../../../001.Auk", 1), "line 1 .*is not a path below"),
    "path absolute": ("cub200", "official lists", CUB_LISTS.format("images"),
                      lambda b: b.replace(b"2 001.Auk", b"2 /001.Auk", 1), "line 2 .*'/001.Auk.* is not a path below"),
    "path out, SOP": ("sop", "lists in Info_Files", "online_products/Info_Files/Ebay_test.txt",
                      lambda b: b.replace(b"sofa_final/", b"../sofa_final/", 1), "line 2 .*is not a path below"),
    "path is a dot": ("sop", "official lists", "Stanford_Online_Products/Ebay_train.txt",
                      lambda b: b + b"9 9 1 .\n", "line 8 .*'.' is not a path below"),
    "other coarse class": ("grocery", "official lists", "GroceryStoreDataset-master/dataset/val.txt",
                           lambda b: b.replace(b", 0, 0", b", 0, 1", 1), "line 1 .*no class 0 of the coarse class 1"),
    "unknown fine class": ("grocery", "official lists", "GroceryStoreDataset-master/dataset/test.txt",
                           lambda b: b.replace(b", 3, 2", b", 81, 2", 1), "line 10 .*no class 81"),
    "no such split": ("inshop", "list and images", "inshop/list_eval_partition.txt",
                      lambda b: b.replace(b"query", b"querry", 1), "line 9 .*Did you mean 'query'"),
}  # fmt: skip


def damage(root, file, change):
    (root / file).write_bytes(change((root / file).read_bytes()))
    return root


def is_named(name, root, file, says):
    "Loading raises a ValueError that names the file, and `check` says the same"
    with pytest.raises(ValueError, match=says) as error:
        load_images(name, root, strict=False)
    assert str(root / file) in str(error.value) and ("get the file anew" in str(error.value) or "beside it" in says)
    assert str(error.value) in str(report := check(name, root)) and not report.ok


@pytest.mark.parametrize("case", LISTS)
def test_a_damaged_list_is_named_with_its_line(tmp_path, case):
    name, layout, file, change, says = LISTS[case]
    is_named(name, damage(build(name, layout, tmp_path), file, change), file, says)


@pytest.mark.parametrize(
    ("name", "layout", "files"),
    [
        ("cub200", "official lists", [CUB_LISTS.format(k) for k in ("classes", "images", "image_class_labels")]),
        ("sop", "official lists", ["Stanford_Online_Products/Ebay_train.txt"]),
        ("inshop", "list and images", ["inshop/list_eval_partition.txt"]),
    ],
)
def test_lists_may_come_from_windows(tmp_path, name, layout, files):
    plain = load_images(name, build(name, layout, tmp_path), strict=False)
    for file in files:
        damage(tmp_path, file, lambda b: b"\xef\xbb\xbf" + b.replace(b"\n", b"\r\n") + b"\r\n")
    again = load_images(name, tmp_path, strict=False)
    for part, split in splits_of(plain).items():
        assert getattr(again, part).images.paths == split.images.paths
        assert getattr(again, part).class_names == split.class_names


PICKLES = {
    "cut": lambda b: b[:60],
    "empty": lambda b: b"",
    "list": lambda b: pickle.dumps([1], protocol=2),
    "html": lambda b: b"<html>",
    "labels": lambda b: pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, protocol=2),
    "shape": lambda b: pickle.dumps({b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]}, protocol=2),
}


@pytest.mark.parametrize("case", PICKLES)
@pytest.mark.parametrize("layout", ["python", "binary"])
def test_a_damaged_file_of_cifar_is_named(tmp_path, layout, case):
    build("cifar10", layout, tmp_path)
    file = next(tmp_path.rglob("data_batch_3*")).relative_to(tmp_path)
    is_named("cifar10", damage(tmp_path, file, PICKLES[case]), file, "data_batch_3.* is damaged")


@pytest.mark.parametrize(
    ("name", "layout", "file", "head"),
    [("sop", "official lists", "Ebay_train.txt", 1), ("inshop", "official folders", "Eval/list_eval_partition.txt", 2)],
)
def test_a_list_without_its_heading_is_refused(tmp_path, name, layout, file, head):
    root = build(name, layout, tmp_path)
    (path,) = root.rglob(file)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[head:]))
    with pytest.raises(ValueError, match=f"{path.name} is damaged: line 1 names an image, its {head} lines of heading"):
        load_images(name, root, strict=False)


@pytest.mark.parametrize(
    ("layout", "absent", "named"),
    [
        ("official halves", "devkit", "cars_train_annos.mat"),
        ("official halves", "devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat"),
        ("official halves", "cars_test", r"missing cars_test/\*.jpg"),
        ("official list", "cars_annos.mat", "missing cars_annos.mat"),
    ],
)
def test_a_part_of_cars_is_not_taken_for_class_folders(tmp_path, layout, absent, named):
    root = build("cars196", layout, tmp_path / "root")
    (gone,) = root.glob(f"*/{absent}")
    gone.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError, match=named):
        load_images("cars196", root, strict=False)
    assert "!" not in str(find("cars196", root)) and not check("cars196", root).ok


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_full_disk_is_named_when_an_archive_is_unpacked(tmp_path, kind):
    archive, small = tmp_path / f"a.{kind}", tmp_path / "small"
    (tmp_path / "big").write_bytes(bytes(3_000_000))
    pack = zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) if kind == "zip" else tarfile.open(archive, "w")
    with pack:
        (pack.write if kind == "zip" else pack.add)(tmp_path / "big", "big")
    with small_disk(small, 1024):
        with pytest.raises(OSError, match=f"No space left on device, .*a.{kind} was not unpacked: '{small}'"):
            unpack(archive, small)
        assert not [*small.iterdir()]


@pytest.mark.parametrize("content", [b"", b"<html>" * 40, b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(400)])
@pytest.mark.parametrize("file", ["cars_meta.mat", "cars_train_annos.mat"])
def test_a_damaged_matlab_file_is_named(tmp_path, file, content):
    root, file = build("cars196", "official halves", tmp_path), f"stanford_cars/devkit/{file}"
    is_named("cars196", damage(root, file, lambda _: content), file, "is damaged")
    whole = damage(root, file, lambda _: b"") / file
    mat(whole, something=np.zeros(3))
    is_named("cars196", root, file, "is damaged")


@pytest.mark.parametrize("number", [0, 5, 99])
def test_a_class_of_cars_that_does_not_exist_is_refused(tmp_path, number):
    root = build("cars196", "official halves", tmp_path)
    file = "stanford_cars/devkit/cars_train_annos.mat"
    rows = [{"bbox_x1": 1, "class": k, "fname": f"{i:05}.jpg"} for i, k in enumerate((1, 2, 3, 4, number))]
    mat(root / file, annotations=notes(rows))
    is_named("cars196", root, file, f"00004.jpg is of class {number}; there are classes 1 to 4")


def test_matlab_files_without_scipy(tmp_path, monkeypatch):
    root = build("cars196", "official list", tmp_path)
    monkeypatch.setattr(layouts.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs SciPy"):
        load_images("cars196", root)
    assert "needs SciPy" in str(check("cars196", root))


@pytest.fixture
def broken(tmp_path):
    "A CUB with a truncated, a missing and an empty image among its six training images"
    root = build("cub200", "official lists", tmp_path)
    folder = root / "cub200/CUB_200_2011/images"
    victim = folder / "001.Auk/Auk_1.jpg"
    victim.write_bytes(victim.read_bytes()[:-200])
    (folder / "001.Auk/Auk_2.jpg").unlink()
    (folder / "002.Owl/Owl_0.jpg").write_bytes(b"")
    return root


def test_unreadable_images_stop_a_run_or_are_skipped(broken):
    _, data = read_images("cub200", broken)
    with pytest.raises(ValueError, match="3 of 6 images cannot be read") as error:
        verify({"train": data.train})
    assert all(f"{name}.jpg" in str(error.value) for name in ("Auk_1", "Auk_2", "Owl_0"))
    with pytest.warns(UserWarning, match="3 of 6 images cannot be read: .*Auk_2.jpg .* They are left out."):
        kept, left_out = verify({"train": data.train}, strict=False)
    part = kept["train"]
    assert len(left_out) == 3 and part.labels.tolist() == [0, 1, 1] and part.class_names == data.train.class_names
    assert [path[-9:] for path in part.images.paths] == ["Auk_0.jpg", "Owl_1.jpg", "Owl_2.jpg"]
    assert verify({"test": data.test}) == ({"test": data.test}, {}) and verify(kept) == (kept, {})
    report = check("cub200", broken)
    assert len(report.bad) == 3 and not report.ok and "images/002.Owl/Owl_0.jpg: UnidentifiedImageError" in str(report)
    assert not check("cub200", broken, images=False).bad


def test_the_quick_check_sees_that_listed_images_are_not_there(tmp_path, monkeypatch, capsys):
    root = build("cub200", "official lists", tmp_path)
    accept(monkeypatch, "cub200", load_images("cub200", root, strict=False))
    assert check("cub200", root, images=False).ok
    images = sorted((root / "cub200/CUB_200_2011/images").rglob("*.jpg"))
    images[4].unlink()
    report = check("cub200", root, images=False)
    assert not report.ok and f"1 of 12 listed images are not there, such as {images[4]}" in str(report)
    [image.unlink(missing_ok=True) for image in images]
    assert cli.main(["data", "check", "cub200", "--quick", "--root", str(root)]) == 1
    assert "12 of 12 listed images are not there" in capsys.readouterr().out


def test_verification_is_remembered_until_a_file_changes(tmp_path, monkeypatch):
    data = load_images("cub200", build("cub200", "official lists", tmp_path), strict=False)
    verify({"train": data.train})
    monkeypatch.setattr(module, "unreadable", lambda *a: pytest.fail("decoded again"))
    verify({"train": data.train})
    (data.train.images.folder / data.train.images.paths[2]).write_bytes(b"no image")
    monkeypatch.undo()
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="1 of 6 images"):
        verify({"train": data.train})


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '"x"', "[" * 100_000])
def test_a_damaged_memory_of_the_verification_is_made_anew(tmp_path, content):
    _, data = read_images("cub200", build("cub200", "official lists", tmp_path))
    (data.train.images.folder / data.train.images.paths[2]).write_bytes(b"no image")
    with pytest.warns(UserWarning, match="1 of 12 images cannot be read"):
        verify({"train": data.train, "test": data.test}, strict=False)
    (file,) = (tmp_path / "cache/verified").iterdir()
    whole = file.read_text()
    file.write_text(content)
    with pytest.warns(UserWarning, match=f"{file.name} is damaged .*decoded once more"):
        assert [*verify({"train": data.train, "test": data.test}, strict=False)[1]] == [data.train.images.paths[2]]
    assert file.read_text() == whole


def test_a_cache_that_cannot_be_written_stops_nothing(tmp_path):
    _, data = read_images("cub200", build("cub200", "official lists", tmp_path))
    (tmp_path / "cache").write_text("a file where the folder would be")
    with pytest.warns(UserWarning, match="verified.* the next run decodes all images again"):
        assert verify({"train": data.train})[1] == {}


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["baseline", "progressive"])
def test_the_quick_look_finds_what_decoding_would_find(tmp_path, options):
    photograph(120, 90).save(tmp_path / "whole.jpg", **options)
    content = (tmp_path / "whole.jpg").read_bytes()
    lengths = [*range(0, len(content), 211), *range(len(content) - 12, len(content) + 1)]
    for n in lengths:
        (tmp_path / f"{n}.jpg").write_bytes(content[:n])
    files = Files(tmp_path, [f"{n}.jpg" for n in lengths])
    bad = set()
    for i in range(len(files)):
        try:
            files[i]
        except ValueError:
            bad.add(files.paths[i])
    assert set(unreadable(files)) == bad and 10 < len(bad) < len(lengths)


# kinds of images ---------------------------------------------------------------------------------------------------

PICTURE = glyph("AaB", (48, 32))
GREY = PICTURE.convert("L").convert("RGB")


def saved(tmp_path, image, suffix, **options):
    if suffix == ".jpg":
        options |= {"quality": 100, "subsampling": 0}
    image.save(tmp_path / f"x{suffix}", **options)
    return open_image(tmp_path / f"x{suffix}")


def distance(a, b):
    assert a.mode == b.mode == "RGB" and a.size == b.size
    return np.abs(np.asarray(a).astype(int) - np.asarray(b)).mean()


def grey_16_bit(order="<u2"):
    return Image.fromarray(np.asarray(PICTURE.convert("L")).astype(order) * 257)


KINDS = {
    "rgb": (PICTURE, ".png", PICTURE, 0),
    "jpeg": (PICTURE, ".jpg", PICTURE, 1),
    "grey jpeg": (PICTURE.convert("L"), ".jpg", GREY, 1),
    "cmyk jpeg": (PICTURE.convert("CMYK"), ".jpg", PICTURE, 1),
    "cmyk tiff": (PICTURE.convert("CMYK"), ".tif", PICTURE, 0),
    "palette": (PICTURE.quantize(256), ".png", PICTURE, 2),
    "gif": (PICTURE.quantize(256), ".gif", PICTURE, 2),
    "one bit": (PICTURE.convert("1"), ".png", PICTURE.convert("1").convert("RGB"), 0),
    "16 bit png": (grey_16_bit(), ".png", GREY, 0),
    "16 bit tiff": (grey_16_bit(), ".tif", GREY, 0),
    "opaque rgba": (PICTURE.convert("RGBA"), ".png", PICTURE, 0),
    "grey alpha": (PICTURE.convert("LA"), ".png", GREY, 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_images_become_rgb(tmp_path, kind):
    image, suffix, want, tolerance = KINDS[kind]
    assert distance(saved(tmp_path, image, suffix), want) <= tolerance


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_white(tmp_path, mode):
    black = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    black.putpixel((1, 1), (0, 0, 0, 255))
    if mode == "P":
        palette = Image.new("P", (4, 4), 0)
        palette.putpalette([0, 0, 0, 0, 0, 0])
        palette.putpixel((1, 1), 1)
        got = saved(tmp_path, palette, ".png", transparency=0)
    else:
        got = saved(tmp_path, black.convert(mode), ".png")
    assert got.getpixel((0, 0)) == (255, 255, 255) and got.getpixel((1, 1)) == (0, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # transpositions that bring the scene into the stored position
    stored = PICTURE if orientation == 1 else PICTURE.transpose(Image.Transpose(undo[orientation]))
    assert distance(saved(tmp_path, stored, ".png", exif=exif), PICTURE) == 0


def test_what_cannot_be_an_image_is_named(tmp_path):
    Image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "float.tif")
    for name, says in (("float.tif", "floating-point"), ("none.jpg", "No such file"), ("text.jpg", "cannot identify")):
        (tmp_path / "text.jpg").write_text("no image")
        with pytest.raises(ValueError, match=f"{name} cannot be read.*{says}"):
            open_image(tmp_path / name)


# files, archives, decoded copies -----------------------------------------------------------------------------------


def test_files_are_a_lazy_picklable_sequence(tmp_path):
    files = load_images("cub200", build("cub200", "official lists", tmp_path), strict=False).train.images
    (files.folder / files.paths[0]).write_bytes(b"no image")  # never asked for below
    part = pickle.loads(pickle.dumps(files.take(torch.tensor([5, 1, 1]))))
    assert part.paths == tuple(files.paths[i] for i in (5, 1, 1)) and len(part.take([])) == 0
    sizes = part.with_transform(lambda image: image.size)
    assert [*sizes] == [(60, 44)] * 3 and sizes[-1] == (60, 44) and sizes[torch.tensor(0)] == (60, 44)
    with pytest.raises(IndexError):
        part[3]


BAD_MEMBERS = {
    "parent": ("../evil.txt", tarfile.REGTYPE),
    "parent inside": ("a/../../evil.txt", tarfile.REGTYPE),
    "absolute": ("/tmp/evil.txt", tarfile.REGTYPE),
    "backslash": ("..\\evil.txt", tarfile.REGTYPE),
    "drive": ("C:evil.txt", tarfile.REGTYPE),
    "link": ("link", tarfile.SYMTYPE),
    "hard link": ("link", tarfile.LNKTYPE),
    "fifo": ("pipe", tarfile.FIFOTYPE),
    "device": ("null", tarfile.CHRTYPE),
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_bad_archives_are_refused_and_leave_nothing(tmp_path, kind, case):
    name, type = BAD_MEMBERS[case]
    archive, target = tmp_path / f"bad.{kind}", tmp_path / "below/target"
    modes = {
        tarfile.SYMTYPE: 0o120777,
        tarfile.LNKTYPE: 0o120777,
        tarfile.FIFOTYPE: 0o010644,
        tarfile.CHRTYPE: 0o020644,
    }
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            good, bad = tarfile.TarInfo("good.txt"), tarfile.TarInfo(name)
            bad.type, bad.linkname = type, "/etc/passwd"
            tar.addfile(good, io.BytesIO())
            tar.addfile(bad, io.BytesIO())
    else:
        with zipfile.ZipFile(archive, "w") as z:
            z.writestr("good.txt", "")
            info = zipfile.ZipInfo("x")
            info.filename, info.external_attr = name, modes.get(type, 0) << 16
            z.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match="was not unpacked: its member"):
        unpack(archive, target)
    assert [*target.iterdir()] == [] and sorted(p.name for p in tmp_path.iterdir()) == [archive.name, "below"]


@pytest.mark.parametrize("kind", ["tgz", "zip"])
def test_a_good_archive_is_unpacked_once(tmp_path, kind):
    source, archive = tmp_path / "source", tmp_path / f"good.{kind}"
    jpeg(source / "a/b/x.jpg")
    text(source / "a/y.txt", "hello")
    if kind == "tgz":
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(source, ".")
    else:
        with zipfile.ZipFile(archive, "w") as z:
            z.mkdir("a")
            [z.write(p, p.relative_to(source)) for p in source.rglob("*.*")]
    assert unpack(archive, tmp_path / "target") == 2
    assert (tmp_path / "target/a/b/x.jpg").read_bytes() == (source / "a/b/x.jpg").read_bytes()
    with pytest.raises(FileExistsError, match="already holds a"):
        unpack(archive, tmp_path / "target")
    archive.write_bytes(archive.read_bytes()[:-80] if kind == "tgz" else b"PK" + archive.read_bytes()[2:-90])
    with pytest.raises(ValueError, match="damaged|neither a tar nor a zip"):
        unpack(archive, tmp_path / "other")
    assert [p.name for p in (tmp_path / "target").iterdir()] == ["a"] and not [*(tmp_path / "other").iterdir()]


def packed(folder, kind):
    "An archive of some twenty images, and where its members begin (tar)"
    for i in range(20):
        photograph(90, 80, i).save(folder / f"{i:02}.png")
    archive = folder / f"images.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as z:
            [z.write(p, f"images/{p.name}") for p in sorted(folder.glob("*.png"))]
        return archive, []
    with tarfile.open(archive, "w" if kind == "tar" else f"w:{kind}") as tar:
        [tar.add(p, f"images/{p.name}") for p in sorted(folder.glob("*.png"))]
    with tarfile.open(archive) as tar:
        return archive, [member.offset for member in tar]


def refused(archive, target, says="download it again"):
    with pytest.raises(ValueError, match=says) as error:
        unpack(archive, target)
    assert str(archive) in str(error.value) and [*target.iterdir()] == []


@pytest.mark.parametrize("kind", ["tar", "gz", "bz2", "xz", "zip"])
def test_a_shortened_archive_is_refused(tmp_path, kind):
    archive, starts = packed(tmp_path, kind)
    whole, target = archive.read_bytes(), tmp_path / "target"
    if kind == "tar":  # in a header, between members, in a member, without its end
        cuts = [starts[10] + 100, starts[10], starts[10] + 600, whole.rindex(b"IEND") // 512 * 512 + 512]
    else:
        cuts = [1, len(whole) // 3, len(whole) // 2, len(whole) - 30, len(whole) - 5]
    for cut in cuts:
        archive.write_bytes(whole[:cut])
        refused(archive, target)
    archive.write_bytes(whole)
    assert unpack(archive, target) == 20


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zip"])
def test_a_wrong_byte_anywhere_in_a_compressed_archive_is_found(tmp_path, kind):
    archive, _ = packed(tmp_path, kind)
    whole = archive.read_bytes()
    places = [len(whole) * i // 7 for i in range(1, 7)] + ([len(whole) - 6] if kind == "gz" else [])
    for place in places:
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        refused(archive, tmp_path / "target")


def test_a_wrong_header_does_not_end_a_tar(tmp_path):
    archive, starts = packed(tmp_path, "tar")
    content = bytearray(archive.read_bytes())
    content[starts[-1] + 5] ^= 0x5A  # the last member: nothing but zeros would follow
    archive.write_bytes(content)
    refused(archive, tmp_path / "target", "it is damaged .*download it again")


def test_a_compression_that_python_does_not_know_is_explained(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as z:
        z.writestr("a.txt", "hello")
    content = bytearray((tmp_path / "x.zip").read_bytes())
    for place in (8, content.find(b"PK\1\2") + 10):
        content[place : place + 2] = b"\x09\0"  # deflate64
    (tmp_path / "x.zip").write_bytes(content)
    refused(tmp_path / "x.zip", tmp_path / "target", "unpack it by another program")


def test_members_that_contradict_each_other_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        [tar.addfile(tarfile.TarInfo(name), io.BytesIO()) for name in ("a", "a/b")]
    refused(tmp_path / "x.tar", tmp_path / "target")


def test_folders_without_a_bottom_are_refused(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a/" * 2000 + "b"), io.BytesIO())
    refused(tmp_path / "x.tar", tmp_path / "target", "its member 'a/a/.* lies 2001 folders deep")


@pytest.mark.parametrize("kind", ["zip", "gz"])
def test_an_archive_larger_than_the_data_set_can_be_is_refused(tmp_path, kind, monkeypatch):
    monkeypatch.setitem(SOURCES["cub200"], "bytes", 1e6)
    (tmp_path / "zeros").write_bytes(bytes(4_000_000))
    if kind == "zip":
        with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as z:
            z.write(tmp_path / "zeros", "CUB_200_2011/x")
    else:
        with tarfile.open(tmp_path / "x.gz", "w:gz") as tar:
            tar.add(tmp_path / "zeros", "CUB_200_2011/x")
    assert (archive := tmp_path / f"x.{kind}").stat().st_size < 10_000
    with pytest.raises(ValueError, match=f"x.{kind} was not unpacked: it holds more than 3 MB"):
        prepare("cub200", tmp_path / "root", archive, strict=False)
    assert [*(tmp_path / "root/cub200").iterdir()] == []


def test_an_archive_larger_than_the_disk_is_refused_before_it_is_written(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as z:
        [z.writestr(f"{i}", bytes(300_000)) for i in range(10)]
    monkeypatch.setattr(shutil, "copyfileobj", lambda *a: pytest.fail("written"))
    with small_disk(tmp_path / "small", 1024):
        with pytest.raises(OSError, match="No space left on device, .*x.zip was not unpacked"):
            unpack(tmp_path / "x.zip", tmp_path / "small")


def test_a_rendered_set_has_nothing_to_unpack(tmp_path, capsys):
    assert cli.main(["data", "prepare", "glyphs_fine", "--archive", str(tmp_path / "x.zip")]) == 1
    assert "glyphs_fine is rendered here: there is nothing to fetch or to unpack" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"PK\3\4 and half of it", b"<html>"])
def test_what_is_called_an_archive_is_never_copied(tmp_path, content):
    (tmp_path / "img.zip").write_bytes(content)  # its MD5 is not known
    with pytest.raises(ValueError, match="img.zip was not unpacked.*download it again"):
        prepare("inshop", tmp_path / "root", tmp_path / "img.zip")
    assert not [*(tmp_path / "root/inshop").iterdir()]
    (tmp_path / "mine.zip").write_bytes(content)
    with pytest.raises(ValueError, match="mine.zip was not unpacked.*download it again"):
        prepare("cub200", tmp_path / "root", tmp_path / "mine.zip", strict=False)


@pytest.fixture
def archive(tmp_path):
    cub(tmp_path / "source/CUB_200_2011", True)
    with tarfile.open(tmp_path / "CUB_200_2011.tgz", "w:gz") as tar:
        tar.add(tmp_path / "source", ".")
    return tmp_path / "CUB_200_2011.tgz"


def test_prepare_compares_checksums(tmp_path, archive, monkeypatch):
    with pytest.raises(ValueError, match="the official file has 97eceeb196236b17998738112f37df78"):
        prepare("cub200", tmp_path / "root", archive)
    assert not (tmp_path / "root").exists()
    monkeypatch.setitem(ARCHIVES, "cub200", {archive.name: checksums(archive)["md5"]})
    renamed = archive.rename(tmp_path / "download.bin")
    done = prepare("cub200", tmp_path / "root", renamed)
    assert done["official"] is True and done["files"] == 15 and len(done["sha256"]) == 64
    assert done["place"].folder == tmp_path / "root/cub200/CUB_200_2011"
    (tmp_path / "again.tgz").write_bytes(renamed.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"the official file has one of {done['md5']}. strict=False"):
        prepare("cub200", tmp_path / "b", tmp_path / "again.tgz")
    assert prepare("cub200", tmp_path / "b", tmp_path / "again.tgz", strict=False)["official"] is False


@pytest.fixture
def served(archive, monkeypatch):
    """The archive at an address of this machine, in place of the official one; how often it was asked for."""
    asked = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args, **more):
            super().__init__(*args, directory=str(archive.parent), **more)

        def log_message(self, *args):
            asked.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setitem(ADDRESSES, "cub200", url + archive.name)
        monkeypatch.setitem(ARCHIVES, "cub200", {archive.name: checksums(archive)["md5"]})
        yield asked
        server.shutdown()


def test_download_fetches_once_and_prepare_goes_on(tmp_path, archive, served, capsys):
    root = tmp_path / "root"
    fetched = download("cub200", root)
    assert fetched.read_bytes() == archive.read_bytes() and fetched == root / "archives" / archive.name
    assert download("cub200", root) == fetched and len(served) == 1
    fetched.write_bytes(b"half of it")
    assert cli.main(["data", "prepare", "cub200", "--download", "--decoded", "--root", str(root)]) == 0
    told = capsys.readouterr().out
    assert len(served) == 2 and "non-commercial research" in told and "15 files; the official file" in told
    assert f"MD5 {checksums(archive)['md5']}" in told and "decoded to" in told
    assert len(Decoded(find("cub200", root).decoded).rows) == 12


def test_download_that_fails_says_where_else(tmp_path, served, monkeypatch):
    monkeypatch.setitem(ADDRESSES, "cub200", "http://127.0.0.1:9/CUB_200_2011.tgz")
    with pytest.raises(OSError, match=r"could not be fetched .* get it from https://www.vision.caltech.edu"):
        download("cub200", tmp_path / "root")
    assert not [*(tmp_path / "root" / "archives").iterdir()]


def test_prepare_an_archive_by_command(tmp_path, archive, capsys):
    words = ["data", "prepare", "cub200", "--archive", str(archive), "--root", str(tmp_path / "root")]
    assert cli.main(words) == 2 and "--no-strict" in capsys.readouterr().err
    assert cli.main([*words, "--no-strict"]) == 0
    assert "not the official file" in (told := capsys.readouterr().out) and "decoded" not in told
    assert cli.main(["data", "prepare", "cub200", "--root", str(tmp_path / "root")]) == 0
    assert "decoded to" in capsys.readouterr().out
    assert cli.main(["data", "check", "--archive", str(archive)]) == 2
    assert "go with: dmlstudy data prepare" in capsys.readouterr().err


def test_prepare_copies_single_files(tmp_path, monkeypatch):
    inshop(tmp_path / "source", "list_eval_partition.txt", "")
    with zipfile.ZipFile(tmp_path / "img.zip", "w") as z:
        [z.write(p, p.relative_to(tmp_path / "source")) for p in (tmp_path / "source/img").rglob("*.jpg")]
    assert not prepare("inshop", tmp_path / "root", tmp_path / "img.zip")["place"]
    done = prepare("inshop", tmp_path / "root", tmp_path / "source/list_eval_partition.txt", decoded=True)
    assert done["place"].layout == "list and images" and done["official"] is None
    assert len(Decoded(done["decoded"]).rows) == 12
    text(tmp_path / "notes.txt", "x")
    with pytest.raises(ValueError, match="no file of inshop that is not an archive 'notes.txt'"):
        prepare("inshop", tmp_path / "root", tmp_path / "notes.txt")


def test_a_decoded_copy_is_the_images_with_the_shorter_side_at_256(tmp_path):
    root = build("cub200", "official lists", tmp_path)
    image = glyph("tall", (40, 70))
    image.save(root / "cub200/CUB_200_2011/images/001.Auk/Auk_0.jpg")
    done = prepare("cub200", root, decoded=True)
    plain, copy = load_images("cub200", root, strict=False), load_images("cub200", root, strict=False, decoded=True)
    for split in ("train", "test"):
        a, b = getattr(plain, split), pickle.loads(pickle.dumps(getattr(copy, split)))
        for i in range(len(a)):
            assert short_side(a[i][0]).tobytes() == b[i][0].tobytes() and min(b[i][0].size) == 256
            assert b[i][0].size == T.Resize(256)(a[i][0]).size
    assert T.Resize(256)(plain.train[0][0]).tobytes() == copy.train[0][0].tobytes()
    assert len(json.loads(done["decoded"].read_text())["sources_sha256"]) == 64
    assert copy.train.images.take([1]).decoded is copy.train.images.decoded
    transform = make_transform("base", False)
    assert torch.equal(transform(plain.train[3][0]), transform(copy.train[3][0]))
    assert len(pickle.dumps(copy.train.images)) < 20_000  # a worker gets names, not pixels


def test_a_decoded_copy_that_does_not_match_is_refused(tmp_path):
    root = build("cub200", "official lists", tmp_path)
    with pytest.raises(FileNotFoundError, match="prepare"):
        load_images("cub200", root, strict=False, decoded=True)
    index = prepare("cub200", root, decoded=True)["decoded"]
    pixels, whole = index.with_suffix(".u8"), index.with_suffix(".u8").read_bytes()
    data = load_images("cub200", root, strict=False, decoded=True)
    pixels.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    with pytest.raises(ValueError, match="pixels of images/001.Auk/Auk_0.jpg .* damaged"):
        load_images("cub200", root, strict=False, decoded=True).train[0]
    pixels.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=f"has {len(whole) - 1} bytes of pixels beside it, not {len(whole)}"):
        Decoded(index)
    pixels.write_bytes(whole)
    with pytest.raises(ValueError, match="none.jpg is not in the decoded copy"):
        data.train.images.decoded["none.jpg"]
    jpeg(root / "cub200/CUB_200_2011/images/004.Wren/Wren_1.jpg", "another")
    with pytest.raises(ValueError, match="Wren_1.jpg has changed since it was decoded"):
        load_images("cub200", root, strict=False, decoded=True)


def test_an_unreadable_image_leaves_no_decoded_copy(broken):
    files, path = read_images("cub200", broken)[1].train.images, find("cub200", broken).decoded
    with pytest.raises((ValueError, FileNotFoundError), match="Auk_"):
        write_decoded(files, path)
    assert not [p for p in path.parent.iterdir() if "decoded" in p.name]


@pytest.fixture
def copied(tmp_path):
    "A CUB with a decoded copy: its root, and an image of it"
    root = build("cub200", "official lists", tmp_path)
    prepare("cub200", root, decoded=True)
    return root, root / "cub200/CUB_200_2011/images/001.Auk/Auk_1.jpg"


def test_an_image_changed_at_equal_size_is_found(copied):
    root, image = copied
    content = image.read_bytes()
    os.utime(image, ns=(1, 1))  # copied elsewhere: another time, the same bytes
    assert load_images("cub200", root, strict=False, decoded=True).train[1][0].size == (349, 256)
    image.write_bytes(content[:-2] + b"\0\0")
    with pytest.raises(ValueError, match="Auk_1.jpg has changed since it was decoded"):
        load_images("cub200", root, strict=False, decoded=True)
    image.unlink()
    assert load_images("cub200", root, strict=False, decoded=True).train[1][0].size == (349, 256)


def test_images_added_since_are_found_at_opening(copied):
    root, image = copied
    base = image.parents[2]
    for i in (13, 14):
        jpeg(base / f"images/002.Owl/new_{i}.jpg")
        for name, row in (("images", f"{i} 002.Owl/new_{i}.jpg"), ("image_class_labels", f"{i} 2")):
            (base / f"{name}.txt").write_text((base / f"{name}.txt").read_text() + f"{row}\n")
    with pytest.raises(ValueError, match=r"2 images, such as images/002.Owl/new_13.jpg, are not in the decoded copy"):
        load_images("cub200", root, strict=False, decoded=True)
    prepare("cub200", root, decoded=True)
    assert len(load_images("cub200", root, strict=False, decoded=True).train) == 8


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null", "old", "short row"])
def test_a_damaged_index_is_named(copied, content):
    root, _ = copied
    index = find("cub200", root).decoded
    held = json.loads(index.read_text())
    changed = {"old": held | {"format": 1}, "short row": held | {"images": [["x", 1]]}}
    index.write_text(json.dumps(changed[content]) if content in changed else content)
    with pytest.raises(ValueError, match="decoded_256.json is damaged .*prepare the copy again"):
        load_images("cub200", root, strict=False, decoded=True)
    prepare("cub200", root, decoded=True)
    assert len(load_images("cub200", root, strict=False, decoded=True).train) == 6


def test_unreadable_images_are_left_out_of_the_copy_on_request(broken):
    with pytest.raises(ValueError, match="strict=False, or --no-strict"):
        prepare("cub200", broken, decoded=True)
    done = prepare("cub200", broken, decoded=True, strict=False)
    names = ["images/001.Auk/Auk_1.jpg", "images/001.Auk/Auk_2.jpg", "images/002.Owl/Owl_0.jpg"]
    assert sorted(done["left_out"]) == names and len(Decoded(done["decoded"]).rows) == 9
    assert [row[0] for row in json.loads(done["decoded"].read_text())["left_out"]] == names
    _, data = read_images("cub200", broken, decoded=True)
    with pytest.raises(ValueError, match="3 of 6 images cannot be read: .*Auk_1.jpg.*--no-strict"):
        verify({"train": data.train})
    data = load_images("cub200", broken, strict=False, decoded=True)
    part = data.train
    assert (
        [*data.left_out] == names
        and part.labels.tolist() == [0, 1, 1]
        and [image.height for image in part.images] == [256] * 3
    )
    jpeg(broken / "cub200/CUB_200_2011" / names[1])  # it is there again
    with pytest.raises(ValueError, match="Auk_2.jpg has changed"):
        load_images("cub200", broken, strict=False, decoded=True)


def test_what_a_killed_process_left_is_no_hindrance(copied):
    root, image = copied
    half = image.parents[2] / ".decoded_256.u8"
    code = "import os, sys, filelock\nwith filelock.FileLock(sys.argv[1]):\n    os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(half.with_name(".preparing.lock"))])
    half.write_bytes(b"half")
    prepare("cub200", root, decoded=True)
    assert not half.exists() and len(load_images("cub200", root, strict=False, decoded=True).train) == 6


@pytest.mark.skipif(os.name != "posix", reason="modes are those of Unix")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_are_as_open_to_others_as_the_umask_says(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "a/b.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o777 == mode and len([*(tmp_path / "a").iterdir()]) == 1
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "folder", "x")
    assert not [p for p in tmp_path.iterdir() if p.suffix == ".tmp"]


# transforms --------------------------------------------------------------------------------------------------------

RRC, FLIP, NORM = (
    T.RandomResizedCrop,
    T.RandomHorizontalFlip(),
    T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)
THEIRS = {
    "base": [RRC(224), FLIP],
    "red": [T.Resize(256), T.RandomCrop(224), FLIP],
    "big": [RRC(256), FLIP],
    "adv": [RRC(224), T.RandomGrayscale(0.2), T.ColorJitter(0.2, 0.2, 0.2, 0.2), FLIP],
    "sec": [T.Resize(256), RRC(227, scale=(0.16, 1)), FLIP],
    "simclr": [
        RRC(32, scale=(0.2, 1)),
        FLIP,
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        T.RandomGrayscale(0.2),
    ],
    "cifar": [RRC(32, scale=(0.2, 1)), FLIP],
    **{f"squash{n}": [T.Resize((n, n), T.InterpolationMode.BICUBIC), FLIP] for n in (96, 128, 160, 224)},
}


def test_all_transforms_are_compared():
    assert set(THEIRS) == set(TRANSFORMS)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_training_transforms_equal_torchvisions_bit_for_bit(name):
    ours = make_transform(name, train=True)
    theirs = T.Compose([*THEIRS[name], T.ToTensor(), NORM if ours.scaling is SCALINGS["imagenet"] else nn.Identity()])
    for seed, size in enumerate([(300, 260), (260, 300), (640, 100), (256, 256)] * 2):
        image = photograph(*size, seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            want = theirs(image)
            before = torch.get_rng_state()
            got = ours(image, torch.Generator().manual_seed(seed))
            assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
        if ours.scaling is SCALINGS["cifar"]:
            want = T.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))(want)
        assert torch.equal(got, want)


@pytest.mark.parametrize(("name", "size"), [("base", 224), ("red", 224), ("adv", 224), ("big", 256), ("sec", 227)])
def test_test_transforms_equal_torchvisions(name, size):
    image = photograph(333, 301)
    theirs = T.Compose([T.Resize(256), T.CenterCrop(size), T.ToTensor()])
    assert torch.equal(make_transform(name, False)(image), NORM(theirs(image)))
    mean = torch.tensor([104.0, 117, 123 if name == "sec" else 128])[:, None, None]
    caffe = theirs(image).flip(0) * 255 - mean
    torch.testing.assert_close(make_transform(name, False, "bninception")(image), caffe, atol=1e-3, rtol=0)
    google = make_transform(name, False, "googlenet")(image)
    assert tuple(google.shape) == (3, *[227 if size == 224 else size] * 2)


def test_boxes_equal_torchvisions():
    for seed in range(300):
        g = generator(seed, "sizes")
        height, width = torch.randint(1, 400, (2,), generator=g).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            want = T.RandomResizedCrop.get_params(torch.empty(3, height, width), [0.08, 1.0], [3 / 4, 4 / 3])
        assert draw_box(height, width, (0.08, 1.0), torch.Generator().manual_seed(seed)) == want


def test_boxes_of_a_batch_are_distributed_as_single_ones():
    n, g = 3000, generator(0, "boxes")
    batch = draw_boxes(torch.tensor([[256, 341]]).repeat(n, 1), (0.08, 1.0), g)
    single = torch.tensor([draw_box(256, 341, (0.08, 1.0), g) for _ in range(n)])
    for column in range(4):
        assert ks_2samp(batch[:, column].numpy(), single[:, column].numpy()).pvalue > 1e-3
    assert (
        (batch[:, :2] >= 0).all()
        and (batch[:, 0] + batch[:, 2] <= 256).all()
        and (batch[:, 1] + batch[:, 3] <= 341).all()
    )
    odd = torch.tensor([[10, 1000], [1000, 10], [1, 1]])
    want = [draw_box(*size, (1.0, 1.0), generator(0, "odd")) for size in odd.tolist()]
    assert draw_boxes(odd, (1.0, 1.0), generator(0, "odd")).tolist() == [list(box) for box in want]


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    "A split of eight photographs of different sizes, with a decoded copy"
    tmp_path = tmp_path_factory.mktemp("photographs")
    sizes = [(300, 260), (260, 300), (400, 256), (256, 256), (500, 300), (270, 512), (333, 301), (256, 700)]
    for i, size in enumerate(sizes):
        photograph(*size, i).save(tmp_path / f"{i}.png")
    files = Files(tmp_path, [f"{i}.png" for i in range(8)])
    write_decoded(files, tmp_path / "decoded.json")
    files = Files(tmp_path, files.paths, decoded=Decoded(tmp_path / "decoded.json"))
    return Split(files, torch.arange(8) // 2, tuple("abcd"))


def numbered(batches, epoch=0):
    """Images with the epoch and their position in it."""
    starts = itertools.accumulate(map(len, batches), initial=0)
    return [[(i, epoch, start + k) for k, i in enumerate(batch)] for batch, start in zip(batches, starts, strict=False)]


@pytest.mark.parametrize("name", ["adv", "sec"])
def test_views_do_not_depend_on_the_workers(some, name):
    views, images = Views(some, make_transform(name, True), seed=3), [[0, 5, 5], [7, 1, 2]]
    load = lambda epoch, n: [*DataLoader(views, batch_sampler=numbered(images, epoch), num_workers=n)]
    alone, together = ([*load(0, workers), *load(1, workers)] for workers in (0, 2))
    for (x, y, i), (x2, y2, i2) in zip(alone, together, strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2) and torch.equal(i, i2)
    x = alone[0][0]
    assert alone[0][1].tolist() == [0, 2, 2] and not torch.equal(x[1], x[2]) and not torch.equal(x, alone[2][0])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(load(1, 0), alone[2:], strict=True))
    assert not torch.equal(Views(some, views.transform, seed=4)[0, 0, 0][0], x[0])


def crops(split, transform, sizes, seed):
    "Image by image, the boxes and flips that the batch drew"
    box, flips, size = BatchTransform(transform).boxes(sizes, generator(seed))
    for i, ((top, left, h, w), flipped) in enumerate(zip(box.tolist(), flips.tolist(), strict=True)):
        crop = split[i][0].crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)
        yield transform.scaling(T.functional.to_tensor(ImageOps.mirror(crop) if flipped else crop))


@pytest.mark.parametrize("backbone", ["resnet50", "bninception"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["base", "red", "big", "sec"])
def test_a_batch_equals_image_by_image(some, name, train, backbone):
    transform = make_transform(name, train, backbone)
    loader = DataLoader(Pixels(some), batch_size=8, collate_fn=pad_pixels)
    pixels, sizes, labels, indices = next(iter(loader))
    assert torch.equal(labels, some.labels) and indices.tolist() == [*range(8)] and pixels.dtype == torch.uint8
    got = BatchTransform(transform)(pixels, sizes, generator(1))
    want = torch.stack([*crops(some, transform, sizes, 1)])
    levels = (got - want).abs().mul(torch.tensor(transform.scaling.std)[:, None, None]).mul(255)
    exact = not train or name == "red"  # nothing is resized
    assert levels.max() < (0.01 if exact else 1.1)
    if not train:
        one_by_one = torch.stack([transform(some[i][0]) for i in range(8)])
        torch.testing.assert_close(got, one_by_one, atol=1e-3 if backbone == "bninception" else 1e-5, rtol=0)


def as_items(sizes):
    return [(np.asarray(photograph(w, h, i)), i % 3, 10 + i) for i, (h, w) in enumerate(sizes)]


def test_an_ordinary_batch_is_one_tensor_with_the_same_pixels_as_ever():
    g = generator(0, "sizes")
    longer = torch.randint(256, 520, (24,), generator=g).tolist()
    items = as_items([(256, n) if i % 3 else (n, 256) for i, n in enumerate(longer)])
    pixels, sizes, labels, indices = pad_pixels(items)
    assert torch.equal(pixels, padded([image for image, *_ in items])) and labels.tolist() == [0, 1, 2] * 8
    assert indices.tolist() == [*range(10, 34)] and sizes.tolist() == [[*image.shape[:2]] for image, *_ in items]
    transform = BatchTransform(make_transform("base", True))
    box, flips, size = transform.boxes(sizes, generator(1))
    assert torch.equal(transform(pixels, sizes, generator(1)), transform.cut(pixels, box, flips, size))


@pytest.mark.parametrize("name", ["base", "red", "sec"])
@pytest.mark.parametrize("train", [True, False])
def test_panoramas_do_not_blow_a_batch_up(name, train):
    ordinary = [(256, 300), (340, 256)] * 6
    places = {2: (256, 3000), 5: (3100, 256), 9: (256, 5760), 12: (256, 3000)}
    sizes = ordinary[:]
    [sizes.insert(i, size) for i, size in sorted(places.items())]
    items = as_items(sizes)
    parts, held, labels, indices = pad_pixels(items)
    assert sum(part.numel() for _, part in parts) <= 4 * sum(image.size for image, *_ in items)
    assert sorted(i for rows, _ in parts for i in rows.tolist()) == [*range(16)] and held.tolist() == [
        [*size] for size in sizes
    ]
    transform = BatchTransform(make_transform(name, train))
    got = transform(parts, held, generator(3))
    box, flips, size = transform.boxes(held, generator(3))
    for i, (image, *_) in enumerate(items):
        alone = transform.cut(padded([image]), box[i : i + 1], flips[i : i + 1], size)
        torch.testing.assert_close(got[i : i + 1], alone, atol=1e-5, rtol=0)
    assert indices.tolist() == [*range(10, 26)] and labels.tolist() == [i % 3 for i in range(16)]


def test_groups_of_sizes_are_bounded():
    g = generator(0, "groups")
    for _ in range(300):
        n = int(torch.randint(1, 60, (1,), generator=g))
        longer = (256 * torch.exp(4 * torch.rand(n, generator=g) ** 3)).long()
        sizes = torch.stack([torch.full_like(longer, 256), longer], 1)
        sizes = torch.where(torch.rand(n, 1, generator=g) < 0.5, sizes, sizes.flip(1)).numpy()
        groups = groups_of_sizes(sizes)
        assert sorted(np.concatenate(groups).tolist()) == [*range(n)]
        for rows in groups:
            assert len(rows) * sizes[rows].max(0).prod() <= 4 * sizes[rows].prod(1).sum()
        if n * sizes.max(0).prod() <= 4 * sizes.prod(1).sum():
            assert len(groups) == 1


@pytest.mark.parametrize("name", ["cifar", "simclr"])
def test_a_transform_that_does_not_crop_makes_no_batch(name):
    with pytest.raises(ValueError, match="without a crop leaves images in different sizes"):
        BatchTransform(make_transform(name, False))


def test_flips_are_fair(some):
    _, flips, _ = BatchTransform(make_transform("red", True)).boxes(torch.full((4000, 2), 256), generator(0))
    assert abs(flips.float().mean() - 0.5) < 0.04


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_on_cuda(some):
    pixels, sizes, *_ = pad_pixels([Pixels(some)[i] for i in range(8)])
    transform = BatchTransform(make_transform("base", True))
    got = transform(pixels.cuda(), sizes, generator(0)).cpu()
    torch.testing.assert_close(got, transform(pixels, sizes, generator(0)), atol=2e-2, rtol=0)


# from disk to two training steps -----------------------------------------------------------------------------------

RUNS = [
    ("cub200", "class folders in images", "base", "resnet50", 224),
    ("cars196", "official list", "base", "googlenet", 227),
    ("sop", "lists in Info_Files", "red", "bninception", 224),
    ("inshop", "official folders", "sec", "bninception", 227),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "transform", "backbone", "size"), RUNS)
def test_two_training_steps_at_the_papers_sizes(name, layout, transform, backbone, size, tmp_path, monkeypatch):
    root = build(name, layout, tmp_path)
    accept(monkeypatch, name, load_images(name, root, strict=False))
    assert check(name, root).ok
    data = load_images(name, root)
    train = verify({"train": data.train})[0]["train"]
    views = Views(train, make_transform(transform, True, backbone))
    loader = DataLoader(views, batch_sampler=numbered([[0, 1, 3, 4], [5, 4, 2, 0]]))
    net = make_backbone(backbone)
    model = nn.Sequential(net if backbone == "googlenet" else freeze_batchnorm(net), nn.Linear(net.dim, 2)).train()
    before = {k: v.clone() for k, v in net.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=4e-4)
    for x, y, _ in loader:
        assert tuple(x.shape) == (4, 3, size, size)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    assert all(not torch.equal(before[k], v) and v.isfinite().all() for k, v in net.named_parameters())
    test = data.query or data.test
    test = Views(test, make_transform(transform, False, backbone))
    with torch.inference_mode():
        f = net.eval()(next(iter(DataLoader(test, batch_size=2)))[0])
    assert tuple(f.shape) == (2, net.dim) and f.isfinite().all()

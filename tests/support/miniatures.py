"""Data sets on disk in their official layouts, some images each, for the tests that read them."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.io import savemat

from dmlstudy.core.random import generator
from dmlstudy.data.formats import SOURCES


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))


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


BOX = {"bbox_x1": 2, "bbox_y1": 3, "bbox_x2": 9, "bbox_y2": 8}


def notes(rows, **extra):
    "A struct array of annotations as Matlab writes it"
    kinds = [(key, "O") for key in rows[0]]
    return np.array([tuple(row.values()) for row in rows], dtype=kinds)[None]


def cars(base, kind):
    names = np.array(CARS, dtype=object)[None]
    if kind == "list":
        rows = [
            {"relative_im_path": f"car_ims/{i:06}.jpg", **BOX, "class": i % 4 + 1, "test": i % 2} for i in range(12)
        ]
        mat(base / "cars_annos.mat", annotations=notes(rows), class_names=names)
        [jpeg(base / row["relative_im_path"]) for row in rows]
    elif kind in ("devkit", "outside"):
        mat(base / "devkit/cars_meta.mat", class_names=names)
        rows = [{**BOX, "class": i % 4 + 1, "fname": f"{i:05}.jpg"} for i in range(8)]
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


def cifar(base):
    base.mkdir(parents=True)
    for k, part in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = torch.randint(0, 256, (4, 3072), generator=generator(k, "cifar")).numpy().astype(np.uint8)
        labels = [(k + i // 2) % 10 for i in range(4)]  # two of a class: each has something to find
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
    ("cars196_crops", "class folders"): ("cars196_crops", lambda b: cars(b, "plain")),
    ("cars196_crops", "class folders in images"): ("cars196_crops/small", lambda b: cars(b, "images")),
    ("sop", "official lists"): ("Stanford_Online_Products", lambda b: sop(b, "", "")),
    ("sop", "lists in Info_Files"): ("online_products", lambda b: sop(b, "Info_Files", "images")),
    ("inshop", "official folders"): ("In-shop", lambda b: inshop(b, "Eval/list_eval_partition.txt", "Img")),
    ("inshop", "official list, images beside it"): ("inshop", lambda b: inshop(b, "Eval/list_eval_partition.txt", "")),
    ("inshop", "list and images"): ("inshop", lambda b: inshop(b, "list_eval_partition.txt", "")),
    ("cifar10", "python"): ("cifar-10-batches-py", cifar),
    ("grocery", "official lists"): ("GroceryStoreDataset-master/dataset", grocery),
    ("grocery_alternate", "official lists"): ("GroceryStoreDataset-master/dataset", grocery),
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

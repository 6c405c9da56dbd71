"""Image data sets in every layout, and what is said of broken ones."""

import pickle

import numpy as np
import pytest
import torch
from miniatures import (
    BIRDS,
    BUILD,
    CARS,
    COARSE,
    KINDS_OF,
    VISITS,
    accept,
    build,
    glyph,
    jpeg,
    mat,
    notes,
    own_cache,  # noqa: F401, a fixture of all tests here
    splits_of,
)

from dmlstudy import cli
from dmlstudy.core.random import generator
from dmlstudy.data import formats as layouts
from dmlstudy.data import images as module
from dmlstudy.data import make_data
from dmlstudy.data.formats import LAYOUTS, SOURCES, class_order, count, load_images, locate, read_images
from dmlstudy.data.prepare import check, prepare, usable
from dmlstudy.data.splits import Split, first_of_each_class

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


def test_every_layout_has_a_miniature():
    assert set(BUILD) == {(name, layout) for name, layouts in LAYOUTS.items() for layout in layouts}


@pytest.mark.parametrize(("name", "layout"), BUILD, ids=map(", ".join, BUILD))
def test_layout_is_found_loaded_and_checked(name, layout, tmp_path, monkeypatch):
    assert not locate(name, tmp_path)
    build(name, layout, tmp_path)
    place = locate(name, tmp_path)
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


@pytest.mark.parametrize("name", ["cub200", "cars196", "sop", "inshop", "cifar10", "grocery"])
def test_replicates_of_images_on_disk_draw_training_classes_alone(name, tmp_path):
    build(name, [*LAYOUTS[name]][0], tmp_path)
    load = lambda r: make_data(name, tmp_path, replicate=r, strict=False)
    official, drawn, seen = load(0), {r: load(r) for r in range(1, 9)}, set()
    n = len(official.train.class_names)
    tests = [(part, getattr(official, part)) for part in ("test", "query", "gallery") if getattr(official, part)]
    for r, data in drawn.items():
        names = data.train.class_names
        assert set(names) < set(official.train.class_names) and len(names) == 4 * n // 5
        paths = {*official.train.images.paths} if name != "cifar10" else ()
        assert name == "cifar10" or {*data.train.images.paths} < paths
        whole = dict(zip(official.train.class_names, official.train.counts().tolist(), strict=True))
        assert data.train.counts().tolist() == [whole[c] for c in names]  # all images of a class that is drawn
        for part, split in tests:
            own = getattr(data, part)
            assert own.class_names == split.class_names and torch.equal(own.labels, split.labels)
            assert name == "cifar10" or not {*data.train.images.paths} & {*own.images.paths}
        again = load(r)
        assert again.train.class_names == names and torch.equal(again.train.labels, data.train.labels)
        assert torch.equal(again.folds, data.folds) and len(data.folds) == len(names)
        seen.add(names)
    assert len(seen) > 1  # replicates differ


def test_query_and_gallery_share_classes(tmp_path):
    data = load_images("inshop", build("inshop", "list and images", tmp_path), strict=False)
    assert data.train.class_names == ("id_00000002", "id_00000007") and data.test is None
    assert data.query.class_names == data.gallery.class_names == ("id_00000004", "id_00000005")
    assert data.query.labels.tolist() == [1, 1, 0] and data.gallery.labels.tolist() == [1, 1, 0]


def test_cifar_is_read_in_order(tmp_path):
    a = load_images("cifar10", build("cifar10", "python", tmp_path / "a"), strict=False)
    assert "decoded" not in prepare("cifar10", tmp_path / "a", decoded=True)
    assert a.train.labels.tolist() == [(k + i // 2) % 10 for k in range(5) for i in range(4)]
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


@pytest.mark.skipif(not locate("grocery"), reason="needs the photographs in DMLSTUDY_DATA")
def test_the_real_grocery():
    data = load_images("grocery")
    assert [(len(s), len(s.class_names)) for s in (data.train, data.test)] == [(3051, 41), (2370, 40)]
    assert [len(data.query), len(data.gallery), len(data.test.coarse_names)] == [1208, 1162, 43]
    assert data.train.class_names[0] == "Golden-Delicious" and data.test.class_names[-1] == "Zucchini"
    for split in (data.train, data.test, data.query, data.gallery):
        for i in range(0, len(split), 97):
            assert split.class_names[split.labels[i]] == split.images.paths[i].split("/")[-2]
    assert usable("grocery") is None and min(data.test.images[0].size) > 300


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
    way = f"`dmlstudy data prepare {name}` makes it" if name == "cars196_crops" else "(official files: "
    assert way in said and "files: )" not in said
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
def test_a_damaged_file_of_cifar_is_named(tmp_path, case):
    build("cifar10", "python", tmp_path)
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
    assert "!" not in str(locate("cars196", root)) and not check("cars196", root).ok


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

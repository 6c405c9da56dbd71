"""The drawings as they ship, their conversion, and replicates of every data set."""

import hashlib
import io
import json
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial import cKDTree
from tiers import sample

from dmlstudy.core.paths import asset
from dmlstudy.data import EMBEDDED, make_data
from dmlstudy.data.loaders import splits_of
from dmlstudy.data.omniglot import (
    alphabets,
    load_drawings,
    load_omniglot,
    one_shot_runs,
    packed_drawings,
    shrink,
    unpacked,
)
from dmlstudy.data.splits import Data, Split, groups_of
from dmlstudy.metrics.probes import group_interval, hits_within, one_shot_errors
from dmlstudy.study.config import run_of
from dmlstudy.study.run import make_run
from dmlstudy.train import fit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import omniglot as conversion  # noqa: E402

SHIPPED = {
    "omniglot.xz": "5dcad4d3e7411f47ae59ab6630bf5d6fffa73b90343e1d084173542d6a6e331b",
    "omniglot.json": "b3a0acb502f341a001e57c98fae9e0660ec48fdf5ca2037928f730785bcb2b98",
}
SMALL = {  # alphabets of the official small sets, and the SHA-256 of what `tools/omniglot.py` reads in their archives
    "images_background_small1.zip": (
        ["Balinese", "Early_Aramaic", "Greek", "Korean", "Latin"],
        "9ecadc868d02d4b9e9e126d42ec30c741876d5bbde4c327e90cc28e2e8b9ddd2",
    ),
    "images_background_small2.zip": (
        ["Greek", "Japanese_(katakana)", "Latin", "Sanskrit", "Tagalog"],
        "5b4234418d9f8a64e6eb8c0173525a4fe18d9a05b9a100539182f0033166a207",
    ),
}
DRAWS = {  # of `digest`
    ("omniglot", 0): "7a09a6a41f6d5348",
    ("omniglot", 1): "bfdf6b4d25c723ad",
    ("omniglot_few", 0): "d267f64304c3a0b9",
    ("omniglot_few", 1): "029616ac0d2a5c94",
    ("omniglot_few", 40): "88dbb4dd6f324eb5",
    ("glyphs_fine", 1): "7e591b51b54381b7",
    ("glyphs_cross", 1): "1b940de29c4ef5aa",
    ("glyphs_many", 1): "fc20dd6ff2c51756",
    ("glyphs_shop", 2): "a3b3a1a454728f0e",
}


def digest(name: str, replicate: int) -> str:
    """Of everything that a replicate draws: names, folds, and the images of the training classes."""
    data = make_data(name, replicate=replicate)
    told = [data.train.class_names, None if data.folds is None else data.folds.tolist(), data.train.labels.tolist()]
    return hashlib.sha256(json.dumps(told).encode() + data.train.images.numpy().tobytes()).hexdigest()[:16]


# --- what ships ---


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_files_are_those_of_the_checksums(name):
    assert hashlib.sha256(asset(name).read_bytes()).hexdigest() == SHIPPED[name]


def png(ink: np.ndarray) -> bytes:
    """An image as the official archives have it: black on white, one bit."""
    file = io.BytesIO()
    Image.fromarray(ink == 0).save(file, "PNG")
    return file.getvalue()


def official(path: Path, folder: str, sizes: dict[str, int], images: np.ndarray, first: int, shuffled: bool) -> None:
    """An archive in the official layout; characters (n, 20, 105, 105) are numbered from `first` on."""
    number, entries = first, []
    for alphabet, n in sizes.items():
        for k in range(n):
            for drawer in range(20):
                name = f"{folder}/{alphabet}/character{k + 1:02d}/{number:04d}_{drawer + 1:02d}.png"
                entries.append((name, png(images[number - first, drawer])))
            number += 1
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in sorted(entries, key=lambda e: hash(e[0])) if shuffled else entries:
            archive.writestr(name, content)


def test_official_archives_become_the_asset(tmp_path):
    """Two small archives and two one-shot runs in the official layout; the order of names in them plays no part."""
    some = unpacked(packed_drawings()[:100]).reshape(5, 20, 105, 105)
    sizes = {"background": {"Zulu": 2, "Greek": 1}, "evaluation": {"Atlantean": 2}}
    official(tmp_path / "images_background.zip", "images_background", sizes["background"], some[:3], 1, shuffled=True)
    official(tmp_path / "images_evaluation.zip", "images_evaluation", sizes["evaluation"], some[3:], 4, shuffled=True)
    pairs = [[(60, 81), (85, 67)], [(99, 62), (70, 95)]]
    flat = some.reshape(-1, 105, 105)
    with zipfile.ZipFile(tmp_path / "all_runs.zip", "w") as archive:
        for r, run in enumerate(pairs, 1):
            lines = []
            for k, (ask, find) in enumerate(run, 1):
                names = f"run{r:02d}/test/item{k:02d}.png", f"run{r:02d}/training/class{3 - k:02d}.png"
                for name, i in zip(names, (ask, find), strict=True):
                    archive.writestr(name, png(flat[i]))
                lines.append(" ".join(names))
            archive.writestr(f"run{r:02d}/class_labels.txt", "\n".join(lines) + "\n")
    code = "import runpy, sys, omniglot; from pathlib import Path; folder = Path(sys.argv[1])\n"
    code += "text = Path(omniglot.__file__).read_text().replace('ASSETS = ', 'ASSETS = Path(sys.argv[1]) or ')\n"
    code += "exec(compile(text, 'omniglot.py', 'exec'), {'__name__': '__main__', '__file__': omniglot.__file__})"
    how = {"cwd": ROOT / "tools", "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], **how)
    assert done.returncode == 0, done.stderr
    rows = np.frombuffer(lzma.decompress((tmp_path / "omniglot.xz").read_bytes()), np.uint8).reshape(-1, 105, 14)
    assert (rows == packed_drawings()[:100]).all()
    about = json.loads((tmp_path / "omniglot.json").read_text())
    assert {part: dict(about[part]) for part in sizes} == sizes and [*dict(about["background"])] == ["Zulu", "Greek"]
    assert about["runs"] == [[list(pair) for pair in run] for run in pairs]


def test_the_asset_is_what_the_conversion_would_write():
    """Packed once more, the shipped drawings give the shipped bits."""
    some = packed_drawings()[::50]
    assert lzma.decompress(conversion.pack(unpacked(some))) == some.tobytes()
    assert len(lzma.decompress(asset("omniglot.xz").read_bytes())) == 32460 * 105 * 14


@pytest.mark.parametrize("archive", SMALL)
def test_the_official_small_sets_are_slices_of_what_ships(archive):
    sizes = alphabets()["background"]
    start = dict(zip(sizes, np.cumsum([0, *sizes.values()]), strict=False))
    names, digest = SMALL[archive]
    slices = [packed_drawings()[20 * start[name] : 20 * (start[name] + sizes[name])] for name in names]
    assert hashlib.sha256(np.concatenate(slices)).hexdigest() == digest


@pytest.mark.slow
def test_the_official_split():
    data = load_omniglot()
    assert (len(data.train.class_names), len(data.test.class_names)) == (964, 659)
    assert (len(data.train), len(data.test)) == (19280, 13180)
    assert data.train.counts().unique().tolist() == data.test.counts().unique().tolist() == [20]
    assert "Greek/03" in data.train.class_names and data.train.coarse_names == tuple(alphabets()["background"])
    for split in (data.train, data.test):  # the coarse label is the alphabet of the class name
        of = [split.coarse_names[k] for k in split.coarse.tolist()]
        assert of == [split.class_names[c].rpartition("/")[0] for c in split.labels.tolist()]


@pytest.mark.slow
def test_it_is_unpacked_once():
    """A later process reads the cache, where nothing has to be decompressed."""
    load_drawings()  # kept from here on
    code = "import lzma; from dmlstudy.data import make_data; lzma.decompress = lzma.open = None; make_data('omniglot')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("side", sample([24, 35, 52, 105], [24, 35, 52]))
def test_a_small_drawing_is_the_average_of_a_large_one(side):
    """Against the plain definition, pixel by pixel."""
    ink = unpacked(packed_drawings()[[5, 20000]])
    found = shrink(ink, side)
    grid = np.linspace(0, 105, side + 1)
    for n, i, j in ((0, side // 2, side // 2), (1, side // 3, side // 2), (1, side // 2, side // 3)):
        area = 0.0
        for y in range(105):
            for x in range(105):
                dy = max(0, min(y + 1, grid[i + 1]) - max(y, grid[i]))
                dx = max(0, min(x + 1, grid[j + 1]) - max(x, grid[j]))
                area += ink[n, y, x] * dy * dx
        whole = np.zeros((side, side))
        big = np.kron(ink[n], np.ones((side, side)))  # each pixel side x side
        whole = big.reshape(side, 105, side, 105).mean((1, 3))
        assert np.isclose(whole[i, j], area / (105 / side) ** 2)
        assert abs(found[n].astype(float) - 255 * whole / whole.max()).max() <= 0.5 + 1e-9


# --- replicates ---


@pytest.mark.parametrize("name", EMBEDDED)
def test_replicates_are_disjoint_from_the_test_and_of_the_right_size(name):
    official = make_data(name)
    tests = [s for s in (official.test, official.query, official.gallery) if s is not None]
    n = len(official.train.class_names)
    seen = []
    for r in (1, 2):
        data = make_data(name, replicate=r)
        own = [s for s in (data.test, data.query, data.gallery) if s is not None]
        assert all(
            a.class_names == b.class_names and torch.equal(a.labels, b.labels) for a, b in zip(tests, own, strict=True)
        )
        names = set(data.train.class_names)
        assert not names & {c for s in tests for c in s.class_names}
        if name == "omniglot_few":
            assert len(names) == 100
        else:
            assert names < set(official.train.class_names)
            assert 0.75 * n < len(names) <= 0.8 * n
        held = []
        for fold in range(5):
            rest, out = data.validation(fold)
            assert not set(rest.class_names) & set(out.class_names)
            assert set(rest.class_names) | set(out.class_names) == names
            assert (
                len(out.class_names) == 20
                if name == "omniglot_few"
                else abs(len(out.class_names) / len(names) - 0.2) < 0.02
            )
            held += out.class_names
        assert sorted(held) == sorted(names)  # each class is held out once
        seen.append(frozenset(names))
    assert len({*seen}) == 2


def test_omniglot_keeps_alphabets_together():
    whole = groups_of(make_data("omniglot").train)
    for r in (0, 1, 2):
        data = make_data("omniglot", replicate=r)
        groups = groups_of(data.train)
        assert all(len(groups[a]) == len(whole[a]) for a in groups)
        for fold in range(5):
            rest, out = data.validation(fold)
            assert not {*rest.coarse.tolist()} & {*out.coarse.tolist()}
    few = make_data("omniglot_few", replicate=1).train
    assert few.coarse.unique().numel() > 22  # drawn over all alphabets


@pytest.mark.slow
def test_draws_are_pinned_and_the_same_in_another_process():
    assert {draw: digest(*draw) for draw in DRAWS} == DRAWS
    code = "import sys; sys.path[:0] = ['tests/data', 'tests/support', '.']; from test_omniglot import digest; "
    code += "print(digest('omniglot_few', 1), digest('omniglot', 1))"
    how = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
    for hashing in ("0", "7"):  # of Python: sets have another order
        env = {"PYTHONHASHSEED": hashing, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
        done = subprocess.run([sys.executable, "-c", code], env=env, **how)
        assert done.stdout.split() == [DRAWS["omniglot_few", 1], DRAWS["omniglot", 1]]


@pytest.mark.slow
def test_numbers_of_classes_are_nested_and_images_of_a_class_are_its_first_drawers():
    names = [set(make_data("omniglot", replicate=2, train_classes=n).train.class_names) for n in (25, 100, 400)]
    assert names[0] < names[1] < names[2] and [len(n) for n in names] == [25, 100, 400]
    assert names[1] == set(make_data("omniglot_few", replicate=2).train.class_names)
    run = make_run(dataset="omniglot_few", replicate=2, fold=None, train_classes=50, images_per_class=5)
    train = splits_of(run)["train"]
    assert (len(train.class_names), len(train)) == (50, 250)
    whole = make_data("omniglot", replicate=2, train_classes=50).train
    assert torch.equal(train.images, whole.images.unflatten(0, (50, 20))[:, :5].flatten(0, 1))
    with pytest.raises(ValueError, match="964 training classes to draw from; asked for 1000"):
        make_data("omniglot", train_classes=1000)


def test_a_set_with_few_groups_draws_classes():
    labels = torch.arange(50).repeat(3)
    split = Split(torch.arange(150), labels, tuple(f"c{i}" for i in range(50)), labels // 25, ("a", "b"))
    train = Data("two kinds", split).replicate(4).train
    assert len(train.class_names) == 40 and train.coarse.unique().numel() == 2


# --- training ---

SHORT = {"dataset": "omniglot_few", "steps": 4, "eval_every": 2, "fold": None, "train_queries": 500}


@pytest.mark.slow
def test_a_replicate_is_another_run_and_the_same_one_twice():
    one, again = (fit(make_run(SHORT, replicate=1), device="cpu")["curves"] for _ in range(2))
    other, seed = (
        fit(make_run(SHORT, **more), device="cpu")["curves"] for more in ({"replicate": 2}, {"replicate": 1, "seed": 5})
    )
    assert one == again
    assert one["train"]["rho"] != other["train"]["rho"] and one["train"]["rho"] != seed["train"]["rho"]
    test = one["test"]
    assert test["step"] == [0, 2, 4]
    for better, worse in (("within_recall@1", "recall@1"), ("coarse_recall@1", "recall@1")):
        assert all(a >= b for a, b in zip(test[better], test[worse], strict=True))
    assert all(0.2 < error < 0.7 for error in test["one_shot_error"])


@pytest.mark.slow
def test_folds_of_a_replicate_are_held_out_in_training():
    record = fit(make_run(SHORT, replicate=3, fold=2, measure="validation"), device="cpu")
    assert [*record["curves"]] == ["validation"]
    parts = splits_of(make_run(SHORT, replicate=3, fold=2))
    assert (len(parts["train"].class_names), len(parts["validation"].class_names)) == (80, 20)


@pytest.mark.slow
def test_the_whole_network_trains_at_a_larger_side():
    less = {"steps": 60, "eval_every": 60, "train_classes": 100, "images_per_class": 4, "measure": "train"}
    run = run_of("omniglot_whole", "omniglot", "Contrastive (D)", train_queries=None, **less)
    record = fit(run, device="cpu")
    assert record["run"]["model"] == "convnet_35" and record["run"]["weights"] is None
    before, after = record["curves"]["train"]["recall@1"]
    assert after > before + 0.1
    with pytest.raises(ValueError, match="convnet_35 takes images of 35 pixels, as omniglot and"):
        fit(make_run(dataset="glyphs_fine", model="convnet_35", weights=None, train_stem=True), device="cpu")
    with pytest.raises(ValueError, match="weights of the convnet_35 are None"):
        fit(make_run(SHORT, model="convnet_35", train_stem=True), device="cpu")


# --- metrics ---


def test_pixels_alone_find_a_tenth_of_the_one_shot_answers_to_a_half():
    """Known from print: comparing pixels is far better than chance (95 % wrong), and far from people (4.5 %)."""
    test = load_omniglot().test
    f = test.images.float().flatten(1)
    wrong = one_shot_errors(f, torch.from_numpy(one_shot_runs()))
    mean, low, high = group_interval(wrong.flatten().float(), torch.arange(20).repeat_interleave(20))
    assert 0.4 < low < mean < high < 0.9
    plain = []
    z = torch.nn.functional.normalize(f, dim=1)
    for run in one_shot_runs():
        similarity = z[run[:, 0]] @ z[run[:, 1]].T
        plain.append((similarity.argmax(1) != torch.arange(20)).float().mean().item())
    assert np.isclose(np.mean(plain), mean, atol=0.006)


@pytest.mark.slow
def test_the_modified_hausdorff_distance_errs_as_the_official_demo_says():
    """38.8 % by the demo of the official repository: drawings, runs and their order are the official ones."""
    images, wrong = unpacked(packed_drawings()[19280:]), []
    points = lambda i: np.argwhere(images[i]) - np.argwhere(images[i]).mean(0)
    far = lambda tree, other: tree.query(other)[0].mean()  # mean distance of points to the nearest of the tree
    for run in one_shot_runs():
        ask, find = ([(cKDTree(points(i)), points(i)) for i in part] for part in run.T)
        distance = [[max(far(t, q), far(tree, p)) for t, p in find] for tree, q in ask]
        wrong.append(np.argmin(distance, 1) != np.arange(20))
    assert np.sum(wrong) == 155  # of 400: 38.75 %


def test_hits_within_an_alphabet_against_a_loop():
    test = load_omniglot().test
    rows = torch.arange(0, 13180, 7)
    f, y, k = test.images[rows].float().flatten(1), test.labels[rows], test.coarse[rows]
    z = torch.nn.functional.normalize(f.double(), dim=1)
    similarity = (z @ z.T).fill_diagonal_(-2)
    similarity[k[:, None] != k] = -2
    plain = y[similarity.argmax(1)] == y
    assert (hits_within(f, y, k) != plain).sum() <= 1  # a tie

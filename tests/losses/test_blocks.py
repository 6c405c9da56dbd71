"""Losses in bounded memory: by blocks of rows what they are at once, and no array of all pairs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from edge_batches import CLASSES, DIM, FINITE
from grids import each
from largest import Largest

from dmlstudy.core.random import generator
from dmlstudy.losses import LOSSES, base, make_loss
from dmlstudy.losses.base import PairLoss

PAIRS = [name for name in LOSSES if issubclass(LOSSES[name], PairLoss)]
MORE = ["triplet", "margin", "snr", "lifted", "npair", "angular", "histogram", "tuplet_margin", "hyperbolic"]
RANKS = ["smooth_ap", "recall_at_k", "pnp", "supap", "roadmap", "fast_ap"]  # their blocks: test_ranking.py
NAMED = ["contrastive", "supcon", "sincere", "sigmoid_pairs", "multisimilarity", "smooth_ap"]


def value_and_slopes(loss, f, labels=None, **pairing):
    x = f.detach().clone().requires_grad_()
    value = loss(x, labels, **pairing)
    return value, *torch.autograd.grad(value, (x, *loss.parameters()), materialize_grads=True)


def in_blocks(monkeypatch, rows, loss, f, labels=None, **pairing):
    """The same, some rows at a time."""
    with monkeypatch.context() as patch:
        patch.setattr(base, "_AT_ONCE", (rows or len(f)) * len(f))
        return value_and_slopes(loss, f, labels, **pairing)


def test_which_losses_have_blocks():
    """What a loss says of itself; how it keeps its word is measured below."""
    assert {*NAMED} <= {*PAIRS, *RANKS} and len(PAIRS) >= 10
    assert {name for name in LOSSES if LOSSES[name].in_blocks} == {*PAIRS, *RANKS, *MORE}
    at_once = {name for name in PAIRS + RANKS + MORE if not make_loss(name, variant="published").in_blocks}
    assert at_once == {"circle", "hyperbolic"}


@pytest.mark.parametrize("name", PAIRS + MORE)
@each("case", FINITE)
def test_blocks_on_every_edge(monkeypatch, name, case):
    """The value and gradient of the whole, whatever the size of the blocks, in every type."""
    f, labels = FINITE[case]
    more = {"neg_margin": 0.9} if name == "contrastive" else {}  # a zero vector is 1 from all others: a kink
    make = lambda: make_loss(name, CLASSES, DIM, **more)  # a loss that draws is made anew
    expected = value_and_slopes(make(), f, labels)
    for rows in (1, 3):
        found = in_blocks(monkeypatch, rows, make(), f, labels)
        assert found[0].dtype == expected[0].dtype
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        for at, (blocks, whole) in enumerate(zip(found[1:], expected[1:], strict=True), 1):
            error, size = (x.double().norm() for x in (blocks - whole, whole))
            if error > (1e-4 if f.dtype in (torch.float32, torch.float64) else 1e-2) * size + 1e-5:
                exact = value_and_slopes(make().double(), f.double(), labels)[at]  # of antipodal points all is rounding
                assert (blocks - exact).double().norm() <= (whole - exact).double().norm()


@pytest.mark.parametrize("name", [*PAIRS, *MORE, *RANKS])
def test_second_derivatives_of_blocks_are_those_of_the_whole(monkeypatch, name):
    """Along a direction, and of the squared gradient, as a gradient penalty takes it."""
    g = generator(0, "second")
    f, along = torch.randn(2, 24, 5, dtype=torch.float64, generator=g)
    for more in [{}, *([{"squared": False}] if name == "triplet" else [])]:
        found = []
        for at_once in (24 * 24, 7 * 24):
            monkeypatch.setattr(base, "_AT_ONCE", at_once)
            x, loss = f.clone().requires_grad_(), make_loss(name, 6, 5, **more)
            (slope,) = torch.autograd.grad(loss(x, torch.arange(24) // 4), x, create_graph=True)
            found.append(torch.autograd.grad((slope * along).sum() + slope.square().sum(), x)[0])
        assert found[0].any()
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-12)


CHOSEN = [
    ("multisimilarity", {"mean_over": "batch"}),
    ("triplet", {"squared": False, "margin": 1.0}),
    ("margin", {"normalizer": "pairs"}),
    ("margin", {"n_classes": 150, "beta": 0.9}),
    ("histogram", {"bins": 11}),
    ("hyperbolic", {"c": 0.0}),
    *((name, {"variant": "published"}) for name in ("contrastive", "margin", "lifted", "histogram")),
]


@pytest.mark.parametrize("name, more", [*((n, {}) for n in PAIRS + MORE), *CHOSEN])
def test_blocks_are_the_whole_to_six_digits(monkeypatch, name, more):
    """900 embeddings in float32, with labels, and with a one-sided matrix of weights in float64."""
    g, make = generator(0, "blocks"), lambda: make_loss(name, **more)
    f, labels = torch.randn(900, 16, generator=g), torch.randint(150, (900,), generator=g)
    found = value_and_slopes(make(), f, labels), in_blocks(monkeypatch, 128, make(), f, labels)
    for at_once, blocks, exact in zip(*found, value_and_slopes(make().double(), f.double(), labels), strict=True):
        if name in ("histogram", "hyperbolic"):  # at once, float32 has fewer digits than in blocks
            assert (blocks - exact).norm() <= 2e-6 * exact.norm()
        else:
            digits = 1e-4 if name in ("triplet", "margin", "snr") else 1e-6  # a tuple on its hinge's edge may turn
            assert (blocks - at_once).norm() <= digits * at_once.norm()
    if not make().takes_positives:
        return
    P = torch.rand(900, 900, generator=g) * (torch.rand(900, 900, generator=g) < 0.01)
    f, make = f.double(), lambda: make_loss(name, **more).double()
    found = value_and_slopes(make(), f, positives=P), in_blocks(monkeypatch, 128, make(), f, positives=P)
    for whole, blocks in zip(*found, strict=True):
        assert (blocks - whole).norm() <= 1e-9 * whole.norm()


@each("name", ["circle", "hyperbolic"])
def test_published_forms_of_whole_batches_are_taken_at_once(monkeypatch, name):
    f, labels = FINITE["random"]
    loss = make_loss(name, variant="published")
    for whole, found in zip(value_and_slopes(loss, f, labels), in_blocks(monkeypatch, 1, loss, f, labels), strict=True):
        assert torch.equal(whole, found)


MEASURE = """
import torch
from dmlstudy.core.random import generator
from dmlstudy.losses import make_loss

def pages(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024

torch.set_num_threads(1)
g = generator(0, "memory")
for name in {names}:
    f, labels = torch.randn({n}, 128, generator=g).requires_grad_(), torch.arange({n}) // 4
    make_loss(name)(f[:300], labels[:300]).backward()  # the code that is loaded
    before = pages("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    make_loss(name)(f, labels).backward()
    print(name, pages("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "names, n, most", [(PAIRS, 4096, 400), (MORE, 4096, 400), ([*NAMED, "histogram", "tuplet_margin"], 8192, 500)]
)
def test_memory_does_not_grow_with_the_pairs(names, n, most):
    """4,096 at once take 640 MB and more, 8,192 2.5 GB; with the blocks' arrays under a bound in megabytes."""
    command = [sys.executable, "-c", MEASURE.format(names=names, n=n)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back at once
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=900, check=True)
    used = {name: float(megabytes) for name, megabytes in map(str.split, done.stdout.splitlines())}
    assert used.keys() == {*names} and max(used.values()) < most, used


HOLES = """
import os, torch
from dmlstudy.core.random import generator
from dmlstudy.losses import base, make_loss

def pages(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024

torch.set_num_threads(1)
g = generator(0, "memory")
f, labels = torch.randn(4096, 128, generator=g).requires_grad_(), torch.arange(4096) // 8
for name in {names}:
    if not os.fork():
        base._AT_ONCE = 2**16
        make_loss(name)(f[:1024], labels[:1024]).backward()  # the code that is loaded
        base._AT_ONCE, before = 2**17, pages("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")
        make_loss(name)(f, labels).backward()
        print(name, pages("VmHWM") - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_block_leaves_a_hole_in_the_heap():
    """128 blocks of 4,096 embeddings, malloc as it comes: less than a matrix of all pairs, which holes add up to.

    Where a number waited for the last block and pinned all before it, contrastive took 123 MB.
    """
    names = PAIRS + MORE
    command = [sys.executable, "-c", HOLES.format(names=names)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900, check=True)
    used = {name: float(megabytes) for name, megabytes in map(str.split, done.stdout.splitlines())}
    assert used.keys() == {*names} and max(used.values()) < 4096**2 * 4 / 2**20, used


def largest(name, labels, n_classes=64):
    f = torch.randn(len(labels), 16, generator=generator(0, "largest"), requires_grad=True)
    with Largest() as mode:
        make_loss(name, n_classes, 16)(f, labels).backward()
    return mode.numbers


@pytest.mark.parametrize("name", PAIRS + MORE + RANKS)
def test_no_array_of_all_pairs(name, monkeypatch):
    """Of 600 images, in blocks of 32 rows: forward and back, no array is larger than two blocks."""
    monkeypatch.setattr(base, "_AT_ONCE", 32 * 600)
    assert largest(name, torch.arange(600) // 4, n_classes=150) <= 2 * base._AT_ONCE < 600**2 / 9


def test_an_array_of_all_pairs_is_seen():
    assert largest("contrastive", torch.arange(600) // 4) >= 600**2


@pytest.mark.parametrize("name", LOSSES)
def test_no_array_of_all_triplets(name):
    """256 images have 16.7 million triples; no array has more numbers than a block, with few positives or many."""
    few, many = torch.arange(256) // 4, torch.arange(256) % 2
    assert largest(name, few) <= 6 * 256**2  # four or fewer for each pair; three centres or fifteen proxies a class
    assert largest(name, many) <= base._AT_ONCE < 256**3 / 3


def test_an_array_of_all_triplets_is_seen(monkeypatch):
    monkeypatch.setattr(base, "_AT_ONCE", 256**3)
    assert largest("smooth_ap", torch.arange(256) % 2) > 256**3 / 3


def test_two_passes_of_the_tutorial_are_the_whole_batch():
    """The loop as it stands in the tutorial: value and gradients of one pass over everything."""
    path = Path(__file__).resolve().parents[2] / "nbs" / "tutorials" / "own_loop.ipynb"
    cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
    (shown,) = [cell.split("\n\n\ngradients")[0] for cell in cells if "def two_passes" in cell]
    exec(shown, names := {"torch": torch})
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 8)).double()
    images, labels = torch.randn(50, 20, generator=generator(0, "chunks"), dtype=torch.float64), torch.arange(50) % 9
    value = make_loss("multisimilarity")(net(images), labels)
    expected = torch.autograd.grad(value, net.parameters())
    for chunk in (1, 16, 50):
        net.zero_grad()
        torch.testing.assert_close(names["two_passes"](net, make_loss("multisimilarity"), images, labels, chunk), value)
        torch.testing.assert_close([p.grad for p in net.parameters()], [*expected], rtol=1e-9, atol=1e-12)

"""Losses with class weights against loops written from their formulas, and every loss of the door on hard batches."""

import contextlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import pytorch_metric_learning.losses as pml
import torch
from edge_batches import CLASSES, DIM, FINITE, REFUSED
from grids import each
from largest import Largest
from tiers import sample
from torch.autograd import gradcheck, gradgradcheck

from dmlstudy.core.random import generator
from dmlstudy.distances import unit
from dmlstudy.losses import LOSSES, base, loss_hyperparameters, make_loss
from dmlstudy.losses.classification import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyNCALoss,
    SoftTripleLoss,
    SphereFaceLoss,
    class_spread,
)
from dmlstudy.losses.triplet import QuadrupletLoss

PROXY = ("softmax", "arcface", "cosface", "sphereface", "proxynca", "softtriple")
DIFFER = ("contrastive", "margin", "quadruplet", "lifted", "histogram", "arcface", "softtriple", "ntxent", "supcon")
DIFFER += ("potential_field", "smooth_ap", "recall_at_k", "supap", "roadmap", "circle", "hyperbolic")


def variants(name):
    """The variants of a loss that differ."""
    return ("corrected", "published") if name in DIFFER else ("corrected",)


every_loss = pytest.mark.parametrize("name", LOSSES)
every_proxy_loss = pytest.mark.parametrize("name", PROXY)


def batch(b=9, dim=5, classes=4, seed=0):
    """Random float64 embeddings that want a gradient, and their labels."""
    g = generator(seed, "batch", b, dim)
    f = torch.randn(b, dim, generator=g, dtype=torch.float64).requires_grad_()
    return f, torch.randint(classes, (b,), generator=g)


def gradients(value, *tensors):
    """What the value pulls at."""
    return torch.autograd.grad(value, tensors)


# --- the formulas, one embedding and one proxy at a time


def angle(x, w):
    """Between two vectors, radians."""
    cos = sum(a * b for a, b in zip(x, w, strict=True)) / math.sqrt(sum(a * a for a in x) * sum(b * b for b in w))
    return math.acos(max(-1.0, min(1.0, cos)))


def folded(theta, m=4):
    """SphereFace's target."""
    k = min(m - 1, int(theta * m / math.pi))
    return (-1) ** k * math.cos(m * theta) - 2 * k


def margin_softmax(scale, target):
    """Mean cross-entropy over scaled cosines; the true class's cosine is target(angle)."""

    def loss(f, proxies, labels):
        total = 0.0
        for x, y in zip(f, labels, strict=True):
            s = scale or math.sqrt(sum(a * a for a in x))
            logits = [s * (target(angle(x, w)) if j == y else math.cos(angle(x, w))) for j, w in enumerate(proxies)]
            total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
        return total / len(f)

    return loss


def proxy_nca(f, proxies, labels):
    """From squared distances of vectors of length 3."""
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        d2 = [18 * (1 - math.cos(angle(x, w))) for w in proxies]
        total += d2[y] + math.log(sum(math.exp(-d) for j, d in enumerate(d2) if j != y))
    return total / len(f)


def arcface_published(f, proxies, labels):
    """As released first: cosines clipped, the margin's difference added to the whole row."""
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        cos = [min(1 - 1e-10, max(1e-10, math.cos(angle(x, w)))) for w in proxies]
        difference = math.cos(math.acos(cos[y]) + 0.5) - cos[y]
        logits = [16 * (c + difference) for c in cos]
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    return total / len(f)


def softmax(values, factor):
    """Of factor times values."""
    e = [math.exp(factor * v) for v in values]
    return [v / sum(e) for v in e]


def soft_triple(f, proxies, labels, published=False, k=2, delta=0.01, gamma=0.1, lam=8.0, tau=0.2):
    """Class similarities from k proxies each, and the distances between a class's proxies."""
    classes, dim = len(proxies[0]), len(proxies[0][0])
    every = [w for mode in proxies for w in mode]
    columns = [math.sqrt(sum(w[d] ** 2 for w in every)) for d in range(dim)]
    length = lambda w: columns if published else [math.sqrt(sum(a * a for a in w))] * dim
    psi = [[[a / n for a, n in zip(w, length(w), strict=True)] for w in mode] for mode in proxies]
    dot = lambda a, b: sum(i * j for i, j in zip(a, b, strict=True))
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        x = [a / math.sqrt(dot(x, x)) for a in x]
        s = [[dot(x, psi[i][c]) for c in range(classes)] for i in range(k)]
        if published:
            weight = list(zip(*(softmax(row, gamma) for row in s), strict=True))  # over classes
        else:
            weight = [softmax(column, 1 / gamma) for column in zip(*s, strict=True)]  # over the k proxies
        logits = [lam * (sum(weight[c][i] * s[i][c] for i in range(k)) - delta * (c == y)) for c in range(classes)]
        total += math.log(sum(math.exp(v) for v in logits)) - logits[y]
    pairs = itertools.product(range(classes), itertools.combinations(range(k), 2))
    roots = (max(0.0, 2.00001 - 2 * dot(psi[i][c], psi[j][c])) for c, (i, j) in pairs)
    return total / len(f) + tau * sum(map(math.sqrt, roots)) / (classes * k * (k - 1))


ORACLES = {
    ("softmax", "corrected"): margin_softmax(20.0, math.cos),
    ("arcface", "corrected"): margin_softmax(16.0, lambda t: math.cos(t + 0.5)),
    ("arcface", "published"): arcface_published,
    ("cosface", "corrected"): margin_softmax(64.0, lambda t: math.cos(t) - 0.35),
    ("sphereface", "corrected"): margin_softmax(None, folded),
    ("proxynca", "corrected"): proxy_nca,
    ("softtriple", "corrected"): soft_triple,
    ("softtriple", "published"): lambda *a: soft_triple(*a, published=True),
}


@every_proxy_loss
@each("variant", variants)
@each("seed", range(2))
def test_value_is_that_of_the_formula(name, variant, seed):
    f, labels = batch(seed=seed)
    loss = make_loss(name, 4, 5, variant, seed=seed).double()
    oracle = ORACLES.get((name, variant)) or ORACLES[name, "corrected"]
    expected = oracle(f.tolist(), loss.proxies.tolist(), labels.tolist())
    assert loss(f, labels).item() == pytest.approx(expected, abs=1e-8)


@every_proxy_loss
@each("variant", variants)
def test_gradient_is_that_of_the_value(name, variant):
    f, labels = batch()
    loss = make_loss(name, 4, 5, variant).double()
    proxies = (100 * loss.proxies).detach().requires_grad_()  # longer, so that a numerical step is small beside them

    def value(f, proxies):
        return torch.func.functional_call(loss, {"proxies": proxies}, (f, labels))

    assert gradcheck(value, (f, proxies))


# --- numbers by hand: proxies on the axes


def on_axes(loss):
    """Proxies along the coordinate axes, of lengths 1, 2, 3."""
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(*loss.proxies.shape) * torch.arange(1, len(loss.proxies) + 1)[:, None])
    return loss.double()


@each(
    "kind, more, expected",
    [
        (NormalizedSoftmaxLoss, {"temperature": 1.0}, math.log(math.exp(0.6) + math.exp(0.8) + 1) - 0.6),
        (CosFaceLoss, {"margin": 0.6, "scale": 1.0}, math.log(1 + math.exp(0.8) + 1)),
        (ArcFaceLoss, {"margin": math.pi / 2, "scale": 1.0}, math.log(math.exp(-0.8) + math.exp(0.8) + 1) + 0.8),
        (ArcFaceLoss, {"scale": 1.0, "variant": "published"}, math.log(math.exp(0.6) + math.exp(0.8) + 1) - 0.6),
        (SphereFaceLoss, {"margin": 2}, math.log(math.exp(-1.4) + math.exp(4.0) + 1) + 1.4),  # cos 2θ = -0.28
        (ProxyNCALoss, {}, math.log(math.exp(18 * 0.8) + 1) - 18 * 0.6),
    ],
)
def test_worked_numbers(kind, more, expected):
    f = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64)  # cosines 0.6, 0.8 and 0; norm 5
    assert on_axes(kind(3, 3, **more))(f, torch.tensor([0])).item() == pytest.approx(expected, abs=1e-6)


def test_margins_fall_with_the_angle():
    cos = torch.linspace(0, math.pi, 1000, dtype=torch.float64).cos()
    falls = lambda loss: bool((loss.target(cos).diff() < 1e-12).all())
    assert falls(SphereFaceLoss(2, 2)) and falls(CosFaceLoss(2, 2)) and falls(ArcFaceLoss(2, 2, monotone=True))
    assert not falls(ArcFaceLoss(2, 2))  # rises again beyond π - margin, as the released code


def test_softtriple_with_one_proxy_is_a_margin_softmax():
    f, labels = batch()
    ours = SoftTripleLoss(4, 5, per_class=1, margin=0.35, scale=64.0).double()
    cosface = CosFaceLoss(4, 5).double()
    cosface.proxies = torch.nn.Parameter(ours.proxies[0].detach())
    torch.testing.assert_close(ours(f, labels), cosface(f, labels))


def test_softtriple_with_equal_proxies_of_a_class_counts_them_once():
    f, labels = batch()
    ours = SoftTripleLoss(4, 5, per_class=3, tau=0.0).double()
    single = SoftTripleLoss(4, 5, per_class=1).double()
    with torch.no_grad():
        ours.proxies.copy_(single.proxies.expand(3, 4, 5) * torch.tensor([1.0, 2.0, 7.0])[:, None, None])
    torch.testing.assert_close(ours(f, labels), single(f, labels))
    assert class_spread(unit(ours.proxies).transpose(0, 1) @ unit(ours.proxies).movedim(0, 2)).item() == pytest.approx(
        3 * 4 * math.sqrt(1e-5) / (4 * 3 * 2), rel=1e-6
    )


# --- pytorch-metric-learning


def theirs_nca(f, labels, loss):
    """Ours from theirs, which keeps the true class in the denominator: log(exp(loss) - 1) of one sample at a time."""
    other = pml.ProxyNCALoss(4, 5, softmax_scale=9)
    other.proxies = torch.nn.Parameter(loss.proxies.detach())
    return torch.stack([other(f[[i]], labels[[i]]).expm1().log() for i in range(len(f))]).mean(), other.proxies


def theirs(kind, weight, **more):
    """A loss of theirs with our proxies; returns its value and its weights laid out as ours."""

    def value(f, labels, loss):
        other = kind(4, 5, **more)
        w = loss.proxies.detach().movedim(-2, 0).flatten(0, -2) if loss.proxies.ndim == 3 else loss.proxies.detach()
        setattr(other, weight, torch.nn.Parameter(w.T.contiguous()))
        return other(f, labels), getattr(other, weight)

    return value


PML = {  # name -> (what is not the default in ours, theirs)
    "softmax": ({}, theirs(pml.NormalizedSoftmaxLoss, "W")),
    "arcface": ({"monotone": True}, theirs(pml.ArcFaceLoss, "W", margin=math.degrees(0.5), scale=16)),
    "cosface": ({}, theirs(pml.CosFaceLoss, "W")),
    "sphereface": ({}, theirs(pml.SphereFaceLoss, "W")),
    "proxynca": ({}, theirs_nca),
    "softtriple": (
        {"per_class": 3, "tau": 0.0},
        theirs(pml.SoftTripleLoss, "fc", centers_per_class=3, la=8, gamma=0.1, margin=0.01),
    ),
}


@pytest.mark.parametrize("name", PML)
@each("seed", range(3))
def test_same_as_pytorch_metric_learning(name, seed):
    more, other = PML[name]
    loss, (f, labels) = make_loss(name, 4, 5, **more).double(), batch(seed=seed)
    expected, weights = other(f, labels, loss)
    value = loss(f, labels)
    torch.testing.assert_close(value, expected)
    pull, (f_pull, w_pull) = gradients(value, f, loss.proxies), gradients(expected, f, weights)
    torch.testing.assert_close(pull[0], f_pull)
    if name == "softtriple":
        w_pull = w_pull.T.unflatten(0, (4, 3)).movedim(0, 1)
    elif name != "proxynca":
        w_pull = w_pull.T
    torch.testing.assert_close(pull[1], w_pull)


# --- symmetries, and what belongs to the loss


@every_proxy_loss
@each("variant", variants)
def test_invariances(name, variant):
    f, labels = batch()
    loss = make_loss(name, 4, 5, variant).double()
    value, order = loss(f, labels), torch.randperm(9, generator=generator(0, "order"))
    torch.testing.assert_close(loss(f[order], labels[order]), value)
    if loss.normalizes:
        torch.testing.assert_close(loss(7 * f, labels), value)
    if variant == "corrected":
        q = torch.linalg.qr(torch.randn(5, 5, generator=generator(0, "turn"), dtype=torch.float64))[0]
        with torch.no_grad():
            loss.proxies.copy_(3 * loss.proxies @ q)
        torch.testing.assert_close(loss(f @ q, labels), value)


@each("name", PROXY)
def test_first_proxies_depend_on_the_seed_alone(name):
    first = make_loss(name, 50, 16).proxies
    torch.rand(3)
    assert torch.equal(make_loss(name, 50, 16).proxies, first)
    assert not torch.equal(make_loss(name, 50, 16, seed=1).proxies, first)


def test_distribution_of_the_first_proxies():
    uniform = lambda p, bound: (
        0.98 * bound < p.abs().max() <= bound and p.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    )
    assert uniform(NormalizedSoftmaxLoss(500, 64).proxies, 1 / 8)
    assert uniform(ArcFaceLoss(500, 64).proxies, 1 / 8)
    assert uniform(SoftTripleLoss(200, 64).proxies, 1 / 20)
    assert ProxyNCALoss(500, 64).proxies.std().item() == pytest.approx(1 / 8, rel=0.02)


@each(
    "name, expected",
    {"softmax": 1e-5, "arcface": 5e-4, "cosface": 5e-4, "sphereface": 5e-4, "proxynca": 0.5, "softtriple": 0.01},
)
def test_own_learning_rate_without_decay(name, expected):
    (group,) = make_loss(name, 4, 5).param_groups(base_lr=0.01)
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (expected, 0.0, 1)
    (group,) = make_loss(name, 4, 5, lr=0.3).param_groups(base_lr=0.01)
    assert group["lr"] == 0.3


@each("name", PROXY)
def test_wrong_sizes_are_named(name):
    loss, (f, labels) = make_loss(name, 4, 5), batch()
    with pytest.raises(ValueError, match="0 to 3"):
        loss(f, labels + 4)
    with pytest.raises(ValueError, match="0 to 3"):
        loss(f, labels - 4)
    with pytest.raises(ValueError, match="dim=4"):
        loss(f[:, :4], labels)
    with pytest.raises(ValueError, match="dim of the .*, at least 1; got 0"):
        make_loss(name, 4, 0)


NONSENSE = {
    "temperature": ("softmax", "ntxent", "supcon"),
    "scale": (
        "arcface",
        "cosface",
        "sphereface",
        "proxynca",
        "softtriple",
        "npair",
        "normalized_npair",
        "tuplet_margin",
    ),
    "gamma": ("softtriple",),
    "alpha": ("multisimilarity", "angular"),
    "beta": ("multisimilarity",),
    "bins": ("histogram",),
    "per_class": ("softtriple",),
    "n_classes": ("margin", *PROXY),
    "dim": PROXY,
}


@each("key, name", [(key, name) for key, names in NONSENSE.items() for name in names])
@each("value", [0, -1])
def test_nonsense_is_named(key, name, value):
    given = {"n_classes": 4, "dim": 5, key: value}
    with pytest.raises(ValueError, match=f"^{key} of the .* must be .*; got {value!r}$"):
        make_loss(name, **given)


@each("name, more", [("margin", {}), ("softtriple", {"per_class": np.int32(2)}), ("arcface", {})])
def test_any_kind_of_integer_will_do(name, more):
    f, labels = batch()
    loss = make_loss(name, np.int64(4), np.int64(5), **more).double()
    assert torch.equal(loss(f, labels), make_loss(name, 4, 5).double()(f, labels))


@each(
    "name, more",
    [
        ("sphereface", {"blend": -1.0}),
        ("sphereface", {"margin": 1.5}),
        ("sphereface", {"margin": math.nan}),
        ("softtriple", {"per_class": 1.5}),
        ("histogram", {"bins": 2.5}),
        ("histogram", {"bins": 1}),
        ("margin", {"n_classes": 2.5}),
        ("proxynca", {"n_classes": 1}),
        ("angular", {"alpha": 90}),
    ],
)
def test_bounds_are_named(name, more):
    ((key, value),) = more.items()
    with pytest.raises(ValueError, match=f"^{key} of the .*; got {value}$"):
        make_loss(name, **{"n_classes": 4, "dim": 5, **more})


MEASURE = """
import torch
from dmlstudy.core.random import generator
from dmlstudy.losses import make_loss

def pages(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024

torch.set_num_threads(1)
g = generator(0, "memory")
make_loss("softtriple", 50, 8)(torch.randn(5, 8, generator=g), torch.arange(5)).backward()
for name in {names}:
    loss, f = make_loss(name, 11318, {dim}), torch.randn(112, {dim}, generator=g).requires_grad_()
    labels = torch.arange(112)
    before = pages("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")
    loss(f, labels).backward()
    print(name, pages("VmHWM") - before)
    del loss, f
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dim", [128, 512])
def test_eleven_thousand_classes_in_a_hundred_megabytes(dim):
    command = [sys.executable, "-c", MEASURE.format(names=PROXY, dim=dim)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back at once
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=900, check=True)
    used = {name: float(megabytes) for name, megabytes in map(str.split, done.stdout.splitlines())}
    assert used.keys() == set(PROXY) and max(used.values()) < 100, used


@each("name", [name for name, kind in LOSSES.items() if "dim" in kind.needs])
def test_no_array_is_larger_than_the_proxies(name):
    """Of 112 images and 2,000 classes: not of all images by all proxies by all coordinates, nor of pairs of proxies."""
    loss, f = make_loss(name, 2000, 128), batch(112, 128)[0].detach().float().requires_grad_()
    with Largest() as mode:
        loss(f, torch.arange(112)).backward()
    assert mode.numbers <= max(2 * loss.proxies.numel(), base._AT_ONCE / 4) < 112 * 2000 * 128 / 10


# --- every loss of the door


def tuples(n, device="cpu"):
    """As many triplets as embeddings; with few embeddings, of an embedding with itself."""
    i = torch.arange(n, device=device)
    return i, (i + 1) % max(1, n), (i + 2) % max(1, n)


def calls(loss, n, device="cpu"):
    """The triplets a loss may be given: none, and for some losses one for each embedding, or an empty list."""
    none = (torch.zeros(0, dtype=torch.int64, device=device),) * 3
    return (None, tuples(n, device), none) if loss.uses == "triplets" else (None,)


def refused(loss, triplets):
    """The one call that is refused: the published quadruplet loss without triplets."""
    return isinstance(loss, QuadrupletLoss) and loss.variant == "published" and triplets is None


SLOPED = [name for name, kind in LOSSES.items() if not kind.sets_slope]


def twice(name):
    """Variants of a loss, and what is not the default, for derivatives of the second order."""
    more = {"triplet": [("corrected", {"squared": False})], "softtriple": [("corrected", {"per_class": 5})]}
    return [*((variant, {}) for variant in variants(name)), *more.get(name, [])]


@pytest.mark.parametrize("fast_mode", sample([True, False], [True]))  # along random directions; entry by entry
@pytest.mark.parametrize("name", SLOPED)
@each("variant, more", twice)
def test_second_derivative(name, fast_mode, variant, more):
    """Of the embeddings, the loss's own parameters and a factor on the loss; a loss that draws is made anew."""
    make = lambda: make_loss(name, 4, 5, variant, **more).double()
    f, labels = batch(6)
    # proxies of about length 1, so that a numerical step is small beside them
    own = {k: (4 * p if k == "proxies" else p).detach().requires_grad_() for k, p in make().named_parameters()}
    for triplets in calls(make(), len(f))[:2]:
        if refused(make(), triplets):
            continue

        def value(f, *parameters, given=triplets):
            return torch.func.functional_call(make(), dict(zip(own, parameters, strict=True)), (f, labels, given))

        assert gradgradcheck(value, (f, *own.values()), fast_mode=fast_mode)


@every_loss
@each("variant, more", twice)
def test_second_derivative_at_zero_is_finite(name, variant, more):
    f, labels = batch(6)
    f = f.index_fill(0, torch.tensor([2]), 0.0).requires_grad_()
    loss = make_loss(name, 4, 5, variant, **more).double()
    for triplets in calls(loss, len(f))[:2]:
        if not refused(loss, triplets):
            (first,) = torch.autograd.grad(loss(f, labels, triplets), f, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), f)
            assert first.isfinite().all() and second.isfinite().all()


@each("name", [name for name in LOSSES if name not in DIFFER])
def test_without_a_difference_the_variants_agree(name):
    f, labels = FINITE["random"]
    values = [make_loss(name, CLASSES, DIM, variant)(f, labels) for variant in ("corrected", "published")]
    assert torch.equal(*values)


@pytest.mark.parametrize("name", ["softmax", "triplet", "lifted"])
def test_compiled_without_a_graph_break(name):
    f, labels = batch()
    loss = make_loss(name, 4, 5).double()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    for triplets in calls(loss, len(f))[:2]:
        values = loss(f, labels, triplets), compiled(f, labels, triplets)
        assert torch.equal(*values)
        assert torch.equal(*(gradients(value, f)[0] for value in values))


@every_loss
@each("variant", variants)
@each("case", FINITE)
def test_finite_value_and_gradient(name, variant, case):
    loss, (f, labels) = make_loss(name, CLASSES, DIM, variant), FINITE[case]
    for triplets in calls(loss, len(f)):
        f = f.detach().clone().requires_grad_()
        loss.zero_grad()
        if len(f) and refused(loss, triplets):
            with pytest.raises(ValueError, match="give it a miner's"):
                loss(f, labels, triplets)
            continue
        value = loss(f, labels, triplets)
        value.backward()
        assert value >= 0 or name in ("proxynca", "potential_field", "decoupled")
        assert value.shape == () and value.isfinite() and value.dtype == torch.promote_types(f.dtype, torch.float32)
        assert f.grad is not None and f.grad.dtype == f.dtype and f.grad.isfinite().all()
        if len(f):  # an empty batch is 0 without asking the loss
            assert all(p.grad is not None and p.grad.isfinite().all() for p in loss.parameters())


@each("name", LOSSES)
@each("case", REFUSED)
def test_wrong_input_is_named(name, case):
    f, labels, message = REFUSED[case]
    with pytest.raises(ValueError) as error:
        make_loss(name, CLASSES, DIM)(f, labels)
    assert message in str(error.value)


@each("name", LOSSES)
def test_what_is_no_tensor_is_named(name):
    loss, (f, labels) = make_loss(name, CLASSES, DIM), FINITE["random"]
    given = {"embeddings": (f.tolist(), labels), "labels": (f, labels.tolist())}
    if loss.uses == "triplets":
        a, p, n = tuples(len(f))
        given |= {"positives": (f, labels, (a, p.tolist(), n)), "triplets": (f, labels, 3)}
    for said, arguments in given.items():
        with pytest.raises(ValueError, match=f"^{said} .*; got (list: use torch.as_tensor|int)$"):
            loss(*arguments)


@each("name", LOSSES)
@each("variant", variants)
def test_global_randomness_is_not_touched(name, variant):
    before = torch.get_rng_state()
    loss, (f, labels) = make_loss(name, CLASSES, DIM, variant), FINITE["random"]
    loss(f, labels, calls(loss, len(f))[-1])
    assert torch.equal(torch.get_rng_state(), before)


@every_loss
@each("variant", variants)
@each("dtype", (torch.float16, torch.bfloat16))
def test_sixteen_bits_and_autocast_stay_near_float64(name, variant, dtype):
    f, labels = FINITE["random"]
    triplets = calls(make_loss(name, CLASSES, DIM), len(f))[-1 if name != "quadruplet" else 1]
    value = lambda f: make_loss(name, CLASSES, DIM, variant)(f, labels, triplets)
    exact = value(f.to(dtype).double())
    assert value(f.to(dtype)).item() == pytest.approx(exact.item(), rel=1e-4, abs=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert value(f).item() == pytest.approx(value(f.double()).item(), rel=1e-4, abs=1e-5)


@every_loss
@each("variant", variants)
def test_nothing_stays_behind_on_the_cpu_and_nothing_is_read_back(name, variant, monkeypatch):
    """On the meta device there are no values: a host synchronisation, or a tensor made elsewhere, raises."""
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())  # does not know this device
    loss, labels = make_loss(name, CLASSES, DIM, variant).to("meta"), torch.zeros(8, dtype=torch.int64, device="meta")
    loss.draw = lambda n, device: torch.empty(n, device=device)  # nor do random generators
    for triplets in calls(loss, 8, "meta"):
        f = torch.empty(8, DIM, device="meta", requires_grad=True)
        if not refused(loss, triplets):
            value = loss(f, labels, triplets)
            value.backward()
            assert value.is_meta and f.grad.is_meta and all(p.grad.is_meta for p in loss.parameters())


@each("name", PROXY)
def test_forgotten_on_another_device(name):
    f, labels = batch()
    with pytest.raises(ValueError, match="use loss.to"):
        make_loss(name, 4, 5).to("meta")(f, labels)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_loss
@each("variant", variants)
def test_no_host_synchronisation_on_cuda(name, variant):
    f, labels = (x.cuda() for x in FINITE["random"])
    loss = make_loss(name, CLASSES, DIM, variant).cuda()
    for triplets in calls(loss, len(f), "cuda"):
        if refused(loss, triplets):
            continue
        loss(f.requires_grad_(), labels, triplets).backward()  # first use loads kernels, and makes generators
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss(f, labels, triplets).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_proxy_loss
@each("variant", variants)
def test_same_on_cuda(name, variant):
    loss, (f, labels) = make_loss(name, 4, 5, variant).double(), batch()
    on_cpu = loss(f, labels)
    pull = gradients(on_cpu, f, loss.proxies)
    f = f.detach().cuda().requires_grad_()
    on_gpu = loss.cuda()(f, labels.cuda())
    torch.testing.assert_close(on_gpu.cpu(), on_cpu)
    for a, b in zip(gradients(on_gpu, f, loss.proxies), pull, strict=True):
        torch.testing.assert_close(a.cpu(), b)


# --- the door


@each("name", LOSSES)
def test_made_by_name(name):
    loss = make_loss(name, 4, 5, "published")
    assert type(loss) is LOSSES[name] and loss.variant == "published"
    assert not {"n_classes", "dim", "variant"} & loss_hyperparameters(name).keys()
    for key, default in loss_hyperparameters(name).items():
        assert type(make_loss(name, 4, 5, **{key: default})) is LOSSES[name]
    with pytest.raises(ValueError, match=f"{name} loss"):
        make_loss(name, 4, 5, no_such_thing=1)


@each("name", PROXY)
def test_sizes_that_are_needed_are_asked_for(name):
    with pytest.raises(ValueError, match=f"the {name} loss needs n_classes and dim"):
        make_loss(name)


def test_names_and_classes_of_the_house():
    """What has been published once keeps its name."""
    house = """
        contrastive ContrastiveLoss triplet TripletLoss margin MarginLoss quadruplet QuadrupletLoss snr SNRLoss
        lifted GeneralizedLiftedLoss npair NPairLoss angular AngularLoss histogram HistogramLoss
        multisimilarity MultiSimilarityLoss normalized_npair NormalizedNPairLoss tuplet_margin TupletMarginLoss
        softmax NormalizedSoftmaxLoss arcface ArcFaceLoss cosface CosFaceLoss sphereface SphereFaceLoss
        proxynca ProxyNCALoss softtriple SoftTripleLoss ntxent NTXentLoss supcon SupConLoss
        proxy_anchor ProxyAnchorLoss proxynca_pp ProxyNCAPlusPlusLoss subcenter_arcface SubcenterArcFaceLoss
        center_contrastive CenterContrastiveLoss potential_field PotentialFieldLoss cross_entropy CrossEntropyLoss
        mean_field MeanFieldLoss hist HISTLoss smooth_ap SmoothAPLoss recall_at_k RecallAtKLoss pnp PNPLoss
        contextual ContextualLoss supap SupAPLoss roadmap ROADMAPLoss fast_ap FastAPLoss circle CircleLoss
        sincere SincereLoss decoupled DecoupledLoss sigmoid_pairs SigmoidPairsLoss hard_negatives HardNegativesLoss
        in_batch InBatchLoss epshn EPSHNLoss hyperbolic HyperbolicLoss
    """.split()
    known = {name: kind.__name__ for name, kind in LOSSES.items()}
    assert known.items() >= {*zip(house[::2], house[1::2], strict=True)}

"""Every loss of a whole batch against loops from its formula, pytorch-metric-learning, and edge cases."""

import copy
import math
import pickle

import pytest
import torch
from edge_batches import FINITE
from grids import each
from loops import N, P, batch, dist, log1p_sum, mean, relu
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners as pml_miners

from dmlstudy.core.random import generator
from dmlstudy.distances import unit
from dmlstudy.losses import structured as room
from dmlstudy.losses.base import Loss
from dmlstudy.losses.triplet import DrawingLoss

NAMES = [n for n in room.__all__ if n.endswith("Loss")]
RAW = [n for n in NAMES if not getattr(room, n).normalizes]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(name: str, **more) -> Loss:
    """A loss by its class's name."""
    return getattr(room, name)(**more)


def loop_lifted(f, y):
    terms = [
        relu(
            sum(dist(f[a], f[p]).exp() for p in P(y, a)).log()
            + sum((1 - dist(f[a], f[n])).exp() for n in N(y, a)).log()
            if N(y, a)
            else 0 * f.sum()
        )
        for a in range(len(y))
        if P(y, a)
    ]
    return mean(terms, 0 * f.sum()) + 0.005 * mean([x.norm() for x in f], 0)


def loop_npair(f, y, clamp=math.inf):
    """Where an anchor has one positive: nothing is drawn."""
    exponent = lambda a, p, n: (f[a] @ f[n] - f[a] @ f[p]).clamp(-clamp, clamp)
    terms = [log1p_sum([exponent(a, P(y, a)[0], n) for n in N(y, a)], 0 * f.sum()) for a in range(len(y)) if P(y, a)]
    return mean(terms, 0 * f.sum()) + 0.005 * mean([x.norm() for x in f], 0)


def loop_angular(f, y):
    z, tan2 = unit(f), math.tan(math.pi / 4) ** 2
    g = lambda a, p, n: 4 * tan2 * (z[a] + z[p]) @ z[n] - 2 * (1 + tan2) * z[a] @ z[p]
    terms = [log1p_sum([g(a, P(y, a)[0], n) for n in N(y, a)], 0 * f.sum()) for a in range(len(y)) if P(y, a)]
    return loop_npair(f, y, clamp=50) + 2 * mean(terms, 0 * f.sum())


def loop_histogram(f, y, bins=65, lost=()):
    z, step = unit(f), 2 / (bins - 1)
    h = {True: [0 * f.sum()] * bins, False: [0 * f.sum()] * bins}
    count = {True: 0, False: 0}
    for i in range(len(y)):
        for j in range(i):
            s, same = z[i] @ z[j], bool(y[i] == y[j])
            k = min(int((s + 1) / step), bins - 2)
            u = (s - (k * step - 1)) / step
            h[same][k] = h[same][k] + 1 - u
            h[same][k + 1] = h[same][k + 1] + (0 if k in lost else u)
            count[same] += 1
    if not all(count.values()):
        return 0 * f.sum()
    return sum(h[False][r] * sum(h[True][: r + 1]) for r in range(bins)) / (count[True] * count[False])


def loop_multisimilarity(f, y, mean_over="kept", max_positive=math.inf):
    z, terms = unit(f), []
    for a in range(len(y)):
        s = z @ z[a]
        positives, negatives = [p for p in P(y, a) if s[p] < max_positive], N(y, a)
        if not positives or not negatives:
            continue
        kept_n = [n for n in negatives if s[n] + 0.1 > min(s[p] for p in positives)]
        kept_p = [p for p in positives if s[p] - 0.1 < max(s[n] for n in negatives)]
        if kept_p and kept_n:
            pull = log1p_sum([-2 * (s[p] - 0.5) for p in kept_p], 0) / 2
            terms.append(pull + log1p_sum([40 * (s[n] - 0.5) for n in kept_n], 0) / 40)
    return sum(terms, 0 * f.sum()) / (len(y) if mean_over == "batch" else max(1, len(terms)))


def loop_normalized_npair(f, y):
    z = unit(f)
    two = {c: [i for i in range(len(y)) if y[i] == c][:2] for c in y.unique().tolist()}
    two = {c: ij for c, ij in two.items() if len(ij) == 2}
    terms = [
        log1p_sum([25 * (z[a] @ z[q] - z[a] @ z[p]) for other, (_, q) in two.items() if other != c], 0 * f.sum())
        for c, (a, p) in two.items()
    ]
    return mean(terms, 0 * f.sum())


def loop_tuplet_margin(f, y):
    z, zero = unit(f), 0 * f.sum()
    c, everyone = z @ z.T, range(len(y))
    tuplets = [
        log1p_sum([64 * (c[a, n] - (c[a, p].arccos() - 0.1).cos()) for n in N(y, a)], zero)
        for a in everyone
        for p in P(y, a)
    ]
    cp, cn = [c[a, p] for a in everyone for p in P(y, a)], [c[a, n] for a in everyone for n in N(y, a)]
    mean_p, mean_n = mean(cp, zero), mean(cn, zero)
    spread = mean([relu(0.99 * mean_p - s) ** 2 for s in cp], zero) + mean(
        [relu(s - 1.01 * mean_n) ** 2 for s in cn], zero
    )
    return mean(tuplets, zero) + 0.5 * spread


CASES = {  # name -> (class, arguments, loop, arguments of the loop)
    "lifted": ("GeneralizedLiftedLoss", {}, loop_lifted, {}),
    "npair": ("NPairLoss", {}, loop_npair, {}),
    "angular": ("AngularLoss", {}, loop_angular, {}),
    "histogram": ("HistogramLoss", {}, loop_histogram, {}),
    "histogram, 11": ("HistogramLoss", {"bins": 11}, loop_histogram, {"bins": 11}),
    "histogram, 11, published": (
        "HistogramLoss",
        {"bins": 11, "variant": "published"},
        loop_histogram,
        {"bins": 11, "lost": range(2, 8)},
    ),
    "multisimilarity": ("MultiSimilarityLoss", {}, loop_multisimilarity, {}),
    "multisimilarity, SEC": (
        "MultiSimilarityLoss",
        {"mean_over": "batch", "max_positive": 0.3},
        loop_multisimilarity,
        {"mean_over": "batch", "max_positive": 0.3},
    ),
    "normalized_npair": ("NormalizedNPairLoss", {}, loop_normalized_npair, {}),
    "tuplet_margin": ("TupletMarginLoss", {}, loop_tuplet_margin, {}),
}


@pytest.mark.parametrize("case", CASES)
@each("seed", range(3))
def test_loops(case, seed):
    """Value and gradient are those of the formula, over random batches."""
    name, arguments, loop, loop_arguments = CASES[case]
    f, labels = batch(seed, scale=0.7)
    if name in ("NPairLoss", "AngularLoss"):  # one positive at most
        labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 4, 5])
    x = f.requires_grad_()
    values = make(name, **arguments)(x, labels), loop(x, labels, **loop_arguments)
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in values), rtol=1e-5, atol=1e-7)


def raw(kind):
    return kind(normalize_embeddings=False)


PML = {  # name -> ours and theirs
    "lifted": lambda: (
        room.GeneralizedLiftedLoss(l2_weight=0),
        pml.GeneralizedLiftedStructureLoss(1, 0, distance=raw(pml_distances.LpDistance)),
    ),
    "npair": lambda: (room.NPairLoss(l2_weight=0), pml.NTXentLoss(1, distance=raw(pml_distances.DotProductSimilarity))),
    "angular": lambda: (
        lambda f, y: room.AngularLoss(lam=1)(f, y) - room.AngularLoss(lam=0)(f, y),
        lambda f, y: pml.AngularLoss(45)(unit(f), y),
    ),
    "histogram": lambda: (room.HistogramLoss(65), pml.HistogramLoss(n_bins=64)),
    "multisimilarity": lambda: (
        room.MultiSimilarityLoss(mean_over="batch"),
        lambda f, y: pml.MultiSimilarityLoss(2, 40, 0.5)(f, y, pml_miners.MultiSimilarityMiner(0.1)(f, y)),
    ),
    "normalized_npair": lambda: (
        room.NormalizedNPairLoss(1),
        pml.NPairsLoss(distance=pml_distances.DotProductSimilarity()),
    ),
    "tuplet_margin": lambda: (
        room.TupletMarginLoss(),
        lambda f, y: pml.TupletMarginLoss(math.degrees(0.1), 64)(f, y) + 0.5 * pml.IntraPairVarianceLoss()(f, y),
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PML)
@each("seed", range(3))
def test_pytorch_metric_learning(name, seed):
    """Value and gradient, on batches of two images a class."""
    f, _ = batch(seed, size=16, dim=6)
    f, labels = f.requires_grad_(), torch.randperm(16, generator=generator(seed, "labels")) % 8
    values = [loss(f, labels) for loss in PML[name]()]
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(v, f)[0] for v in values), rtol=1e-5, atol=1e-8)


@each("name", NAMES)
def test_nothing_active(name):
    """Singletons: nothing to rank, and the loss is 0 but for a norm penalty or a spread of negatives."""
    f, labels = FINITE["singletons"]
    x = f.clone().requires_grad_()
    apart = {"TupletMarginLoss": {"lam": 0.0}, **dict.fromkeys(RAW, {"l2_weight": 0.0})}
    value = make(name, **apart.get(name, {}))(x, labels)
    value.backward()
    assert value == 0 and (x.grad == 0).all()


@each("name", NAMES)
def test_arguments(name):
    """A wrong variant is refused; so are triplets."""
    f, labels = batch(0)
    with pytest.raises(ValueError, match="'corrected', 'published'"):
        make(name, variant="paper")
    with pytest.raises(ValueError, match="without triplets"):
        make(name)(f, labels, (labels, labels, labels))


@pytest.mark.parametrize("name", NAMES)
def test_invariance(name):
    """Rotating the embeddings changes nothing; nor their length, where the loss normalises; nor the batch's order."""
    f, _ = batch(2, size=12)
    labels = torch.arange(6).repeat_interleave(2)
    value = make(name)(f, labels)
    rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator(0, "turn"), dtype=torch.float64))[0]
    torch.testing.assert_close(make(name)(f @ rotation, labels), value, rtol=1e-8, atol=1e-10)
    if make(name).normalizes:
        lengths = torch.rand(12, 1, generator=generator(0, "lengths"), dtype=torch.float64) + 0.5
        torch.testing.assert_close(make(name)(f * lengths, labels), value, rtol=1e-8, atol=1e-10)
    if name != "NormalizedNPairLoss":  # there the first of a class is its anchor
        order = torch.randperm(12, generator=generator(0, "order"))
        torch.testing.assert_close(make(name)(f[order], labels[order]), value, rtol=1e-8, atol=1e-10)


@each("classes", [1, 2, 4, 20])
def test_filled_classes(classes, monkeypatch):
    """Normalised N-pair: places filled for a GPU change neither value nor gradient."""
    filled = lambda labels, first_two=room.first_two: first_two(labels, fill=True)
    for seed in range(10):
        f, labels = batch(seed, size=5 + seed, classes=classes)
        x, results = f.requires_grad_(), []
        for function in (room.first_two, filled):
            monkeypatch.setattr(room, "first_two", function)
            value = make("NormalizedNPairLoss")(x, labels)
            results.append((value, torch.autograd.grad(value, x)[0]))
            monkeypatch.undo()
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# chance, state, devices


@each("name", ["NPairLoss", "AngularLoss"])
def test_draws(name):
    """A seed gives the same draws, another one others; copies go on alike; the global generator is not touched."""
    f, labels = batch(0, size=12, classes=3)
    before = torch.get_rng_state()
    run = lambda loss: [loss(f, labels).item() for _ in range(4)]
    assert run(make(name, seed=1)) == run(make(name, seed=1)) != run(make(name, seed=2))
    loss = make(name, seed=1)
    first = run(loss)
    assert len(set(first)) > 1
    assert run(copy.deepcopy(loss)) == run(loss)
    assert run(pickle.loads(pickle.dumps(loss))) == run(loss)
    assert torch.equal(before, torch.get_rng_state())


def test_draw_positive():
    """Uniform over the others of the class."""
    g, labels = generator(0, "outside"), torch.tensor([0, 0, 0, 1, 0])
    index = torch.stack([room.draw_positive(labels, torch.rand(5, generator=g))[0] for _ in range(3000)])
    assert (index[:, 0].bincount(minlength=5)[[1, 2, 4]] - 1000).abs().max() < 5 * math.sqrt(3000 * 2 / 9)


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@each("variant", ["corrected", "published"])
def test_cuda(name, variant):
    """The value of the CPU, without a single wait for the host, forward and backward."""
    f, labels = batch(0, size=16)
    f, loss = f.float(), make(name, variant=variant)
    expected = make(name, variant=variant)(f, labels)
    x, y, loss = f.cuda().requires_grad_(), labels.cuda(), loss.cuda()
    loss(x, y).backward()  # makes its generator
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = loss(x, y)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if not isinstance(loss, DrawingLoss):
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert x.grad.isfinite().all()

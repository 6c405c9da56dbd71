"""Every ranking loss against loops from its formula, pytorch-metric-learning, and batches that break losses."""

import copy
import math
import pickle

import pytest
import torch
from edge_batches import CLASSES, FINITE
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.reducers import MeanReducer

from dmlstudy.core import generator
from dmlstudy.distances import pair_masks, unit
from dmlstudy.losses import ranking
from dmlstudy.losses.base import Loss, _active_counts, batch_distances, triplet_distances

NAMES = [n for n in ranking.__all__ if n.endswith("Loss") and n != "DrawingLoss"]
TUPLE = [n for n in NAMES if getattr(ranking, n).uses == "triplets"]
RAW = [n for n in NAMES if not getattr(ranking, n).normalizes]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(name: str, **more) -> Loss:
    """A loss by its class's name."""
    return getattr(ranking, name)(**more)


def all_triplets(labels):
    """Every valid (anchor, positive, negative)."""
    positives, negatives = pair_masks(labels)
    return (positives[:, :, None] & negatives[:, None, :]).nonzero().unbind(1)


def some_triplets(labels, purpose="triplets", at_most=12):
    """A few valid triplets, in a random order."""
    listed = torch.stack(all_triplets(labels), 1)
    order = torch.randperm(len(listed), generator=generator(0, purpose))
    return listed[order[:at_most]].unbind(1)


def batch(seed: int, size=9, dim=5, classes=4, scale=1.0):
    """Random embeddings and labels with classes of all sizes, singletons among them."""
    g = generator(seed, "ranking tests")
    return scale * torch.randn(size, dim, generator=g, dtype=torch.float64), torch.randint(
        classes, (size,), generator=g
    )


# ---------------------------------------------------------------------------------------------------------------------
# loops, each from its formula; x[i] rows, P(a), N(a) sets


def P(y, a):
    return [j for j in range(len(y)) if j != a and y[j] == y[a]]


def N(y, a):
    return [j for j in range(len(y)) if y[j] != y[a]]


def relu(x):
    return torch.clamp(x, min=0)


def mean(terms, zero):
    return sum(terms) / len(terms) if terms else zero


def dist(x, y):
    d2 = ((x - y) ** 2).sum()
    return d2.sqrt() if d2 > 0 else 0 * d2


def log1p_sum(terms, zero):
    return torch.log(1 + sum(t.exp() for t in terms)) if terms else zero


def loop_contrastive(f, y, triplets):
    z = unit(f)
    return mean([relu(dist(z[a], z[p])) + relu(1 - dist(z[a], z[n])) for a, p, n in triplets], 0 * f.sum())


def loop_triplet(f, y, triplets, power=2):
    z = unit(f)
    return mean(
        [relu(dist(z[a], z[p]) ** power - dist(z[a], z[n]) ** power + 0.2) for a, p, n in triplets], 0 * f.sum()
    )


def loop_margin(f, y, triplets, pairs=False):
    z, total, active = unit(f), 0 * f.sum(), 0
    for a, p, n in triplets:
        pull, push = relu(dist(z[a], z[p]) - 1.2 + 0.2), relu(1.2 - dist(z[a], z[n]) + 0.2)
        total = total + pull + push
        active += (int(pull > 0) + int(push > 0)) if pairs else int(pull > 0 or push > 0)
    return total / max(1, active)


def loop_snr(f, y, triplets, lam=0.005):
    z = unit(f)
    ratio = lambda i, j: (z[i] - z[j]).var() / z[i].var()
    terms = [relu(ratio(a, p) - ratio(a, n) + 0.2) for a, p, n in triplets]
    active = max(1, sum(int(t > 0) for t in terms))
    return sum(terms, 0 * f.sum()) / active + lam * mean([z[a].sum().abs() for a, _, _ in triplets], 0 * f.sum())


def loop_lifted(f, y, triplets=None):
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


def loop_npair(f, y, triplets=None, clamp=math.inf):
    """Where an anchor has one positive: nothing is drawn."""
    exponent = lambda a, p, n: (f[a] @ f[n] - f[a] @ f[p]).clamp(-clamp, clamp)
    terms = [log1p_sum([exponent(a, P(y, a)[0], n) for n in N(y, a)], 0 * f.sum()) for a in range(len(y)) if P(y, a)]
    return mean(terms, 0 * f.sum()) + 0.005 * mean([x.norm() for x in f], 0)


def loop_angular(f, y, triplets=None):
    z, tan2 = unit(f), math.tan(math.pi / 4) ** 2
    g = lambda a, p, n: 4 * tan2 * (z[a] + z[p]) @ z[n] - 2 * (1 + tan2) * z[a] @ z[p]
    terms = [log1p_sum([g(a, P(y, a)[0], n) for n in N(y, a)], 0 * f.sum()) for a in range(len(y)) if P(y, a)]
    return loop_npair(f, y, clamp=50) + 2 * mean(terms, 0 * f.sum())


def loop_histogram(f, y, triplets=None, bins=65, lost=()):
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


def loop_multisimilarity(f, y, triplets=None, mean_over="kept", max_positive=math.inf):
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


def loop_normalized_npair(f, y, triplets=None):
    z = unit(f)
    two = {c: [i for i in range(len(y)) if y[i] == c][:2] for c in y.unique().tolist()}
    two = {c: ij for c, ij in two.items() if len(ij) == 2}
    terms = [
        log1p_sum([25 * (z[a] @ z[q] - z[a] @ z[p]) for other, (_, q) in two.items() if other != c], 0 * f.sum())
        for c, (a, p) in two.items()
    ]
    return mean(terms, 0 * f.sum())


def loop_tuplet_margin(f, y, triplets=None):
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
    "contrastive": ("ContrastiveLoss", {}, loop_contrastive, {}),
    "triplet": ("TripletLoss", {}, loop_triplet, {}),
    "triplet, not squared": ("TripletLoss", {"squared": False}, loop_triplet, {"power": 1}),
    "margin": ("MarginLoss", {}, loop_margin, {}),
    "margin, per class": ("MarginLoss", {"n_classes": CLASSES}, loop_margin, {}),
    "margin, pairs": ("MarginLoss", {"normalizer": "pairs"}, loop_margin, {"pairs": True}),
    "snr": ("SNRLoss", {}, loop_snr, {}),
    "snr, lam 0": ("SNRLoss", {"lam": 0.0}, loop_snr, {"lam": 0.0}),
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
def test_loops(case, seed):
    """Value and gradient are those of the formula, over random batches; tuple losses with and without triplets."""
    name, arguments, loop, loop_arguments = CASES[case]
    f, labels = batch(seed, scale=0.7)
    if name in ("NPairLoss", "AngularLoss"):  # one positive at most
        labels = torch.tensor([0, 1, 2, 3, 0, 1, 2, 4, 5])
    loss = make(name, **arguments)
    for given in [None] if loss.uses == "batch" else [None, some_triplets(labels)]:
        listed = all_triplets(labels) if given is None and loss.uses == "triplets" else given
        listed = None if listed is None else torch.stack(listed, 1).tolist()
        x = f.clone().requires_grad_()
        expected = loop(x, labels, listed, **loop_arguments)
        value = loss(x, labels, given)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
        ours, theirs = (torch.autograd.grad(v, x)[0] for v in (value, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_quadruplet_loop(seed, given):
    """Corrected: one second negative of a third class for each triplet."""
    f, labels = batch(seed, classes=5)
    z = unit(f)
    loss = ranking.QuadrupletLoss(margin=0.3, margin_2=0.4, seed=seed)
    twin = ranking.QuadrupletLoss(seed=seed)  # draws the same
    (a, p, n), kept = (some_triplets(labels), None) if given else twin.pairs(labels)
    kept = torch.ones_like(a) > 0 if given else kept
    draws = twin.draw(len(a), torch.device("cpu"))
    n2, found = ranking.draw_outside(labels, labels[torch.stack((a, n), 1)], draws)
    first, second = [], []
    for i in range(len(a)):
        if not kept[i]:
            continue
        assert labels[a[i]] == labels[p[i]] != labels[n[i]]
        d_ap = dist(z[a[i]], z[p[i]])
        first.append(relu(d_ap - dist(z[a[i]], z[n[i]]) + 0.3))
        if found[i]:
            assert labels[n2[i]] not in (labels[a[i]], labels[n[i]])
            second.append(relu(d_ap - dist(z[n[i]], z[n2[i]]) + 0.4))
    expected = mean(first, 0) + mean(second, 0)
    torch.testing.assert_close(loss(f, labels, (a, p, n) if given else None), expected, rtol=1e-6, atol=1e-9)


def test_quadruplet_published():
    """All combinations of a triplet with the second negatives of all, drawn without regard to labels."""
    f, labels = batch(1, size=8)
    z, (a, p, n) = unit(f), some_triplets(labels, at_most=6)
    n2, found = ranking.draw_outside(n, n[:, None], torch.rand(6, generator=generator(0, "QuadrupletLoss")))
    assert found.all() and (n[n2] != n).all()
    first = mean([relu(dist(z[a[i]], z[p[i]]) - dist(z[a[i]], z[n[i]]) + 0.2) for i in range(6)], 0)
    terms = [relu(dist(z[a[i]], z[p[i]]) - dist(z[n[i]], z[n2[j]]) + 0.2) for i in range(6) for j in range(6)]
    value = ranking.QuadrupletLoss(variant="published")(f, labels, (a, p, n))
    torch.testing.assert_close(value, first + mean(terms, 0), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# all triplets without listing them


@pytest.mark.parametrize("name", [n for n in TUPLE if n != "QuadrupletLoss"])
@pytest.mark.parametrize("variant", ["corrected", "published"])
def test_none_is_all(name, variant):
    """Without triplets = with the list of all, value and gradient, over batches of all kinds of classes."""
    loss = make(name, variant=variant)
    for seed in range(20):
        f, labels = batch(seed, size=3 + seed, classes=1 + seed % 7)
        x = f.requires_grad_()
        values = [loss(x, labels), loss(x, labels, all_triplets(labels))]
        torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v in values), rtol=1e-5, atol=1e-7)


def test_many_triplets():
    """47.8 million triplets: as much as a sum anchor by anchor, in float32 to 6 digits."""
    f = torch.randn(600, 8, generator=generator(0, "many"))
    labels = torch.arange(600) // 200
    z = unit(f.double())
    d, (positives, negatives) = torch.cdist(z, z).square(), pair_masks(labels)
    total = sum((d[a, positives[a]][:, None] - d[a, negatives[a]] + 1).clamp(min=0).sum() for a in range(600))
    expected = total / (600 * 199 * 400)
    torch.testing.assert_close(ranking.TripletLoss(1.0)(f, labels).double(), expected, rtol=1e-6, atol=0)


NEAR = [
    ("QuadrupletLoss", "some", {}),
    ("QuadrupletLoss", None, {}),
    ("ContrastiveLoss", "all", {}),
    ("ContrastiveLoss", None, {}),
    ("MarginLoss", None, {}),
    ("TripletLoss", None, {"squared": False}),
    ("TripletLoss", None, {}),
]


@pytest.mark.parametrize("name, given, more", NEAR)
def test_nearly_equal(name, given, more):
    """Embeddings a thousandth apart have the gradient in float32 that they have in float64, to 4 digits."""
    g = generator(0, "near")
    f = torch.randn(1, 64, generator=g) + 1e-3 * torch.randn(60, 64, generator=g)
    labels, slopes = torch.arange(60) // 4, []
    triplets = {"some": some_triplets(labels, at_most=60), "all": all_triplets(labels), None: None}[given]
    for x in (f.clone().requires_grad_(), f.double().requires_grad_()):
        slopes.append(torch.autograd.grad(make(name, **more).to(x.dtype)(x, labels, triplets), x)[0].double())
    assert (slopes[0] - slopes[1]).norm() < 1e-4 * slopes[1].norm()


@pytest.mark.parametrize("squared", [True, False])
def test_near_duplicates_compiled(squared, monkeypatch):
    """What a GPU and a compiled graph compute, without a look at the entries, is what the look finds."""
    g = generator(1, "near")
    f = unit(torch.randn(20, 32, generator=g)).repeat(2, 1)
    f[20:] += 1e-4 * torch.randn(20, 32, generator=g) * (torch.arange(20) % 3)[:, None]
    looked = batch_distances(f, squared)
    exact = torch.cdist(f.double(), f.double())
    torch.testing.assert_close(looked, (exact.square() if squared else exact).float(), rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    torch.testing.assert_close(batch_distances(f, squared), looked, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.5])
def test_counts_under_ties(margin):
    """Each triplet with a hinge above 0 is counted once on either side, whatever is equal."""
    d = torch.tensor([0.0, 0.5, 0.5, 0.5]).repeat(4, 1)
    positives, negatives = pair_masks(torch.tensor([0, 0, 1, 1]))
    active = positives[:, :, None] & negatives[:, None] & (d[:, :, None] + margin > d[:, None])
    torch.testing.assert_close(_active_counts(d, positives, margin), (active.sum(2) - active.sum(1)).float())


@pytest.mark.parametrize("margin", [0.0, 0.2])
@pytest.mark.parametrize("edge", ["duplicates", "duplicates across classes", "collapsed", "zero vectors"])
def test_snr_under_ties(edge, margin):
    """The mean is over the same active triplets whether they are listed or not."""
    f, labels = FINITE[edge]
    loss = ranking.SNRLoss(margin, lam=0.0)
    torch.testing.assert_close(loss(f, labels), loss(f, labels, all_triplets(labels)), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# pytorch-metric-learning 2.9.0


def raw(kind):
    return kind(normalize_embeddings=False)


PML = {  # name -> (ours, theirs)
    "contrastive": (ranking.ContrastiveLoss(), pml.ContrastiveLoss(reducer=MeanReducer())),
    "triplet": (
        ranking.TripletLoss(),
        pml.TripletMarginLoss(0.2, distance=pml_distances.LpDistance(power=2), reducer=MeanReducer()),
    ),
    "triplet, not squared": (ranking.TripletLoss(squared=False), pml.TripletMarginLoss(0.2, reducer=MeanReducer())),
    "margin": (ranking.MarginLoss(normalizer="pairs"), pml.MarginLoss(0.2, beta=1.2)),
    "snr": (ranking.SNRLoss(lam=0), pml.TripletMarginLoss(0.2, distance=pml_distances.SNRDistance())),
    "lifted": (
        ranking.GeneralizedLiftedLoss(l2_weight=0),
        pml.GeneralizedLiftedStructureLoss(1, 0, distance=raw(pml_distances.LpDistance)),
    ),
    "npair": (ranking.NPairLoss(l2_weight=0), pml.NTXentLoss(1, distance=raw(pml_distances.DotProductSimilarity))),
    "angular": (
        lambda f, y, t: ranking.AngularLoss(lam=1)(f, y) - ranking.AngularLoss(lam=0)(f, y),
        lambda f, y, t: pml.AngularLoss(45)(unit(f), y),
    ),
    "histogram": (ranking.HistogramLoss(65), pml.HistogramLoss(n_bins=64)),
    "multisimilarity": (
        ranking.MultiSimilarityLoss(mean_over="batch"),
        lambda f, y, t: pml.MultiSimilarityLoss(2, 40, 0.5)(f, y, pml_miners.MultiSimilarityMiner(0.1)(f, y)),
    ),
    "normalized_npair": (ranking.NormalizedNPairLoss(1), pml.NPairsLoss(distance=pml_distances.DotProductSimilarity())),
    "tuplet_margin": (
        ranking.TupletMarginLoss(),
        lambda f, y, t: pml.TupletMarginLoss(math.degrees(0.1), 64)(f, y) + 0.5 * pml.IntraPairVarianceLoss()(f, y),
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PML)
def test_pytorch_metric_learning(name, seed):
    """Value and gradient, on batches of two images a class; triplets come from its miner."""
    ours, theirs = PML[name]
    f, _ = batch(seed, size=16, dim=6)
    f, labels = f.requires_grad_(), torch.randperm(16, generator=generator(seed, "labels")) % 8
    given = pml_miners.TripletMarginMiner(0.3)(f, labels) if getattr(ours, "uses", "batch") == "triplets" else None
    values = [loss(f, labels, given) for loss in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(v, f)[0] for v in values), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", TUPLE)
def test_foreign_miner(name):
    """Triplets of pytorch-metric-learning's miners are ours as they are."""
    f, labels = batch(3, size=16)
    value = make(name)(f.requires_grad_(), labels, pml_miners.TripletMarginMiner(0.3)(f, labels))
    assert value.isfinite() and value > 0


# ---------------------------------------------------------------------------------------------------------------------
# edges


@pytest.mark.parametrize("name", NAMES)
def test_nothing_active(name):
    """Singletons: nothing to rank, and the loss is 0 but for a norm penalty or a spread of negatives."""
    f, labels = FINITE["singletons"]
    x = f.clone().requires_grad_()
    apart = {"TupletMarginLoss": {"lam": 0.0}, **dict.fromkeys(RAW, {"l2_weight": 0.0})}
    value = make(name, **apart.get(name, {}))(x, labels)
    value.backward()
    assert value == 0 and (x.grad == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_arguments(name):
    """A wrong variant is refused; so are triplets where the whole batch is meant, and bad ones anywhere."""
    f, labels = batch(0)
    with pytest.raises(ValueError, match="'corrected', 'published'"):
        make(name, variant="paper")
    bad = tuple(index + 9 for index in some_triplets(labels))
    with pytest.raises(ValueError, match="outside of the batch" if name in TUPLE else "without triplets"):
        make(name)(f, labels, bad)


@pytest.mark.parametrize("name", NAMES)
def test_invariance(name):
    """Rotating the embeddings changes nothing; nor their length, where the loss normalises; nor the batch's order."""
    f, _ = batch(2, size=12)
    labels = torch.arange(6).repeat_interleave(2)
    value = make(name)(f, labels) if name != "QuadrupletLoss" else make(name)(f, labels, some_triplets(labels))
    given = some_triplets(labels) if name == "QuadrupletLoss" else None
    if name != "SNRLoss":  # variances are of coordinates
        rotation = torch.linalg.qr(torch.randn(5, 5, generator=generator(0, "turn"), dtype=torch.float64))[0]
        torch.testing.assert_close(make(name)(f @ rotation, labels, given), value, rtol=1e-8, atol=1e-10)
    if make(name).normalizes:
        lengths = torch.rand(12, 1, generator=generator(0, "lengths"), dtype=torch.float64) + 0.5
        torch.testing.assert_close(make(name)(f * lengths, labels, given), value, rtol=1e-8, atol=1e-10)
    if given is None and name != "NormalizedNPairLoss":  # there the first of a class is its anchor
        order = torch.randperm(12, generator=generator(0, "order"))
        torch.testing.assert_close(make(name)(f[order], labels[order]), value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("classes", [1, 2, 4, 20])
def test_filled_classes(classes, monkeypatch):
    """Normalised N-pair: places filled for a GPU change neither value nor gradient."""
    filled = lambda labels, first_two=ranking.first_two: first_two(labels, fill=True)
    for seed in range(10):
        f, labels = batch(seed, size=5 + seed, classes=classes)
        x, results = f.requires_grad_(), []
        for function in (ranking.first_two, filled):
            monkeypatch.setattr(ranking, "first_two", function)
            value = make("NormalizedNPairLoss")(x, labels)
            results.append((value, torch.autograd.grad(value, x)[0]))
            monkeypatch.undo()
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# chance, state, devices


@pytest.mark.parametrize("name", ["QuadrupletLoss", "NPairLoss", "AngularLoss"])
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


def test_draw_outside():
    """Never an excluded label, and uniform over the others."""
    g = generator(0, "outside")
    for _ in range(200):
        labels = torch.randint(5, (12,), generator=g)
        excluded = torch.randint(6, (40, 2), generator=g)
        index, found = ranking.draw_outside(labels, excluded, torch.rand(40, generator=g))
        allowed = (labels[None] != excluded[:, :1]) & (labels[None] != excluded[:, 1:])
        assert torch.equal(found, allowed.any(1))
        assert allowed[torch.arange(40), index][found].all()
    labels = torch.tensor([0, 1, 2, 1, 0, 3])
    index, _ = ranking.draw_outside(labels, torch.tensor([[1, 3]]).expand(6000, 2), torch.rand(6000, generator=g))
    assert (index.bincount(minlength=6)[[0, 2, 4]] - 2000).abs().max() < 5 * math.sqrt(6000 * 2 / 9)
    index = torch.stack(
        [ranking.draw_positive(labels[[0, 4, 0, 1, 4]], torch.rand(5, generator=g))[0] for _ in range(3000)]
    )
    assert (index[:, 0].bincount(minlength=5)[[1, 2, 4]] - 1000).abs().max() < 5 * math.sqrt(3000 * 2 / 9)


def test_margin_parameters():
    """Beta trains with its own learning rate and no decay, on the classes of the anchors."""
    f, labels = batch(0, classes=3)
    loss = ranking.MarginLoss(n_classes=5, beta=0.6, beta_lr=0.1)
    optimizer = torch.optim.SGD(loss.param_groups(1.0), lr=1.0, weight_decay=1.0)
    loss(f, labels).backward()
    optimizer.step()
    moved = loss.beta.detach() != torch.tensor(0.6)
    assert moved.any() and not moved[3:].any()
    torch.testing.assert_close(loss.beta.detach(), 0.6 - 0.1 * loss.beta.grad)
    with pytest.raises(ValueError, match="use loss.to"):
        loss.to("meta")(f, labels)


def test_offset():
    """The published distance adds 1e-6 to each coordinate, as torch's does."""
    x = torch.randn(4, 5, generator=generator(0, "offset"), dtype=torch.float64)
    index = torch.tensor([0, 1, 2]), torch.tensor([0, 2, 3]), torch.tensor([3, 3, 3])
    expected = torch.nn.functional.pairwise_distance(x[index[0]], x[index[1]])
    torch.testing.assert_close(triplet_distances(x, index, offset=1e-6)[0], expected, rtol=0, atol=1e-14)


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["corrected", "published"])
@pytest.mark.parametrize("name", NAMES)
def test_cuda(name, variant):
    """The value of the CPU, without a single wait for the host, forward and backward."""
    f, labels = batch(0, size=16)
    f, given = f.float(), some_triplets(labels) if name in TUPLE else None
    loss = make(name, variant=variant)
    expected = make(name, variant=variant)(f, labels, given)
    x, y = f.cuda().requires_grad_(), labels.cuda()
    t = None if given is None else tuple(index.cuda() for index in given)
    loss = loss.cuda()
    loss(x, y, t).backward()  # makes its generator
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = loss(x, y, t)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if not isinstance(loss, ranking.DrawingLoss):
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert x.grad.isfinite().all()

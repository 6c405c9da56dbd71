"""Every tuples loss against loops from its formula, pytorch-metric-learning, and batches that break losses."""

import copy
import math
import pickle

import pytest
import torch
from edge_batches import CLASSES, FINITE
from grids import each
from loops import all_triplets, batch, dist, mean, relu
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners as pml_miners
from pytorch_metric_learning.reducers import MeanReducer

from dmlstudy.core.random import generator
from dmlstudy.distances import pair_masks, unit
from dmlstudy.losses import triplet as tuples
from dmlstudy.losses.base import Loss, _active_counts, batch_distances, triplet_distances
from dmlstudy.losses.triplet import _triplet_weights

NAMES = [n for n in tuples.__all__ if n.endswith("Loss") and n != "DrawingLoss"]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def make(name: str, **more) -> Loss:
    """A loss by its class's name."""
    return getattr(tuples, name)(**more)


def some_triplets(labels, purpose="triplets", at_most=12):
    """A few valid triplets, in a random order."""
    listed = torch.stack(all_triplets(labels), 1)
    order = torch.randperm(len(listed), generator=generator(0, purpose))
    return listed[order[:at_most]].unbind(1)


# ---------------------------------------------------------------------------------------------------------------------
# loops, each from its formula


def loop_contrastive(f, y, triplets, pos=0.0, neg=1.0):
    z = unit(f)
    return mean([relu(dist(z[a], z[p]) - pos) + relu(neg - dist(z[a], z[n])) for a, p, n in triplets], 0 * f.sum())


def loop_triplet(f, y, triplets, power=2):
    z = unit(f)
    return mean(
        [relu(dist(z[a], z[p]) ** power - dist(z[a], z[n]) ** power + 0.2) for a, p, n in triplets], 0 * f.sum()
    )


def loop_margin(f, y, triplets, pairs=False, betas=(1.2,) * CLASSES):
    z, total, active = unit(f), 0 * f.sum(), 0
    for a, p, n in triplets:
        beta = betas[y[a]]
        pull, push = relu(dist(z[a], z[p]) - beta + 0.2), relu(beta - dist(z[a], z[n]) + 0.2)
        total = total + pull + push
        active += (int(pull > 0) + int(push > 0)) if pairs else int(pull > 0 or push > 0)
    return total / max(1, active)


def loop_snr(f, y, triplets, lam=0.005):
    z = unit(f)
    ratio = lambda i, j: (z[i] - z[j]).var() / z[i].var()
    terms = [relu(ratio(a, p) - ratio(a, n) + 0.2) for a, p, n in triplets]
    active = max(1, sum(int(t > 0) for t in terms))
    return sum(terms, 0 * f.sum()) / active + lam * mean([z[a].sum().abs() for a, _, _ in triplets], 0 * f.sum())


CASES = {  # name -> (class, arguments, loop, arguments of the loop)
    "contrastive": ("ContrastiveLoss", {}, loop_contrastive, {}),
    "contrastive, margins": (
        "ContrastiveLoss",
        {"pos_margin": 0.8, "neg_margin": 1.3},
        loop_contrastive,
        {"pos": 0.8, "neg": 1.3},
    ),
    "triplet": ("TripletLoss", {}, loop_triplet, {}),
    "triplet, not squared": ("TripletLoss", {"squared": False}, loop_triplet, {"power": 1}),
    "margin": ("MarginLoss", {}, loop_margin, {}),
    "margin, per class": ("MarginLoss", {"n_classes": CLASSES}, loop_margin, {}),
    "margin, pairs": ("MarginLoss", {"normalizer": "pairs"}, loop_margin, {"pairs": True}),
    "snr": ("SNRLoss", {}, loop_snr, {}),
    "snr, lam 0": ("SNRLoss", {"lam": 0.0}, loop_snr, {"lam": 0.0}),
}


@pytest.mark.parametrize("case", CASES)
@each("seed", range(3))
def test_loops(case, seed):
    """Value and gradient are those of the formula, over random batches; tuple losses with and without triplets."""
    name, arguments, loop, loop_arguments = CASES[case]
    f, labels = batch(seed, scale=0.7)
    loss = make(name, **arguments)
    for given in (None, some_triplets(labels)):
        listed = torch.stack(all_triplets(labels) if given is None else given, 1).tolist()
        x = f.clone().requires_grad_()
        expected = loop(x, labels, listed, **loop_arguments)
        value = loss(x, labels, given)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)
        ours, theirs = (torch.autograd.grad(v, x)[0] for v in (value, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


@each("seed", range(4))
@each("given", [True, False])
def test_quadruplet_loop(seed, given):
    """Corrected: one second negative of a third class for each triplet."""
    f, labels = batch(seed, classes=5)
    z = unit(f)
    loss = tuples.QuadrupletLoss(margin=0.3, margin_2=0.4, seed=seed)
    twin = tuples.QuadrupletLoss(seed=seed)  # draws the same
    (a, p, n), kept = (some_triplets(labels), None) if given else twin.pairs(labels)
    kept = torch.ones_like(a) > 0 if given else kept
    draws = twin.draw(len(a), torch.device("cpu"))
    n2, found = tuples.draw_outside(labels, labels[torch.stack((a, n), 1)], draws)
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
    n2, found = tuples.draw_outside(n, n[:, None], torch.rand(6, generator=generator(0, "QuadrupletLoss")))
    assert found.all() and (n[n2] != n).all()
    first = mean([relu(dist(z[a[i]], z[p[i]]) - dist(z[a[i]], z[n[i]]) + 0.2) for i in range(6)], 0)
    terms = [relu(dist(z[a[i]], z[p[i]]) - dist(z[n[i]], z[n2[j]]) + 0.2) for i in range(6) for j in range(6)]
    value = tuples.QuadrupletLoss(variant="published")(f, labels, (a, p, n))
    torch.testing.assert_close(value, first + mean(terms, 0), rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------------------
# all triplets without listing them


@pytest.mark.parametrize("name", [n for n in NAMES if n != "QuadrupletLoss"])
@each("variant", ["corrected", "published"])
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
    torch.testing.assert_close(tuples.TripletLoss(1.0)(f, labels).double(), expected, rtol=1e-6, atol=0)


NEAR = [
    ("QuadrupletLoss", "some", {}),
    ("QuadrupletLoss", None, {}),
    ("ContrastiveLoss", "all", {}),
    ("ContrastiveLoss", None, {}),
    ("MarginLoss", None, {}),
    ("TripletLoss", None, {"squared": False}),
    ("TripletLoss", None, {}),
]


@each("name, given, more", NEAR)
def test_nearly_equal(name, given, more):
    """Embeddings a thousandth apart have the gradient in float32 that they have in float64, to 4 digits."""
    g = generator(0, "near")
    f = torch.randn(1, 64, generator=g) + 1e-3 * torch.randn(60, 64, generator=g)
    labels, slopes = torch.arange(60) // 4, []
    triplets = {"some": some_triplets(labels, at_most=60), "all": all_triplets(labels), None: None}[given]
    for x in (f.clone().requires_grad_(), f.double().requires_grad_()):
        slopes.append(torch.autograd.grad(make(name, **more).to(x.dtype)(x, labels, triplets), x)[0].double())
    assert (slopes[0] - slopes[1]).norm() < 1e-4 * slopes[1].norm()


@each("squared", [True, False])
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


@each("margin", [0.0, 0.1, 0.5])
def test_counts_under_ties(margin):
    """Each triplet with a hinge above 0 is counted once on either side, whatever is equal."""
    d = torch.tensor([0.0, 0.5, 0.5, 0.5]).repeat(4, 1)
    positives, negatives = pair_masks(torch.tensor([0, 0, 1, 1]))
    active = positives[:, :, None] & negatives[:, None] & (d[:, :, None] + margin > d[:, None])
    torch.testing.assert_close(_active_counts(d, positives, negatives, margin), (active.sum(2) - active.sum(1)).float())


@each("margin", [0.0, 0.2])
@each("edge", ["duplicates", "duplicates across classes", "collapsed", "zero vectors"])
def test_snr_under_ties(edge, margin):
    """The mean is over the same active triplets whether they are listed or not."""
    f, labels = FINITE[edge]
    loss = tuples.SNRLoss(margin, lam=0.0)
    torch.testing.assert_close(loss(f, labels), loss(f, labels, all_triplets(labels)), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------------
# pytorch-metric-learning 2.9.0


PML = {  # name -> ours and theirs
    "contrastive": lambda: (tuples.ContrastiveLoss(), pml.ContrastiveLoss(reducer=MeanReducer())),
    "triplet": lambda: (
        tuples.TripletLoss(),
        pml.TripletMarginLoss(0.2, distance=pml_distances.LpDistance(power=2), reducer=MeanReducer()),
    ),
    "triplet, not squared": lambda: (
        tuples.TripletLoss(squared=False),
        pml.TripletMarginLoss(0.2, reducer=MeanReducer()),
    ),
    "margin": lambda: (tuples.MarginLoss(normalizer="pairs"), pml.MarginLoss(0.2, beta=1.2)),
    "snr": lambda: (tuples.SNRLoss(lam=0), pml.TripletMarginLoss(0.2, distance=pml_distances.SNRDistance())),
}


@pytest.mark.parametrize("name", PML)
@each("seed", range(3))
def test_pytorch_metric_learning(name, seed):
    """Value and gradient, on batches of two images a class; triplets come from its miner."""
    ours, theirs = PML[name]()
    f, _ = batch(seed, size=16, dim=6)
    f, labels = f.requires_grad_(), torch.randperm(16, generator=generator(seed, "labels")) % 8
    given = pml_miners.TripletMarginMiner(0.3)(f, labels)
    values = [loss(f, labels, given) for loss in (ours, theirs)]
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(v, f)[0] for v in values), rtol=1e-5, atol=1e-8)


@each("name", NAMES)
def test_foreign_miner(name):
    """Triplets of pytorch-metric-learning's miners are ours as they are."""
    f, labels = batch(3, size=16)
    value = make(name)(f.requires_grad_(), labels, pml_miners.TripletMarginMiner(0.3)(f, labels))
    assert value.isfinite() and value > 0


# ---------------------------------------------------------------------------------------------------------------------
# edges


@each("name", NAMES)
def test_nothing_active(name):
    """Singletons: nothing to rank, and the loss is 0."""
    f, labels = FINITE["singletons"]
    x = f.clone().requires_grad_()
    value = make(name)(x, labels)
    value.backward()
    assert value == 0 and (x.grad == 0).all()


@each("name", NAMES)
def test_arguments(name):
    """A wrong variant is refused; so are bad triplets."""
    f, labels = batch(0)
    with pytest.raises(ValueError, match="'corrected', 'published'"):
        make(name, variant="paper")
    bad = tuple(index + 9 for index in some_triplets(labels))
    with pytest.raises(ValueError, match="outside of the batch"):
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
    if given is None:
        order = torch.randperm(12, generator=generator(0, "order"))
        torch.testing.assert_close(make(name)(f[order], labels[order]), value, rtol=1e-8, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# chance, state, devices


def test_draws():
    """A seed gives the same draws, another one others; copies go on alike; the global generator is not touched."""
    f, labels = batch(0, size=12, classes=3)
    before = torch.get_rng_state()
    run = lambda loss: [loss(f, labels).item() for _ in range(4)]
    assert (
        run(tuples.QuadrupletLoss(seed=1)) == run(tuples.QuadrupletLoss(seed=1)) != run(tuples.QuadrupletLoss(seed=2))
    )
    loss = tuples.QuadrupletLoss(seed=1)
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
        index, found = tuples.draw_outside(labels, excluded, torch.rand(40, generator=g))
        allowed = (labels[None] != excluded[:, :1]) & (labels[None] != excluded[:, 1:])
        assert torch.equal(found, allowed.any(1))
        assert allowed[torch.arange(40), index][found].all()
    labels = torch.tensor([0, 1, 2, 1, 0, 3])
    index, _ = tuples.draw_outside(labels, torch.tensor([[1, 3]]).expand(6000, 2), torch.rand(6000, generator=g))
    assert (index.bincount(minlength=6)[[0, 2, 4]] - 2000).abs().max() < 5 * math.sqrt(6000 * 2 / 9)


@each("seed", range(3))
def test_each_class_has_its_own_beta(seed):
    """The boundary is that of the anchor's class."""
    f, labels = batch(seed)
    loss, betas = tuples.MarginLoss(n_classes=CLASSES), torch.linspace(0.7, 1.6, CLASSES)
    loss.beta.data.copy_(betas)
    for given in (None, some_triplets(labels)):
        listed = torch.stack(all_triplets(labels) if given is None else given, 1).tolist()
        expected = loop_margin(f, labels, listed, betas=betas.double())
        torch.testing.assert_close(loss(f, labels, given), expected, rtol=1e-6, atol=1e-9)


def test_margin_parameters():
    """Beta trains with its own learning rate and no decay, on the classes of the anchors."""
    f, labels = batch(0, classes=3)
    loss = tuples.MarginLoss(n_classes=5, beta=0.6, beta_lr=0.1)
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


def test_pairs_with_others_count_as_often_as_their_triplets():
    """Two anchors and three embeddings of a memory, an anchor's own among them; a weight stands for as many images."""
    positives = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    negatives = torch.tensor([[False, False, True], [True, True, False]])
    counted, of_positives, of_negatives = _triplet_weights(positives, negatives, torch.float64)
    assert counted.tolist() == [[0, 2, 2], [3, 3, 6]]
    assert (of_positives.tolist(), of_negatives.tolist()) == ([2, 3], [1, 2])


@cuda
@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@each("variant", ["corrected", "published"])
def test_cuda(name, variant):
    """The value of the CPU, without a single wait for the host, forward and backward."""
    f, labels = batch(0, size=16)
    f, given = f.float(), some_triplets(labels)
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
    if not isinstance(loss, tuples.DrawingLoss):
        torch.testing.assert_close(value.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert x.grad.isfinite().all()

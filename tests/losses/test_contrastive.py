"""NT-Xent and SupCon against loops written from their formulas, numbers by hand, and pytorch-metric-learning."""

import math

import pytest
import pytorch_metric_learning.losses as pml
import torch
from grids import each
from torch.autograd import gradcheck

from dmlstudy.core.random import generator
from dmlstudy.losses import make_loss
from dmlstudy.losses.contrastive import NTXentLoss, SupConLoss

KINDS = [NTXentLoss, SupConLoss]
VIEWS = torch.arange(5).repeat(2)
LABELS = {
    "two views": VIEWS,
    "unequal classes": torch.tensor([0, 1, 0, 2, 0, 1, 3, 0, 1, 4]),  # with singletons
    "two classes": torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
    "sparse numbers": torch.tensor([7, 10**12, -3, 7, -3, 7, 10**12, 5, 5, 7]),
}


def embeddings(n=10, dim=4, seed=0):
    """Random float64 embeddings that want a gradient."""
    return torch.randn(n, dim, generator=generator(seed, "contrast"), dtype=torch.float64).requires_grad_()


def similarities(f):
    """Cosines as a list of lists."""
    dot = lambda x, y: sum(a * b for a, b in zip(x, y, strict=True))
    rows = f.tolist()
    return [[dot(x, y) / math.sqrt(dot(x, x) * dot(y, y)) for y in rows] for x in rows]


def ntxent(f, labels, t):
    """Mean over positive pairs, each against the negatives of its anchor."""
    s, y, terms = similarities(f), labels.tolist(), []
    for i in range(len(y)):
        negatives = sum(math.exp(s[i][k] / t) for k in range(len(y)) if y[k] != y[i])
        for p in range(len(y)):
            if p != i and y[p] == y[i]:
                e = math.exp(s[i][p] / t)
                terms.append(-math.log(e / (e + negatives)))
    return sum(terms) / max(1, len(terms))


def supcon(f, labels, t):
    """Mean over anchors with a positive, of the mean over positives, against all others."""
    s, y, anchors = similarities(f), labels.tolist(), []
    for i in range(len(y)):
        others = math.log(sum(math.exp(s[i][k] / t) for k in range(len(y)) if k != i))
        terms = [others - s[i][p] / t for p in range(len(y)) if p != i and y[p] == y[i]]
        anchors += [sum(terms) / len(terms)] if terms else []
    return sum(anchors) / max(1, len(anchors))


@each("kind, oracle", [(NTXentLoss, ntxent), (SupConLoss, supcon)])
@each("classes, labels", LABELS)
@each("t", [0.07, 0.5, 2.0])
def test_value_is_that_of_the_formula(kind, oracle, classes, labels, t):
    f = embeddings()
    assert kind(t)(f, labels).item() == pytest.approx(oracle(f, labels, t), abs=1e-10)


@each("kind", KINDS)
@each("classes, labels", LABELS)
def test_gradient_is_that_of_the_value(kind, classes, labels):
    loss = kind(0.2)
    assert gradcheck(lambda f: loss(f, labels), embeddings())


@each("kind, theirs", [(NTXentLoss, pml.NTXentLoss), (SupConLoss, pml.SupConLoss)])
@each("classes, labels", LABELS)
def test_same_as_pytorch_metric_learning(kind, theirs, classes, labels):
    f = embeddings(seed=1)
    values = kind(0.1)(f, labels), theirs(temperature=0.1)(f, labels)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, f)[0] for value in values))


def test_worked_numbers():
    # two pairs at a right angle: positive at 1, two others at 0
    f = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    pairs, single = torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=torch.int64)
    for kind in KINDS:
        assert kind(0.5)(f, pairs).item() == pytest.approx(math.log(1 + 2 * math.exp(-2)))
    assert NTXentLoss(0.5)(f, single).item() == 0
    assert SupConLoss(1.0)(f, single).item() == pytest.approx(math.log(math.e + 2) - 1 / 3)
    # three of a class at one point, one negative opposite: each positive at 1 against the negative at -1
    f = torch.tensor([[1.0], [1.0], [1.0], [-1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1])
    assert NTXentLoss(1.0)(f, labels).item() == pytest.approx(math.log1p(math.exp(-2)))
    assert SupConLoss(1.0)(f, labels).item() == pytest.approx(math.log(2 + math.exp(-2)))


@each("kind", KINDS)
@each("t", [0.001, 0.01])
def test_low_temperature_does_not_overflow(kind, t):
    f = embeddings().detach().float().requires_grad_()
    value = kind(t)(f, LABELS["unequal classes"])
    value.backward()
    assert value.isfinite() and f.grad.isfinite().all()
    assert value.item() == pytest.approx(kind(t)(f.double(), LABELS["unequal classes"]).item(), rel=1e-4)


@each("kind", KINDS)
def test_nothing_to_learn_without_positives(kind):
    f = embeddings()
    value = kind()(f, torch.arange(10))
    value.backward()
    assert value.item() == 0 and not f.grad.any()


@each("kind", KINDS)
def test_invariances(kind):
    f, labels = embeddings(), LABELS["unequal classes"]
    value, order = kind()(f, labels), torch.randperm(10, generator=generator(0, "order"))
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator(0, "turn"), dtype=torch.float64))[0]
    for same in (kind()(f[order], labels[order]), kind()(5 * f @ turn, labels), kind()(f, 17 - 3 * labels)):
        torch.testing.assert_close(same, value)


@each("name, t", [("ntxent", 0.5), ("supcon", 0.1)])
def test_scale_of_the_published_code(name, t):
    f = embeddings()
    plain, published = (make_loss(name, variant=variant)(f, VIEWS) for variant in ("corrected", "published"))
    torch.testing.assert_close(published, plain * t / 0.07)
    torch.testing.assert_close(make_loss(name, variant="published", loss_scale=0.5)(f, VIEWS), 0.5 * plain)
    assert make_loss(name).param_groups(0.1) == []


@each("classes, labels", LABELS)
def test_published_supcon_counts_singletons_in_the_mean(classes, labels):
    f, lonely = embeddings(), sum((labels == y).sum().item() == 1 for y in labels)
    published = make_loss("supcon", variant="published", loss_scale=1.0)
    for pairing in ({"labels": labels}, {"positives": 0.3 * (labels[:, None] == labels)}):
        assert published(f, **pairing).item() == pytest.approx(supcon(f, labels, 0.1) * (10 - lonely) / 10)


@each("kind", KINDS)
@each("t", [0, -0.1, math.nan])
def test_temperature_is_positive(kind, t):
    with pytest.raises(ValueError, match="temperature of the .*, above 0"):
        kind(temperature=t)

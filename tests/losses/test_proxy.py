"""Losses with class weights since 2019: worked cases, loops from their formulas, pytorch-metric-learning, and edges.

Odd batches, sixteen bits, second derivatives and wrong input of all losses of the door are in test_proxies.py.
"""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import pytorch_metric_learning.losses as pml
import torch
from edge_batches import CLASSES, DIM, FINITE
from grids import each
from tiers import sample
from torch.autograd import gradcheck, gradgradcheck

from dmlstudy.core.random import generator
from dmlstudy.losses import loss_hyperparameters, make_loss
from dmlstudy.losses.classification import ArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss
from dmlstudy.losses.proxy import HISTLoss, PotentialFieldLoss, hypergraph, pair_sum
from dmlstudy.study.methods import SINCE_METHODS
from tests.losses.test_classification import MEASURE, batch, gradients, softmax

NAMES = (
    "proxy_anchor proxynca_pp subcenter_arcface center_contrastive potential_field cross_entropy mean_field hist"
).split()
GRAPH = ("hist", {"lam": 1.0})
MADE = [(name, {}) for name in NAMES] + [GRAPH, ("potential_field", {"alpha": 2.0, "delta": 1.2, "per_class": 3})]
made = pytest.mark.parametrize("name, more", MADE, ids=lambda x: x if isinstance(x, str) else "-".join(x))


# --- worked cases

SAID = {  # in the cases -> our name
    "T": "temperature",
    "sub_centres": "sub_centers",
    "s": "scale",
    "m": "margin",
    "la": "scale",
    "pos": "pos_margin",
    "neg": "neg_margin",
}
OURS = {
    "subcentre_arcface": "subcenter_arcface",
    "centre_contrastive": "center_contrastive",
    "potential_field_wide": "potential_field",
    "mean_field_contrastive": "mean_field",
    "soft_triple": "softtriple",
    "soft_triple_plain": "softtriple",
}


@pytest.fixture(scope="module")
def worked():
    """Batches and proxies, and of each case hyperparameters, value and gradients."""
    return json.loads((Path(__file__).parents[1] / "cases/losses_centers.json").read_text(encoding="utf-8"))


def worked_loss(worked: dict, case: str, variant: str):
    """The loss of a case, with its proxies in place of first ones."""
    kind, given = case.split("/")[0], dict(worked["cases"][case]["params"])
    weights = {key: given.pop(key) for key in ("log_var", "theta1", "theta2") if key in given}
    name = OURS.get(kind, kind)
    given = {SAID.get(k, "weight" if (name, k) == ("center_contrastive", "lam") else k): v for k, v in given.items()}
    given = {k: 1 / 9 if v == "1/9" else v for k, v in given.items()} | (
        {"per_class": 1} if name == "potential_field" else {}
    )
    loss = make_loss(name, 4, 3, variant, **given).double()
    for own, key in (("log_variances", "log_var"), ("theta1", "theta1"), ("theta2", "theta2")):
        if key in weights:
            setattr(loss, own, torch.nn.Parameter(torch.tensor(weights[key], dtype=torch.float64)))
    centers = (worked["proxies"], worked["second_centers"])[: len(loss.proxies) if loss.proxies.ndim == 3 else 1]
    with torch.no_grad():
        loss.proxies.copy_(torch.tensor(centers).reshape(loss.proxies.shape))
    return loss


@each("case", lambda worked: worked["cases"])
@each("variant", lambda case: ("corrected", "published")[: 1 if case.startswith("soft_triple") else 2])
def test_worked_case(worked, case, variant):
    """Value, gradient by raw embeddings and proxies (by class where it has several); published SoftTriple differs."""
    said, loss = worked["cases"][case], worked_loss(worked, case, variant)
    f = torch.tensor(worked["batches"][said["batch"]]["x"], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(worked["batches"][said["batch"]]["labels"])
    value, expected = loss(f, labels), said["value"]
    if isinstance(loss, PotentialFieldLoss) and variant == "corrected":  # a constant less for pairs of other classes
        classes = [*labels.tolist(), *range(4)]
        other = sum(a != b for a, b in itertools.permutations(classes, 2)) / (len(classes) * (len(classes) - 1))
        expected -= other * loss.delta**-loss.alpha
    near = 1e-8 if case.startswith("hist") else 1e-9  # the graph's batch norm
    assert value.item() == pytest.approx(expected, rel=near)
    by_f, by_proxies = gradients(value, f, loss.proxies)
    by_class = by_proxies.movedim(0, 1) if case.startswith(("subcentre", "soft_triple")) else by_proxies
    wanted = torch.tensor(said["grad_own"], dtype=torch.float64)
    torch.testing.assert_close(by_class.reshape(wanted.shape), wanted, rtol=100 * near, atol=10 * near)
    wanted = torch.tensor(said["grad_x"], dtype=torch.float64)
    torch.testing.assert_close(by_f, wanted, rtol=100 * near, atol=10 * near)


def test_every_worked_case_is_there(worked):
    assert len(worked["cases"]) == 20
    names = {OURS.get(case.split("/")[0], case.split("/")[0]) for case in worked["cases"]}
    assert names == {*NAMES, "softtriple"} - {"cross_entropy"}


# --- the formulas, one embedding and one proxy at a time


def dot(a, b):
    return sum(i * j for i, j in zip(a, b, strict=True))


def on_sphere(x):
    return [a / math.sqrt(dot(x, x)) for a in x]


def entropy(logits, y):
    return math.log(sum(math.exp(v) for v in logits)) - logits[y]


def proxy_anchor(f, own, labels, alpha=32.0, delta=0.1):
    pull, push = [], 0.0
    for c, w in enumerate(own["proxies"]):
        s = [dot(on_sphere(x), on_sphere(w)) for x in f]
        if positives := [v for v, y in zip(s, labels, strict=True) if y == c]:
            pull.append(math.log(1 + sum(math.exp(-alpha * (v - delta)) for v in positives)))
        push += math.log(1 + sum(math.exp(alpha * (v + delta)) for v, y in zip(s, labels, strict=True) if y != c))
    return sum(pull) / len(pull) + push / len(own["proxies"])


def proxynca_pp(f, own, labels):
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        apart = [[a - b for a, b in zip(on_sphere(x), on_sphere(w), strict=True)] for w in own["proxies"]]
        total += entropy([-9 * dot(d, d) for d in apart], y)
    return total / len(f)


def subcenter_arcface(f, own, labels, scale=64.0, margin=0.5):
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        cos = [max(dot(on_sphere(x), on_sphere(w)) for w in ws) for ws in zip(*own["proxies"], strict=True)]
        angle = math.acos(cos[y])
        cos[y] = math.cos(angle + margin) if angle <= math.pi - margin else cos[y] - margin * math.sin(margin)
        total += entropy([scale * c for c in cos], y)
    return total / len(f)


def center_contrastive(f, own, labels):
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        cos = [dot(on_sphere(x), on_sphere(w)) for w in own["proxies"]]
        apart = [a - b for a, b in zip(on_sphere(x), on_sphere(own["proxies"][y]), strict=True)]
        total += entropy([64 * (c - 0.2 * (j == y)) for j, c in enumerate(cos)], y) + dot(apart, apart)
    return total / len(f)


def potential_field(f, own, labels, alpha=4.0, delta=0.2):
    points = [(on_sphere(x), y) for x, y in zip(f, labels, strict=True)]
    points += [(on_sphere(w), c) for mode in own["proxies"] for c, w in enumerate(mode)]
    total = 0.0
    for (a, c), (b, k) in itertools.permutations(points, 2):
        d = math.dist(a, b)
        total += -(max(d, delta) ** -alpha) if c == k else min(d, delta) ** -alpha - delta**-alpha
    return total / (len(points) * (len(points) - 1))


def cross_entropy(f, own, labels, smoothing=0.1):
    total = 0.0
    for x, y in zip(f, labels, strict=True):
        shares = softmax([dot(x, w) + b for w, b in zip(own["proxies"], own["bias"], strict=True)], 1.0)
        wanted = [smoothing / len(shares) + (1 - smoothing) * (c == y) for c in range(len(shares))]
        total -= sum(q * math.log(p) for q, p in zip(wanted, shares, strict=True))
    return total / len(f)


def mean_field(f, own, labels, near=0.02, far=0.3, reg=0.1):
    means, total = [on_sphere(w) for w in own["proxies"]], 0.0
    for x, y in zip(f, labels, strict=True):
        d = [1 - dot(on_sphere(x), w) for w in means]
        total += max(0, d[y] - near) + sum(max(0, far - v) for c, v in enumerate(d) if c != y)
    apart = sum(max(0, far - (1 - dot(a, b))) ** 2 for a, b in itertools.permutations(means, 2))
    return total / len(f) + reg / len(means) * apart


def hist(f, own, labels, tau=32.0, alpha=1.1, lam=0.0):
    """The graph node by node and edge by edge."""
    means, variances = [on_sphere(w) for w in own["proxies"]], own["log_variances"]
    m = [
        [
            sum((a - b) ** 2 / math.exp(min(max(v, 0), 6)) for a, b, v in zip(on_sphere(x), w, vs, strict=True))
            for w, vs in zip(means, variances, strict=True)
        ]
        for x in f
    ]
    total = sum(entropy([-tau * v for v in row], y) for row, y in zip(m, labels, strict=True)) / len(f)
    if not lam:
        return total
    present, nodes = sorted({*labels}), range(len(f))
    h = [[1.0 if labels[i] == c else math.exp(-alpha * m[i][c]) for c in present] for i in nodes]
    share = [sum(column) for column in zip(*h, strict=True)]
    common = lambda i, j: sum(a * b / s for a, b, s in zip(h[i], h[j], share, strict=True))
    g = [[common(i, j) / math.sqrt(sum(h[i]) * sum(h[j])) for j in nodes] for i in nodes]
    mixed = lambda rows: [[sum(g[i][j] * rows[j][k] for j in nodes) for k in range(len(rows[0]))] for i in nodes]
    columns = []
    for column in zip(*mixed([[dot(x, w) for w in own["theta1"]] for x in f]), strict=True):
        mean = sum(column) / len(column)
        spread = math.sqrt(sum((v - mean) ** 2 for v in column) / len(column) + 1e-5)
        columns.append([v if v > 0 else 0.1 * v for v in ((v - mean) / spread for v in column)])
    out = mixed([[dot(row, w) for w in own["theta2"]] for row in zip(*columns, strict=True)])
    return total + lam * sum(entropy(row, y) for row, y in zip(out, labels, strict=True)) / len(f)


ORACLES = {name: globals()[name] for name in NAMES}


@made
@each("seed", range(2))
def test_value_is_that_of_the_formula(name, more, seed):
    f, labels = batch(seed=seed)
    loss = make_loss(name, 4, 5, seed=seed, **more).double()
    with torch.no_grad():
        for own in loss.parameters():
            own.add_(0.1)  # the bias starts at 0
    own = {key: own.tolist() for key, own in loss.named_parameters()}
    more = {key: value for key, value in more.items() if key != "per_class"}
    expected = ORACLES[name](f.tolist(), own, labels.tolist(), **more)
    assert loss(f, labels).item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("fast_mode", sample([True, False], [True]))  # along random directions; entry by entry
@made
def test_gradients_and_second_derivatives(name, more, fast_mode):
    """By the embeddings and by all own parameters, in float64."""
    make, (f, labels) = lambda: make_loss(name, 4, 5, **more).double(), batch(6)
    if name == "hist" and more:  # 512 hidden units would take a minute
        make = lambda: small_graph(HISTLoss(4, 5, **more).double())
    own = {k: (4 * p if k == "proxies" else p).detach().requires_grad_() for k, p in make().named_parameters()}

    def value(f, *parameters):
        return torch.func.functional_call(make(), dict(zip(own, parameters, strict=True)), (f, labels))

    assert gradcheck(value, (f, *own.values()))
    assert gradgradcheck(value, (f, *own.values()), fast_mode=fast_mode)


def small_graph(loss):
    """With seven hidden units."""
    for name, rows in (("theta1", slice(7)), ("theta2", (slice(None), slice(7)))):
        setattr(loss, name, torch.nn.Parameter(getattr(loss, name).detach()[rows].clone()))
    return loss


# --- limits, and relatives


def sharing(loss, other):
    """The two losses with the proxies of the first."""
    loss, other = loss.double(), other.double()
    other.proxies = torch.nn.Parameter(loss.proxies.detach().reshape(other.proxies.shape))
    return loss, other


@each(
    "name, more, relative",
    [
        ("proxynca_pp", {}, partial(NormalizedSoftmaxLoss, temperature=1 / 18)),
        ("subcenter_arcface", {"sub_centers": 1}, partial(ArcFaceLoss, scale=64.0, monotone=True)),
        ("center_contrastive", {"weight": 0.0, "margin": 0.35}, CosFaceLoss),
    ],
)
def test_relatives(name, more, relative):
    """ProxyNCA++ is a softmax; one sub-centre is ArcFace; no weight is CosFace."""
    loss, other = sharing(make_loss(name, 4, 5, **more), relative(4, 5))
    f, labels = batch()
    values = loss(f, labels), other(f, labels)
    torch.testing.assert_close(*values)
    pulls = [gradients(value, f, kind.proxies) for value, kind in zip(values, (loss, other), strict=True)]
    torch.testing.assert_close(pulls[0][0], pulls[1][0])
    torch.testing.assert_close(pulls[0][1].reshape(4, 5), pulls[1][1])


def test_the_nearest_sub_center_alone_is_pulled():
    f, labels = batch()
    loss = make_loss("subcenter_arcface", 4, 5).double()
    (pull,) = gradients(loss(f[:1], labels[:1]), loss.proxies)
    moved = pull.norm(dim=2) > 0
    nearest = torch.nn.functional.cosine_similarity(f[0], loss.proxies, dim=2).argmax(0)
    assert torch.equal(moved.sum(0), torch.ones(4, dtype=torch.int64)) and torch.equal(moved.int().argmax(0), nearest)


def test_variants_of_the_field_pull_alike():
    f, labels = batch()
    pulls = []
    for variant in ("corrected", "published"):
        loss = make_loss("potential_field", 4, 5, variant, delta=1.2).double()
        pulls.append(gradients(loss(f, labels), f, loss.proxies))
    for corrected, published in zip(*pulls, strict=True):
        assert torch.equal(corrected, published) and corrected.abs().max() > 0


def test_a_field_without_contact_has_no_repulsion():
    """Far points of four classes, one proxy each: nothing is felt, and 32 bits say exactly 0."""
    loss = PotentialFieldLoss(4, 8, alpha=6.0, delta=0.1, per_class=1)
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(8)[:4])
    f = torch.eye(8)[4:].requires_grad_()
    assert torch.equal(loss.potential(torch.tensor([0.01, 2.0]), torch.tensor([False, False])), torch.zeros(2))
    assert loss(f, torch.arange(4)).item() == pytest.approx(-8 * 2**-3 / 56, rel=1e-6)  # own proxies, at sqrt 2


def test_forces_of_the_field_are_bounded():
    """Two classes in one place, in float32: no force below a distance of a thousandth, a finite one above."""
    loss = PotentialFieldLoss(2, 2, alpha=6.0, delta=0.1)
    for angle in (0.0, 1e-5, 1e-3, 2e-3, 0.05):
        f = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], requires_grad=True)
        loss(f, torch.tensor([0, 1])).backward()
        assert f.grad.isfinite().all()
        assert f.grad.norm() > 10 if angle > 1e-3 else f.grad.norm() < 10


def test_pairs_in_parts_are_those_at_once():
    """1,300 points need two parts."""
    x = torch.nn.functional.normalize(torch.randn(1300, 6, generator=generator(0, "x"), dtype=torch.float64))
    y, kernel = torch.arange(1300) % 5, lambda d2, same: torch.where(same, 1.0, -3.0) * (-d2).exp()
    x.requires_grad_()
    off = ~torch.eye(1300, dtype=torch.bool)
    same = (y[:, None] == y)[off]
    values = pair_sum(x, y, kernel), kernel((2 - 2 * x @ x.T)[off], same).sum()
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(gradients(value, x)[0] for value in values))


def test_a_class_without_images_adds_nothing_to_the_graph():
    m = torch.rand(6, 4, generator=generator(0, "m"), dtype=torch.float64)
    y, without = torch.tensor([0, 0, 1, 1, 3, 3])[:, None], torch.tensor([0, 0, 1, 1, 2, 2])[:, None]
    torch.testing.assert_close(hypergraph(m, y, 1.1), hypergraph(m[:, [0, 1, 3]], without, 1.1))


# --- pytorch-metric-learning

PML = {
    "proxy_anchor": (pml.ProxyAnchorLoss, "proxies", {}, {}),
    "proxynca_pp": (pml.ProxyNCALoss, "proxies", {}, {"softmax_scale": 9}),
    "subcenter_arcface": (pml.SubCenterArcFaceLoss, "W", {}, {"margin": math.degrees(0.5)}),
    "center_contrastive": (pml.CosFaceLoss, "W", {"weight": 0.0}, {"margin": 0.2}),
}


@pytest.mark.parametrize("name", PML)
@each("seed", range(3))
def test_same_as_pytorch_metric_learning(name, seed):
    kind, weights, own, more = PML[name]
    (f, labels), loss = batch(seed=seed), make_loss(name, 4, 5, seed=seed, **own).double()
    other, w = kind(num_classes=4, embedding_size=5, **more), loss.proxies.detach()
    w = w.movedim(0, 1).flatten(0, 1) if w.ndim == 3 else w
    setattr(other, weights, torch.nn.Parameter(w.T.contiguous() if weights == "W" else w.clone()))
    values = loss(f, labels), other(f, labels)
    torch.testing.assert_close(*values)
    pull = gradients(values[0], f, loss.proxies)
    theirs = gradients(values[1], f, getattr(other, weights))
    torch.testing.assert_close(pull[0], theirs[0])
    by_class = pull[1].movedim(0, 1).flatten(0, 1) if loss.proxies.ndim == 3 else pull[1]
    torch.testing.assert_close(by_class, theirs[1].T if weights == "W" else theirs[1])


# --- symmetries, and what belongs to the loss


@made
def test_invariances(name, more):
    f, labels = batch()
    loss = make_loss(name, 4, 5, **more).double()
    value, order = loss(f, labels), torch.randperm(9, generator=generator(0, "order"))
    torch.testing.assert_close(loss(f[order], labels[order]), value)
    if loss.normalizes:
        torch.testing.assert_close(loss(7 * f, labels), value)
    renamed = make_loss(name, 4, 5, **more).double()  # classes in another order
    turn = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        for key, own in renamed.named_parameters():
            if key != "theta1":
                at = 1 if own.ndim == 3 else 0
                own.copy_(getattr(loss, key).index_select(at, turn.argsort()))
    torch.testing.assert_close(renamed(f, turn[labels]), value)
    if name != "hist":  # whose variances belong to the coordinates
        q = torch.linalg.qr(torch.randn(5, 5, generator=generator(0, "turn"), dtype=torch.float64))[0]
        with torch.no_grad():
            loss.proxies.copy_((3 if loss.normalizes else 1) * loss.proxies @ q)
        torch.testing.assert_close(loss(f @ q, labels), value)


@each("name", NAMES)
def test_first_weights_depend_on_the_seed_alone(name):
    first = [p.detach() for p in make_loss(name, 50, 16).parameters()]
    torch.rand(3)
    assert all(map(torch.equal, make_loss(name, 50, 16).parameters(), first))
    assert not torch.equal(make_loss(name, 50, 16, seed=1).proxies, first[0])


def test_distribution_of_the_first_proxies():
    for name, spread in (("proxy_anchor", 1 / 16), ("proxynca_pp", 1 / 8), ("mean_field", 1.0), ("hist", 1 / 16)):
        assert make_loss(name, 512, 64).proxies.std().item() == pytest.approx(spread, rel=0.02)
    loss = HISTLoss(512, 64)
    assert loss.log_variances.std().item() == pytest.approx(1 / 16, rel=0.02)
    assert abs(torch.corrcoef(torch.stack((loss.proxies.flatten(), loss.log_variances.flatten())))[0, 1]) < 0.02


OWN_RATE = {"subcenter_arcface": 5e-4, "cross_entropy": 0.01, "hist": 0.1}  # others: 100 times the network's


@each("name", NAMES)
def test_own_learning_rate_without_decay(name):
    for more, expected in (({}, OWN_RATE.get(name, 1.0)), ({"lr": 0.3}, 0.3)):
        loss = make_loss(name, 4, 5, **more)
        (group,) = loss.param_groups(base_lr=0.01)
        assert (group["lr"], group["weight_decay"]) == (expected, 0.0)
        assert {*map(id, group["params"])} == {*map(id, loss.parameters())}
    assert make_loss(name, 4, 5, lr=None).param_groups(0.01)[0]["lr"] == (0.01 if name in OWN_RATE else 1.0)


def test_the_graph_has_its_own_rate():
    loss = HISTLoss(4, 5, lam=1.0)
    own, graph = loss.param_groups(base_lr=0.01)
    assert (own["lr"], graph["lr"], graph["weight_decay"]) == (0.1, 0.05, 0.0)
    assert {*map(id, own["params"] + graph["params"])} == {*map(id, loss.parameters())}


@each("name", NAMES)
def test_wrong_sizes_are_named(name):
    loss, (f, labels) = make_loss(name, 4, 5), batch()
    for wrong in (labels + 4, labels - 4):
        with pytest.raises(ValueError, match="0 to 3"):
            loss(f, wrong)
    with pytest.raises(ValueError, match="dim=4"):
        loss(f[:, :4], labels)
    with pytest.raises(ValueError, match=f"the {name} loss needs n_classes and dim"):
        make_loss(name)
    with pytest.raises(ValueError, match="use loss.to"):
        make_loss(name, 4, 5).to("meta")(f, labels)
    said = "must have shape" if loss.takes_targets else "give labels instead of positives"
    with pytest.raises(ValueError, match=said):
        loss(f, positives=torch.eye(9))


NONSENSE = {
    "alpha": ("proxy_anchor", "potential_field"),
    "temperature": ("proxynca_pp",),
    "scale": ("subcenter_arcface", "center_contrastive"),
    "sub_centers": ("subcenter_arcface",),
    "delta": ("potential_field",),
    "per_class": ("potential_field",),
    "tau": ("hist",),
    "n_classes": NAMES,
    "dim": NAMES,
}
BELOW = [(0, key, name) for key, names in NONSENSE.items() for name in names]
BELOW += [(1, "label_smoothing", "cross_entropy"), (-1, "label_smoothing", "cross_entropy"), (-1, "lam", "hist")]
BELOW += [(-1, key, "mean_field") for key in ("pos_margin", "neg_margin", "reg")]
BELOW += [
    (-1, "weight", "center_contrastive"),
    (1.5, "per_class", "potential_field"),
    (math.nan, "delta", "proxy_anchor"),
]


@each("value, key, name", BELOW)
def test_nonsense_is_named(value, key, name):
    with pytest.raises(ValueError, match=f"^{key} of the .* must be .*; got {value!r}$"):
        make_loss(name, **{"n_classes": 4, "dim": 5, key: value})


def test_hyperparameters_are_those_of_the_house():
    said = {
        "proxy_anchor": {"alpha": 32.0, "delta": 0.1},
        "proxynca_pp": {"temperature": 1 / 9},
        "subcenter_arcface": {"scale": 64.0, "margin": 0.5, "sub_centers": 3},
        "center_contrastive": {"scale": 64.0, "margin": 0.2, "weight": 1.0},
        "potential_field": {"alpha": 4.0, "delta": 0.2, "per_class": 2},
        "cross_entropy": {"label_smoothing": 0.1, "on_sphere": False},
        "mean_field": {"pos_margin": 0.02, "neg_margin": 0.3, "reg": 0.1},
        "hist": {"tau": 32.0, "alpha": 1.1, "lam": 0.0},
    }
    found = {name: loss_hyperparameters(name) for name in NAMES}
    assert {n: {k: v for k, v in known.items() if k not in ("lr", "seed")} for n, known in found.items()} == said
    assert {row.loss for row in SINCE_METHODS.values()} >= {*NAMES}


# --- edges of what the door's tests leave out: the graph, the wide field, and memory


@pytest.mark.parametrize("name, more", [m for m in MADE if m[1]], ids=str)
@each("case", FINITE)
def test_finite_value_and_gradient(name, more, case):
    loss, (f, labels) = make_loss(name, CLASSES, DIM, **more), FINITE[case]
    f = f.detach().clone().requires_grad_()
    value = loss(f, labels)
    value.backward()
    assert value.isfinite() and f.grad.isfinite().all()
    assert not len(f) or all(p.grad.isfinite().all() for p in loss.parameters())
    if len(f):
        broken = f.detach().clone()
        broken[0] = math.nan
        assert loss(broken, labels).isnan()


@each("name, more", [m for m in MADE if m[1]])
def test_nothing_is_read_back(name, more, monkeypatch):
    monkeypatch.setattr(torch, "autocast", lambda *a, **k: contextlib.nullcontext())
    loss, f = make_loss(name, CLASSES, DIM, **more).to("meta"), torch.empty(8, DIM, device="meta", requires_grad=True)
    loss(f, torch.zeros(8, dtype=torch.int64, device="meta")).backward()
    assert f.grad.is_meta and all(p.grad.is_meta for p in loss.parameters())


DENSE = [name for name in NAMES if name not in ("potential_field", "mean_field")]  # no sum over pairs of proxies


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("names, limit", [(DENSE, 100), (["potential_field", "mean_field"], 150)])
def test_eleven_thousand_classes_in_a_hundred_megabytes(names, limit):
    """A matrix of all pairs of proxies would have 0.5 GB, or 2 GB with two proxies a class."""
    command = [sys.executable, "-c", MEASURE.format(names=names, dim=128)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back at once
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=900, check=True)
    used = {name: float(megabytes) for name, megabytes in map(str.split, done.stdout.splitlines())}
    assert used.keys() == {*names} and max(used.values()) < limit, used

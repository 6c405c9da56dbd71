"""Every ranking loss against worked cases, loops from its formula, pytorch-metric-learning, and odd batches."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from edge_batches import FINITE, REFUSED
from grids import each
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning.distances import CosineSimilarity
from torch.autograd import gradcheck, gradgradcheck

from dmlstudy.core.random import generator
from dmlstudy.distances import pair_masks, unit
from dmlstudy.losses import base, make_loss
from dmlstudy.losses.base import similarities

KINDS = ("O", "Ds", "Dq", "Iu", "Ib")
NAMES = ["smooth_ap", "recall_at_k", "pnp", "contextual", "supap", "roadmap", "fast_ap"]
BY_ROWS = [name for name in NAMES if name != "contextual"]
VARIANTS = ("corrected", "published")
UNEVEN = torch.tensor([0, 1, 0, 1, 0, 2, 3, 3, 0, 5])


def batch(seed: int, size=10, dim=4):
    """Random float64 embeddings that want a gradient."""
    return torch.randn(size, dim, generator=generator(seed, "ranking tests"), dtype=torch.float64).requires_grad_()


def weights(seed: int, labels=UNEVEN):
    """Weights of positives, row by row others, some of them 0."""
    w = torch.rand(len(labels), len(labels), generator=generator(seed, "weights"), dtype=torch.float64)
    return w * (w > 0.2) * (labels[:, None] == labels)


def slope(value, x):
    return torch.autograd.grad(value, x)[0]


# ---------------------------------------------------------------------------------------------------------------------
# worked cases


@pytest.fixture(scope="module")
def worked():
    """Batches, and of each case hyperparameters, value and gradient."""
    return json.loads((Path(__file__).parents[1] / "cases/losses_ranking.json").read_text())


def loss_of(name: str, params: dict):
    """The loss that a case is of, by its hyperparameters there."""
    kind, more = name.split("/")[0], dict(params)
    more.pop("note", None)
    if more.pop("own", False):
        more["variant"] = "published"
    if kind.startswith("pnp"):
        return make_loss("pnp", kind=more.pop("variant"), **more)
    if kind == "contextual":
        return make_loss(kind, pos_margin=more.pop("pos"), neg_margin=more.pop("neg"), **more)
    if kind == "margin_contrastive":
        assert more == {"pos": 0.9, "neg": 0.6}
        return make_loss("roadmap", lam=1.0)
    return make_loss(next(name for name in NAMES if kind.startswith(name)), **more)


@each("name, case", lambda worked: worked["cases"].items())
def test_worked_cases(worked, name, case):
    """Value and gradient; with ten bins some distances are at a node, where the gradient is a choice."""
    given, of_case = worked["batches"][name.split("/")[1]], partial(loss_of, name, case["params"])
    f = torch.tensor(given["x"], dtype=torch.float64).requires_grad_()
    labels = torch.tensor(given["labels"])
    value = of_case()(f, labels)
    assert value.item() == pytest.approx(case["value"], abs=1e-12)
    at_a_node = name.startswith("fast_ap/")
    expected = torch.tensor(case["grad_x"], dtype=torch.float64)
    if not at_a_node:
        torch.testing.assert_close(slope(value, f), expected, rtol=1e-9, atol=1e-10)
    order = torch.randperm(len(f), generator=generator(0, name))
    assert of_case()(f[order], 7 - 3 * labels[order]).item() == pytest.approx(case["value"], abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# loops, each from its formula; w[q, i] weights of positives, 0 for a negative


def sets(w, q):
    """Positives and negatives of a query."""
    others = [j for j in range(len(w)) if j != q]
    return [j for j in others if w[q, j] > 0], [j for j in others if w[q, j] == 0]


def ahead(s, q, i, among, tau):
    return sum(torch.sigmoid((s[q, j] - s[q, i]) / tau) for j in among if j != i)


def by_mean(w):
    """Each row's weights in relation to their mean; the diagonal is no weight."""
    w = w.clone().fill_diagonal_(0)
    return torch.stack([row / row[row > 0].mean() if row.any() else row for row in w])


def over_queries(w, cost, f):
    terms = [cost(q, *sets(w, q)) for q in range(len(w)) if sets(w, q)[0]]
    return sum(terms) / len(terms) if terms else 0 * f.sum()


def loop_smooth_ap(f, w, tau=0.01, published=False):
    s, w = unit(f) @ unit(f).T, by_mean(w)

    def cost(q, P, N):
        P = [*P, q] if published else P
        weight = lambda i: 1 if i == q else w[q, i]
        precision = lambda i: (1 + ahead(s, q, i, P, tau)) / (1 + ahead(s, q, i, P + N, tau))
        return 1 - sum(weight(i) * precision(i) for i in P) / sum(weight(i) for i in P)

    return over_queries(w, cost, f)


def loop_recall_at_k(f, w, ks=(1, 2, 4, 8, 16), tau1=1.0, tau2=0.01, published=False):
    s, w = unit(f) @ unit(f).T, by_mean(w)

    def cost(q, P, N):
        rank = {i: 1 + ahead(s, q, i, P + N + [q] * published, tau2) for i in P}
        found = {k: sum(w[q, i] * torch.sigmoid((k - rank[i]) / tau1) for i in P) for k in ks}
        total = sum(w[q, i] for i in P)
        return 1 - sum(min(k * torch.ones(()), found[k]) / min(k, total) for k in ks) / len(ks)

    return over_queries(w, cost, f)


def loop_pnp(f, w, kind="Dq", alpha=4.0, b=2.0, tau=0.01):
    s, w = unit(f) @ unit(f).T, by_mean(w)
    penalty = {
        "O": lambda r: r,
        "Ds": lambda r: torch.log(1 + r),
        "Dq": lambda r: 1 - 1 / (1 + r) ** alpha,
        "Iu": lambda r: (1 + r) * torch.log(1 + r),
        "Ib": lambda r: (b * r - torch.log(1 + b * r)) / b**2,
    }[kind]

    def cost(q, P, N):
        weight = {i: w[q, i] for i in P} | {q: 1.0}
        zero = torch.zeros((), dtype=f.dtype)
        return sum(weight[i] * penalty(zero + ahead(s, q, i, N, tau)) for i in weight) / sum(weight.values())

    return over_queries(w, cost, f)


def loop_supap(f, w, tau=0.01, rho=100.0, delta=0.05, offset=1.44, published=False):
    s, w = unit(f) @ unit(f).T, by_mean(w)

    def h(t):
        if t <= 0:
            return torch.sigmoid(t / tau)
        return 0.5 + torch.sigmoid(t / tau) if t <= delta else rho * (t - delta) + offset

    def cost(q, P, N):
        weight, total = {i: w[q, i] for i in P} | {q: 1.0}, 0
        for i in weight:
            first = 1 + sum(int(s[q, j] >= s[q, i]) for j in weight if j != i)
            total = total + weight[i] * first / (first + sum(h(s[q, n] - s[q, i]) for n in N))
        return 1 - total / sum(weight.values())

    counted = sum(1 for q in range(len(w)) if sets(w, q)[0])
    return over_queries(w, cost, f) * (counted / len(w) if published else 1)


def loop_margins(f, w, pos_margin, neg_margin):
    s = unit(f) @ unit(f).T
    pulls = [(w[q, p], pos_margin - s[q, p]) for q in range(len(w)) for p in sets(w, q)[0] if s[q, p] < pos_margin]
    pushes = [s[q, n] - neg_margin for q in range(len(w)) for n in sets(w, q)[1] if s[q, n] > neg_margin]
    total = sum(weight * pull for weight, pull in pulls) / sum(weight for weight, _ in pulls) if pulls else 0 * f.sum()
    return total + (sum(pushes) / len(pushes) if pushes else 0)


def loop_roadmap(f, w, lam=0.5, published=False):
    both = (1 - lam) * loop_supap(f, w, published=published) + lam * loop_margins(f, w, 0.9, 0.6)
    return 2 * both if published else both


def loop_fast_ap(f, w, bins=10):
    s, width = unit(f) @ unit(f).T, 4 / bins
    pulse = lambda q, j, node: torch.relu(1 - (2 - 2 * s[q, j] - node * width).abs() / width)

    def cost(q, P, N):
        mass = lambda node, among: sum((pulse(q, j, node) for j in among), torch.zeros((), dtype=f.dtype))
        total, before, all_before = 0, 0, 0
        for node in range(bins + 1):
            before, all_before = before + mass(node, P), all_before + mass(node, P + N)
            share = before / all_before if all_before > 0 else 0
            total = total + sum(w[q, i] * pulse(q, i, node) for i in P) * share
        return 1 - total / sum(w[q, i] for i in P)

    return over_queries(w, cost, f)


def loop_contextual(f, w, k=4, eps=0.05, lam=0.4):
    """The value alone: its gradient is not that of the value."""
    s, B = unit(f) @ unit(f).T, len(w)
    d2 = (2 - 2 * s).clamp(min=0)

    def near(i, k):
        kth = sorted(d2[i].tolist())[k - 1]
        return {j for j in range(B) if d2[i, j] <= kth + eps}

    first, half, everyone = [near(i, k) for i in range(B)], [near(i, k // 2) for i in range(B)], set(range(B))

    def weight(i, j):
        if j not in first[i]:
            return 0
        far = everyone - first[i]
        return (len(first[i] & first[j]) / len(first[i]) + len(far - first[j]) / max(1, len(far))) / 2

    def smooth(i, j):
        mutual = [m for m in half[i] if i in half[m]]
        return sum(weight(m, j) for m in mutual) / len(mutual)

    context, weights = 0, by_mean(w)
    for i in range(B):
        for j in range(B):
            both = (smooth(i, j) + smooth(j, i)) / 2
            context = context + (0 if i == j else weights[i, j] * (1 - both) ** 2 if w[i, j] > 0 else both**2)
    rest = lam * loop_margins(f, w, 0.75, 0.6) + 0.1 * (s.mean() - 0.3) ** 2
    return (1 - lam) * context / B**2 + rest


LOOPS = {
    "smooth_ap": ("smooth_ap", {}, loop_smooth_ap),
    "smooth_ap, soft": ("smooth_ap", {"tau": 0.2}, loop_smooth_ap),
    "recall_at_k": ("recall_at_k", {}, loop_recall_at_k),
    "recall_at_k, cut at k": ("recall_at_k", {"ks": (1, 2), "tau1": 5.0}, loop_recall_at_k),
    "recall_at_k, soft": ("recall_at_k", {"ks": (1, 3), "tau1": 0.5, "tau2": 0.2}, loop_recall_at_k),
    **{f"pnp {kind}": ("pnp", {"kind": kind, "tau": 0.1, "alpha": 2.0, "b": 3.0}, loop_pnp) for kind in KINDS},
    "pnp": ("pnp", {}, loop_pnp),
    "supap": ("supap", {}, loop_supap),
    "supap, other": ("supap", {"tau": 0.2, "rho": 3.0, "delta": 0.2, "offset": 0.5}, loop_supap),
    "roadmap": ("roadmap", {}, loop_roadmap),
    "roadmap, other": ("roadmap", {"lam": 0.3}, loop_roadmap),
    "fast_ap": ("fast_ap", {}, loop_fast_ap),
    "fast_ap, 7": ("fast_ap", {"bins": 7}, loop_fast_ap),
    "contextual": ("contextual", {}, loop_contextual),
    "contextual, other": ("contextual", {"k": 3, "eps": 0.3, "lam": 0.1}, loop_contextual),
}
DIFFER = ("smooth_ap", "recall_at_k", "supap", "roadmap")  # between the variants


@pytest.mark.parametrize("case", LOOPS)
@each("seed", range(3))
@each("weighted", [False, True])
@each("variant", VARIANTS)
def test_loops(case, seed, weighted, variant):
    """Value and gradient are those of the formula: uneven classes in any order, singletons, positives of any shape."""
    name, more, loop = LOOPS[case]
    f, same, loss = batch(seed), UNEVEN[:, None] == UNEVEN, make_loss(name, variant=variant, **more)
    w = weights(seed) if weighted else same.double()
    expected = loop(f, w, **more, **({"published": variant == "published"} if name in DIFFER else {}))
    expected_slope = slope(expected, f) if name != "contextual" else None
    for given in [{"positives": w}] if weighted else [{"labels": UNEVEN}, {"positives": same}]:
        value = loss(f, **given)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11)
        if name != "contextual":
            torch.testing.assert_close(slope(value, f), expected_slope, rtol=1e-7, atol=1e-9)


@each("more", [{}, {"k": 3, "eps": 0.3, "lam": 0.1}])
@each("seed", range(3))
def test_slope_of_contextual_is_ten_times_that_of_its_neighbourhoods(seed, more):
    """Each entry of N and of N½ moves by 10 as d² falls by 1; what entries do is measured, their counts are fixed."""
    f, w = batch(seed), (UNEVEN[:, None] == UNEVEN).double()
    k, eps, lam = (more.get(name, default) for name, default in (("k", 4), ("eps", 0.05), ("lam", 0.4)))
    d2 = 2 - 2 * unit(f) @ unit(f).T
    near = lambda k: (d2 <= d2.sort(1)[0][:, [k - 1]] + eps).double()
    counts, off = near(k).sum(1, keepdim=True), 1 - torch.eye(len(f))

    def context(entries):
        first, half = entries
        shared = torch.einsum("im,jm->ij", first, first) / counts
        shared_far = torch.einsum("im,jm->ij", 1 - first, 1 - first) / (len(f) - counts).clamp(min=1)
        mutual = torch.einsum("im,mi->im", half, half)
        smooth = torch.einsum("im,mj->ij", mutual, (shared + shared_far) / 2 * first) / mutual.sum(1, keepdim=True)
        both = (smooth + smooth.T) / 2
        return (1 - lam) * (((1 - both) ** 2 * w + both**2 * (1 - w)) * off).mean()

    at, effect = torch.stack((near(k), near(k // 2))).detach(), torch.zeros(2, len(f), len(f), dtype=torch.float64)
    for place in torch.ones_like(effect).nonzero():
        step = torch.zeros_like(effect).index_put_(tuple(place), torch.tensor(1e-5, dtype=torch.float64))
        effect[tuple(place)] = (context(at + step) - context(at - step)) / 2e-5
    rest = lam * loop_margins(f, w, 0.75, 0.6) + 0.1 * ((unit(f) @ unit(f).T).mean() - 0.3) ** 2
    expected = slope(rest - 10 * (effect.sum(0) * d2).sum(), f)
    torch.testing.assert_close(slope(make_loss("contextual", **more)(f, UNEVEN), f), expected, rtol=1e-6, atol=1e-8)


@each("name", NAMES)
def test_weights_are_relative(name):
    """Equal weights are as none."""
    f, same, loss = batch(0), (UNEVEN[:, None] == UNEVEN).double(), make_loss(name)
    torch.testing.assert_close(loss(f, positives=same / 8), loss(f, UNEVEN))


# ---------------------------------------------------------------------------------------------------------------------
# pytorch-metric-learning 2.9.0

PML = [  # (our name, more, theirs)
    *(("pnp", {"kind": k, "tau": 0.1}, partial(pml.PNPLoss, 2, 4, 0.1, k)) for k in KINDS),
    ("pnp", {}, partial(pml.PNPLoss, 2, 4, 0.01, "Dq")),
    ("fast_ap", {}, partial(pml.FastAPLoss, 10)),
    ("fast_ap", {"bins": 7}, partial(pml.FastAPLoss, 7)),
    ("roadmap", {"lam": 1.0}, lambda: pml.ContrastiveLoss(0.9, 0.6, distance=CosineSimilarity())),
]


@each("name, more, theirs", PML)
@each("seed", range(3))
def test_pytorch_metric_learning(name, more, theirs, seed):
    """Value and gradient, with uneven classes and singletons."""
    f, labels = batch(seed, 40, 6), torch.randint(15, (40,), generator=generator(seed, "labels"))
    values = [loss(f, labels) for loss in (make_loss(name, **more), theirs())]
    torch.testing.assert_close(*values, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(*(slope(value, f) for value in values), rtol=1e-7, atol=1e-9)


def beside_theirs(classes: int, images: int, noise=0.9):
    """Smooth-AP on clusters: value there, ours as published and as corrected, cosine of their gradient with ours."""
    g, labels = generator(classes, "clusters"), torch.arange(classes).repeat_interleave(images)
    centres = torch.randn(classes, 64, generator=g, dtype=torch.float64)
    f = centres[labels] + noise * torch.randn(len(labels), 64, generator=g, dtype=torch.float64)
    f.requires_grad_()
    losses = pml.SmoothAPLoss(), make_loss("smooth_ap", variant="published"), make_loss("smooth_ap")
    values = [loss(f, labels) for loss in losses]
    slopes = [slope(value, f).flatten() for value in values]
    return [v.item() for v in values], [torch.cosine_similarity(slopes[0], x, dim=0).item() for x in slopes[1:]]


def test_smooth_ap_there_is_right_for_as_many_classes_as_images():
    for n in (3, 6, 8):
        (theirs, ours, _), (cosine, _) = beside_theirs(n, n, noise=3.0)
        assert ours > 0.01 and theirs == pytest.approx(ours, rel=1e-5) and cosine > 0.9999


@each("classes, images, most", [(56, 2, 0.3), (28, 4, 0.3), (16, 4, 0.6)])
def test_smooth_ap_there_is_wrong_otherwise(classes, images, most):
    """Classes and images of a class are exchanged there: another value, and a gradient nearly at a right angle."""
    (theirs, published, corrected), cosines = beside_theirs(classes, images)
    assert theirs > 4 * max(published, corrected) and max(cosines) < most


# ---------------------------------------------------------------------------------------------------------------------
# edges


@pytest.mark.parametrize("name", NAMES)
@each("variant", VARIANTS)
@each("case", FINITE)
def test_finite_value_and_gradient(name, case, variant):
    """On all batches that break losses, for labels and for a matrix, and the two agree."""
    f, labels = FINITE[case]
    x, loss = f.clone().requires_grad_(), make_loss(name, variant=variant)
    value = loss(x, labels)
    value.backward()
    assert value.isfinite() and value >= -1e-6 and x.grad.isfinite().all()
    assert value.dtype == (torch.float64 if f.dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(loss(x, positives=labels[:, None] == labels), value, rtol=1e-5, atol=1e-6)


@each("name", BY_ROWS)
@each("variant", VARIANTS)
def test_nothing_to_rank(name, variant):
    """Singletons: 0 with gradient 0; one class: nothing is before a positive but positives."""
    f = batch(1)
    value = make_loss(name, variant=variant, **({"lam": 0.0} if name == "roadmap" else {}))(f, torch.arange(10))
    assert value == 0 and not slope(value, f).any()
    if name != "recall_at_k":
        one = make_loss(name, variant=variant, **({"lam": 0.0} if name == "roadmap" else {}))(f, torch.zeros(10).long())
        assert one.item() == pytest.approx(0, abs=1e-12)


@each("name", BY_ROWS)
def test_singletons_are_no_queries(name):
    """Images of classes of their own stand in the lists and are asked for nothing; published SupAP counts them."""
    f, labels = batch(2, 12), torch.tensor([0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8])
    as_queries = torch.eye(12, dtype=torch.bool) | (labels[:, None] == labels)
    more = {"lam": 0.0} if name == "roadmap" else {}
    torch.testing.assert_close(make_loss(name, **more)(f, labels), make_loss(name, **more)(f, positives=as_queries))
    if name in ("supap", "roadmap"):
        corrected, published = (make_loss(name, variant=v, **more)(f, labels) for v in VARIANTS)
        torch.testing.assert_close(published, corrected / 2 * (2 if more else 1))


@each("name", NAMES)
@each("case", REFUSED)
def test_wrong_input_is_named(name, case):
    f, labels, said = REFUSED[case]
    with pytest.raises(ValueError) as error:
        make_loss(name)(f, labels)
    assert said in str(error.value)


@each("name", NAMES)
@each("wrong", [float("nan"), float("inf")])
def test_nan_is_seen(name, wrong):
    f = batch(0).detach()
    f[9] = wrong  # a singleton
    assert make_loss(name)(f, UNEVEN).isnan()


@pytest.mark.parametrize("name", ["smooth_ap", "recall_at_k", "pnp", "fast_ap"])
@each("dtype, rtol", [(torch.float16, 0.02), (torch.bfloat16, 0.1)])
def test_sixteen_bits_and_autocast_stay_near_float64(name, dtype, rtol):
    """The rounding of the embeddings is all that is lost: not within the loss."""
    more = {"smooth_ap": {"tau": 0.2}, "recall_at_k": {"tau2": 0.2}, "pnp": {"tau": 0.2}}.get(name, {})
    f = batch(3, 24, 16).detach()
    labels, loss = torch.arange(24) // 3, make_loss(name, **more)
    x = f.to(dtype).requires_grad_()
    exact, y = x.detach().double().requires_grad_(), x.detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, single = loss(x, labels), loss(y, labels)
    for total in (value, single, loss(exact, labels)):
        total.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(exact, labels).item(), rel=1e-5)
    torch.testing.assert_close(y.grad.double(), exact.grad, rtol=1e-3, atol=1e-5)
    assert (x.grad.double() - exact.grad).norm() < rtol * exact.grad.norm()


@pytest.mark.parametrize("name", NAMES)
@each("variant", VARIANTS)
def test_invariances(name, variant):
    """Neither a rotation, nor the lengths, nor the order of the batch, nor the names of the classes matter."""
    f, loss = batch(0), make_loss(name, variant=variant)
    value, order = loss(f, UNEVEN), torch.randperm(10, generator=generator(0, "order"))
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator(0, "turn"), dtype=torch.float64))[0]
    longer = 0.5 + torch.rand(10, 1, generator=generator(0, "lengths"), dtype=torch.float64)
    for same in (
        loss(f[order], UNEVEN[order]),
        loss(f @ turn, UNEVEN),
        loss(longer * f, UNEVEN),
        loss(f, 10**12 - 7 * UNEVEN),
    ):
        torch.testing.assert_close(same, value, rtol=1e-9, atol=1e-11)


SMOOTH = {
    "smooth_ap": {"tau": 0.2},
    "recall_at_k": {"ks": (1, 2), "tau2": 0.2},
    "pnp": {"tau": 0.2},
    "supap": {"tau": 0.2},
    "roadmap": {"tau": 0.2},
    "fast_ap": {"bins": 7},
}


@pytest.mark.parametrize("name", SMOOTH)
@each("variant", VARIANTS)
def test_slopes(name, variant):
    """First and second derivatives."""
    loss = make_loss(name, variant=variant, **SMOOTH[name])
    assert gradcheck(lambda f: loss(f, UNEVEN), batch(0))
    assert gradgradcheck(lambda f: loss(f, UNEVEN), batch(0))


@each("variant", VARIANTS)
def test_floor_of_recall(variant):
    """What a batch of separated clusters has; no batch has less."""
    for ks in ((1,), (1, 2, 4), (4, 16)):
        loss = make_loss("recall_at_k", ks=ks, tau2=1e-4, variant=variant)
        floor = loss.floor(UNEVEN)
        perfect = loss(torch.eye(6, dtype=torch.float64)[UNEVEN] + 0.1 * batch(0, 10, 6).detach(), UNEVEN)
        assert perfect.item() == pytest.approx(floor.item(), abs=0.002)
        assert all(loss(batch(seed), UNEVEN) > floor - 1e-9 for seed in range(20))
        torch.testing.assert_close(loss.floor((UNEVEN[:, None] == UNEVEN).float()), floor)


# ---------------------------------------------------------------------------------------------------------------------
# blocks of rows


@pytest.mark.parametrize("name", BY_ROWS)
@each("given", ["labels", "weights"])
def test_blocks_are_the_whole(name, given, monkeypatch):
    """A batch in several blocks has value and gradient of the rows at once, to six digits in float32."""
    g = generator(0, "blocks")
    labels = torch.randint(150, (600,), generator=g)  # classes of 1 to 12
    f = torch.randn(150, 16, generator=g)[labels] + 0.8 * torch.randn(600, 16, generator=g)
    monkeypatch.setattr(base, "_AT_ONCE", 100 * 12 * 600)
    loss, z = make_loss(name), unit(f).requires_grad_()
    pairing = labels if given == "labels" else weights(0, labels).float()
    blocks = torch.stack(loss.sums(z, pairing))
    whole = torch.stack(loss.terms(20, similarities(z), *pair_masks(pairing)))
    torch.testing.assert_close(blocks, whole, rtol=1e-6, atol=0)
    ours, plain = (slope(sums[0], z) for sums in (blocks, whole))
    assert (ours - plain).norm() < 2e-6 * plain.norm()


PEAK = """
import resource, torch
from dmlstudy.losses import make_loss
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def step(n):
    f = torch.randn(n, 128, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = make_loss("{name}")(f, torch.arange(n) // {images})
    value.backward()
    assert value.isfinite() and f.grad.isfinite().all() and f.grad.any()
step(64)
before = peak()
step({size})
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name, size, images", [("smooth_ap", 4096, 2), ("fast_ap", 4096, 4), ("roadmap", 4096, 4)])
def test_memory(name, size, images, limit=400):
    """In MB, beyond what a small batch takes; one matrix of 4,096 has 67, one (B, 3, B) has 201."""
    code = PEAK.format(name=name, size=size, images=images)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < limit


@pytest.mark.slow
@pytest.mark.parametrize("images", [2, 4])
def test_memory_of_16384(images):
    """Less than 1 GB, all told, where one matrix of similarities would have 1.1."""
    test_memory("smooth_ap", 16384, images, limit=300)

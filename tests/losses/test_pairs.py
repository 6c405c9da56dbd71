"""Losses of pairs since 2019: worked cases, loops from the formulas, pytorch-metric-learning, edges."""

import json
import math
from pathlib import Path

import pytest
import pytorch_metric_learning.losses as pml
import torch
from edge_batches import CLASSES, DIM, FINITE
from grids import each
from pytorch_metric_learning.miners import BatchEasyHardMiner
from tiers import sample
from torch.autograd import gradcheck, gradgradcheck

from dmlstudy.core.random import generator
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.losses.base import PairLoss
from dmlstudy.losses.contrastive import HyperbolicLoss

NAMES = "circle sincere decoupled sigmoid_pairs hard_negatives in_batch epshn ranked_list hyperbolic".split()
MADE = {
    "circle": ("circle", {}),
    "circle_batch": ("circle", {"variant": "published"}),
    "supcon": ("supcon", {}),
    "sincere": ("sincere", {}),
    "decoupled": ("decoupled", {}),
    "hard_negatives": ("hard_negatives", {}),
    "sigmoid_pairs": ("sigmoid_pairs", {}),
    "in_batch": ("in_batch", {}),
    "hyperbolic": ("hyperbolic", {}),
    "hyperbolic_sphere": ("hyperbolic", {"c": 0.0, "temperature": 0.1}),
}
LABELS = {
    "pairs": torch.arange(5).repeat(2),
    "unequal classes": torch.tensor([0, 1, 0, 2, 0, 1, 3, 0, 1, 4]),  # with singletons
    "fours": torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 2, 2]),
    "sparse numbers": torch.tensor([7, 10**12, -3, 7, -3, 7, 10**12, 5, 5, 7]),
}
every_labels = each("classes, labels", LABELS)
ALONE = ("sigmoid_pairs", "ranked_list")  # each pair by itself: one kind of pairs is enough to learn
names = pytest.mark.parametrize("name", NAMES)


def embeddings(n=10, dim=4, seed=0):
    """Random float64 embeddings that want a gradient."""
    return torch.randn(n, dim, generator=generator(seed, "pairs"), dtype=torch.float64).requires_grad_()


def gradient(value, x):
    return torch.autograd.grad(value, x)[0]


# ---- worked cases ----


@pytest.fixture(scope="module")
def worked():
    """Batches, and of each case value and gradient."""
    return json.loads((Path(__file__).parents[1] / "cases/losses_pairs.json").read_text())


@each("case, said", lambda worked: [(k, v) for k, v in worked["cases"].items() if k.split("/")[0] in MADE])
def test_worked_case(worked, case, said):
    batch = worked["batches"][said["batch"]]
    name, more = MADE[case.split("/")[0]]
    f = torch.tensor(batch["x"], dtype=torch.float64, requires_grad=True)
    loss = make_loss(name, **more).double()
    if name == "sigmoid_pairs":  # in float64 too
        loss.log_scale.data.fill_(math.log(10))
    value = loss(f, torch.tensor(batch["labels"]))
    assert value.item() == pytest.approx(said["value"], abs=1e-9)
    slope = torch.tensor(said["grad_x"], dtype=torch.float64)
    torch.testing.assert_close(gradient(value, f), slope, rtol=1e-7, atol=1e-6 * float(slope.abs().max()))


def test_supcon_as_released_has_singletons_in_its_mean(worked):
    """1.7563 on the uneven batch, where the formula has 2.3417: two of its eight anchors have no positive."""
    batch = worked["batches"]["uneven"]
    f, labels = torch.tensor(batch["x"], dtype=torch.float64), torch.tensor(batch["labels"])
    value = make_loss("supcon", variant="published", loss_scale=1.0)(f, labels)
    assert value.item() == pytest.approx(1.7563, abs=5e-5)
    assert value.item() == pytest.approx(worked["cases"]["supcon/uneven"]["value"] * 6 / 8)


def test_every_worked_case_of_pairs_is_tested(worked):
    beside = "threshold_consistent margin_contrastive xbm_contrastive coding_rate matryoshka_supcon s2sd_kl".split()
    assert {name.split("/")[0] for name in worked["cases"]} == {*MADE, *beside}


# ---- loops from the formulas ----


def cosines(f):
    """As a list of lists."""
    dot = lambda x, y: sum(a * b for a, b in zip(x, y, strict=True))
    rows = f.tolist()
    return [[dot(x, y) / math.sqrt(dot(x, x) * dot(y, y)) for y in rows] for x in rows]


def parts(labels):
    """(anchor, its positives, its negatives) of each anchor."""
    y = labels.tolist()
    for i in range(len(y)):
        yield (i, [j for j in range(len(y)) if j != i and y[j] == y[i]], [j for j in range(len(y)) if y[j] != y[i]])


def mean(values):
    values = [*values]
    return sum(values) / max(1, len(values))


def circle(f, labels, m=0.4, gamma=80.0):
    s, terms = cosines(f), []
    for i, ps, ns in parts(labels):
        if ps and ns:
            pull = sum(math.exp(-gamma * max(0, 1 + m - s[i][p]) * (s[i][p] - 1 + m)) for p in ps)
            push = sum(math.exp(gamma * max(0, s[i][n] + m) * (s[i][n] - m)) for n in ns)
            terms.append(math.log1p(pull * push))
    return mean(terms)


def circle_published(f, labels, m=0.4, gamma=80.0):
    s, pull, push = cosines(f), 0.0, 0.0
    for i, ps, ns in parts(labels):
        pull += sum(math.exp(-gamma * max(0, 1 + m - s[i][p]) * (s[i][p] - 1 + m)) for p in ps if p > i)
        push += sum(math.exp(gamma * max(0, s[i][n] + m) * (s[i][n] - m)) for n in ns if n > i)
    return math.log1p(pull * push)


def sincere(f, labels, t=0.1):
    s = cosines(f)
    ratio = lambda i, p, ns: sum(math.exp((s[i][n] - s[i][p]) / t) for n in ns)
    return mean(math.log1p(ratio(i, p, ns)) for i, ps, ns in parts(labels) for p in ps)


def decoupled(f, labels, t=0.1):
    s = cosines(f)
    ratio = lambda i, p, ns: sum(math.exp((s[i][n] - s[i][p]) / t) for n in ns)
    return mean(math.log(ratio(i, p, ns)) for i, ps, ns in parts(labels) for p in ps if ns)


def hard_negatives(f, labels, t=0.5, beta=1.0, tau=0.0):
    s, terms = cosines(f), []
    for i, ps, ns in parts(labels):
        if not ns:
            continue
        weights = [math.exp(beta * s[i][n] / t) for n in ns]
        weights = [w * len(ns) / sum(weights) for w in weights]
        total = sum(w * math.exp(s[i][n] / t) for w, n in zip(weights, ns, strict=True))
        for p in ps:
            rest = (total - tau * len(ns) * math.exp(s[i][p] / t)) / (1 - tau)
            rest = max(rest, len(ns) * math.exp(-1 / t))
            terms.append(math.log1p(rest / math.exp(s[i][p] / t)))
    return mean(terms)


def sigmoid_pairs(f, labels, scale=10.0, bias=-10.0):
    s, total = cosines(f), 0.0
    for i, ps, ns in parts(labels):
        total += sum(math.log1p(math.exp(-scale * s[i][p] - bias)) for p in ps)
        total += sum(math.log1p(math.exp(scale * s[i][n] + bias)) for n in ns)
    return total / len(s)


def in_batch(f, labels, scale=20.0):
    s, seen = cosines(f), {}
    for i, y in enumerate(labels.tolist()):
        seen.setdefault(y, []).append(i)
    pairs = [rows[:2] for rows in seen.values() if len(rows) > 1]
    total = lambda i: math.log(sum(math.exp(scale * s[i][j]) for _, j in pairs))
    return mean(total(i) - scale * s[i][j] for i, j in pairs)


def epshn(f, labels, t=0.1):
    s, terms = cosines(f), []
    for i, ps, ns in parts(labels):
        easiest = max((s[i][p] for p in ps), default=-2)
        farther = [s[i][n] for n in ns if s[i][n] < easiest]
        if farther:
            terms.append(math.log1p(math.exp((max(farther) - easiest) / t)))
    return mean(terms)


def ranked_list(f, labels, alpha=1.2, margin=0.4, scale=10.0, lam=0.5):
    s, terms = cosines(f), []
    for i, ps, ns in parts(labels):
        d = [math.sqrt(max(0.0, 2 - 2 * x)) for x in s[i]]
        far = [d[p] - (alpha - margin) for p in ps if d[p] > alpha - margin]
        near = [alpha - d[n] for n in ns if d[n] < alpha]
        weights = [math.exp(scale * x) for x in near]
        push = sum(w * x for w, x in zip(weights, near, strict=True)) / sum(weights) if near else 0.0
        terms.append((1 - lam) * mean(far) + lam * push)
    return mean(terms)


def ball_distances(f, c=0.1, clip=2.3, under=0.0):
    """By Möbius addition, one pair at a time."""
    points = []
    for x in f.tolist():
        norm = math.sqrt(sum(a * a for a in x))
        u = [a * min(1, clip / (norm + 1e-5)) for a in x]
        size = math.sqrt(c * sum(a * a for a in u))
        points.append([math.tanh(size) * a / size for a in u])
    out = [[0.0] * len(points) for _ in points]
    for i, a in enumerate(points):
        for j, b in enumerate(points):
            ab, aa, bb = (sum(p * q for p, q in zip(*both, strict=True)) for both in ((a, b), (a, a), (b, b)))
            left, right = 1 - 2 * c * ab + c * bb, 1 - c * aa
            sums = [
                (-left * p + right * q) / (1 - 2 * c * ab + c * c * aa * bb + under) for p, q in zip(a, b, strict=True)
            ]
            out[i][j] = 2 / math.sqrt(c) * math.atanh(math.sqrt(c * sum(p * p for p in sums)))
    return out


def hyperbolic(f, labels, t=0.2):
    d = ball_distances(f)
    ratio = lambda i, p, ns: sum(math.exp((d[i][p] - d[i][n]) / t) for n in ns)
    terms = [math.log1p(ratio(i, p, ns)) for i, ps, ns in parts(labels) for p in ps]
    return sum(terms) / max(1, sum(labels.tolist().count(y) > 1 for y in {*labels.tolist()}))


def hyperbolic_published(f, labels, t=0.2):
    """The i-th and j-th images of all classes as a batch, for each i and j: classes of one size."""
    d, y = ball_distances(f, under=1e-5), labels.tolist()
    rows = [[i for i, other in enumerate(y) if other == c] for c in sorted({*y})]
    total = 0.0
    for k in range(len(rows[0])):
        for l in range(len(rows[0])):
            if k == l:
                continue
            for own in rows:
                a = own[k]
                cross = {r[l]: -d[a][r[l]] / t for r in rows}
                within = [-d[a][r[k]] / t for r in rows if r is not own]
                total += math.log(sum(map(math.exp, [*cross.values(), *within]))) - cross[own[l]]
    return total / len(rows)


ORACLES = {name: globals()[name] for name in NAMES}


@names
@every_labels
def test_value_is_that_of_the_formula(name, classes, labels):
    f = embeddings()
    value = make_loss(name).double()(f, labels)
    assert value.item() == pytest.approx(ORACLES[name](f, labels), rel=1e-7, abs=1e-9)


@every_labels
def test_published_circle_is_that_of_the_snippet(classes, labels):
    f = embeddings()
    value = make_loss("circle", variant="published")(f, labels)
    assert value.item() == pytest.approx(circle_published(f, labels), rel=1e-9)


@each("labels", [torch.arange(6).repeat(2), torch.arange(12) % 3, torch.arange(12) // 6])
def test_published_hyperbolic_goes_by_views(labels):
    f = embeddings(12)
    value = make_loss("hyperbolic", variant="published")(f, labels)
    assert value.item() == pytest.approx(hyperbolic_published(f, labels), rel=1e-9)


@each("chosen", [{"beta": 0.3}, {"temperature": 0.1}, {"tau_plus": 0.1}, {"tau_plus": 0.5, "beta": 0}])
@every_labels
def test_hard_negatives_with_other_numbers(classes, labels, chosen):
    f, short = embeddings(), {"temperature": "t", "tau_plus": "tau", "beta": "beta"}
    value = make_loss("hard_negatives", **chosen)(f, labels)
    by_hand = hard_negatives(f, labels, **{short[k]: v for k, v in chosen.items()})
    assert value.item() == pytest.approx(by_hand, rel=1e-9)


def numeric(oracle, f, labels, **more):
    """Central differences of an oracle."""
    slope, x = torch.zeros_like(f), f.detach().clone()
    for k in range(x.numel()):
        sides = []
        for step in (1e-6, -1e-6):
            moved = x.clone()
            moved.view(-1)[k] += step
            sides.append(oracle(moved, labels, **more))
        slope.view(-1)[k] = (sides[0] - sides[1]) / 2e-6
    return slope


@pytest.mark.parametrize("name", [name for name in NAMES if not LOSSES[name].sets_slope])
def test_gradient_is_that_of_the_formula(name):
    f, labels = embeddings(6, 3), torch.tensor([0, 1, 0, 2, 1, 0])
    ours = gradient(make_loss(name).double()(f, labels), f)
    torch.testing.assert_close(ours, numeric(ORACLES[name], f, labels), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if not LOSSES[name].sets_slope])
@pytest.mark.parametrize("fast_mode", sample([True, False], [True]))  # along random directions; entry by entry
@every_labels
def test_gradients_are_those_of_the_value(name, fast_mode, classes, labels):
    loss, f = make_loss(name).double(), embeddings()
    assert gradcheck(lambda f: loss(f, labels), f)
    assert gradgradcheck(lambda f: loss(f, labels), f, atol=1e-4, fast_mode=fast_mode)


def test_distances_in_the_ball():
    f = embeddings(8, 3)
    for c, clip in ((0.1, 2.3), (1.0, 1.0), (0.5, 4.0)):
        theirs = torch.tensor(ball_distances(f, c, clip), dtype=torch.float64)
        torch.testing.assert_close(HyperbolicLoss(c, clip=clip).distances(f), theirs, rtol=1e-7, atol=1e-7)


# ---- live pytorch-metric-learning ----


@every_labels
@each("name, theirs", [("circle", pml.CircleLoss), ("sincere", lambda: pml.NTXentLoss(0.1))])
def test_same_as_pytorch_metric_learning(name, theirs, classes, labels):
    f = embeddings(seed=1)
    values = make_loss(name)(f, labels), theirs()(f, labels)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(gradient(value, f) for value in values))


@every_labels
def test_easy_positives_are_those_of_their_miner(classes, labels):
    f, miner = embeddings(seed=2), BatchEasyHardMiner("easy", "semihard")
    theirs = pml.NTXentLoss(0.1)(f, labels, miner(f, labels))
    torch.testing.assert_close(make_loss("epshn")(f, labels), theirs)


# ---- ranked list: from the formula, and against pytorch-metric-learning with the weights' gradient taken out ----


@every_labels
@each("more", [{}, {"alpha": 0.9, "margin": 0.9, "scale": 0.0, "lam": 0.25}, {"scale": 500.0}])
def test_ranked_list_by_loops(classes, labels, more):
    f, loss = embeddings(), make_loss("ranked_list", **more)
    assert loss(f, labels).item() == pytest.approx(ranked_list(f, labels, **more), abs=1e-12)
    assert gradient(loss(f, labels), f).isfinite().all()
    if not more.get("scale", 1):  # equal weights have no gradient
        assert gradcheck(lambda x: loss(x, labels), f)


@every_labels
def test_ranked_list_of_pytorch_metric_learning_has_more_in_its_divisors(classes, labels):
    f = embeddings(seed=3)
    ours, theirs = make_loss("ranked_list", scale=4.0)(f, labels), pml.RankedListLoss(0.4, 4, alpha=1.2)(f, labels)
    assert 0 <= (ours - theirs).item() <= 10 * 1e-5 * ours.item() * 1.01


@every_labels
def test_slope_of_ranked_list_takes_its_weights_as_constants(classes, labels):
    """The slope of one negative's distance is its weight, as the paper's gradient has it."""
    f = embeddings(seed=4)
    same = labels[:, None] == labels
    d = torch.cdist(f, f).detach().clamp(max=1.9).requires_grad_()
    total, n = make_loss("ranked_list", alpha=1.5).terms(d, same & ~torch.eye(10, dtype=torch.bool), ~same)
    slope = gradient(total, d)
    near = (~same) & (d < 1.5)
    weights = (10 * (1.5 - d)).exp() * near
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(slope[~same], -0.5 * weights[~same])
    assert n == 10


# ---- invariances and edges; FINITE and other edges of every loss are in test_losses_proxies ----


@names
def test_invariances(name):
    f, labels, loss = embeddings(), LABELS["unequal classes"], make_loss(name).double()
    value, order = loss(f, labels), torch.randperm(10, generator=generator(0, "order"))
    turn = torch.linalg.qr(torch.randn(4, 4, generator=generator(0, "turn"), dtype=torch.float64))[0]
    scale = 1 if name == "hyperbolic" else 5
    torch.testing.assert_close(loss(scale * f @ turn, labels), value)
    if name != "in_batch":  # which takes the first two images of a class, by their order
        torch.testing.assert_close(loss(f[order], labels[order]), value)
        torch.testing.assert_close(loss(f, 17 - 3 * labels), value)


def test_in_batch_does_not_see_the_order_of_classes():
    f, labels = embeddings(), LABELS["pairs"]
    torch.testing.assert_close(make_loss("in_batch")(f, 17 - 3 * labels), make_loss("in_batch")(f, labels))


@each("name", [name for name in NAMES if name not in ALONE])
def test_nothing_to_learn_without_positives(name):
    f = embeddings()
    value = make_loss(name)(f, torch.arange(10))
    value.backward()
    assert value.item() == 0 and not f.grad.any()


@each("name", [name for name in NAMES if name not in ALONE])
def test_nothing_to_learn_without_negatives(name):
    f = embeddings()
    value = make_loss(name)(f, torch.zeros(10, dtype=torch.int64))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-12) and f.grad.abs().max() < 1e-12


@pytest.mark.parametrize("name", ["circle", "sincere", "decoupled", "epshn", "hard_negatives", "hyperbolic"])
def test_extreme_temperatures_do_not_overflow(name):
    chosen = {"gamma": 5000.0} if name == "circle" else {"temperature": 0.002}
    chosen |= {"tau_plus": 0.1} if name == "hard_negatives" else {}
    f = embeddings().detach().float().requires_grad_()
    value = make_loss(name, **chosen)(f, LABELS["unequal classes"])
    value.backward()
    assert value.isfinite() and f.grad.isfinite().all()
    exact = make_loss(name, **chosen)(f.double(), LABELS["unequal classes"])
    assert value.item() == pytest.approx(exact.item(), rel=1e-4)


@each("case", FINITE)
def test_finite_with_what_is_not_the_default(case):
    f, labels = FINITE[case]
    for name, more in (
        ("hard_negatives", {"tau_plus": 0.1}),
        ("hyperbolic", {"c": 0.0}),
        ("hyperbolic", {"c": 0.0, "variant": "published"}),
        ("hyperbolic", {"c": 1.0, "clip": 50.0}),
    ):
        x = f.detach().clone().requires_grad_()
        value = make_loss(name, CLASSES, DIM, **more)(x, labels)
        value.backward()
        assert value.isfinite() and x.grad.isfinite().all()


# ---- positives of any shape ----


@pytest.mark.parametrize("name", [name for name in NAMES if name != "in_batch"])
def test_a_matrix_in_place_of_labels(name):
    f, labels, loss = embeddings(), LABELS["unequal classes"], make_loss(name).double()
    same = labels[:, None] == labels
    for positives in (same, same.double(), 3.0 * same.float()):
        values = loss(f, positives=positives), loss(f, labels)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(gradient(v, f) for v in values))


@pytest.mark.parametrize("name", ["sincere", "decoupled", "hard_negatives"])
def test_weights_of_positives(name):
    """Whole weights count as that many pairs, on relations that are neither symmetric nor classes."""
    f, g, loss = embeddings(), generator(3, "weights"), make_loss(name)
    weights = torch.randint(3, (10, 10), generator=g).double().fill_diagonal_(0)
    s = torch.nn.functional.cosine_similarity(f[:, None], f[None], dim=2)

    def value(positives):
        return loss(f, positives=positives).item()

    assert value(weights) != pytest.approx(value(weights > 0))
    negatives = (weights == 0).fill_diagonal_(False)
    by_hand = [
        (loss.pairs(s[i : i + 1], torch.arange(10)[None] == j, negatives[i : i + 1]).item(), weights[i, j].item())
        for i in range(10)
        for j in range(10)
        if weights[i, j]
    ]
    assert value(weights) == pytest.approx(sum(v * w for v, w in by_hand) / sum(w for _, w in by_hand), rel=1e-9)


# ---- the sigmoid's own parameters ----


def test_sigmoid_learns_its_scale_and_bias():
    f, labels, loss = embeddings(12).detach(), torch.arange(12) // 2, make_loss("sigmoid_pairs", scale=4.0, bias=-1.0)
    assert repr(loss) == "SigmoidPairsLoss(scale=4.0, bias=-1.0, variant='corrected')"
    (group,) = loss.param_groups(0.01)
    assert group["lr"] == pytest.approx(0.1) and group["weight_decay"] == 0 and len(group["params"]) == 2
    optimizer, before = torch.optim.Adam([group]), loss(f, labels).item()
    for _ in range(30):
        optimizer.zero_grad()
        loss(f, labels).backward()
        optimizer.step()
    assert loss(f, labels).item() < before and loss.scale != 4.0 and loss.bias.item() != -1.0
    loss = loss.double()
    own = [p.detach().clone().requires_grad_() for p in (loss.log_scale, loss.bias)]
    made = lambda *p: torch.func.functional_call(loss, dict(zip(("log_scale", "bias"), p, strict=True)), (f, labels))
    assert gradcheck(made, own)


def test_gradient_of_the_sigmoids_own_parameters(worked):
    for batch in worked["batches"].values():
        f, labels = torch.tensor(batch["x"], dtype=torch.float64), torch.tensor(batch["labels"])
        loss = make_loss("sigmoid_pairs").double()
        slopes = torch.autograd.grad(loss(f, labels), (loss.log_scale, loss.bias))
        ends = [
            sigmoid_pairs(f, labels, 10 * math.exp(h), -10 + k)
            for h, k in ((1e-6, 0), (-1e-6, 0), (0, 1e-6), (0, -1e-6))
        ]
        by_hand = [(ends[0] - ends[1]) / 2e-6, (ends[2] - ends[3]) / 2e-6]
        assert [s.item() for s in slopes] == pytest.approx(by_hand, rel=1e-5)


@each("name", ["ntxent", "supcon", *NAMES])
def test_which_losses_see_only_cosines(name):
    assert isinstance(make_loss(name), PairLoss) == (name not in ("in_batch", "hyperbolic"))

"""Positives of any shape: every loss and miner that takes a matrix, against labels and against loops with weights."""

import math

import pytest
import torch
from edge_batches import CLASSES, DIM, FINITE
from grids import each
from loops import batch, dist, relu
from tiers import sample

from dmlstudy.core.random import generator
from dmlstudy.distances import unit
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.miners import MINERS, make_miner, valid_triplets

TAKING = [name for name in LOSSES if LOSSES[name].takes_positives]
TAKING.remove("quadruplet")  # from a matrix it draws other second negatives: tested by itself
TUPLE = [name for name in TAKING if LOSSES[name].uses == "triplets"]
REFUSING = [name for name in LOSSES if not (name in [*TAKING, "quadruplet"] or LOSSES[name].takes_targets)]


def graded(seed, size=9):
    """A one-sided matrix of weights, with an anchor without positives and one without negatives."""
    g = generator(seed, "positives")
    P = torch.rand(size, size, generator=g, dtype=torch.float64)
    P = P * (torch.rand(size, size, generator=g) < 0.35)
    P[3], P[5], P[5, 0] = 0, 0.5, 0.25
    return P


def value_and_slope(loss, f, **pairing):
    x = f.detach().clone().requires_grad_()
    value = loss(x, **pairing)
    return value, torch.autograd.grad(value, x)[0]


def test_which_losses_take_a_matrix():
    asks_for_pairs = """
        contrastive triplet margin snr lifted npair angular histogram multisimilarity tuplet_margin ntxent
        supcon smooth_ap recall_at_k pnp contextual supap roadmap fast_ap circle sincere decoupled
        sigmoid_pairs hard_negatives epshn hyperbolic
    """.split()
    assert {*asks_for_pairs} <= {*TAKING}
    assert {*"normalized_npair arcface proxynca proxy_anchor in_batch".split()} <= {*REFUSING}


@each("name", REFUSING)
def test_the_others_say_why(name):
    f, labels = FINITE["random"]
    with pytest.raises(ValueError, match="needs to know each image's class"):
        make_loss(name, CLASSES, DIM)(f, positives=labels[:, None] == labels)
    with pytest.raises(ValueError, match="needs to know each image's class"):
        make_loss("margin", CLASSES)(f, positives=labels[:, None] == labels)


@pytest.mark.parametrize("name", sample(TAKING, every=4))
@each("variant", ["corrected", "published"])
@each("case", FINITE)
def test_equal_labels_as_a_matrix(name, variant, case):
    """Value and gradient of labels, whether the matrix is boolean or has any constant weight, on every edge case."""
    f, labels = FINITE[case]
    same, make = labels[:, None] == labels, lambda: make_loss(name, None, DIM, variant)
    expected = value_and_slope(make(), f, labels=labels)
    for P in (same, 1.0 * same, 0.37 * same, 5000.0 * same):
        found = value_and_slope(make(), f, positives=P)
        assert found[0].dtype == expected[0].dtype
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        error, size = (x.double().norm() for x in (found[1] - expected[1], expected[1]))
        assert error <= (1e-4 if f.dtype in (torch.float32, torch.float64) else 1e-2) * size + 1e-5


# ---------------------------------------------------------------------------------------------------------------------
# loops with weights: P[i][j], 0 for a negative


def pairs(P):
    """Positives with their weights, and negatives, of each anchor."""
    others = [[j for j in range(len(P)) if j != i] for i in range(len(P))]
    return [({j: r[j] for j in js if r[j] > 0}, [j for j in js if r[j] == 0]) for r, js in zip(P, others, strict=True)]


def triplets(P):
    return [(a, p, n, w) for a, (ps, ns) in enumerate(pairs(P)) for p, w in ps.items() for n in ns]


def weighed_mean(terms, weights):
    return sum(t * w for t, w in zip(terms, weights, strict=True)) / sum(weights)


def relative(ps):
    return {p: w * len(ps) / sum(ps.values()) for p, w in ps.items()}


def contrastive(f, P):
    z, t = unit(f), triplets(P)
    return weighed_mean([relu(dist(z[a], z[p])) + relu(1 - dist(z[a], z[n])) for a, p, n, _ in t], [w for *_, w in t])


def triplet(f, P):
    z, t = unit(f), triplets(P)
    terms = [relu(dist(z[a], z[p]) ** 2 - dist(z[a], z[n]) ** 2 + 0.2) for a, p, n, _ in t]
    return weighed_mean(terms, [w for *_, w in t])


def margin(f, P):
    z, total, active = unit(f), 0.0, 0.0
    for a, p, n, w in triplets(P):
        pull, push = relu(dist(z[a], z[p]) - 1.0), relu(1.4 - dist(z[a], z[n]))
        total, active = total + w * (pull + push), active + w * float(pull > 0 or push > 0)
    return total / active


def snr(f, P):
    z, t = unit(f), triplets(P)
    ratio = lambda i, j: (z[i] - z[j]).var() / z[i].var()
    terms = [relu(ratio(a, p) - ratio(a, n) + 0.2) for a, p, n, _ in t]
    active = sum(w for x, (*_, w) in zip(terms, t, strict=True) if x > 0)
    off = weighed_mean([z[a].sum().abs() for a, *_ in t], [w for *_, w in t])
    return sum(x * w for x, (*_, w) in zip(terms, t, strict=True)) / active + 0.005 * off


def lifted(f, P):
    terms = []
    for a, (ps, ns) in enumerate(pairs(P)):
        if ps:
            far = sum(w * dist(f[a], f[p]).exp() for p, w in relative(ps).items()).log()
            terms.append(relu(far + sum((1 - dist(f[a], f[n])).exp() for n in ns).log()) if ns else 0 * f.sum())
    return sum(terms) / len(terms) + 0.005 * sum(x.norm() for x in f) / len(f)


def histogram(f, P, bins=65):
    z, h = unit(f), torch.zeros(2, bins, dtype=f.dtype)
    for i, (ps, ns) in enumerate(pairs(P)):
        for kind, js in enumerate((ps, dict.fromkeys(ns, 1.0))):
            for j, w in js.items():
                place = (z[i] @ z[j] + 1) * (bins - 1) / 2
                k = int(place)
                share = torch.zeros(bins, dtype=f.dtype)
                share[k], share[k + 1] = w, 0
                h[kind] = h[kind] + share * (1 - (place - k))
                h[kind] = h[kind] + share.roll(1) * (place - k)
    h = h / h.sum(1, keepdim=True)
    return sum(h[1, r] * h[0, : r + 1].sum() for r in range(bins))


def multisimilarity(f, P):
    z, terms = unit(f), []
    for a, (ps, ns) in enumerate(pairs(P)):
        s = z @ z[a]
        kept_n = [n for n in ns if ps and s[n] + 0.1 > min(s[p] for p in ps)]
        kept_p = {p: w for p, w in ps.items() if ns and s[p] - 0.1 < max(s[n] for n in ns)}
        if kept_p and kept_n:
            pull = torch.log(1 + sum(w * torch.exp(-2 * (s[p] - 0.5)) for p, w in relative(kept_p).items())) / 2
            terms.append(pull + torch.log(1 + sum(torch.exp(40 * (s[n] - 0.5)) for n in kept_n)) / 40)
    return sum(terms) / len(terms)


def tuplet_margin(f, P):
    z = unit(f)
    c, both = z @ z.T, pairs(P)
    listed = [(a, p, w) for a, (ps, _) in enumerate(both) for p, w in ps.items()]
    weights = [w for *_, w in listed]
    against = lambda a, p: sum(torch.exp(64 * (c[a, n] - (c[a, p].arccos() - 0.1).cos())) for n in both[a][1])
    tuplets = [torch.log(1 + 0 * c[a, p] + against(a, p)) for a, p, _ in listed]
    cp, cn = [c[a, p] for a, p, _ in listed], [c[a, n] for a, (_, ns) in enumerate(both) for n in ns]
    mean_p, mean_n = weighed_mean(cp, weights), sum(cn) / len(cn)
    spread = weighed_mean([relu(0.99 * mean_p - s) ** 2 for s in cp], weights)
    spread = spread + sum(relu(s - 1.01 * mean_n) ** 2 for s in cn) / len(cn)
    return weighed_mean(tuplets, weights) + 0.5 * spread


def ntxent(f, P):
    z, terms, weights = unit(f), [], []
    for a, (ps, ns) in enumerate(pairs(P)):
        s = z @ z[a] / 0.5
        terms += [torch.log(1 + sum((s[n] - s[p]).exp() for n in ns)) if ns else 0 * f.sum() for p in ps]
        weights += ps.values()
    return weighed_mean(terms, weights)


def supcon(f, P):
    z, terms = unit(f), []
    for a, (ps, ns) in enumerate(pairs(P)):
        s = z @ z[a] / 0.1
        if ps:
            others = sum(s[j].exp() for j in [*ps, *ns]).log()
            terms.append(others - weighed_mean([s[p] for p in ps], [*ps.values()]))
    return sum(terms) / len(terms)


LOOPS = (contrastive, triplet, margin, snr, lifted, histogram, multisimilarity, tuplet_margin, ntxent, supcon)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
@each("seed", range(3))
def test_loops_with_weights(loop, seed):
    """A one-sided matrix of weights, as it is written down: value and gradient."""
    f, P = batch(seed, scale=0.7)[0], graded(seed)
    x = f.clone().requires_grad_()
    expected = loop(x, P)
    found = value_and_slope(make_loss(loop.__name__), f, positives=P)
    torch.testing.assert_close(found[0], expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found[1], torch.autograd.grad(expected, x)[0], rtol=1e-5, atol=1e-8)


@each("name", ["npair", "angular"])
def test_one_positive_each_leaves_nothing_to_draw(name):
    """Whatever its weight, an only positive is the one that is drawn; here of other images than labels could name."""
    f, P = batch(1, size=6)[0], torch.zeros(6, 6)
    P[torch.arange(6), torch.tensor([1, 2, 3, 4, 5, 0])] = torch.rand(6, generator=generator(0, "weights")) + 0.1
    value = make_loss(name, l2_weight=0.0, **({"lam": 0.0} if name == "angular" else {}))(f, positives=P)
    terms = []
    for a in range(6):
        p = (a + 1) % 6
        terms.append(math.log(1 + sum(math.exp(f[a] @ f[n] - f[a] @ f[p]) for n in range(6) if n not in (a, p))))
    assert value.item() == pytest.approx(sum(terms) / 6, rel=1e-9)


@pytest.mark.parametrize("name", ["npair", "angular"])
def test_draws_in_proportion(name):
    """The mean over many draws is the mean over positives weighted by P."""
    f, P = batch(2, size=4)[0], torch.tensor([[0, 3, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]).double()
    loss, only = make_loss(name), []
    for p in (1, 2):
        one = torch.zeros(4, 4)
        one[0, p] = 1.0
        only.append(one)
    # with one positive known, the negatives of the anchor are the same only if the other stays no negative
    values = torch.stack([loss(f, positives=P) for _ in range(4000)])
    low, high = values.min(), values.max()
    shares = [(values - v).abs().lt(1e-9).double().mean().item() for v in (low, high)]
    assert sum(shares) == pytest.approx(1) and min(shares) == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("name", TUPLE)
def test_whole_weights_are_repeated_triplets(name):
    """A weight of 3 is the triplet listed three times; and triplets need neither labels nor a matrix."""
    for seed in range(5):
        f = batch(seed)[0]
        P = (4 * graded(seed)).ceil()
        listed = torch.tensor([t[:3] for t in triplets(P) for _ in range(int(t[3]))]).unbind(1)
        loss = make_loss(name)
        alone = value_and_slope(loss, f, triplets=listed)
        torch.testing.assert_close(value_and_slope(loss, f, positives=P), alone, rtol=1e-6, atol=1e-9)
        beside = value_and_slope(loss, f, positives=P, triplets=listed)
        torch.testing.assert_close(beside, alone, rtol=0, atol=0)


@each("seed", range(3))
@each("given", [True, False])
def test_quadruplet_by_matrix(seed, given):
    """The second negative is one of both the anchor and the negative; the weight of a positive is that of its terms."""
    f, P = batch(seed)[0], graded(seed)
    z, listed = unit(f), torch.tensor([t[:3] for t in triplets(P)]).unbind(1)
    loss, twin = (make_loss("quadruplet", margin=0.3, margin_2=0.4, seed=seed) for _ in range(2))  # draws the same
    (a, p, n), weights = (listed, torch.ones(len(listed[0]))) if given else twin.pairs(P)
    n2, found = twin.outside(P, torch.stack((a, n), 1))
    first, second = [], []
    for i, j, k, other, w, is_there in zip(*(x.tolist() for x in (a, p, n, n2, weights, found)), strict=True):
        if not w:
            continue
        assert P[i, j] > 0 and P[i, k] == 0 and i != k
        d = dist(z[i], z[j])
        first.append((w * relu(d - dist(z[i], z[k]) + 0.3), w))
        free = {m for m in range(len(P)) if P[i, m] == 0 and P[k, m] == 0} - {i, k}
        assert is_there == bool(free)
        if is_there:
            assert other in free
            second.append((w * relu(d - dist(z[k], z[other]) + 0.4), w))
    expected = sum(sum(t for t, _ in part) / sum(w for _, w in part) for part in (first, second))
    value = loss(f, positives=P, triplets=listed if given else None)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9)


def test_what_needs_labels_says_so_beside_triplets():
    f, labels = FINITE["random"]
    listed = (labels, labels, labels)
    with pytest.raises(ValueError, match=r"needs labels \(B,\)$"):
        make_loss("margin", CLASSES)(f, triplets=listed)
    with pytest.raises(ValueError, match=r"needs labels \(B,\), or positives"):
        make_loss("quadruplet")(f, triplets=listed)
    with pytest.raises(ValueError, match=r"needs labels \(B,\), or positives"):
        make_loss("triplet")(f)


# ---------------------------------------------------------------------------------------------------------------------
# miners


@pytest.mark.parametrize("name", MINERS)
def test_miners_by_matrix(name):
    """Every triplet has a positive and a negative of the matrix, and every anchor that has both can be drawn."""
    f, P = batch(0)[0], graded(0)
    seen = set()
    for seed in range(20):
        for a, p, n in zip(*(part.tolist() for part in make_miner(name, seed=seed)(f, positives=P)), strict=True):
            if name == "rho_distance" and a == p:
                assert P[a, n] > 0
            elif not (name == "distance" and a == p):  # a sample alone is its own positive
                assert a not in (p, n) and P[a, p] > 0 and P[a, n] == 0
                seen.add(a)
    assert seen == {a for a, (ps, ns) in enumerate(pairs(P)) if ps and ns}


@pytest.mark.parametrize("name", [name for name in MINERS if name not in ("all", "random")])
@each("case", FINITE)
def test_miners_draw_by_matrix_what_they_draw_by_labels(name, case):
    f, labels = FINITE[case]
    same = labels[:, None] == labels
    expected = make_miner(name)(f, labels)
    for P in (same, 0.3 * same):
        for drawn, wanted in zip(make_miner(name)(f, positives=P), expected, strict=True):
            assert torch.equal(drawn, wanted)


def test_all_triplets_by_matrix():
    for f, labels in FINITE.values():
        by_labels, by_matrix = (
            {*zip(*(part.tolist() for part in drawn), strict=True)}
            for drawn in (make_miner("all")(f, labels), make_miner("all")(f, positives=labels[:, None] == labels))
        )
        assert by_labels == by_matrix
    P = graded(1)
    every = valid_triplets(P)
    listed = {*zip(*(part.tolist() for part in every[torch.arange(len(every))]), strict=True)}
    assert listed == {t[:3] for t in triplets(P)} and len(listed) == len(every)


@pytest.mark.parametrize("name", ["semihard", "softhard", "distance"])
def test_miners_draw_in_proportion(name):
    """Of two positives equally far one has three quarters of the weight, and of the draws."""
    f = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, -1, 0], [1, 0, 1]])
    P = torch.tensor([[0, 3e-3, 1e-3, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    miner, drawn = make_miner(name, **({"singletons": "drop"} if name == "distance" else {})), []
    for _ in range(2000):
        a, p, _ = miner(f, positives=P)
        drawn += p[a == 0].tolist()
    assert len(drawn) == 2000 and drawn.count(1) / 2000 == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("name", ["softmax", "proxynca_pp", "cross_entropy"])
def test_a_softmax_takes_rows_of_targets(name):
    """One label each as rows: value and gradients of labels; grades: the mean over their labels."""
    g = generator(0, "targets")
    f, labels = torch.randn(7, 5, generator=g, dtype=torch.float64), torch.randint(4, (7,), generator=g)
    loss, rows = make_loss(name, 4, 5).double(), torch.nn.functional.one_hot(labels, 4)
    expected = value_and_slope(loss, f, labels=labels)
    for targets in (rows.bool(), 0.2 * rows):
        torch.testing.assert_close(value_and_slope(loss, f, positives=targets), expected)
    grades = torch.rand(7, 4, generator=g, dtype=torch.float64)
    each = torch.stack([torch.stack([loss(f[i : i + 1], torch.tensor([c])) for c in range(4)]) for i in range(7)])
    torch.testing.assert_close(loss(f, positives=grades), (each * grades / grades.sum(1, keepdim=True)).sum(1).mean())
    nothing = loss(f.requires_grad_(), positives=torch.zeros(7, 4))
    assert nothing == 0 and not torch.autograd.grad(nothing, f)[0].any()
    with pytest.raises(ValueError, match=r"must have shape \(7, 4\)"):
        loss(f, positives=torch.eye(7))


def test_weights_that_overflow_the_embeddings_type_are_refused():
    """They would be infinite, and some losses a number all the same."""
    weights = 1e200 * torch.eye(6).roll(1, 1).double()
    with pytest.raises(ValueError, match="weights of positives must be finite"):
        make_loss("supcon")(torch.randn(6, 4), positives=weights)
    make_loss("supcon")(torch.randn(6, 4).double(), positives=weights)


def test_weights_that_vanish_in_the_embeddings_type_are_refused():
    """They would make negatives of positives; as long as they are held, a constant factor changes nothing."""
    f, labels = FINITE["random"]
    same = (labels[:, None] == labels).double()
    for call in (make_loss("supcon"), make_miner("distance")):
        with pytest.raises(ValueError, match="finite and at least 0, in torch.float32, too"):
            call(f.half(), positives=1e-60 * same)
    for x, factor in ((f, 1e-30), (f.half(), 1e-30), (f.double(), 1e-60)):
        values = (make_loss("supcon")(x, positives=weights) for weights in (same, factor * same))
        torch.testing.assert_close(*values, rtol=1e-5, atol=0)

"""Miners: valid on any batch, drawn as their definitions say, reproducible, and without a wait for the device."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from grids import each
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from dmlstudy.core.random import generator
from dmlstudy.distances import distances, pair_masks, unit
from dmlstudy.miners import (
    MINERS,
    AllTriplets,
    DistanceMiner,
    distinct_ranks,
    draw_columns,
    make_miner,
    next_negatives,
    uniforms,
)

CASES = {
    "random": ("random", {}),
    "semihard": ("semihard", {}),
    "nearest": ("semihard", {"rule": "nearest"}),
    "softhard": ("softhard", {}),
    "distance": ("distance", {}),
    "distance_paper": ("distance", {"upper_cutoff": 1.4, "weight_cap": 0.5}),
    "distance_drop": ("distance", {"singletons": "drop"}),
    "rho_distance": ("rho_distance", {"p_switch": 0.4}),
    "rho_self": ("rho_distance", {"p_switch": 0.4, "singletons": "self"}),
    "all": ("all", {}),
}
cases = pytest.mark.parametrize("case", CASES)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make(case):
    name, hyperparameters = CASES[case]
    return make_miner(name, **hyperparameters)


def random_batch(g, largest=20):
    """A batch of random size, dimension, classes and geometry, odd ones among them."""
    draw = lambda low, high: int(torch.randint(low, high, (), generator=g))
    b, dim, kind = draw(1, largest), (1, 2, 3, 16, 300)[draw(0, 5)], draw(0, 7)
    labels = torch.randint(draw(1, 8), (b,), generator=g) * 7 - 9
    f = torch.randn(b, dim, generator=g)
    sign = torch.randint(2, (b, 1), generator=g) * 2.0 - 1
    odd = (f, f * 1e4, torch.zeros_like(f), torch.ones_like(f), sign * f[:1], f * (sign > 0), f[torch.zeros(b).long()])
    return odd[kind], labels


def loop_triplets(labels):
    """All valid triplets by three nested loops."""
    y = labels.tolist()
    r = range(len(y))
    return {(a, p, n) for a in r for p in r if a != p and y[a] == y[p] for n in r if y[n] != y[a]}


def as_set(triplets):
    return set(zip(*(part.tolist() for part in triplets), strict=True))


@cases
def test_triplets_are_valid_on_any_batch(case):
    g, miner = generator(1, case), make(case)
    for _ in range(200):
        f, labels = random_batch(g)
        a, p, n = triplets = miner(f, labels, g)
        assert [(part.dtype, part.shape) for part in triplets] == [(torch.int64, a.shape)] * 3
        if len(a):
            assert 0 <= int(torch.stack(triplets).min()) <= int(torch.stack(triplets).max()) < len(f)
        assert (labels[a] == labels[p]).all() and (a != n).all()
        positives, negatives = pair_masks(labels)
        alone, switched = ~positives.any(1)[a], labels[a] == labels[n]
        assert not switched.any() or (case.startswith("rho") and (a == p)[switched].all())
        assert ((a != p) | switched | (alone if case in ("distance", "distance_paper", "rho_self") else False)).all()
        has_n, has_both = negatives.any(1), positives.any(1) & negatives.any(1)
        if case in ("distance", "distance_paper", "rho_self"):
            assert a.tolist() == has_n.nonzero()[:, 0].tolist()
        elif case in ("semihard", "softhard", "distance_drop", "rho_distance"):
            assert a.tolist() == has_both.nonzero()[:, 0].tolist()
        elif case == "nearest":
            assert torch.stack([a, p], 1).tolist() == (positives & negatives.any(1, keepdim=True)).nonzero().tolist()
        elif case == "random":
            assert len(a) == (len(f) if has_both.any() else 0)
        else:
            assert as_set(triplets) == loop_triplets(labels) and len(a) == len(as_set(triplets))


@cases
@each("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_all_widths(case, dtype):
    f, labels = torch.randn(24, 8, generator=generator(2)).to(dtype), torch.arange(24) // 3
    exact = make(case)(f.double(), labels)
    for part, same in zip(
        make(case)(f, labels), make(case)(f.float() if dtype.itemsize < 4 else f, labels), strict=True
    ):
        assert torch.equal(part, same)
    assert [len(part) for part in exact] == [len(part)] * 3


@cases
def test_same_generator_same_triplets_and_the_global_one_is_not_touched(case):
    f, labels = torch.randn(24, 8, generator=generator(3)), torch.arange(24) // 3
    state, miner, again = torch.get_rng_state(), make(case), make(case)
    first, second = miner(f, labels), miner(f, labels)
    torch.manual_seed(5)
    assert torch.equal(torch.stack(again(f, labels)), torch.stack(first))
    assert torch.equal(torch.stack(again(f, labels)), torch.stack(second))
    torch.set_rng_state(state)
    handed = [torch.stack(miner(f, labels, generator(9))) for _ in range(2)]
    assert torch.equal(*handed)
    assert torch.equal(torch.get_rng_state(), state)
    assert case in ("nearest", "all") or not torch.equal(torch.stack(first), torch.stack(second))


@cases
def test_autograd_autocast_and_scale_do_not_matter(case):
    f, labels = torch.randn(24, 8, generator=generator(4), dtype=torch.float64), torch.arange(24) // 3
    plain = torch.stack(make(case)(f, labels))
    assert torch.equal(torch.stack(make(case)(7.3 * f, labels)), plain)
    assert torch.equal(torch.stack(make(case)(f.clone().requires_grad_(), labels)), plain)
    single = torch.stack(make(case)(f.float(), labels))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(torch.stack(make(case)(f.float(), labels)), single)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert torch.equal(torch.stack(make(case)(f, labels.to(dtype))), plain)


@each("case", CASES)
def test_mistakes_are_named(case):
    f, labels = torch.randn(6, 8, generator=generator(5)), torch.arange(6) // 2
    with pytest.raises(ValueError, match=r"labels must have shape \(6,\)"):
        make(case)(f, labels[:5])
    with pytest.raises(ValueError, match="use labels.long"):
        make(case)(f, labels.float())
    with pytest.raises(ValueError, match=r"shape \(B, D\)"):
        make(case)(f[0], labels)


class Operations(TorchDispatchMode):
    """Records every operation, and whether a new tensor was told its device."""

    WAITS = {"nonzero", "_local_scalar_dense", "masked_select", "is_nonzero", "equal", "unique_consecutive", "_unique2"}
    MAKES = {
        "arange",
        "eye",
        "zeros",
        "ones",
        "empty",
        "full",
        "rand",
        "randint",
        "randperm",
        "scalar_tensor",
        "tensor",
    }

    def __init__(self):
        super().__init__()
        self.waits, self.placeless = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.waits += [name] if name in self.WAITS or by_mask else []
        self.placeless += [name] if name in self.MAKES and kwargs.get("device") is None else []
        return function(*args, **kwargs)


@cases
def test_new_tensors_are_told_their_device(case):
    f, labels = torch.randn(24, 8, generator=generator(6)), torch.arange(24) // 3
    with Operations() as seen:
        make(case)(f, labels, generator(6))
    assert seen.placeless == []


@each("options", [{}, {"upper_cutoff": 1.4, "weight_cap": 0.5}])
def test_distance_miner_waits_for_nothing(options, monkeypatch):
    monkeypatch.setattr(
        torch.compiler, "is_compiling", lambda: True
    )  # as on a GPU: only on the CPU is a norm looked at
    f, labels, miner = torch.randn(24, 8, generator=generator(7)), torch.arange(24) // 3, DistanceMiner(**options)
    with Operations() as seen:
        miner.draw(f, labels, uniforms(f, generator(7)))
    assert seen.waits == []
    with Operations() as seen:
        DistanceMiner(singletons="drop")(f, labels)
    assert "nonzero" in seen.waits


# ---- what is drawn ----


def chosen(case, f, labels, anchor, draws):
    """Counts of (positive, negative) of one anchor."""
    miner, found = make(case), Counter()
    for _ in range(draws):
        a, p, n = miner(f, labels)
        found.update((i, j) for k, i, j in zip(a.tolist(), p.tolist(), n.tolist(), strict=True) if k == anchor)
    return found


def fits(counts, weights):
    """Chi-square p-value of counts against weights; what has no weight must have no count."""
    weights = [w / sum(weights) for w in weights]
    assert all(c == 0 for c, w in zip(counts, weights, strict=True) if w == 0)
    total = sum(counts)
    pairs = [(c, w * total) for c, w in zip(counts, weights, strict=True) if w * total >= 5]
    rest = total - sum(c for c, _ in pairs), total - sum(e for _, e in pairs)
    statistic = sum((c - e) ** 2 / e for c, e in pairs) + ((rest[0] - rest[1]) ** 2 / rest[1] if rest[1] > 1e-6 else 0)
    return stats.chi2.sf(statistic, len(pairs) - 1 + (rest[1] > 1e-6)) if len(pairs) > 1 else 1.0


def analytic(f, labels, anchor, upper=None, cap=None):
    """The distance miner's weights in plain Python, from the formula."""
    z, dim = unit(f.double()).tolist(), f.shape[1]
    log_z = math.log(math.sqrt(math.pi)) + math.lgamma((dim - 1) / 2) - math.lgamma(dim / 2)  # by duplication
    logs = {}
    for j, y in enumerate(labels.tolist()):
        d = max(math.dist(z[anchor], z[j]), 0.5)
        if y != labels[anchor] and (upper is None or math.dist(z[anchor], z[j]) <= upper):
            logs[j] = log_z - (dim - 2) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4)
            logs[j] = min(logs[j], math.log(cap)) if cap else logs[j]
    return [math.exp(logs[j] - max(logs.values())) if j in logs else 0.0 for j in range(len(labels))]


@each("dim", [2, 64])
@each("options", [{}, {"upper_cutoff": 1.4}, {"weight_cap": 0.5}])
def test_negatives_follow_the_analytic_weights(dim, options):
    g = generator(11, dim)
    f = torch.randn(3, dim, generator=g).repeat_interleave(4, 0) + 1.2 * torch.randn(12, dim, generator=g)
    labels, miner, found = torch.arange(12) % 6, DistanceMiner(**options), Counter()
    expected = analytic(f, labels, 0, options.get("upper_cutoff"), options.get("weight_cap"))
    ours = miner.weights(f.double(), pair_masks(labels)[1])[0]
    assert torch.allclose(ours, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-9)
    for _ in range(1500):
        found[int(miner(f, labels)[2][0])] += 1
    assert fits([found[j] for j in range(12)], expected) > 1e-4


@each("dim", [2, 3, 4])
def test_drawn_distances_are_spread_evenly(dim):
    g = generator(12, dim)
    f, found = torch.randn(500, dim, generator=g), []
    for _ in range(20):
        a, _, n = DistanceMiner()(f, torch.arange(500), g)
        found.append((unit(f)[a] - unit(f)[n]).norm(dim=1))
    found = torch.cat(found)
    counts = found[found > 0.5].histc(5, 0.5, 2)
    assert (counts / counts.mean() - 1).abs().max() < 0.1


@pytest.mark.parametrize("case", ["distance", "rho_self", "semihard"])
def test_positives_are_uniform(case):
    f, labels = torch.randn(9, 4, generator=generator(13)), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2])
    found = Counter()
    for (p, n), count in chosen(case, f, labels, 0, 2000).items():
        found[p if p else n] += count
    assert fits([found[j] for j in range(9)], [0, 1, 1, 1, 1, 0, 0, 0, 0]) > 1e-4


@each("labels, n_triplets", [([0, 0, 1, 1, 2], None), ([0, 0, 0, 1, 1, 2, 2, 2], 4), ([0, 0, 1], 5)])
def test_random_is_uniform_over_all_triplets(labels, n_triplets):
    labels, miner, found = torch.tensor(labels), make_miner("random", n_triplets=n_triplets), Counter()
    valid = sorted(loop_triplets(labels))
    for _ in range(2000):
        triplets = miner(torch.zeros(len(labels), 2), labels)
        assert len(triplets[0]) == (n_triplets or len(labels))
        assert len(triplets[0]) > len(valid) or len(as_set(triplets)) == len(triplets[0])
        found.update(as_set(triplets))
    if len(triplets[0]) <= len(valid):
        assert fits([found[t] for t in valid], [1] * len(valid)) > 1e-4
    assert set(found) == set(valid)


@each("total, size", [(9, 7), (9, 9), (200, 3), (10**15, 1000), (5, 0)])
def test_distinct_ranks(total, size):
    g = generator(14, total)
    ranks = distinct_ranks(total, size, g)
    assert len(ranks.unique()) == len(ranks) == size
    if total == 200:
        found = Counter(torch.cat([distinct_ranks(200, 3, g) for _ in range(4000)]).tolist())
        assert fits([found[j] for j in range(200)], [1] * 200) > 1e-4


def test_all_triplets_of_large_batches_are_never_listed():
    labels = torch.arange(6000) % 3
    every = AllTriplets(labels)
    assert len(every) == 6000 * 1999 * 4000
    a, p, n = every[torch.tensor([0, len(every) - 1, len(every) // 2])]
    assert a[0] == 0 and a[1] == 5999 and (labels[a] == labels[p]).all() and (labels[a] != labels[n]).all()
    with pytest.raises(ValueError, match="47,976,000,000 triplets, more than limit=2,000,000"):
        make_miner("all")(torch.zeros(6000, 1), labels)
    a, p, n = make_miner("random")(torch.zeros(6000, 1), labels)
    assert len(a) == 6000 and (labels[a] == labels[p]).all() and (labels[a] != labels[n]).all()


def test_draw_columns_is_exact_at_the_ends():
    weights = torch.zeros(4, 300, dtype=torch.int64)
    weights[:, 7], weights[:, 290] = 1, 2**40
    weights[2:, 0] = 3
    u = torch.tensor([0.0, 1 - 2**-53, 0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw_columns(weights, u)[0].tolist() == [7, 290, 0, 290]


def naive_sets(f, labels, case, anchor):
    """The pairs (positive, negative) that a miner may choose for an anchor, by loops."""
    z, y = unit(f.double()), labels.tolist()
    d = (z[:, None] - z[None]).norm(dim=2).tolist()[anchor]
    pos = [j for j in range(len(y)) if y[j] == y[anchor] and j != anchor]
    neg = [j for j in range(len(y)) if y[j] != y[anchor]]
    if case == "softhard":
        some_n = [n for n in neg if d[n] < max(d[p] for p in pos)] or neg
        some_p = [p for p in pos if d[p] > min(d[n] for n in neg)] or pos
        return {(p, n): 1 / len(some_n) / len(some_p) for p in some_p for n in some_n}
    if case == "nearest":
        farther = lambda p: [n for n in neg if d[n] > d[p]]
        pick = lambda p: min(farther(p), key=d.__getitem__) if farther(p) else max(neg, key=d.__getitem__)
        return {(p, pick(p)): 1.0 for p in pos}
    window = {p: [n for n in neg if d[p] < d[n] < d[p] + 0.2] or neg for p in pos}
    return {(p, n): 1 / len(pos) / len(window[p]) for p in pos for n in window[p]}


@pytest.mark.parametrize("case", ["softhard", "semihard", "nearest"])
@each("spread", [0.3, 0.8, 2.0])
def test_hardness_rules_against_loops(case, spread):
    g = generator(15, case)
    for trial in range(4):
        f = torch.randn(4, 3, generator=g).repeat_interleave(3, 0) + spread * torch.randn(12, 3, generator=g)
        labels = torch.arange(12) // 3
        expected = naive_sets(f, labels, case, trial)
        found = chosen(case, f, labels, trial, 1 if case == "nearest" else 400)
        assert set(found) <= set(expected)
        assert fits([found[k] for k in expected], list(expected.values())) > 1e-5


def test_nearest_rule_on_many_batches():
    g, miner = generator(16), make("nearest")
    for _ in range(150):
        f, labels = torch.randn(14, 3, generator=g, dtype=torch.float64), torch.randint(5, (14,), generator=g)
        a, p, n = miner(f, labels)
        expected = {(i, j, k) for i in range(14) for j, k in naive_sets(f, labels, "nearest", i)}
        assert as_set((a, p, n)) == expected
        assert torch.equal(next_negatives(distances(unit(f)), pair_masks(labels)[1], a, p, few=0), n)


def test_nearest_rule_with_large_classes():
    f, labels = torch.randn(60, 3, generator=generator(25), dtype=torch.float64), torch.arange(60) % 3
    expected = {(i, j, k) for i in range(60) for j, k in naive_sets(f, labels, "nearest", i)}
    assert as_set(make("nearest")(f, labels)) == expected and len(expected) == 60 * 19


def test_a_negative_as_far_as_the_positive_is_not_farther():
    line, labels = torch.tensor([[0.0], [1.0], [-1.0], [2.0]]), torch.tensor([0, 0, 1, 2])
    d, negatives, a = (line - line.T).abs(), pair_masks(labels)[1], torch.arange(2)
    assert next_negatives(d, negatives, a, 1 - a, few=0).tolist() == [3, 2]
    assert make_miner("semihard", rule="nearest", normalize=False)(line, labels)[2].tolist() == [3, 2]
    window = make_miner("semihard", normalize=False, margin=1.5)
    assert {int(window(line, labels)[2][0]) for _ in range(30)} == {3}
    softhard = make_miner("softhard", normalize=False)
    assert {int(softhard(line[[0, 1, 2]], labels[[0, 1, 2]])[2][0]) for _ in range(9)} == {2}
    assert {int(softhard(line, labels)[2][0]) for _ in range(30)} == {2, 3}


@each("few", [0, 8])
def test_of_equally_far_negatives_the_first_is_taken(few):
    line, labels = torch.tensor([[0.0], [9.0], [3.0], [-3.0], [1.0]]), torch.tensor([0, 0, 1, 2, 3])
    d, a = (line - line.T).abs(), torch.arange(1)
    assert next_negatives(d, pair_masks(labels)[1], a, a + 1, few=few).tolist() == [2]


@pytest.mark.parametrize("case", MINERS)
@each("dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64])
def test_labels_of_any_integer_type(case, dtype):
    f, labels = torch.randn(12, 5, generator=generator(26)), torch.arange(12) // 3
    expected = make_miner(case)(f, labels, generator(27))
    assert all(
        torch.equal(x, y) for x, y in zip(make_miner(case)(f, labels.to(dtype), generator(27)), expected, strict=True)
    )


def test_what_a_miner_cannot_use_is_named():
    f, labels = torch.randn(12, 5, generator=generator(26)), torch.arange(12) // 3
    for wrong in (0, np.random.default_rng(0)):
        with pytest.raises(ValueError, match="draws from a torch.Generator"):
            make_miner("distance")(f, labels, wrong)
    with pytest.raises(ValueError, match="n_triplets of the RandomMiner must be.*got -1"):
        make_miner("random", n_triplets=-1)
    for margin in (0, -1, math.nan):
        with pytest.raises(ValueError, match="margin of the SemihardMiner must be a number, above 0"):
            make_miner("semihard", margin=margin)


# ---- rho_distance ----


def test_without_switching_it_is_the_distance_miner_batch_after_batch():
    g = generator(17)
    base, rho = make_miner("distance", seed=3), make_miner("rho_distance", p_switch=0.0, seed=3)
    for _ in range(300):
        f, labels = torch.randn(12, 5, generator=g), torch.arange(12) // int(torch.randint(2, 5, (), generator=g)) % 4
        if pair_masks(labels)[0].any(1).all():
            assert torch.equal(torch.stack(rho(f, labels)), torch.stack(base(f, labels)))


@each("p_switch", [0.0, 0.15, 0.4, 1.0])
def test_share_of_switched_tuples(p_switch):
    f, labels = torch.randn(200, 8, generator=generator(18)), torch.arange(200) // 2
    base, rho, switched = DistanceMiner(seed=1), make_miner("rho_distance", p_switch=p_switch, seed=1), 0
    for _ in range(50):
        (a, p, n), (_, base_p, base_n) = rho(f, labels), base(f, labels)
        same = labels[a] == labels[n]
        assert torch.equal(p, torch.where(same, a, base_p)) and torch.equal(n, torch.where(same, base_p, base_n))
        switched += int(same.sum())
    assert stats.binomtest(switched, 200 * 50, p_switch).pvalue > 1e-3


def test_the_switch_is_independent_of_the_tuple():
    f, labels = torch.randn(8, 3, generator=generator(24)), torch.arange(8) % 4
    f, labels = torch.cat([f, f[:2] + 0.3]), torch.cat([labels, labels[:2]])
    miner, found = make_miner("rho_distance", p_switch=0.5), [Counter(), Counter()]
    for _ in range(4000):
        _, p, n = miner(f, labels)
        found[int(labels[n[0]] == labels[0])][int(n[0])] += 1
    assert fits([found[0][j] for j in range(10)], analytic(f, labels, 0)) > 1e-4
    assert fits([found[1][j] for j in range(10)], [float(j in (4, 8)) for j in range(10)]) > 1e-4


def test_singletons():
    f, labels = torch.randn(5, 4, generator=generator(19)), torch.tensor([0, 0, 1, 2, 2])
    a, p, _ = make_miner("distance")(f, labels)
    assert a.tolist() == list(range(5)) and p.tolist() == [1, 0, 2, 4, 3]
    for name in ("distance", "rho_distance"):
        assert make_miner(name, singletons="drop")(f, labels)[0].tolist() == [0, 1, 3, 4]
    a, p, n = make_miner("rho_distance", singletons="self", p_switch=1.0)(f, labels)
    assert p.tolist() == a.tolist() and n[[0, 1, 3, 4]].tolist() == [1, 0, 4, 3] and labels[n[2]] != 1


def test_a_single_class_has_no_triplet():
    f, labels = torch.randn(5, 4, generator=generator(20)), torch.zeros(5, dtype=torch.int64)
    for case in CASES:
        assert [len(part) for part in make(case)(f, labels)] == [0, 0, 0]
    p, n, _, has_n = DistanceMiner().draw(f, labels, uniforms(f, generator(20)))
    assert p.tolist() == n.tolist() == list(range(5)) and not has_n.any()


@each("dim", [2, 3, 128, 2048])
def test_weights_are_finite_at_every_distance(dim):
    angle = torch.cat([torch.logspace(-8, 0.49, 40), torch.tensor([0.0, math.pi])])
    f = torch.zeros(42, dim)
    f[:, 0], f[:, 1] = angle.cos(), angle.sin()
    for options in ({}, {"upper_cutoff": 1.4}, {"weight_cap": 0.5}, {"upper_cutoff": 1e-9}, {"normalize": False}):
        for scale in (1.0, 1e-20, 1e15):
            w = DistanceMiner(**options).weights(scale * f, pair_masks(torch.arange(42))[1])
            assert w.isfinite().all() and (w.amax(1) == 1).all() and (w.diagonal() == 0).all()


# ---- names and other libraries ----


def test_names():
    assert set(MINERS) == {"random", "semihard", "softhard", "distance", "rho_distance", "all"}
    for name, kind in MINERS.items():
        assert type(make_miner(name, seed=3)) is kind
    with pytest.raises(ValueError, match="Did you mean 'semihard'"):
        make_miner("semi_hard")
    with pytest.raises(ValueError, match="Did you mean 'margin'"):
        make_miner("semihard", margn=0.1)
    for wrong in ({"lower_cutoff": 0.0}, {"upper_cutoff": -1.0}, {"weight_cap": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_miner("distance", **wrong)


def test_triplets_pass_to_and_fro():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    f, labels = torch.randn(24, 8, generator=generator(21), requires_grad=True), torch.arange(24) // 3
    for case in CASES:
        loss = losses.TripletMarginLoss(margin=0.2)(f, labels, make(case)(f, labels))
        assert loss.isfinite() and torch.autograd.grad(loss, f)[0].isfinite().all()
    a, p, n = make("all")(f, labels)
    d_ap, d_an = ((unit(f)[a] - unit(f)[j]).norm(dim=1) for j in (p, n))
    hard = d_an - d_ap <= 0.2
    theirs = miners.TripletMarginMiner(margin=0.2, type_of_triplets="all")(f, labels)
    assert as_set(theirs) == as_set((a[hard], p[hard], n[hard]))
    assert [part.dtype for part in theirs] == [part.dtype for part in (a, p, n)]


@pytest.mark.parametrize("case", [pytest.param(case, marks=gpu) for case in CASES])
def test_on_a_gpu(case):
    f, labels = torch.randn(24, 8, generator=generator(22), dtype=torch.float64), torch.arange(24) // 3
    there = make(case)(f.cuda(), labels.cuda(), generator(22))
    assert all(part.is_cuda for part in there)
    assert torch.equal(torch.stack(there).cpu(), torch.stack(make(case)(f, labels, generator(22))))
    assert len(make(case)(f.cuda(), labels.cuda())[0]) == len(there[0])


@pytest.mark.parametrize("case", [pytest.param(case, marks=gpu) for case in ("distance", "distance_paper", "rho_self")])
def test_no_wait_on_a_gpu(case):
    f, labels, miner = (
        torch.randn(24, 8, generator=generator(23)).cuda(),
        torch.arange(24, device="cuda") // 3,
        make(case),
    )
    miner(f, labels)
    try:
        torch.cuda.set_sync_debug_mode("error")
        miner(f, labels), miner(f, labels, generator(23))
    finally:
        torch.cuda.set_sync_debug_mode("default")

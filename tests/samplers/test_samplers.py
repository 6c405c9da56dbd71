"""Batch samplers: against closed forms and other libraries, and equal batches wherever they are drawn."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance
import scipy.stats
import torch
from grids import each
from torch.utils.data import DataLoader, TensorDataset

from dmlstudy.core.random import generator
from dmlstudy.distances import distances, unit
from dmlstudy.samplers import SAMPLERS, make_sampler
from dmlstudy.samplers.by_class import ImagesByClass
from dmlstudy.samplers.coreset import MemoryBank, d2_points, farthest_points, log_density
from dmlstudy.samplers.distribution import distance_histograms, frechet_distances, heights_wasserstein, wasserstein

BY_LABEL = {"spc": [{}, {"replacement": False}], "spc_r": [{}], "shuffle": [{}]}
BY_EMBEDDING = {name: [{"variant": "corrected"}, {"variant": "published"}] for name in ("gc", "ddm", "frd", "d2")}
ALL = BY_LABEL | BY_EMBEDDING
every_sampler = pytest.mark.parametrize("name", ALL)
by_embedding = pytest.mark.parametrize("name", BY_EMBEDDING)
every_variant = each("more", lambda name: ALL[name])
N, C, B, DIM = 240, 12, 24, 6
LABELS = torch.arange(N) % C


def embeddings(n=N, dim=DIM, seed=0):
    g = generator(seed, "test embeddings")
    centres = 2 * torch.randn(C, dim, generator=g)
    return unit(centres[torch.arange(n) % C] + torch.randn(n, dim, generator=g))


def make(name, more, **extra):
    if name in BY_LABEL:
        return make_sampler(name, LABELS, B, **more, **extra)
    sampler = make_sampler(name, LABELS, B, dim=DIM, **{"big_batch": 96} | more, **extra)
    sampler.bank.fill(embeddings())
    return sampler


def random_labels(g):
    "Unequal classes, labels that are neither dense nor sorted"
    counts = torch.randint(1, 12, (int(torch.randint(3, 30, (), generator=g)),), generator=g)
    labels = (7 * torch.arange(len(counts)) - 5).repeat_interleave(counts)
    return labels[torch.randperm(len(labels), generator=g)]


# what every sampler does


@every_sampler
@every_variant
def test_pass_is_the_epoch_and_the_next_pass_the_next(name, more):
    sampler = make(name, more)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(second) == len(sampler) == N // B
    assert all(len(i) == B and 0 <= min(i) and max(i) < N for i in first + second)
    assert first == [make(name, more).batch(0, i).tolist() for i in range(len(sampler))]
    assert second == [make(name, more).batch(1, i).tolist() for i in range(len(sampler))]
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(make(name, more, seed=1)) != first


@every_sampler
@every_variant
def test_global_random_state_is_neither_read_nor_written(name, more):
    torch.manual_seed(1)
    before, first = torch.get_rng_state(), make(name, more).batch(0, 0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(make(name, more).batch(0, 0), first)


@each("workers", [2, 4])
def test_loader_workers_make_no_difference(workers):
    data = TensorDataset(torch.arange(N))
    for name, more in [("spc", {}), ("frd", {})]:
        sampler, expected = make(name, more), list(make(name, more))
        loaded = [i.tolist() for (i,) in DataLoader(data, batch_sampler=sampler, num_workers=workers)]
        assert loaded == expected


@every_sampler
@every_variant
@each("done", [1, 4, N // B])
def test_resume(name, more, done):
    sampler, whole = make(name, more), make(name, more)
    sampler.set_epoch(3), whole.set_epoch(3)
    expected = list(whole) + list(whole)
    passing = iter(sampler)
    assert [next(passing) for _ in range(done)] == expected[:done]
    resumed = make(name, more)
    if resumed.bank is not None:
        resumed.bank.fill(torch.zeros(N, DIM))
    resumed.load_state_dict(sampler.state_dict())
    rest = list(resumed) + (list(resumed) if done < N // B else [])
    assert rest == expected[done:]


def test_state_for_a_loader_that_asks_ahead():
    sampler, data = make("spc", {}), TensorDataset(torch.arange(N))
    used = []
    for (i,) in DataLoader(data, batch_sampler=sampler, num_workers=2, prefetch_factor=4):
        used.append(i.tolist())
        if len(used) == 3:
            state = sampler.state_dict(batch=3)
            break
    resumed = make("spc", {})
    resumed.load_state_dict(state)
    assert used + list(resumed) == list(make("spc", {}))


@pytest.mark.slow
def test_other_process_draws_the_same():
    code = (
        "import pickle, sys; from dmlstudy.samplers import make_sampler\n"
        "for name, state, more in pickle.load(sys.stdin.buffer):\n"
        f"    sampler = make_sampler(name, [i % {C} for i in range({N})], {B}, **more)\n"
        "    sampler.load_state_dict(state)\n"
        "    print(list(sampler))\n"
    )
    every = [(name, more) for name, variants in ALL.items() for more in variants]
    samplers = [make(name, more) for name, more in every]
    jobs = [
        (name, sampler.state_dict(), more if sampler.bank is None else more | {"dim": DIM, "big_batch": 96})
        for (name, more), sampler in zip(every, samplers, strict=True)
    ]
    out = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(jobs), capture_output=True, check=True)
    assert out.stdout.decode().splitlines() == [str(list(s)) for s in samplers]


@every_sampler
@every_variant
def test_labels_of_any_value_type_and_order(name, more):
    permuted = torch.randperm(C, generator=generator(0, "names")) * 13 - 20
    names = permuted[LABELS]
    extra = {} if name in BY_LABEL else {"dim": DIM, "big_batch": 96}
    for labels in (names, names.int(), names.numpy(), names.tolist()):
        sampler = make_sampler(name, labels, B, **more, **extra)
        if sampler.bank is not None:
            sampler.bank.fill(embeddings())
        i = sampler.batch(0, 0)
        assert i.dtype == torch.int64 and i.device.type == "cpu"
        if name not in ("spc_r", "shuffle"):
            assert torch.equal(names[i[::2]], names[i[1::2]])


# by label


def test_draws_have_the_right_class_and_are_different_where_asked():
    for seed in range(200):
        g = generator(seed, "draws")
        labels = random_labels(g)
        by_class = ImagesByClass(labels)
        classes, n = torch.randint(len(by_class.names), (9,), generator=g), int(torch.randint(1, 6, (), generator=g))
        for draw in (by_class.draw, by_class.draw_different):
            i = draw(classes, n, g)
            assert torch.equal(labels[i], by_class.names[classes][:, None].expand(9, n))
        distinct = torch.tensor([len(set(row)) for row in i.tolist()])
        enough = by_class.counts[classes] >= n
        assert (distinct[enough] == n).all()


@each("draw", ["draw", "draw_different"])
def test_draws_are_uniform_in_every_place(draw):
    by_class = ImagesByClass([0] * 5 + [1] * 3)
    i = getattr(by_class, draw)(torch.zeros(20000, dtype=torch.int64), 3, generator(0, "uniform"))
    for place in range(3):
        assert scipy.stats.chisquare(i[:, place].bincount(minlength=5)).pvalue > 1e-4
    pairs = (5 * i[:, 0] + i[:, 1]).bincount(minlength=25).view(5, 5)
    if draw == "draw_different":
        assert not pairs.diagonal().any()
        pairs = pairs[~torch.eye(5, dtype=torch.bool)]
    assert scipy.stats.chisquare(pairs.flatten()).pvalue > 1e-4


@each("n", [2, 4, 8])
@each("shape", [(5864, 100), (59551, 11318)])
def test_closed_forms(shape, n):
    labels = torch.arange(shape[0]) % shape[1]
    with warnings.catch_warnings(action="ignore"):
        sampler = make_sampler("spc", labels, 112, samples_per_class=n)
        unique = make_sampler("spc", labels, 112, samples_per_class=n, replacement=False)
    batches = torch.stack([sampler.batch(0, i) for i in range(200)])
    classes = torch.tensor([float(len(labels[i].unique())) for i in batches])
    expected = shape[1] * (1 - (1 - 1 / shape[1]) ** (112 / n))
    assert abs(classes.mean() - expected) < 5 * (classes.std() / 200**0.5 + 0.01)
    pairs = batches.view(200, -1, n)
    own = (pairs[:, :, 0] == pairs[:, :, 1]).double()
    p = (1 / sampler.by_class.counts.double()).mean().item()
    assert abs(own.mean() - p) < 5 * (p / own.numel()) ** 0.5
    for i in range(20):
        drawn = unique.batch(0, i)
        assert len(labels[drawn].unique()) == 112 // n
        if shape[1] == 100:
            assert len(drawn.unique()) == 112


def test_spc_r_draws_classes_not_images():
    labels = torch.tensor([0] * 90 + [1] * 10)
    drawn = torch.cat([make_sampler("spc_r", labels, 20).batch(0, i)[:-1] for i in range(300)])
    assert abs((labels[drawn] == 1).double().mean() - 0.5) < 5 * 0.5 / len(drawn) ** 0.5
    many = torch.arange(5000)  # every image its own class: the partner can only be the image itself
    for i in range(50):
        batch = make_sampler("spc_r", many, 20).batch(0, i)
        assert batch[-1] in batch[:-1]
    batches = [make_sampler("spc_r", many, 20).batch(0, i).tolist() for i in range(400)]
    seen = np.bincount([b.index(b[-1]) for b in batches], minlength=19)  # each drawn one is the partner equally often
    assert scipy.stats.chisquare(seen).pvalue > 1e-4


def test_short_classes():
    labels = torch.tensor([0] * 4 + [1] * 4 + [2] * 2 + [3])
    with pytest.warns(UserWarning, match="2 of 4 classes have fewer than 3 images: their images repeat"):
        repeat = make_sampler("spc", labels, 12, replacement=False, samples_per_class=3, batches=40, short="repeat")
    for i in repeat:
        rows = torch.tensor(i).view(4, 3)
        sizes = {int(labels[row[0]]): len(row.unique()) for row in rows}
        assert sizes.keys() == {0, 1, 2, 3} and sizes[0] == sizes[1] == 3 and sizes[2] <= 2 and sizes[3] == 1
    with pytest.warns(UserWarning, match="2 of 4 classes have fewer than 3 images: dropped"):
        drop = make_sampler("spc", labels, 6, samples_per_class=3, batches=40, short="drop")
    assert set(labels[torch.tensor(list(drop))].flatten().tolist()) == {0, 1}
    with warnings.catch_warnings(action="error"):
        make_sampler("spc", labels, 4, samples_per_class=1, short="raise")
    with pytest.raises(ValueError, match="4 of 4 classes have fewer than 5 images: .* leaves none"):
        make_sampler("spc", labels, 10, samples_per_class=5, short="drop")


@each(
    "name, labels, batch_size, more, message",
    [
        ("spc", LABELS, 25, {}, "a batch of 25 cannot hold 2 images"),
        ("spc", LABELS, 0, {}, "batch_size of the SPCSampler must be an integer, at least 1; got 0"),
        ("spc", LABELS, 24, {"samples_per_class": 0}, "samples_per_class of the SPCSampler must"),
        ("spc_r", LABELS, 25, {}, "a batch of 25 cannot hold 2 images"),
        ("spc", LABELS, 26, {"replacement": False}, "needs 13 classes, there are 12"),
        ("spc", LABELS, 242, {}, "a batch of 242 is larger than the data set of 240"),
        ("spc", LABELS, 24, {"batches": 0}, "batches of the SPCSampler must"),
        ("spc", LABELS.float(), 24, {}, "labels must be integers; got torch.float32"),
        ("spc", LABELS[:, None], 24, {}, r"got \(240, 1\)"),
        ("spc", LABELS[:0], 24, {}, "N > 0"),
        ("spc", LABELS, 24, {"short": "skip"}, "There is no policy for short classes 'skip'"),
        ("gcc", LABELS, 24, {}, "Did you mean 'gc'"),
        ("gc", LABELS, 24, {}, r"give dim=..., or bank=MemoryBank\(240, dim\)"),
        ("ddm", LABELS, 24, {"bank": (100, 4)}, "the bank holds 100 images, the labels are of 240"),
        ("frd", LABELS, 24, {"dim": 4}, "the 240 images there are"),
        ("gc", LABELS, 24, {"dim": 4, "big_batch": 22}, "between the batch of 24"),
        ("ddm", LABELS, 24, {"dim": 4, "big_batch": 97}, "a multiple of 2; got 97"),
        ("d2", LABELS, 24, {"dim": 4, "big_batch": 96, "variant": "compat"}, "There is no variant 'compat'"),
        ("d2", LABELS, 24, {"dim": 4, "big_batch": 96, "refresh": "step"}, "There is no refresh 'step'"),
        ("spc", LABELS, 24, {"seed": None}, "seed of the SPCSampler must be an integer.* got None"),
        ("spc", LABELS, 24, {"seed": 1.5}, "seed of the SPCSampler must be an integer.* got 1.5"),
    ],
)
def test_impossible_requests_are_refused_with_their_numbers(name, labels, batch_size, more, message):
    more = more | ({"bank": MemoryBank(*more["bank"])} if "bank" in more else {})
    with pytest.raises(ValueError, match=message):
        make_sampler(name, labels, batch_size, **more)


def test_bank_is_refused_until_it_is_full_and_finite():
    sampler = make_sampler("gc", LABELS, B, dim=DIM, big_batch=96)
    sampler.bank.fill(embeddings()[:100], torch.arange(100))
    for refresh in ("epoch", "batch"):
        sampler.refresh = refresh
        with pytest.raises(ValueError, match="lacks 140 of 240 embeddings"):
            sampler.batch(0, 0)
    sampler.bank.fill(embeddings())
    sampler.bank.f[[3, 5], 0] = torch.inf
    with pytest.raises(ValueError, match="2 of 240 embeddings in the bank hold NaN or infinity; first rows: 3, 5"):
        next(iter(sampler))


# the bank and its use


@each("size", [1, 20, 30])
def test_bank_update_equals_writing_one_row_after_the_other(size):
    for seed in range(50):
        g = generator(seed, "bank")
        bank, plain = MemoryBank(20, 3), torch.zeros(20, 3)
        i, f = torch.randint(20, (size,), generator=g), torch.randn(size, 3, generator=g, dtype=torch.float64)
        bank.update(i, f.requires_grad_())
        for row, value in zip(i.tolist(), f.detach(), strict=True):
            plain[row] = value
        assert torch.equal(bank.f, plain) and not bank.f.requires_grad
        assert torch.equal(bank.known.nonzero()[:, 0], i.unique())


@by_embedding
@every_variant
def test_refresh(name, more):
    sampler, moved = make(name, more), embeddings(seed=1)
    first = sampler.batch(0, 0)
    sampler.bank.fill(moved)
    assert torch.equal(sampler.batch(0, 1), make(name, more).batch(0, 1))  # of the bank at the epoch's start
    fresh = make(name, more, refresh="batch")
    assert torch.equal(fresh.batch(0, 0), first)
    fresh.bank.fill(moved)
    changed = any(not torch.equal(fresh.batch(0, i), make(name, more).batch(0, i)) for i in range(5))
    assert changed == (name not in ("gc", "d2") or more["variant"] == "corrected")


@by_embedding
@every_variant
@each("scale", [0.0, 1e-6, 1.0, 1e4])
@each("rank", [1, 64])
def test_degenerate_embeddings(name, more, scale, rank):
    g = generator(0, "degenerate")
    f = scale * torch.randn(N, rank, generator=g) @ torch.randn(rank, 64, generator=g)
    sampler = make_sampler(name, LABELS, B, dim=64, big_batch=96, batches=2, **more)
    sampler.bank.fill(f)
    i = sampler.batch(0, 0)
    assert len(i) == B and torch.equal(LABELS[i[::2]], LABELS[i[1::2]])
    if name in ("gc", "d2"):
        assert more["variant"] == "published" or len(i[::2].unique()) == B // 2


@by_embedding
@every_variant
def test_shift_and_half_precision(name, more):
    sampler, shifted = (make(name, more, refresh="batch") for _ in range(2))
    sampler.bank.fill(embeddings().half())
    shifted.bank.fill(embeddings().half().float() + 8)
    assert torch.equal(sampler.batch(0, 0), shifted.batch(0, 0))


# against definitions and scipy


@each("dim", [2, 16])
def test_greedy_coreset_is_the_plain_one_and_covers_better_than_chance(dim):
    radius, chance = [], []
    for seed in range(10):
        x = embeddings(120, dim, seed).double()
        d, at = distances(x), [5]
        while len(at) < 30:
            at.append(int(d[:, at].amin(1).argmax()))
        assert farthest_points(x, 30, 5).tolist() == at
        radius.append(d[:, at].amin(1).max())
        chance.append(d[:, torch.randperm(120, generator=generator(seed, "chance"))[:30]].amin(1).max())
        # what is left lies no farther from the seeds than these lie apart, hence at most twice the best radius
        apart = d[at][:, at].fill_diagonal_(torch.inf).min()
        assert radius[-1] <= apart + 1e-9
    assert sum(radius) < 0.8 * sum(chance)


def test_published_pool_is_fixed_for_an_epoch():
    sampler = make("gc", {"variant": "published"}, refresh="batch")
    seeds = [{int(i) for j in range(40) for i in sampler.batch(epoch, j)[::2]} for epoch in range(2)]
    assert len(seeds[0]) <= 96 and len(seeds[1]) <= 96 and seeds[0] != seeds[1]


def test_d2_density_and_frequencies():
    x = torch.randn(8, 2, generator=generator(0, "d2"), dtype=torch.float64)
    x -= x.mean(0)
    p = scipy.stats.multivariate_normal([0, 0], np.cov(x.T.numpy())).pdf(x.numpy())
    log_p = log_density(x, ridge=0.0)[0]
    assert np.allclose((log_p - log_p[0]).exp(), p / p[0], rtol=1e-6)
    thirds = {}
    for seed in range(1500):
        a, b, c = d2_points(x, 3, generator(seed, "d2")).tolist()
        thirds.setdefault((a, b), []).append(c)
    (a, b), drawn = max(thirds.items(), key=lambda kv: len(kv[1]))
    weight = p * ((x - x[a]).square().sum(1) + (x - x[b]).square().sum(1)).numpy()
    weight[[a, b]] = 0
    expected = weight / weight.sum() * len(drawn)
    found = np.bincount(drawn, minlength=8)
    likely = expected > 4
    assert len(drawn) > 75 and likely.sum() > 3
    assert (np.abs(found - expected)[likely] < 4 * np.sqrt(expected[likely])).all()


def candidates(m, n_big, b, seed=0):
    return torch.stack([torch.randperm(n_big, generator=generator(seed, "at", i))[:b] for i in range(m)])


@each("dim", [2, 30])
def test_ddm_against_scipy(dim):
    x = embeddings(150, dim).double()
    at = candidates(8, 150, 40)
    q, p, width = distance_histograms(x, at)
    pairs = scipy.spatial.distance.pdist(x)
    heights, edges = np.histogram(pairs, bins=50)
    centres = (edges[1:] + edges[:-1]) / 2
    assert np.allclose(q, heights / len(pairs), atol=1e-12)
    corrected = make_sampler("ddm", LABELS, B, dim=dim, big_batch=96)
    published = make_sampler("ddm", LABELS, B, dim=dim, big_batch=96, variant="published")
    for row, member, cost, other in zip(p, at, corrected.cost(x, at), published.cost(x, at), strict=True):
        own = scipy.spatial.distance.pdist(x[member])
        heights = np.histogram(own, bins=50, range=(pairs.min(), pairs.max()))[0] / len(own)
        assert np.allclose(row, heights, atol=1e-12)
        assert cost == pytest.approx(scipy.stats.wasserstein_distance(centres, centres, heights, q), abs=1e-9)
        expected = np.linalg.norm(x[member].mean(0) - x.mean(0))
        expected += np.linalg.norm(x[member].numpy().std(0) - x.numpy().std(0))
        expected += 75 * 2 * scipy.stats.wasserstein_distance(heights, q)
        assert other == pytest.approx(expected, abs=1e-9)
    assert torch.allclose(wasserstein(p, q, width), corrected.cost(x, at))


def test_ddm_worked():
    "Three points on a line at 0, 1 and 3: distances 1, 2, 3; the candidate of the outer two has 3 alone"
    q, p, width = distance_histograms(torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0, 2]]), bins=2)
    assert width == 1 and torch.allclose(q, torch.tensor([1 / 3, 2 / 3])) and p.tolist() == [[0, 1]]
    assert wasserstein(p, q, width).item() == pytest.approx(1 / 3)
    assert heights_wasserstein(p, q).item() == pytest.approx(1 / 3)
    assert heights_wasserstein(p.flip(1), q).item() == pytest.approx(1 / 3)  # blind to where the bins are
    assert wasserstein(p.flip(1), q, width).item() == pytest.approx(2 / 3)


@each("dim, b", [(4, 40), (20, 40), (39, 40), (30, 31)])
def test_frd_against_scipy_sqrtm(dim, b):
    x = embeddings(150, dim).double()
    at = candidates(5, 150, b)
    for ridge in (0.0, 1e-8):
        for member, found in zip(at, frechet_distances(x, at, ridge), strict=True):
            cov, own = np.cov(x.T.numpy()), np.cov(x[member].T.numpy())
            eye = ridge * np.eye(dim)
            root = scipy.linalg.sqrtm((own + eye) @ (cov + eye)).real
            expected = ((x[member].mean(0) - x.mean(0)) ** 2).sum() + np.trace(cov + own - 2 * root)
            assert found == pytest.approx(float(expected), abs=1e-6)


@each("dim", [60, 200])
def test_frd_with_singular_covariances(dim):
    "Fewer images than dimensions: the nuclear norm of X S^½, from an eigendecomposition of S and singular values"
    x = embeddings(150, dim).double()
    at = candidates(4, 150, 24)
    value, vector = torch.linalg.eigh(x.T.cov())
    root = vector * value.clamp(min=0).sqrt() @ vector.T
    for member, found in zip(at, frechet_distances(x, at), strict=True):
        own = (x[member] - x[member].mean(0)) / 23**0.5
        nuclear = torch.linalg.svdvals(own @ root).sum()
        expected = (x[member].mean(0) - x.mean(0)).square().sum() + x.T.cov().trace() + own.square().sum() - 2 * nuclear
        assert found == pytest.approx(expected.item(), abs=1e-6)


def test_frd_worked_and_zero_for_itself():
    "On a line the distance is (μ - μ*)² + (σ - σ*)²"
    x = torch.tensor([[0.0], [2.0], [4.0], [10.0]], dtype=torch.float64)
    found = frechet_distances(x, torch.tensor([[0, 1], [0, 1]]))
    assert found[0] == pytest.approx((1 - 4) ** 2 + (2**0.5 - x.std().item()) ** 2)
    x = embeddings(100, 12).double()
    assert frechet_distances(x, torch.arange(100)[None]).item() == pytest.approx(0, abs=1e-9)


@each("name", ["ddm", "frd"])
def test_float32_chooses_as_float64(name):
    sampler = make_sampler(name, LABELS, B, dim=40, big_batch=96)
    sampler.bank.fill(embeddings(dim=40))
    agree = 0
    for i in range(40):
        _, x, at = sampler.propose(0, i)
        agree += int(sampler.cost(x, at).argmin() == sampler.cost(x.double(), at).argmin())
    assert agree >= 39


@each("n", [2, 4])
def test_candidates_are_different_members_of_the_big_batch(n):
    sampler = make_sampler("frd", LABELS, B, dim=DIM, big_batch=96, samples_per_class=n)
    sampler.bank.fill(embeddings())
    for i in range(30):
        images, x, at = sampler.propose(0, i)
        assert at.shape == (10, B) and x.shape == (96, DIM) and 0 <= at.min() and at.max() < 96
        assert torch.allclose(x - x.mean(0), sampler.bank.f[images] - sampler.bank.f[images].mean(0), atol=1e-6)
        groups = at.view(10, -1, n)
        assert (LABELS[images[groups]] == LABELS[images[groups]][:, :, :1]).all()
        assert (groups.sort(-1).values.diff(dim=-1) > 0).all()
        chosen = sampler.select(0, i)
        assert torch.equal(chosen, images[at[sampler.cost(x, at).argmin()]])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@by_embedding
@every_variant
def test_bank_on_a_gpu(name, more):
    more = more | {"big_batch": 96}
    on_gpu = make_sampler(name, LABELS, B, bank=MemoryBank(N, DIM, "cuda"), **more)
    on_cpu = make_sampler(name, LABELS, B, dim=DIM, **more)
    for sampler in (on_gpu, on_cpu):
        sampler.bank.fill(embeddings().to(sampler.bank.f.device))
    equal = sum(torch.equal(on_gpu.batch(0, i), on_cpu.batch(0, i)) for i in range(len(on_gpu)))
    assert equal >= len(on_gpu) - 1  # rounding may turn a near tie
    i = on_gpu.batch(0, 0)
    on_gpu.bank.update(i, torch.ones(B, DIM, device="cuda"))
    assert (on_gpu.bank.f[i.cuda()] == 1).all()


def test_names():
    assert list(SAMPLERS) == ["spc", "spc_r", "gc", "ddm", "frd", "d2", "shuffle"]


@each("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_a_bank_takes_indices_of_any_integer_type(dtype):
    bank = MemoryBank(3, 2)
    bank.update(torch.tensor([2, 0, 2], dtype=dtype), torch.tensor([[1.0, 1], [2, 2], [3, 3]]))
    assert bank.f.tolist() == [[2, 2], [0, 0], [3, 3]] and bank.known.tolist() == [True, False, True]


def test_a_bank_takes_arrays_and_nothing_and_refuses_masks():
    bank = MemoryBank(4, 2)
    bank.fill(np.ones((4, 2), np.float32))
    bank.update([], torch.zeros(0, 2))
    assert bank.known.all() and (bank.f == 1).all()
    with pytest.raises(ValueError, match="of a mask: mask.nonzero"):
        bank.update(bank.known, torch.zeros(4, 2))
    with pytest.raises(ValueError, match="project_dim .* got -1"):
        make_sampler("gc", LABELS, 24, dim=4, big_batch=48, project_dim=-1)


@each("size", [2.0**-50, 2.0**50])
def test_the_size_of_embeddings_does_not_change_which_candidate_frd_takes(size):
    x = torch.randn(96, 12, generator=generator(3, "size"))
    at = torch.stack([torch.randperm(96, generator=generator(i, "size"))[:24] for i in range(10)])
    expected = frechet_distances(x, at)
    assert torch.equal(frechet_distances(size * x, at) / size**2, expected)


def test_a_distribution_takes_two_images():
    for name in ("ddm", "frd"):
        with pytest.raises(ValueError, match="batch_size of the .* at least 2; got 1"):
            make_sampler(name, torch.arange(40) // 4, 1, samples_per_class=1, dim=8, big_batch=20)
    with pytest.raises(ValueError, match="the batch of 80 and the 40 images there are"):
        make_sampler("gc", torch.arange(40) // 4, 80, batches=3, dim=8, big_batch=20)


def test_integers_of_numpy_are_integers():
    one, other = (make_sampler("spc", LABELS, kind(24), seed=kind(3)) for kind in (int, np.int64))
    other.load_state_dict(one.state_dict())
    assert [*one] == [*other] and repr(one) == repr(other)
    for name, more in (("gc", {"project_dim": 4}), ("ddm", {"candidates": 4}), ("d2", {"power": 1})):
        plain = {"big_batch": 96, **more}
        one, other = (make(name, {k: kind(v) for k, v in plain.items()}) for kind in (int, np.int64))
        other.load_state_dict(one.state_dict())
        assert [*one] == [*other] and repr(one) == repr(other)


def test_one_large_class_costs_no_key_for_each_of_its_images():
    """Different images of each class, and of a class that has fewer they repeat."""
    labels = torch.cat([torch.arange(40).repeat_interleave(3), torch.full((500_000,), 40), torch.tensor([41])])
    images, g = ImagesByClass(labels), generator(0, "large")
    before = torch.get_rng_state()
    drawn = images.draw_different(torch.arange(42), 3, g)
    assert torch.equal(labels[drawn], torch.arange(42)[:, None].expand(-1, 3))
    assert all(len({*row}) == 3 for row in drawn[:41].tolist()) and len({*drawn[41].tolist()}) == 1
    assert torch.equal(before, torch.get_rng_state())
    some = torch.cat([images.draw_different(torch.tensor([40] * 34), 3, g).flatten() for _ in range(3)]).float()
    assert abs((some - 120).mean() / 500_000 - 0.5) < 6 / (12 * len(some)) ** 0.5

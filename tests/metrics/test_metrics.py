"""Metrics against naive loops and other libraries, with ties, duplicates and odd shapes."""

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from grids import Recipes, each
from largest import Largest
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import (
    adjusted_mutual_info_score,
    average_precision_score,
    normalized_mutual_info_score,
    pair_confusion_matrix,
)
from tiers import sample

from dmlstudy.core.random import generator
from dmlstudy.custom.embedding_files import class_intervals
from dmlstudy.metrics import DEFAULT, METRICS, evaluate
from dmlstudy.metrics import neighbours as search
from dmlstudy.metrics.clustering import ami, contingency, f1, kmeans, nmi, score_gap, steady_centre, update
from dmlstudy.metrics.geometry import class_spectra, effective_rank, inter, intra, rho, spectrum
from dmlstudy.metrics.neighbours import Gallery, as_points, nearest, product, score_points, search_blocks
from dmlstudy.metrics.retrieval import retrieve


def embedding(n=200, c=20, d=12, noise=0.8, seed=0):
    g = generator(seed, "test metrics")
    labels = torch.randint(0, c, (n,), generator=g)
    return torch.randn(c, d, generator=g)[labels] + noise * torch.randn(n, d, generator=g), labels


def gaussian(n=1300, dim=6, purpose="points"):
    return torch.randn(n, dim, generator=generator(1, "test metrics", purpose))


def whole(top, *shape):
    """Points with whole coordinates."""
    return torch.randint(0, top, shape, generator=generator(1, "test metrics", *shape)).float()


def shuffled(x):
    return x[torch.randperm(len(x), generator=generator(1, "test metrics", "order"))]


POINT_SETS = Recipes(
    {
        "spread": gaussian,
        "few": lambda: gaussian()[:5],
        "one": lambda: gaussian()[:1],
        "equal": lambda: torch.ones(300, 4),
        "zeros": lambda: torch.zeros(40, 3),
        "copies": lambda: shuffled(gaussian()[:60].repeat(20, 1)),
        "grid": lambda: whole(3, 1200, 5),
        "signs": lambda: gaussian()[:400].sign(),
        "half zero": lambda: gaussian() * (whole(2, 1300, 1) > 0),
        "near": lambda: 1 + 1e-6 * gaussian(),
        "far": lambda: torch.cat([gaussian(), 1e6 * torch.ones(1, 6)]),
        "line": lambda: torch.arange(500.0)[:, None],
        "large": lambda: torch.cat([gaussian(), gaussian() + gaussian(purpose="others")]),
        "large grid": lambda: whole(5, 2300, 6),
    }
)


def naive_neighbours(points, k, queries=None):
    x = points if queries is None else queries
    d = torch.cat([(row - points.double()).square().sum(-1).float()[None] for row in x.double()])
    if queries is None:
        d.fill_diagonal_(math.inf)
        k = min(k, len(points) - 1)
    return d.sort(dim=1, stable=True).indices[:, :k]


def neighbours(points, k, queries=None, **more):
    rows, index = zip(*nearest(points, k, queries, progress=False, **more), strict=True)
    return torch.cat(index)[torch.cat(rows).argsort()]


# neighbours


@pytest.mark.parametrize("name", POINT_SETS)
def test_neighbours_are_those_of_all_distances_ties_included(name):
    points = as_points(POINT_SETS[name], normalize=False)
    expected = naive_neighbours(points, 5000)
    for k in (1, 13, 150, 5000):
        assert torch.equal(neighbours(points, k), expected[:, :k])


@each("name", ["spread", "copies", "grid", "half zero", "large"])
def test_a_set_against_itself_in_blocks_of_any_size(name):
    gallery = Gallery(as_points(POINT_SETS[name], normalize=False))
    q, _ = gallery.queries(gallery.points[gallery.order])
    scores = q @ gallery.rows.T
    for size, given in ((1024, None), (500, None), (100, None), (500, q), (100, q)):
        best, index = (torch.cat(x) for x in zip(*search_blocks(gallery, 20, given, size), strict=True))
        assert torch.allclose(best, scores.topk(20, dim=1).values, atol=1e-4)
        assert torch.allclose(best, scores.gather(1, index), atol=1e-4)
        assert all(len(row.unique()) == 20 for row in index)


TIED_SETS = Recipes(
    {
        "collapsed": lambda: torch.zeros(2100, 8),
        "one direction": lambda: torch.ones(2048, 3),
        "ten points": lambda: gaussian(2100)[whole(10, 2100).long()],
        "half zeros": lambda: torch.cat([torch.zeros(1050, 6), gaussian(1050)]),
        "one dimension": lambda: gaussian(2100, 1),
        "quantised": lambda: (2 * gaussian(2100)).round() / 2,
        "signs": lambda: gaussian(2100).sign(),
    }
)


def long(size):
    """Points, the first of them long."""
    x = gaussian(2100, 32)
    return torch.cat([size * x[:1], x[1:]])


def near():
    """Points around 60 centres."""
    return gaussian(60, 32, "centres")[torch.arange(2100) % 60] + 0.3 * gaussian(2100, 32)


def scale():
    return gaussian(2100, 1, "scale")


HEAVY_SETS = Recipes(
    {
        "one long": lambda: long(1e3),
        "one very long": lambda: long(1e9),
        "two long in one direction": lambda: torch.cat([long(1e6)[:1], 1.0001 * long(1e6)[:1], gaussian(2100, 32)[2:]]),
        "log-normal": lambda: (1.5 * scale()).exp() * gaussian(2100, 32),
        "log-normal classes": lambda: (1.5 * scale()).exp() * near(),
        "cauchy": lambda: near() / scale().abs(),
        "far from the origin": lambda: 1e4 + long(1e3),
    }
)


@pytest.mark.parametrize("name", sample(HEAVY_SETS, ["one very long"]))
def test_few_queries_are_searched_again_because_others_are_long(name, monkeypatch):
    again = []
    ties = search._search_ties
    monkeypatch.setattr(search, "_search_ties", lambda g, x, *more: again.append(len(x)) or ties(g, x, *more))
    points = as_points(HEAVY_SETS[name], normalize=False)
    expected = naive_neighbours(points, 120)
    for k in (1, 10, 120):
        for budget in (2**28, 2**18):
            again.clear()
            assert torch.equal(neighbours(points, k, budget=budget), expected[:, :k])
            assert sum(again) <= 0.02 * len(points)
        queries = torch.cat([points[::9], -points[:3], 1e-3 * points[:40]])
        assert torch.equal(neighbours(points, k, queries), naive_neighbours(points, k, queries))


@each("name", HEAVY_SETS)
def test_what_a_score_stands_for_lies_in_its_interval_however_long_some_points_are(name):
    points = as_points(HEAVY_SETS[name], normalize=False)
    gallery = Gallery(points)
    q, slack = gallery.queries(points[::5])
    d2 = squared(points[::5], points[gallery.order])
    over = (q @ gallery.rows.T).double() + d2 / 2
    assert (over >= 0).all()
    assert (over <= 2 * (slack[:, None].double() + gallery.slack)).all()
    best, columns = (q @ gallery.rows.T).sort(descending=True)
    low = (best - 2 * (slack[:, None] + gallery.slack[columns])).cummin(1).values
    d2 = d2.gather(1, columns).float()  # what is clear is nearer, also when distances are rounded to float32
    assert (d2[:, :-1].cummax(1).values < d2[:, 1:].flip(1).cummin(1).values.flip(1))[low[:, :-1] > best[:, 1:]].all()


def squared(x, y):
    return torch.stack([(row - y.double()).square().sum(1) for row in x.double()])


@pytest.mark.parametrize("name", sample(TIED_SETS, ["signs"]))
@each("normalize", [True, False])
def test_neighbours_where_most_distances_are_tied_in_a_set_large_enough_for_blocks(name, normalize):
    points = as_points(TIED_SETS[name], normalize)
    expected, queries = naive_neighbours(points, 150), points[::9]
    for k in (1, 8, 150):
        for budget in (2**28, 2**18):
            assert torch.equal(neighbours(points, k, budget=budget), expected[:, :k])
        found = neighbours(points, k, queries)
        assert torch.equal(found, naive_neighbours(points, k, queries))


@each("name", ["collapsed", "half zeros", "one dimension"])
def test_tied_embeddings_are_measured_whole(name):
    f, labels = TIED_SETS[name], torch.arange(len(TIED_SETS[name])) % 30
    scores = evaluate(f, labels)
    index = naive_neighbours(as_points(f), 1)[:, 0]
    assert set(scores) == set(DEFAULT)
    assert scores["recall@1"] == float((labels[index] == labels).double().mean())
    small = evaluate(f, labels, ["recall@1", "map@r"], budget=2**18)
    assert small == {name: scores[name] for name in small}


def test_neighbours_on_the_sphere_where_many_points_have_one_direction():
    x = POINT_SETS["grid"]
    points = as_points(x * torch.rand(len(x), 1, generator=generator(2)).add(0.5))
    assert torch.equal(neighbours(points, 9), naive_neighbours(points, 9))


@each("name", ["large", "large grid"])
def test_neighbours_are_as_near_as_those_that_faiss_finds(name):
    faiss = pytest.importorskip("faiss")
    points = as_points(POINT_SETS[name], normalize=False)
    distances = lambda index: (points[:, None].double() - points[index]).square().sum(2)
    theirs = distances(torch.from_numpy(faiss.knn(points.numpy(), points.numpy(), 10)[1]))
    assert torch.allclose(distances(neighbours(points, 9)), theirs.sort(1).values[:, 1:], atol=1e-6)  # less itself


@each("name", ["spread", "grid", "copies", "half zero"])
def test_neighbours_in_a_gallery_and_in_a_small_budget(name):
    points = as_points(POINT_SETS[name], normalize=False)
    queries = torch.cat([points[::7], -3 * points[:4]])
    expected = naive_neighbours(points, 11, queries)
    for budget in (2**12, 2**20, 2**28):
        assert torch.equal(neighbours(points, 11, queries, budget=budget), expected)


@each("scale", [1e-3, 1.0, 1e3])
def test_a_score_is_never_further_off_than_its_bound(scale):
    x, _ = embedding(400, d=64)
    gallery = Gallery(scale * x + 5)
    q, slack = gallery.queries(gallery.points)
    exact = -squared(gallery.points, gallery.points[gallery.order]) / 2
    over = product(q, gallery.rows) - exact
    assert (over >= 0).all() and (over <= 2 * (slack[:, None] + gallery.slack)).all()


def test_the_users_matmul_precision_and_autocast_change_nothing():
    points = as_points(embedding(600, d=32)[0])
    expected, before = neighbours(points, 9), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(neighbours(points, 9), expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_two_identical_points_with_different_labels_are_each_others_neighbours():
    f = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    scores, each = evaluate(f, torch.tensor([0, 1, 0, 1]), ["recall@1", "recall@3"], per_query=True)
    assert each["recall@1"].tolist() == [0, 0, 0, 0]
    assert scores == {"recall@1": 0.0, "recall@3": 1.0}


# retrieval metrics


def naive_scores(f, labels):
    z = f.double() / f.double().norm(dim=1, keepdim=True)
    totals = dict.fromkeys(
        ("recall@1", "recall@4", "precision@4", "map@1000", "map@5", "map_c", "map@r", "r_precision"), 0.0
    )
    for q in range(len(z)):
        order = [i for i in (z - z[q]).norm(dim=1).argsort(stable=True).tolist() if i != q]
        rel = [int(labels[i] == labels[q]) for i in order]
        r = sum(rel)
        ap = lambda depth, rel=rel: sum(rel[i] * sum(rel[: i + 1]) / (i + 1) for i in range(min(depth, len(rel))))
        totals["recall@1"] += rel[0]
        totals["recall@4"] += max(rel[:4])
        totals["precision@4"] += sum(rel[:4]) / 4
        totals["map_c"] += ap(r + 1) / (r + 1)
        if r:
            totals["map@1000"] += ap(1000) / r
            totals["map@5"] += ap(5) / r
            totals["map@r"] += ap(r) / r
            totals["r_precision"] += sum(rel[:r]) / r
    return {name: total / len(z) for name, total in totals.items()}


@each("c", [3, 20])
def test_retrieval_metrics_are_those_of_a_loop(c):
    f, labels = embedding(120, c)
    expected = naive_scores(f, labels)
    assert evaluate(f, labels, list(expected)) == pytest.approx(expected, abs=1e-12)


def test_retrieval_against_pytorch_metric_learning():
    f, labels = embedding(300, 15, noise=1.5)
    names = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    theirs = AccuracyCalculator(names, k="max_bin_count", device=torch.device("cpu"))
    theirs = theirs.get_accuracy(as_points(f), labels)
    ours = evaluate(f, labels, ["recall@1", "map@r", "r_precision"])
    assert list(ours.values()) == pytest.approx([theirs[n] for n in names], abs=1e-6)
    theirs = AccuracyCalculator(("mean_average_precision",), k=100, device=torch.device("cpu"))
    theirs = theirs.get_accuracy(as_points(f), labels)["mean_average_precision"]
    assert evaluate(f, labels, ["map@100"])["map@100"] == pytest.approx(theirs, abs=1e-6)


def test_gallery_against_pytorch_metric_learning():
    f, labels = embedding(300, 15, noise=1.5)
    query, gallery = as_points(f[:100]), as_points(f[100:])
    names = ("precision_at_1", "mean_average_precision_at_r", "r_precision")
    theirs = AccuracyCalculator(names, k="max_bin_count", device=torch.device("cpu"))
    theirs = theirs.get_accuracy(query, labels[:100], gallery, labels[100:], ref_includes_query=False)
    ours = evaluate(f[:100], labels[:100], ["recall@1", "map@r", "r_precision"], f[100:], labels[100:])
    assert list(ours.values()) == pytest.approx([theirs[n] for n in names], abs=1e-6)
    both = evaluate(f[:100], labels[:100], ["map_c", "map@r"], f[100:], labels[100:])
    assert both["map_c"] == both["map@r"]


def test_map_to_the_end_is_scikit_learns_average_precision():
    f, labels = embedding(80, 8)
    _, each = evaluate(f, labels, ["map@79"], per_query=True)
    z = as_points(f).double()
    for q in range(0, 80, 9):
        rest = torch.arange(80) != q
        expected = average_precision_score((labels == labels[q])[rest], (z @ z[q])[rest])
        assert float(each["map@79"][q]) == pytest.approx(expected, abs=1e-9)


def test_k_beyond_the_set_looks_at_all_of_it():
    f, labels = embedding(30, 3)
    scores = evaluate(f, labels, ["recall@29", "recall@500", "map@29", "map@1000"])
    assert scores["recall@500"] == scores["recall@29"] == 1.0
    assert scores["map@1000"] == scores["map@29"]


@each("narrow", [torch.float16, torch.bfloat16])
def test_query_and_gallery_of_different_widths_are_measured_in_the_wider_one(narrow):
    f, labels = embedding(150, 10)
    f, names = f.to(narrow).double(), ["recall@1", "map@r", "norm_mean"]
    expected = evaluate(f, labels, names, 1e30 * f, labels)
    assert evaluate(f.to(narrow), labels, names, 1e30 * f, labels) == expected
    assert evaluate(1e30 * f, labels, names, f.to(narrow), labels) == expected
    index = retrieve(f.to(narrow), labels, 3, 1e30 * f, labels).neighbours
    assert torch.equal(index[:, 0], torch.arange(150))


@each("n", [200, 2100])
def test_the_default_type_of_new_tensors_changes_nothing(n):
    f, labels = embedding(n)
    expected = evaluate(f, labels)
    torch.set_default_dtype(torch.float64)
    try:
        assert evaluate(f, labels) == expected
        assert evaluate(f, labels, ["map@9"], f, labels)["map@9"] > 0
    finally:
        torch.set_default_dtype(torch.float32)


@each("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_width_of_input_is_measured(dtype):
    f, labels = embedding(150, 10)
    scores = evaluate(f.to(dtype), labels)
    expected = evaluate(f, labels)
    for name, value in scores.items():
        assert value == pytest.approx(expected[name], abs=0.05), name
    assert evaluate(f.to(dtype), labels) == evaluate(f.to(dtype).double(), labels)


def test_raw_embeddings_are_measured_as_they_are():
    f, labels = embedding(100, 5)
    f = f * torch.linspace(0.1, 10, 100)[:, None]
    index = naive_neighbours(f, 1)
    raw = evaluate(f, labels, ["recall@1", "norm_mean"], normalize=False)
    assert raw["recall@1"] == float((labels[index[:, 0]] == labels).double().mean())
    assert evaluate(1e20 * f.double(), labels, ["recall@1"], normalize=False)["recall@1"] == raw["recall@1"]
    assert evaluate(f, labels, ["norm_mean"])["norm_mean"] == raw["norm_mean"]


def test_retrieve_keeps_what_the_scores_are_made_of():
    f, labels = embedding()
    r = retrieve(f, labels, 7)
    assert torch.equal(r.neighbours, naive_neighbours(as_points(f), 7))
    assert torch.equal(r.hits, labels[r.neighbours] == labels[:, None])
    assert r.relevant.tolist() == [int((labels == y).sum()) - 1 for y in labels]


# clustering


@each("n, c, k", [(50, 5, 5), (300, 40, 30), (200, 1, 7), (60, 60, 9), (60, 60, 60), (30, 1, 1)])
def test_agreement_against_scikit_learn(n, c, k):
    g = generator(n, "partitions", c, k)
    labels, clusters = torch.randint(0, c, (n,), generator=g), torch.randint(0, k, (n,), generator=g)
    labels[: n // 2] = clusters[: n // 2] % c
    t = contingency(labels, clusters)
    assert nmi(t) == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-9)
    assert ami(t) == pytest.approx(adjusted_mutual_info_score(labels, clusters), abs=1e-9)
    (_, fp), (fn, tp) = pair_confusion_matrix(labels, clusters)
    assert f1(t) == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 1.0, abs=1e-12)


def test_one_partition_against_itself_is_perfect():
    for labels in (torch.arange(9), torch.zeros(9, dtype=torch.int64), torch.arange(9) // 2):
        t = contingency(labels, labels.flip(0).max() - labels)
        assert (nmi(t), ami(t), f1(t)) == pytest.approx((1.0, 1.0, 1.0))


def naive_lloyd(points, start, rounds):
    x, centroids = points.double(), points[start].double()
    for _ in range(rounds):
        clusters = torch.cdist(x, centroids).argmin(1)
        total = torch.zeros_like(centroids).index_add_(0, clusters, x)
        centroids = total / torch.bincount(clusters, minlength=len(centroids))[:, None]
    return torch.cdist(x, centroids).argmin(1)


@each("rounds", [1, 4, 20])
def test_kmeans_is_lloyds_algorithm(rounds):
    f, _ = embedding(600, 12, noise=0.6, seed=5)
    points = as_points(f)
    start = torch.randperm(600, generator=generator(7, "kmeans", 0))[:12]
    found = kmeans(points, 12, seed=7, rounds=rounds)
    assert torch.equal(found.clusters, naive_lloyd(points, start, rounds))
    exact = torch.cdist(points.double(), found.centroids.double()).amin(1).square().mean()
    assert found.inertia == pytest.approx(float(exact), abs=1e-5)


def exact_lloyd(points, k, seed=0):
    "All distances in float64, rounded to float32; of equal ones the smaller index"
    x = points - steady_centre(points).float()
    centroids = x[torch.randperm(len(x), generator=generator(seed, "kmeans", 0))[:k]]
    for done in range(21):
        clusters = torch.from_numpy(squared(x, centroids).float().numpy().argmin(1))
        new = update(x, clusters, k)
        if done == 20 or torch.equal(new, centroids):
            return clusters
        centroids = new


@pytest.mark.parametrize(
    "sets",
    [TIED_SETS, *(pytest.param(sets, marks=pytest.mark.slow) for sets in (HEAVY_SETS, POINT_SETS))],
    ids=["tied", "heavy", "points"],
)
@each("name", lambda sets: sets)
def test_clusters_are_those_of_all_distances_ties_included(sets, name):
    points = as_points(sets[name][:700], normalize=False)
    for k in {min(k, len(points)) for k in (1, 5, 30)}:
        assert torch.equal(kmeans(points, k).clusters, exact_lloyd(points, k))


@each("name", HEAVY_SETS)
def test_scores_further_apart_than_the_gap_are_in_order(name):
    points = as_points(HEAVY_SETS[name], normalize=False)
    x = torch.cat([points - steady_centre(points).float(), torch.ones(len(points), 1)], 1)
    rows = score_points(x[::20, :-1], torch.zeros(x.shape[1] - 1, dtype=torch.float64))[0][:, :-1]
    scores, d2 = x @ rows.T, squared(x[:, :-1], rows[:, :-1])
    best = scores.amax(1)
    clear = scores < (best - score_gap(torch.linalg.vector_norm(x[:, :-1], dim=1), best, rows))[:, None]
    worse = d2.float() > d2.gather(1, scores.argmax(1)[:, None]).float()
    assert clear.float().mean() > 0.5
    assert worse[clear].all()


@each("points", lambda: [torch.ones(20, 3), torch.zeros(20, 3), torch.arange(2.0).repeat(10)[:, None]])
def test_kmeans_of_few_distinct_points_ends(points):
    found = kmeans(points, 6)
    assert found.inertia < 1e-6
    assert 0 <= int(found.clusters.min()) <= int(found.clusters.max()) < 6


def test_restarts_give_a_mean_and_a_spread_and_the_seed_decides():
    f, labels = embedding(noise=1.5)
    one = [evaluate(f, labels, ["nmi"], seed=s)["nmi"] for s in (0, 0, 1)]
    assert one[0] == one[1] != one[2]
    scores = evaluate(f, labels, ["nmi", "f1"], kmeans_restarts=4)
    assert list(scores) == ["nmi", "nmi_std", "f1", "f1_std"]
    assert scores["nmi_std"] > 0


# structure


def test_distances_within_and_between_classes_are_those_of_a_loop():
    f, labels = embedding(60, 7)
    labels[0] = 100  # a class with one image
    cosine = lambda a, b: 1 - float(a @ b / a.norm() / b.norm())
    z = (f / f.norm(dim=1, keepdim=True)).double()
    groups = [z[labels == y] for y in labels.unique()]
    pairs = lambda x: [cosine(a, b) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    assert intra(f, labels) == pytest.approx(np.mean([np.mean(pairs(x)) for x in groups if len(x) > 1]), abs=1e-6)
    assert inter(f, labels) == pytest.approx(np.mean(pairs([x.mean(0) for x in groups])), abs=1e-6)


@each("shape", [(100, 6), (6, 100), (1, 5), (5, 1), (9000, 3)])
def test_spectrum_is_numpys(shape):
    f = torch.randn(shape, generator=generator(4))
    s = np.linalg.svd(f.double().numpy(), compute_uv=False)
    assert spectrum(f).numpy() == pytest.approx(s, rel=1e-7, abs=1e-7 * s[0])
    p = s[1:] / s[1:].sum()
    if len(p) > 1:
        assert rho(f) == pytest.approx(float(-np.log(len(p) * p).mean()), abs=1e-9)
        assert rho(f, -2) == pytest.approx(float((p * np.log(len(p) * p)).sum()), abs=1e-9)
        assert rho(f, 1, drop_smallest=True) == pytest.approx(float(-np.log(len(p) * s[:-1] / s[:-1].sum()).mean()))
    p = s / s.sum()
    assert effective_rank(f) == pytest.approx(float(np.exp(-(p * np.log(p)).sum())), abs=1e-6)


def test_class_spectra_do_not_depend_on_the_budget():
    f, labels = embedding(100, 8)
    classes, values = class_spectra(f, labels)
    assert torch.allclose(values.sum(1), torch.ones(len(classes), dtype=torch.float64))
    assert torch.allclose(values, class_spectra(f, labels, budget=1)[1], atol=1e-12)


@each("dtype", [torch.float16, torch.bfloat16])
@each("longest", [1.0, 65_000.0])
def test_spectra_of_sixteen_bits_are_those_of_their_numbers(dtype, longest):
    """A zero row among them, and norms that float16 cannot hold."""
    f, labels = embedding(100, 8)
    f = (longest / f.abs().max() * f * (torch.arange(100) != 3)[:, None]).to(dtype)
    assert (f.float().norm(dim=1).max() > 65_504) == (longest > 1)
    found, expected = (evaluate(x, labels, [], tasks={"spectra": None}) for x in (f, f.float()))
    assert all(torch.equal(found[name], values) and values.isfinite().all() for name, values in expected.items())


# evaluate


@pytest.mark.filterwarnings("ignore:.*no other image", "ignore:ratio is NaN")
@each(
    "case, made",
    {
        "one": lambda: (gaussian(1, 4), [0]),
        "two": lambda: (gaussian(2, 4), [0, 1]),
        "one class": lambda: (gaussian(30, 4), [0] * 30),
        "singletons": lambda: (gaussian(30, 4), [*range(30)]),
        "equal": lambda: (torch.ones(30, 4), [0, 1, 2] * 10),
        "zero": lambda: (torch.zeros(30, 4), [0, 1, 2] * 10),
        "antipodal": lambda: (torch.tensor([[1.0], [-1.0]]).repeat(15, 1), [0, 0, 1] * 10),
        "wide": lambda: (gaussian(5, 40), [0, 0, 1, 1, 1]),
    },
)
@each("normalize", [True, False])
@each("singletons", ["miss", "skip"])
def test_metrics_are_finite_on_odd_sets_or_nan_where_there_is_nothing_to_average(case, made, normalize, singletons):
    f, labels = (torch.as_tensor(x) for x in made())
    names, counts = (*DEFAULT, "map@1000", "rho@-1", "rho@10"), labels.unique(return_counts=True)[1]
    scores = evaluate(f, labels, names, normalize=normalize, singletons=singletons)
    undefined = {"inter", "ratio"} if len(counts) == 1 else {"ratio"} if (f == 1).all() else set()
    if counts.max() == 1:
        undefined |= {"intra", "ratio", *(n for n in names if n.startswith(("recall", "map", "r_precision")))}
    assert {name for name, v in scores.items() if not math.isfinite(v)} == undefined, scores
    assert list(scores) == list(names)


def test_scores_do_not_depend_on_rotation_or_scale():
    f, labels = embedding(150, 10, d=6)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator(5))).Q
    names = [n for n in DEFAULT if n not in ("norm_mean", "norm_var")]
    assert evaluate(3 * f.double() @ rotation, labels, names) == pytest.approx(evaluate(f, labels, names), abs=1e-5)


def test_singletons_are_counted_or_left_out_and_said():
    f, labels = embedding(40, 4)
    labels[:3] = torch.tensor([10, 11, 12])
    with pytest.warns(UserWarning, match="3 of 40 queries have no other image of their class: they count as misses"):
        miss, each = evaluate(f, labels, ["r_precision"], per_query=True)
    with pytest.warns(UserWarning, match="3 of 40 .* are left out"):
        skip, left = evaluate(f, labels, ["r_precision"], singletons="skip", per_query=True)
    assert each["r_precision"][:3].tolist() == [0, 0, 0]
    assert left["r_precision"].isnan().nonzero().flatten().tolist() == [0, 1, 2]
    assert miss["r_precision"] == pytest.approx(skip["r_precision"] * 37 / 40)


@each(
    "change, message",
    [
        (dict(metrics=["rho@0"]), "not a number"),
        (dict(singletons="drop"), "There is no treatment of singletons 'drop'"),
        (dict(labels=torch.zeros(200)), "labels must be integers"),
        (dict(f=torch.zeros(200, 3, dtype=torch.int64)), "must be floating point"),
        (dict(f=torch.zeros(0, 3), labels=torch.zeros(0, dtype=torch.int64)), "no embeddings to measure"),
        (dict(f_gallery=torch.zeros(5, 12)), "given together"),
        (dict(metrics=["rho"], f_gallery=torch.ones(5, 12), labels_gallery=torch.arange(5)), "not rho"),
    ],
)
def test_mistakes_are_named(change, message):
    f, labels = embedding()
    with pytest.raises(ValueError, match=message):
        evaluate(**{"f": f, "labels": labels, **change})


@each("wrong", [math.nan, math.inf, -math.inf])
def test_embeddings_that_are_not_finite_are_counted_and_located(wrong):
    f, labels = embedding()
    f[[5, 9, 150], 2] = wrong
    with pytest.raises(ValueError, match="3 of 200 embeddings hold NaN or infinity; first rows: 5, 9, 150"):
        evaluate(f.numpy(), labels.numpy())
    with pytest.raises(ValueError, match="3 of 200 gallery embeddings"):
        evaluate(f[:4], labels[:4], None, f, labels)


@each(
    "change",
    [
        lambda f, y: (f[::-1].copy()[::-1], y[::-1].copy()[::-1]),
        lambda f, y: (f.astype(">f4"), y.astype(">i4")),
        lambda f, y: (f.astype(np.longdouble), y.astype(np.uint8)),
        lambda f, y: (np.asfortranarray(f), y.tolist()),
    ],
)
def test_arrays_of_any_order_and_byte_order_are_measured(change):
    f, labels = embedding()
    assert evaluate(*change(f.numpy(), labels.numpy())) == evaluate(f, labels)


@each(
    "f, labels, message",
    [
        (np.ones((2, 3)), np.array(["a", "b"]), r"labels must be numbers; got <U1: np.unique\(labels, return_inv"),
        (np.ones((2, 3)), None, "labels must be numbers; got object"),
        (np.ones((2, 3), complex), np.arange(2), "embeddings must be numbers; got complex128"),
        (np.ones((2, 0)), np.arange(2), r"embeddings need at least one dimension; got shape \(2, 0\)"),
    ],
)
def test_input_that_holds_no_numbers_is_refused(f, labels, message):
    with pytest.raises(ValueError, match=message):
        evaluate(f, labels)


@each("size", [1e-290, 1e-160, 1e160, 1e290])
def test_norms_of_any_size(size):
    f, labels = embedding()
    names = ["norm_mean", "norm_cv"]
    scores, expected = (evaluate(s * f.double(), labels, names) for s in (size, 1.0))
    assert scores["norm_mean"] / size == pytest.approx(expected["norm_mean"], rel=1e-12)
    assert scores["norm_cv"] == pytest.approx(expected["norm_cv"], rel=1e-12)


def test_directions_are_those_of_the_shortest_rows_too():
    f, labels = embedding()
    long = f.clone()
    long[0] *= 1e13
    names = ["intra", "inter", "ratio"]
    assert evaluate(long, labels, names, normalize=False) == pytest.approx(evaluate(f, labels, names), abs=1e-6)


def test_every_name_of_the_default_is_known_and_global_randomness_is_untouched():
    f, labels = embedding()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(evaluate(f, labels)) == set(DEFAULT)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002
    assert {"recall@k", "map_c", "nmi", "ami", "f1", "rho", "norm_cv"} <= METRICS.keys()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_cpus_numbers():
    for f in (embedding(3000, 100, 32)[0], POINT_SETS["grid"], POINT_SETS["equal"]):
        labels = torch.arange(len(f)) // 6
        names = [n for n in DEFAULT if n not in ("nmi", "ami", "f1")]
        loose = ["rho", "effective_rank"]  # of equal points: a root of what rounding leaves of zeros
        found, expected = (evaluate(f.to(device), labels.to(device), names) for device in ("cuda", "cpu"))
        assert [found.pop(n) for n in loose] == pytest.approx([expected.pop(n) for n in loose], rel=1e-5)
        assert found == pytest.approx(expected, abs=1e-9)
        assert evaluate(f.cuda(), labels.cuda(), ["nmi"])["nmi"] == pytest.approx(
            evaluate(f, labels, ["nmi"])["nmi"], abs=0.02
        )


# ---------------------------------------------------------------------------------------------------------------------
# relevance in place of labels


def loop_relevance(f, g, R, own):
    """recall@1, recall@3, map@r, r_precision and mean average precision, from sorted lists."""
    f, g = (x / x.norm(dim=1, keepdim=True) for x in (f.double(), g.double()))
    rows = []
    for i in range(len(f)):
        others = [j for j in range(len(g)) if not (own and i == j)]
        others.sort(key=lambda j: (float((f[i] - g[j]).square().sum()), j))
        hits = [bool(R[i, j] > 0) for j in others]
        n = max(1, sum(hits))
        precision = [sum(hits[: k + 1]) / (k + 1) * hit for k, hit in enumerate(hits)]
        rows.append([any(hits[:1]), any(hits[:3]), sum(precision[: sum(hits)]) / n, sum(hits[: sum(hits)]) / n])
        rows[-1].append(sum(precision) / n)
    return torch.tensor(rows, dtype=torch.float64).mean(0).tolist()


@pytest.mark.filterwarnings("ignore:.*nothing to find")
@each("budget", [1, 2**28])
@each("seed", range(3))
def test_relevance_against_loops(seed, budget):
    """One-sided grades, several labels an image, and a gallery of its own."""
    g = generator(seed, "relevance")
    f, gallery = torch.randn(40, 5, generator=g), torch.randn(25, 5, generator=g)
    names = ["recall@1", "recall@3", "map@r", "r_precision", "map@40"]
    graded = torch.rand(40, 40, generator=g) * (torch.rand(40, 40, generator=g) < 0.2)
    graded[7] = 0
    found = evaluate(f, metrics=names, relevance=graded, budget=budget)
    assert [*found.values()] == pytest.approx(loop_relevance(f, f, graded, True))
    tags, tags_gallery = (torch.rand(n, 6, generator=g) < 0.25 for n in (40, 25))
    shared = (tags[:, None] & tags).any(2)
    found = evaluate(f, metrics=names, relevance=tags, budget=budget)
    assert [*found.values()] == pytest.approx(loop_relevance(f, f, shared, True))
    shared = (tags[:, None] & tags_gallery).any(2)
    for relevance in ((tags, tags_gallery), shared, shared.numpy()):
        found = evaluate(f, metrics=names, f_gallery=gallery, relevance=relevance, budget=budget)
        assert [*found.values()] == pytest.approx(loop_relevance(f, gallery, shared, False))


def test_relevance_is_checked():
    f = torch.randn(6, 3, generator=generator(0, "relevance"))
    for wrong in (torch.eye(5), torch.ones(6), (torch.eye(6), torch.eye(4)), torch.ones(6, 2, 2)):
        with pytest.raises(ValueError, match=r"relevance is \(6, 6\), or a label matrix \(6, classes\)"):
            evaluate(f, relevance=wrong)
    for more in ({"labels": torch.arange(6)}, {"f_gallery": f, "labels_gallery": torch.arange(6)}):
        with pytest.raises(ValueError, match="not both"):
            evaluate(f, relevance=torch.eye(6), **more)
    with pytest.raises(ValueError, match="only retrieval, spectrum and norms are defined, not nmi"):
        evaluate(f, metrics=["nmi"], relevance=torch.eye(6))
    with pytest.warns(UserWarning, match="6 of 6 queries have nothing to find"):
        assert {"recall@1", "rho", "norm_cv"} < evaluate(f, relevance=torch.eye(6)).keys()


RELEVANCE_MEMORY = """
import torch
from dmlstudy.core.random import generator
from dmlstudy.metrics import evaluate

def pages(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1024

torch.set_num_threads(1)
g = generator(0, "memory")
f, tags = torch.randn(12000, 16, generator=g), torch.rand(12000, 200, generator=g) < 0.01
evaluate(f[:3000], metrics=["map@r"], relevance=tags[:3000])
before = pages("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
evaluate(f, metrics=["recall@1", "map@r"], relevance=tags, budget=2**26, progress=False)
print(pages("VmHWM") - before)
"""


def test_relevance_of_labels_is_never_an_array():
    """2,000 images with some of 50 labels each, some rows at a time: no array of all pairs of images."""
    g = generator(0, "memory")
    f, tags = torch.randn(2000, 8, generator=g), torch.rand(2000, 50, generator=g) < 0.05
    tags[:, 0] |= ~tags.any(1)  # each has something to find
    with Largest() as mode:
        evaluate(f, metrics=["recall@1", "map@r"], relevance=tags, budget=2**17, progress=False)
    assert mode.numbers < 2000**2 / 8


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_relevance_of_labels_is_never_held_whole():
    """12,000 images with some of 200 labels each: the matrix of what they share would be 576 MB."""
    command = [sys.executable, "-c", RELEVANCE_MEMORY]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # what is freed goes back at once
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, timeout=900, check=True)
    assert float(done.stdout) < 300, done.stdout


# ---------------------------------------------------------------------------------------------------------------------
# numbers at their ends


def test_norm_mean_of_very_long_embeddings_is_finite():
    """1e300 squared is no number, nor is the sum of many 1e306."""
    f, labels = torch.full((60, 4), 1e300, dtype=torch.float64), torch.arange(60) // 2
    (row,) = class_intervals(f, labels, ["norm_mean"])
    assert row["value"] == pytest.approx(2e300) and row["high"] == pytest.approx(2e300)
    many = torch.full((1000, 4), 1e306, dtype=torch.float64)
    assert evaluate(many, torch.arange(1000), ["norm_mean"])["norm_mean"] == pytest.approx(2e306)

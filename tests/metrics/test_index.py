"""An index of faiss in place of the exact search: which neighbours it gives, and what `evaluate` makes of them."""

import numpy as np
import pytest
import torch

from dmlstudy import evaluate
from dmlstudy.core.random import generator
from dmlstudy.metrics.index import index_nearest, index_recall, make_index, search_index
from dmlstudy.metrics.neighbours import nearest

RNG = np.random.default_rng(0)
LABELS = np.arange(4000) // 8
F = (RNG.normal(size=(500, 24))[LABELS] + 0.6 * RNG.normal(size=(4000, 24))).astype(np.float32)
NAMES = ["recall@1", "recall@8", "map@r", "r_precision", "precision@5", "map@50"]


@pytest.mark.parametrize("gallery", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float16, torch.float64])
def test_all_points_give_the_metrics_of_the_exact_search(gallery, kind):
    cast = (lambda x: torch.from_numpy(x).to(kind)) if isinstance(kind, torch.dtype) else lambda x: x.astype(kind)
    parts = (F[::5], LABELS[::5], NAMES, F, LABELS) if gallery else (F, LABELS, NAMES)
    parts = [cast(x) if isinstance(x, np.ndarray) and x.ndim == 2 else x for x in parts]
    exact, flat = (evaluate(*parts, engine=engine, progress=False) for engine in ("exact", "faiss"))
    assert flat == pytest.approx(exact, abs=1e-9)


def test_relevance_and_values_of_each_query_take_the_same_way():
    some, y = F[:600], LABELS[:600]
    relevance = y[:, None] == y
    measure = lambda engine: evaluate(some, metrics=NAMES, relevance=relevance, engine=engine, per_query=True)
    exact, flat = measure("exact"), measure("faiss")
    assert flat[0] == pytest.approx(exact[0], abs=1e-9)
    assert torch.equal(flat[1]["nearest"], exact[1]["nearest"])


def test_recall_of_lists_is_measured_and_printed(capsys):
    score = evaluate(F, LABELS, ["recall@1"], engine="faiss_ivf")["recall@1"]
    said = capsys.readouterr().out
    assert said.startswith("faiss_ivf: 8 of 102 lists hold ") and "of the 2 nearest (a sample)" in said
    assert evaluate(F, LABELS, ["recall@1"], engine="faiss_ivf", progress=False)["recall@1"] == score
    assert capsys.readouterr().out == ""
    shares = [index_recall(make_index(F, probes=probes), F, F, 10) for probes in (1, 4, 16, 102)]
    assert shares == sorted(shares) and shares[0] < 0.7 and shares[-1] == 1
    some = F[::16]
    indices = make_index(F, probes=4), make_index(F, "faiss")
    found, exact = (search_index(index, some, 10)[1].tolist() for index in indices)
    by_hand = np.mean([len({*a} & {*b}) / 10 for a, b in zip(found, exact, strict=True)])
    assert index_recall(make_index(F, probes=4), F, some, 10) == pytest.approx(by_hand)
    assert score == pytest.approx(evaluate(F, LABELS, ["recall@1"])["recall@1"], abs=0.1)


def test_lists_with_too_few_points_bring_more_lists():
    index = make_index(F, probes=1)
    squared, places = search_index(index, F[:20], 1000)
    assert (places >= 0).all() and all(len({*row}) == 1000 for row in places.tolist())
    assert np.isfinite(squared).all() and (np.diff(squared) >= 0).all() and index.nprobe == 1


@pytest.mark.parametrize("engine", ["faiss", "faiss_ivf"])
@pytest.mark.parametrize("n, k", [(1, 1), (2, 5), (38, 37), (300, 7)])
def test_no_point_is_its_own_neighbour(engine, n, k):
    points = torch.from_numpy(F[:n].repeat(2, 0)[:n])  # each twice: which of both comes first is open
    blocks = [*index_nearest(points, k, engine=engine, budget=2**10, progress=False)]
    rows, found = (torch.cat(part) for part in zip(*blocks, strict=True))
    assert rows.tolist() == [*range(n)] and found.shape == (n, min(k, n - 1))
    assert (found != rows[:, None]).all() and all(len({*row}) == len(row) for row in found.tolist())
    if engine == "faiss":
        order, exact = (torch.cat(part) for part in zip(*nearest(points, k, progress=False), strict=True))
        away = lambda at: (points[:, None] - points[at]).norm(dim=2)
        torch.testing.assert_close(away(found), away(exact[order.argsort()]), atol=2e-3, rtol=0)


@pytest.mark.gpu
def test_a_gpu_gives_what_the_processor_gives():
    import faiss

    if not faiss.get_num_gpus():
        pytest.skip("this faiss has no GPU")
    f, y = torch.from_numpy(F).cuda(), torch.from_numpy(LABELS).cuda()
    assert evaluate(f, y, NAMES, engine="faiss") == pytest.approx(evaluate(F, LABELS, NAMES), abs=1e-3)


def test_at_most_256_queries_measure_an_index(monkeypatch):
    import faiss

    taken = []
    knn = lambda some, *rest: taken.append(len(some)) or whole(some, *rest)
    whole = faiss.knn
    monkeypatch.setattr(faiss, "knn", knn)
    for n in (1, 255, 256, 257, 600, 4000):
        index_recall(make_index(F), F, F[:n], 3)
    assert taken == [1, 255, 256, 256, 256, 256]


def test_a_search_without_an_end_is_refused():
    """More neighbours than points, or a query that is NaN, were searched for ever."""
    points = torch.randn(500, 8, generator=generator(0, "points")).numpy()
    index = make_index(points, "faiss_ivf")
    for queries, k in ((points[:2] * np.nan, 3), (points[:2], 501)):
        with pytest.raises(ValueError, match="the index holds 500 points, or a query is NaN"):
            search_index(index, queries, k)
    assert (search_index(index, points[:2], 500)[1] >= 0).all()

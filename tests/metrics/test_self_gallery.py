"""Queries that lie in the gallery, and means over nothing."""

import math

import numpy as np
import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.custom.embedding_files import class_intervals
from dmlstudy.metrics import evaluate, evaluate_apart
from dmlstudy.metrics.geometry import inter, intra, ratio
from dmlstudy.metrics.retrieval import retrieve

NAMES = ["recall@1", "recall@4", "precision@4", "map@r", "map_c", "r_precision", "norm_mean"]
LABELS = torch.arange(60) // 3
F = (
    torch.randn(60, 5, generator=generator(0, "self"))
    + 0.5 * torch.randn(20, 5, generator=generator(1, "self"))[LABELS]
)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(
    "f, gallery",
    [
        (F, F),
        (F, F.view(60, 5)),  # another tensor over the same memory
        (F.numpy(), F.numpy()[:]),
        (F.double().requires_grad_(), None),  # one tensor twice
    ],
    ids=["tensor", "view", "array", "float64 with a gradient"],
)
def test_a_query_does_not_find_itself_in_its_own_gallery(f, gallery, normalize):
    gallery = f if gallery is None else gallery
    expected, each = evaluate(f, LABELS, NAMES, normalize=normalize, per_query=True)
    assert 0 < expected["recall@1"] < 0.9
    found, own = evaluate(f, LABELS, NAMES, gallery, LABELS.clone(), normalize=normalize, per_query=True)
    assert found == expected and torch.equal(own["nearest"], each["nearest"])


def test_other_ways_to_ask_leave_the_query_out_too():
    for relevance in (LABELS[:, None] == LABELS, (torch.eye(20)[LABELS],) * 2):
        assert evaluate(F, None, ["map@r"], F, relevance=relevance) == evaluate(F, LABELS, ["map@r"])
    one, other = retrieve(F, LABELS, 4, F, LABELS), retrieve(F, LABELS, 4)
    assert torch.equal(one.neighbours, other.neighbours) and one.own
    array, names = F.numpy(), ["recall@1", "map@r"]
    assert class_intervals(array, LABELS.numpy(), names, True, 0, 5, array, LABELS.numpy()) == class_intervals(
        array, LABELS.numpy(), names
    )


@pytest.mark.parametrize(
    "f, gallery, labels, count",
    [
        (F, F.clone(), LABELS, 60),
        (F[:20], F, LABELS, 20),
        (F, 4 * F, LABELS, 60),  # equal on the unit sphere
        (F, torch.cat([F[:7], F[7:] + 1]), LABELS, 7),
        (F, F, LABELS + 1, 60),  # one tensor whose labels differ
        (F, F.half(), LABELS, 60),
        (F, F + 1e-6 * F.flip(1), LABELS, 60),  # as a second pass through a network gives them
    ],
    ids=["copy", "part", "longer", "some", "other labels", "sixteen bits", "second pass"],
)
def test_equal_rows_of_a_gallery_are_warned_of(f, gallery, labels, count):
    said = rf"^{count} of {len(f)} queries equal a row of the gallery to three digits: leave out"
    with pytest.warns(UserWarning, match=said):
        evaluate(f, LABELS[: len(f)], NAMES, gallery, labels)


@pytest.mark.filterwarnings("error")
def test_a_gallery_of_other_images_is_not_warned_of():
    evaluate(F, LABELS, NAMES, F + 0.01, LABELS)
    evaluate(F, LABELS, NAMES)


@pytest.mark.parametrize("singletons", ["miss", "skip"])
def test_queries_without_an_answer_are_said_to_count_as_they_do(singletons):
    """All of them, and the value is NaN; one of them, and it counts as a miss if that is asked for."""
    one, counts = LABELS.clone(), {"miss": "count as misses", "skip": "are left out"}[singletons]
    one[0] = 99
    for labels, said in ((torch.arange(60), "60 of 60.*: they are left out"), (one, f"1 of 60.*: they {counts}")):
        with pytest.warns(UserWarning, match=said):
            evaluate(F, labels, NAMES, singletons=singletons)


@pytest.mark.filterwarnings("ignore:.*queries have")
@pytest.mark.parametrize("singletons", ["miss", "skip"])
def test_a_mean_over_no_query_is_nan(singletons):
    alone, names = torch.arange(60), NAMES[:-1]
    options = dict(singletons=singletons, per_query=True)
    for given in (
        (F, alone, names),
        (F, LABELS, names, F + 1, LABELS + 100),  # no query has its class in the gallery
        (F[:1], LABELS[:1], names),
    ):
        scores, each = evaluate(*given, **options)
        assert all(math.isnan(scores[name]) and each[name].isnan().all() for name in names)
    scores = evaluate(F, None, names, relevance=torch.zeros(60, 60), singletons=singletons)
    assert all(math.isnan(value) for value in scores.values())


def test_distances_of_no_pair_are_nan_and_a_ratio_says_why():
    z = torch.nn.functional.normalize(F)
    assert math.isnan(intra(z, torch.arange(60))) and math.isnan(inter(z, torch.zeros(60)))
    with pytest.warns(UserWarning, match="ratio is NaN: there is one class"):
        assert math.isnan(ratio(z, torch.zeros(60)))
    turned = torch.tensor([[0.8, 0.6], [0.8, -0.6], [0.6, 0.8], [0.6, -0.8]])  # two classes, one mean direction
    for f in (turned, 1e-3 * turned, turned.repeat(3, 1)):
        labels = torch.arange(len(f)) // 2 % 2
        with pytest.warns(UserWarning, match="ratio is NaN: the mean directions of all classes are equal"):
            scores = evaluate(f, labels, ["intra", "inter", "ratio"])
        assert scores["intra"] > 0.1 and scores["inter"] < 1e-8 and math.isnan(scores["ratio"])
    apart = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert evaluate(apart, np.array([0, 0, 1, 1]), ["ratio"]) == {"ratio": 0.0}


def test_apart_from_its_group_an_image_is_searched_as_everywhere_else():
    """NaN is refused, a metric that is none or needs classes named, and of equal points the first one is nearest."""
    groups = torch.arange(60) % 4
    with pytest.raises(ValueError, match="hold NaN or infinity; first rows: 7"):
        evaluate_apart(F.index_fill(0, torch.tensor(7), math.nan), LABELS, groups)
    with pytest.raises(ValueError, match="with a gallery only retrieval metrics"):
        evaluate_apart(F, LABELS, groups, ["nmi"])
    rng = np.random.default_rng(0)
    for f in (torch.ones(60, 2), *torch.from_numpy(rng.integers(1, 4, (20, 60, 2))).float()):
        d = (f[:, None] - f).square().sum(2)  # of small whole numbers: exact
        d[groups[:, None] == groups] = math.inf
        first = LABELS[[int(np.argmin(row)) for row in d.numpy()]]  # the first of the smallest
        assert evaluate_apart(f, LABELS - 3, groups, ["recall@1"], normalize=False) == {
            "recall@1": float((first == LABELS).double().mean())
        }


def test_tasks_take_arrays():
    tasks = {"queries": np.arange(5), "groups": np.zeros(60, int)}
    same = {"queries": torch.arange(5), "groups": torch.zeros(60, dtype=int)}
    assert evaluate(F, LABELS, ["rho"], tasks=tasks) == evaluate(F, LABELS, ["rho"], tasks=same)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_tasks_of_the_processor_are_done_on_a_gpu(kind):
    tasks = {"queries": kind([*range(5)]), "groups": kind([*range(6)] * 10)}
    near, there = (evaluate(f, labels, [], tasks=tasks) for f, labels in ((F, LABELS), (F.cuda(), LABELS.cuda())))
    assert near == there


def test_wrong_input_of_retrieval_apart_is_named():
    groups = torch.arange(len(F)) % 3
    for metrics in (["norm_mean"], None):
        with pytest.raises(ValueError, match="There is no retrieval metric 'norm_mean'"):
            evaluate_apart(F, LABELS, groups, metrics)
    for wrong in (groups[1:], groups[:, None]):
        with pytest.raises(ValueError, match="labels"):
            evaluate_apart(F, LABELS, wrong)
    assert evaluate_apart(F, LABELS, groups, []) == {}
    assert evaluate_apart(F, LABELS, groups.numpy()) == evaluate_apart(F, LABELS, groups)


def test_a_gallery_that_is_the_queries_has_clusters():
    assert evaluate(F, LABELS, ["nmi"], f_gallery=F, labels_gallery=LABELS) == evaluate(F, LABELS, ["nmi"])

"""The linear classifier on fixed features: what it must not depend on, and what has no score."""

import math

import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.metrics import evaluate
from dmlstudy.metrics.probes import every_other, linear_accuracy
from dmlstudy.metrics.retrieval import retrieve


@pytest.fixture
def features() -> tuple[torch.Tensor, torch.Tensor]:
    """Four classes of forty images that overlap."""
    rng, labels = generator(0, "linear"), torch.arange(4).repeat(40)
    return torch.randn(4, 6, generator=rng)[labels] + torch.randn(160, 6, generator=rng), labels


def test_accuracy_depends_neither_on_units_nor_on_names_of_classes(features):
    """Each feature may have its own scale and zero, classes any number, images any order."""
    f, labels = features
    fit = every_other(labels)
    score = lambda f, labels: linear_accuracy(f[fit], labels[fit], f[~fit], labels[~fit])
    expected = score(f, labels)
    assert 0.5 < expected < 1
    assert score(f * torch.logspace(-3, 3, 6) + 7, labels) == expected
    assert score(f, 100 - 7 * labels) == expected
    turned = torch.arange(159, -1, -1)
    assert linear_accuracy(f[fit][turned[80:]], labels[fit][turned[80:]], f[~fit], labels[~fit]) == expected


def test_an_image_of_a_class_that_was_not_fitted_is_wrong(features):
    f, labels = features
    known = labels < 3
    part = linear_accuracy(f[known], labels[known], f[known], labels[known])
    assert linear_accuracy(f[known], labels[known], f, labels) == pytest.approx(0.75 * part)


def test_half_of_each_class_is_fitted():
    labels = torch.tensor([5, 2, 5, 5, 2, 9, 5])
    taken = every_other(labels)
    for c in labels.unique():
        assert taken[labels == c].tolist() == [i % 2 == 0 for i in range(int((labels == c).sum()))]


def test_linear_accuracy_of_nothing_is_no_score():
    """NaN features, and a single image or class, were a perfect score."""
    f, labels = torch.randn(8, 3, generator=generator(0, "linear")), torch.arange(8) % 2
    assert 0 <= linear_accuracy(f, labels, f, labels) <= 1
    for fitted, tested in ((f * math.nan, f), (f, f * math.nan)):
        with pytest.raises(ValueError, match="8 of 8 .*features hold NaN"):
            linear_accuracy(fitted, labels, tested, labels)
    for n in (1, 4):
        with pytest.raises(ValueError, match=f"two or more classes; got {n} of 1"):
            linear_accuracy(f[:n], labels[:n] * 0, f, labels)


def test_what_cannot_be_compared_is_refused(features):
    h, labels = features
    with pytest.raises(ValueError, match="the test features have 5 dimensions, the others 6"):
        linear_accuracy(h, labels, h[:, :5], labels)
    with pytest.raises(ValueError, match="images of the search among others must be an integer, at least 2; got 1"):
        evaluate(h[:1], labels[:1], ["recall@1"], tasks={"queries": [0]})
    with pytest.raises(ValueError, match="k of the search must be an integer, at least 0; got -1"):
        retrieve(h, labels, -1)


def test_a_task_takes_lists(features):
    h, labels = features
    runs = [[[0, 4], [1, 5], [2, 6]]]
    assert evaluate(h, labels, [], tasks={"one_shot": runs}) == evaluate(
        h, labels, [], tasks={"one_shot": torch.tensor(runs)}
    )

"""Random batches, and what loops from formulas are made of: used by the tests of losses of tuples and of batches."""

import torch

from dmlstudy.core.random import generator
from dmlstudy.distances import pair_masks


def all_triplets(labels):
    """Every valid (anchor, positive, negative)."""
    positives, negatives = pair_masks(labels)
    return (positives[:, :, None] & negatives[:, None, :]).nonzero().unbind(1)


def batch(seed: int, size=9, dim=5, classes=4, scale=1.0):
    """Random embeddings and labels with classes of all sizes, singletons among them."""
    g = generator(seed, "tuples tests")
    return scale * torch.randn(size, dim, generator=g, dtype=torch.float64), torch.randint(
        classes, (size,), generator=g
    )


def P(y, a):
    return [j for j in range(len(y)) if j != a and y[j] == y[a]]


def N(y, a):
    return [j for j in range(len(y)) if y[j] != y[a]]


def relu(x):
    return torch.clamp(x, min=0)


def mean(terms, zero):
    return sum(terms) / len(terms) if terms else zero


def dist(x, y):
    d2 = ((x - y) ** 2).sum()
    return d2.sqrt() if d2 > 0 else 0 * d2


def log1p_sum(terms, zero):
    return torch.log(1 + sum(t.exp() for t in terms)) if terms else zero

"""Transforms of torch.func, autocast around backward, embeddings far from 0, a device without values."""

from functools import partial

import pytest
import torch
from edge_batches import CLASSES, DIM, FINITE, PAIRS, draw
from grids import each

from dmlstudy.distances import unit
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.losses.base import _AT_ONCE, sum_over_rows
from dmlstudy.losses.wrappers import matryoshka, with_memory


def variants(name):
    """Those that need no triplets."""
    return ("corrected",) if name == "quadruplet" else ("corrected", "published")


every_loss = pytest.mark.parametrize("name", LOSSES)


def slope(loss, f, *more):
    x = f.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(x, *more), x)[0]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_loss
@each("variant", variants)
def test_func_grad_and_vmap(name, variant):
    """`torch.func` sees the value and the gradient that autograd finds; one batch after another, or all at once."""
    make = lambda: make_loss(name, CLASSES, DIM, variant).double()
    batches = torch.stack([draw(8, torch.float64), draw(8, torch.float64, "others")])
    expected = torch.stack([slope(make(), f, PAIRS) for f in batches])
    for f, wanted in zip(batches, expected, strict=True):
        torch.testing.assert_close(torch.func.grad(make())(f, PAIRS), wanted)
    values = torch.stack([make()(f, PAIRS) for f in batches])
    together = {"in_dims": (0, None), "randomness": "same"}
    torch.testing.assert_close(torch.func.vmap(make(), **together)(batches, PAIRS), values)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(make()), **together)(batches, PAIRS), expected)


@every_loss
@each("variant", variants)
@each("edge", ["duplicates", "zero vectors", "one class", "singletons", "collapsed"])
def test_func_grad_is_finite_at_the_edges(name, variant, edge):
    f, labels = FINITE[edge]
    found = torch.func.grad(make_loss(name, CLASSES, DIM, variant))(f, labels)
    assert found.isfinite().all()
    if edge in ("one class", "singletons"):
        wanted = slope(make_loss(name, CLASSES, DIM, variant), f, labels)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@each("name", [name for name in LOSSES if LOSSES[name].uses == "triplets"])
def test_func_grad_with_triplets(name):
    f, given = draw(8, torch.float64), (torch.tensor([0, 2, 5]), torch.tensor([1, 3, 4]), torch.tensor([2, 7, 0]))
    make = lambda: make_loss(name)
    torch.testing.assert_close(torch.func.grad(make())(f, PAIRS, given), slope(make(), f, PAIRS, given))


@every_loss
@each("variant", variants)
@each("wrong", [float("nan"), float("inf")])
def test_an_embedding_that_is_not_finite_is_seen(name, variant, wrong):
    """Even one that no pair of the batch needs: the only image of its class."""
    f = draw(7)
    f[6, 0] = wrong
    assert make_loss(name, CLASSES, DIM, variant)(f, torch.tensor([0, 0, 1, 1, 2, 2, 3])).isnan()


def with_full_memory():
    loss = with_memory(make_loss("supcon"), size=16, warmup=0)
    loss(draw(8, purpose="past"), PAIRS)
    return loss


def in_blocks(f, labels):
    """The sum of positive similarities less the squares of negative ones, two rows at a time."""
    terms = lambda s, positives, negatives: ((s * positives - s.square() * negatives).sum(),)
    return sum(sum_over_rows(terms, unit(f), labels, width=_AT_ONCE // 2))


MORE = {
    "hist with its graph": partial(make_loss, "hist", CLASSES, DIM, lam=1.0),
    "memory": with_full_memory,
    "matryoshka": lambda: matryoshka(make_loss("proxy_anchor", CLASSES, DIM), (2, DIM)),
    "rows in blocks": lambda: in_blocks,
}


def makers(name):
    """Ways to make a loss: its variants, or one of MORE."""
    return [MORE[name]] if name in MORE else [partial(make_loss, name, CLASSES, DIM, v) for v in variants(name)]


@pytest.mark.parametrize("name", [*LOSSES, *MORE])
@each("make", makers)
def test_backward_inside_autocast_is_not_in_sixteen_bits(make):
    """Called inside or outside, the gradient has the same bits; the loss's own parameters', too."""
    found = []
    for inside in (False, True):
        loss, f = make(), draw(8).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            loss(f, PAIRS).backward()
        found.append([f.grad, *(p.grad for p in getattr(loss, "parameters", list)())])
    assert found[0][0].any()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_rows_in_blocks_under_a_transform():
    f = draw(8, torch.float64)
    torch.testing.assert_close(torch.func.grad(in_blocks)(f, PAIRS), slope(in_blocks, f, PAIRS))


@every_loss
@each("far", [1e19, 1e30, 1e37])
def test_far_embeddings_are_not_zero(name, far):
    """Beyond a norm of 1.8e19 the square is no float32; a direction is still a direction."""
    f = unit(draw(8))
    make = lambda: make_loss(name, CLASSES, DIM)
    if not make().normalizes:
        return
    value = make()(far * f, PAIRS)
    torch.testing.assert_close(value, make()(f, PAIRS), rtol=1e-4, atol=1e-5)
    turned = slope(make(), far * f, PAIRS)
    assert turned.isfinite().all()
    if far == 1e19:  # its gradient, of size 1e-19, is a number
        torch.testing.assert_close(far * turned, slope(make(), f, PAIRS), rtol=1e-3, atol=1e-4)


@every_loss
@each("variant", variants)
def test_meta_device(name, variant):
    """Shapes without values: a loss goes forward and back, drawing losses, too."""
    loss, f = make_loss(name, CLASSES, DIM, variant).to("meta"), torch.empty(8, DIM, device="meta", requires_grad=True)
    value = loss(f, PAIRS.to("meta"))
    value.backward()
    assert value.is_meta and value.shape == () and f.grad.is_meta

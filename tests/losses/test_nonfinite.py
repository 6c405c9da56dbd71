"""A step with an embedding that is not finite: what remembers holds afterwards what it would hold without that step."""

import math

import pytest
import torch
from tiers import sample

from dmlstudy.core.random import generator
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.losses.wrappers import matryoshka, with_memory
from dmlstudy.regularizers import REGULARIZERS, make_regularizer

REMEMBER = [name for name, kind in LOSSES.items() if hasattr(kind, "against")]
LABELS = torch.arange(8) // 2
AROUND = {"memory": lambda loss: loss, "memory in nested dimensions": lambda loss: matryoshka(loss, (4, 8))}
BAD = {  # a batch as it comes from the network
    "inf": lambda f: f.index_put((torch.tensor(3), torch.tensor(2)), torch.tensor(math.inf)),
    "nan": lambda f: f.index_put((torch.tensor(7), torch.tensor(0)), torch.tensor(math.nan)),
    "all -inf": lambda f: torch.full_like(f, -math.inf),
    "overflow in float16": lambda f: (1e6 * f).half(),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", sample(REMEMBER, every=6))
def test_a_memory_after_a_bad_step_is_that_of_a_twin_without_it(name, around):
    """After one good batch, as the first one, and in a full memory; the seven steps after it have equal bits."""
    for bad, spoil in BAD.items():
        for before in (1, 0, 6):
            rng = generator(0, "bad step", bad)
            loss, twin = (AROUND[around](with_memory(make_loss(name), 40, 0)) for _ in range(2))
            batch = lambda rng=rng: torch.randn(8, 8, generator=rng)
            for _ in range(before):
                f = batch()
                loss(f, LABELS), twin(f, LABELS)
            assert loss(spoil(batch()), LABELS).isnan()
            for _ in range(7):
                f = batch().requires_grad_()
                values = loss(f, LABELS), twin(f, LABELS)
                assert values[0].isfinite() and torch.equal(*values)
                assert torch.equal(*(torch.autograd.grad(value, f)[0] for value in values))


def scaled(loss, at, steps, batch=112, spoil=math.inf):
    """Training under a GradScaler with one bad image; the steps without a finite loss, and log2 of the last scale."""
    rng = generator(0, "scaled")
    net = torch.nn.Linear(32, 128)
    with torch.no_grad():
        net.weight.copy_(torch.randn(128, 32, generator=rng) / 6)
    optimizer = torch.optim.SGD([*net.parameters(), *loss.parameters()], 1e-2)
    scaler, lost = torch.amp.GradScaler("cpu"), []
    for step in range(steps):
        x = torch.randn(batch, 32, generator=rng)
        x[7, 3] = spoil if step == at else x[7, 3]
        value = loss(net(x), torch.arange(batch) // 2)
        lost += [step] * (not value.isfinite())
        optimizer.zero_grad()
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
    assert all(p.isfinite().all() for p in (*net.parameters(), *loss.parameters()))
    return lost, math.log2(scaler.get_scale())


@pytest.mark.parametrize("size, at, steps", [(8000, 5, 120), (80, 5, 20), (448, 12, 20), (None, 5, 20)])
def test_a_gradient_scaler_skips_one_step_and_goes_on(size, at, steps):
    loss = make_loss("supcon") if size is None else with_memory(make_loss("supcon"), size, 0)
    assert scaled(loss, at, steps) == ([at], 15)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_learned_under_a_gradient_scaler_is_not_spoiled(bad):
    for name in LOSSES:
        assert scaled(make_loss(name, 8, 128), 2, 5, 16, bad)[0] == [2], name
    for name in sorted({*REGULARIZERS} - {"threshold_consistent"}):  # which counts active pairs alone
        assert scaled(make_regularizer(name), 2, 5, 16, bad)[0] == [2], name


@pytest.mark.parametrize("more", [{"momentum": 0.1}, {"momentum": 0.5, "ramp": 3}, {}])
def test_the_running_mean_of_sec_after_a_bad_step_is_that_without_it(more):
    sec, twin = make_regularizer("sec", **more), make_regularizer("sec", **more)
    rng = generator(0, "sec")
    for step in range(8):
        f = torch.randn(8, 4, generator=rng)
        if step in (0, 3):
            assert not sec(f / 0, LABELS).isfinite()
            twin.steps = twin.steps + 1 if "ramp" in more else None
        assert torch.equal(sec(f, LABELS), twin(f, LABELS)) and torch.equal(sec.mu, twin.mu)


@pytest.mark.parametrize("train", [True, False])
def test_a_memory_that_meets_another_dimension_says_so(train):
    loss = with_memory(make_loss("supcon"), 20, 0)
    loss(torch.randn(8, 6, generator=generator(0)), LABELS)
    with pytest.raises(ValueError, match="the memory holds embeddings of dimension 6; got 5: make another loss"):
        loss.train(train)(torch.randn(8, 5, generator=generator(1)), LABELS)


# ---- where no gradient is recorded ----


def kinds():
    """Every loss, alone, with a memory, and in nested dimensions."""
    for name, kind in LOSSES.items():
        yield name, lambda name=name: make_loss(name, 4, 6)
        yield f"{name}, nested", lambda name=name: matryoshka(make_loss(name, 4, 6), (3, 6))
        if hasattr(kind, "against"):
            yield f"{name}, memory", lambda name=name: with_memory(make_loss(name), 20, 0)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_losses_and_regularizers_where_no_gradient_is_recorded(mode):
    """The same value as in training; and training goes on afterwards, with what was seen there."""
    terms = [(name, lambda name=name: make_regularizer(name)) for name in REGULARIZERS]
    terms.append(("sec", lambda: make_regularizer("sec", momentum=0.5, ramp=3)))
    f = torch.randn(8, 6, generator=generator(0, "modes"))
    for name, make in (*kinds(), *terms):
        recorded, made = make(), make()
        expected = recorded(f, LABELS)
        with mode():
            own = f.clone()
            torch.testing.assert_close(made(own, LABELS), expected.detach(), msg=name)
        x = f.clone().requires_grad_()
        made(x, LABELS).backward()
        assert x.grad.isfinite().all(), name
        frozen = make()
        value = frozen(own, LABELS)  # embeddings of a frozen network
        assert value.requires_grad == any(p.requires_grad for p in frozen.parameters()), name
        if value.requires_grad:
            value.backward()


def test_a_regulariser_of_a_bad_batch_is_not_finite():
    """A value that looks sound would hide a network that has diverged."""
    f = torch.randn(8, 6, generator=generator(0, "bad")).index_fill(0, torch.tensor(2), math.nan)
    for name in REGULARIZERS:
        reg = make_regularizer(name)
        assert not reg(f, LABELS).isfinite(), name
        assert not reg(torch.full_like(f, math.nan), LABELS).isfinite(), name

"""Passes left early, workers, resuming; and banks that are given embeddings that are not finite."""

import itertools
import math
import warnings

import pytest
import torch
from tiers import sample
from torch.utils.data import DataLoader, TensorDataset

from dmlstudy.core.random import generator
from dmlstudy.samplers import SAMPLERS, make_sampler

LABELS, BATCHES = torch.arange(120) // 6, 10
BANKED = ("gc", "ddm", "frd", "d2")


def make(name, **more):
    if name not in BANKED:
        return make_sampler(name, LABELS, 12, **more)
    sampler = make_sampler(name, LABELS, 12, **{"dim": 4, "big_batch": 48} | more)
    sampler.bank.fill(torch.randn(120, 4, generator=generator(0, "epochs")))
    return sampler


def loader(sampler, workers=0, persistent=False):
    data = TensorDataset(torch.arange(120))
    return DataLoader(data, batch_sampler=sampler, num_workers=workers, persistent_workers=persistent)


def read(batches, n=None):
    return [x.tolist() for (x,) in itertools.islice(batches, n)]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("left", [7, 1, 9, None])
def test_a_pass_left_early_is_over(name, left):
    """Four passes of some batches each, without set_epoch: the first batches of epochs 0 to 3."""
    batches, whole = loader(make(name)), make(name)
    for epoch in range(4):
        expected = [whole.batch(epoch, i).tolist() for i in range(BATCHES)][:left]
        assert read(batches, left) == expected


@pytest.mark.parametrize("workers, persistent", sample([(1, False), (2, False), (2, True)], [(2, True)]))
def test_workers_make_no_difference_to_a_pass_left_early(workers, persistent):
    for name in ("spc", "frd"):
        one, many = loader(make(name)), loader(make(name), workers, persistent)
        for left in (7, 2, None, 7):
            assert read(many, left) == read(one, left)


def test_a_chosen_epoch_is_given_whatever_was_left():
    sampler, whole = make("spc"), make("spc")
    for epoch in (3, 3, 0, 5):
        sampler.set_epoch(epoch)
        assert next(iter(sampler)) == whole.batch(epoch, 0).tolist()
    assert next(iter(sampler)) == whole.batch(6, 0).tolist()


def test_passes_at_a_time_are_epochs_of_their_own():
    sampler, whole = make("shuffle"), make("shuffle")
    both = itertools.islice(zip(sampler, sampler, strict=True), 3)
    expected = [tuple(whole.batch(epoch, i).tolist() for epoch in (0, 1)) for i in range(3)]
    assert [*both] == expected


@pytest.mark.parametrize("name", ["spc", "gc", "ddm"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_goes_on_in_its_middle_from_the_state(name, workers):
    """Batch 7 of epoch 1, after epoch 0 was left; then epoch 2."""
    sampler, again, whole = make(name), make(name), make(name)
    batches = loader(sampler, workers)
    read(batches, 4), read(batches, 7)
    again.load_state_dict(sampler.state_dict(batch=7))
    expected = [[whole.batch(epoch, i).tolist() for i in range(BATCHES)] for epoch in (1, 2)]
    assert [*again] == expected[0][7:]
    assert [*again] == expected[1]


@pytest.mark.parametrize("name", ["spc", "shuffle", "gc", "frd"])
def test_a_state_of_another_sampler_is_refused(name):
    """Other labels, as many of each; batch size; seed; number of batches; images of a class."""
    sampler = make(name)
    state, changed = sampler.state_dict(), LABELS.flip(0).roll(1)
    bank = {} if sampler.bank is None else {"bank": sampler.bank, "big_batch": sampler.big_batch}
    assert LABELS.bincount().equal(changed.bincount()) and not LABELS.equal(changed)
    make(name).load_state_dict(state)
    for labels, size, seed, more in (
        (changed, 12, 0, {}),
        (LABELS, 24, 0, {}),
        (LABELS, 12, 1, {}),
        (LABELS, 12, 0, {"batches": 5}),
    ):
        other = make_sampler(name, labels, size, seed, **bank, **more)
        with pytest.raises(ValueError, match=rf"is of another sampler: {type(sampler).__name__}\(.*; this one is "):
            other.load_state_dict(state)


# ---- banks ----


@pytest.mark.parametrize("refresh", ["epoch", "batch"])
@pytest.mark.parametrize("name", BANKED)
def test_a_bank_skips_what_is_not_finite_with_one_warning(name, refresh):
    """An update with NaN in the middle of an epoch; batches are those of a twin that never saw it."""
    sampler, twin = (make(name, refresh=refresh) for _ in range(2))
    one, other = iter(sampler), iter(twin)
    assert [next(one) for _ in range(3)] == [next(other) for _ in range(3)]
    f = torch.randn(6, 4, generator=generator(1, "epochs"))
    bad = f.clone()
    bad[[1, 4], [0, 3]] = torch.tensor([math.nan, math.inf])
    rows = torch.tensor([5, 17, 40, 17, 90, 3])  # image 17 twice: its later row counts
    sampler.bank.update(rows, bad), twin.bank.update(rows[[0, 2, 3, 5]], f[[0, 2, 3, 5]])
    assert torch.equal(sampler.bank.f, twin.bank.f)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [*one] == [*other] and [*sampler] == [*twin] and [*sampler] == [*twin]
    assert [str(w.message) for w in said] == ["embeddings not finite: 1. The bank keeps the earlier ones"]


@pytest.mark.parametrize("name", BANKED)
def test_a_bank_that_was_written_by_hand_is_refused_with_its_numbers(name):
    sampler = make(name, refresh="batch", big_batch=120)
    next(iter(sampler))
    sampler.bank.f[3] = math.nan
    with pytest.raises(ValueError, match=r"\d of 120 embeddings (of a big batch|in the bank) hold NaN or infinity"):
        [sampler.batch(0, i) for i in range(BATCHES)]


def test_an_image_whose_only_embedding_was_not_finite_is_missing():
    sampler = make_sampler("gc", LABELS, 12, dim=4, big_batch=48)
    f = torch.randn(120, 4, generator=generator(0, "epochs"))
    f[2:5] = math.inf
    sampler.bank.fill(f)
    with pytest.warns(UserWarning, match="embeddings not finite: 3. The bank"):
        with pytest.raises(ValueError, match="lacks 3 of 120"):
            sampler.batch(0, 0)


@pytest.mark.parametrize("name", BANKED)
def test_a_bank_under_inference_mode(name):
    with torch.inference_mode():
        sampler = make(name)
        inside = [*sampler]
    f = torch.randn(2, 4, generator=generator(2, "epochs"))
    sampler.bank.update([1, 2], f)
    assert inside == [*make(name)] and torch.equal(sampler.bank.f[1:3], f)

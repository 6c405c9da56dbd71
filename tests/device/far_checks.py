"""On a device that is not the CPU: values, devices, waits. test_far_device.py runs these checks in a process apart."""

import contextlib
import json
from functools import partial

import far_device
import numpy as np
import pytest
import torch
from edge_batches import CLASSES, DIM, FINITE
from far_device import FAR, Far, Mixed, Wait
from grids import each
from miniatures import accept, build

from dmlstudy import metrics, train
from dmlstudy.core.random import generator
from dmlstudy.data import loaders as feeds
from dmlstudy.data.formats import load_images
from dmlstudy.data.loaders import feed_of, splits_of
from dmlstudy.data.prepare import prepare
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.losses.wrappers import with_memory
from dmlstudy.metrics import evaluate
from dmlstudy.metrics.probes import linear_accuracy
from dmlstudy.miners import make_miner
from dmlstudy.regularizers import REGULARIZERS, ManifoldMixup, balance_gradients, make_regularizer
from dmlstudy.samplers.coreset import MemoryBank
from dmlstudy.study.methods import METHODS
from dmlstudy.study.run import make_run
from dmlstudy.train.network import OPTIMIZERS
from dmlstudy.train.objective import make_objective
from dmlstudy.train.state import start
from tests.train.test_train import stop_at

TINY = {"dataset": "glyphs_many", "steps": 4, "eval_every": 4, "images_per_class": 2}
BIRDS = {
    "dataset": "cub200", "fold": None, "model": "resnet50", "weights": None, "embed_dim": 8, "method": "Triplet (R)",
    "batch_size": 4, "steps": 2, "eval_every": 1, "lr": 1e-4,
}  # fmt: skip


@pytest.fixture
def far():
    with far_device.far_away() as device:
        device.waits.clear()
        yield device


def test_the_device_is_as_strict_as_a_gpu(far):
    f, rows = torch.randn(4, 3, device=FAR), torch.zeros(2, dtype=torch.int64)
    assert isinstance(f, Far) and f.device == FAR and (f + 1 > f).all().device == FAR
    for mixed in (
        lambda: f + torch.ones(4, 3),
        lambda: f @ torch.ones(3, 2),
        lambda: torch.rand(3, device=FAR, generator=torch.Generator()),
        lambda: torch.rand(3, generator=torch.Generator(FAR)),
    ):
        with pytest.raises(Mixed):
            mixed()
    with pytest.raises(RuntimeError, match="numpy"):
        f.numpy()
    for wait in (
        lambda: f.sum().item(),
        lambda: bool(f.any()),
        lambda: f[f > 0],
        lambda: f.nonzero(),
        lambda: f.unique(),
        lambda: f.tolist(),
        lambda: f.cpu(),
        lambda: f[rows],
        lambda: rows.to(FAR),
        lambda: torch.tensor([1.0], device=FAR),
        lambda: rows.to(FAR, non_blocking=True).bincount(),
    ):
        with far.no_waits(), pytest.raises(Wait):
            wait()
    with far.no_waits():
        rows.to(FAR, non_blocking=True), torch.zeros(3, device=FAR).cumsum(0), torch.arange(3, device=FAR) * 2.0


def by_cpu(make, f, labels):
    """Value and gradient."""
    x = f.clone().requires_grad_()
    value = make()(x, labels, generator(0, "tuples"))[0]
    value.backward()
    return value.detach(), x.grad


@pytest.mark.parametrize("variant", ["corrected", "published"])
@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.loss])
def test_methods(far, method, variant):
    """The CPU's value and gradient; and no wait where the whole batch is used, or tuples drawn by distance."""
    run = make_run(dataset="cub200", method=method, embed_dim=16, variant=variant, steps=4)
    make = lambda: make_objective(METHODS[method], run, 10)
    f, labels = torch.randn(24, 16, generator=generator(1)), torch.arange(8).repeat_interleave(3)
    value, gradient = by_cpu(make, f, labels)
    objective, x, y = make().to(FAR), f.to(FAR).requires_grad_(), labels.to(FAR)
    for term in objective.regularizers.values():
        term.eval()(x, y)  # SEC looks at the norms of its first batch
    objective.train()
    with far.no_waits() if METHODS[method].miner in (None, "distance") else contextlib.nullcontext():
        total, terms = objective(x, y, generator(0, "tuples", device=FAR))
        total.backward()
    assert total.device == x.grad.device == FAR and all(term.device == FAR for term in terms.values())
    torch.testing.assert_close(total.detach().cpu(), value)
    torch.testing.assert_close(x.grad.cpu(), gradient)


@pytest.mark.parametrize("name", LOSSES)
@each("batch", FINITE)
def test_losses_on_odd_batches(far, name, batch):
    f, labels = FINITE[batch]
    make = lambda: make_loss(name, CLASSES, DIM)
    try:
        value = make()(f, labels)
    except ValueError as error:
        with pytest.raises(ValueError, match="^" + str(error)[:12]):
            make().to(FAR)(f.to(FAR), labels.to(FAR))
        return
    loss, x, y = make().to(FAR), f.to(FAR).requires_grad_(), labels.to(FAR)
    with far.no_waits():
        there = loss(x, y)
        there.backward()
    torch.testing.assert_close(there.detach().cpu(), value.detach(), equal_nan=False)


def test_a_full_memory_skips_a_batch_that_is_not_finite_without_a_wait(far):
    """The batches after it have the CPU's values; a bank skips such rows in the same way."""
    f, labels = torch.randn(6, 12, 8, generator=generator(7)), torch.arange(12) // 3
    near, there = (with_memory(make_loss("sincere"), 24, 0) for _ in range(2))
    bank = MemoryBank(12, 8, FAR)
    y, rows, bad = labels.to(FAR), torch.arange(12).to(FAR), f[3].clone()
    bad[2, 5] = float("inf")
    for k, batch in enumerate(f):
        x = (bad if k == 3 else batch).to(FAR)
        with far.no_waits() if k > 1 else contextlib.nullcontext():
            value = there(x, y)
            bank.update(rows, x)
        if k == 3:
            assert value.isnan().cpu() and bank.skipped.cpu() == 1 and torch.equal(bank.f[2].cpu(), f[2, 2])
        else:
            torch.testing.assert_close(value.cpu(), near(batch, labels))
    assert torch.equal(there.kept.cpu(), near.kept) and torch.equal(bank.f.cpu(), f[5])


@pytest.mark.parametrize("name", ["random", "semihard", "softhard", "distance", "rho_distance", "all"])
def test_miners(far, name):
    f, labels = torch.randn(24, 8, generator=generator(2)), torch.arange(24) // 3
    made = make_miner(name)(f, labels, generator(3))
    for rng in (generator(3, device=FAR), generator(3)):  # on either device
        there = make_miner(name)(f.to(FAR), labels.to(FAR), rng)
        assert all(part.device == FAR for part in there)
        assert [part.tolist() for part in there] == [part.tolist() for part in made]


@pytest.mark.parametrize("name", sorted({*REGULARIZERS} - {"ring"}))  # ring sets its parameter's data, unseen here
def test_regularizers(far, name):
    f, labels = torch.randn(12, 8, generator=generator(4)), torch.arange(12) // 3
    regularizer, values = make_regularizer(name).to(FAR), [make_regularizer(name)(f, labels)]
    x, y = f.to(FAR).requires_grad_(), labels.to(FAR)
    regularizer(x, y)  # SEC looks at the norms of its first batch
    with far.no_waits():
        for _ in range(2):
            values.append(regularizer(x, y))
            (values[-1] + balance_gradients(x).sum()).backward()
            ManifoldMixup().draw(x)(x)
    torch.testing.assert_close(values[1].detach().cpu(), values[0])


@pytest.mark.parametrize("given", [{}, {"gallery": True}, {"normalize": False}, {"budget": 2**20}], ids=str)
def test_metrics(far, given):
    f, labels = torch.randn(400, 16, generator=generator(5)), torch.arange(400) % 37
    f = (f * 4).round() / 4  # ties
    if given.pop("gallery", False):
        given = {**given, "f_gallery": f[:300] + 0.25, "labels_gallery": labels[:300]}
    there = {k: v.to(FAR) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    near, far_ = evaluate(f, labels, **given), evaluate(f.to(FAR), labels.to(FAR), **there)
    assert near.keys() == far_.keys()
    for name, value in near.items():
        assert far_[name] == pytest.approx(value, rel=1e-4, nan_ok=True), name


def same(there: dict, near: dict) -> None:
    """Equal terms and curves, but for the order of sums."""
    for part in ("train", "validation", "test"):
        for name, values in near["curves"].get(part, {}).items():
            one, other = np.array(there["curves"][part][name], float), np.array(values, float)
            np.testing.assert_allclose(one, other, rtol=0.02, atol=0.02, err_msg=f"{part} {name}")
    assert there["terms"].keys() == near["terms"].keys()
    assert there["terms"]["total"] == pytest.approx(near["terms"]["total"], rel=1e-3)


@pytest.mark.parametrize("sampler", ["gc", "frd", "d2"])  # with a memory bank
def test_runs(far, sampler):
    run = make_run(TINY, method="Margin (D, beta=1.2)", sampler=sampler)
    there = train.fit(run, device="far")
    assert there["made"]["device"] == "far"
    same(there, train.fit(run, device="cpu"))


SIMCLR = {"method": "SimCLR + SEC", "sampler": "shuffle", "samples_per_class": 1, "batch_size": 56}


@pytest.mark.parametrize("fields", [{"train_stem": True}, {"method": "Softmax"}, {"optimizer": "sgd"}, SIMCLR], ids=str)
def test_kinds_of_runs(far, monkeypatch, fields):
    monkeypatch.setattr(metrics, "linear_accuracy", partial(linear_accuracy, steps=10))  # hundreds take a minute there
    run = make_run(TINY, **fields)
    same(train.fit(run, device="far"), train.fit(run, device="cpu"))


@pytest.mark.parametrize("sampler", ["gc"])
def test_a_stopped_run_goes_on(far, tmp_path, sampler):
    run = make_run(TINY, dataset="glyphs_fine", eval_every=1, sampler=sampler, images_per_class=10)

    with pytest.raises(KeyboardInterrupt):
        train.fit(run, "far", tmp_path / "run", [stop_at(3), train.Checkpoint(every=0)])
    again, whole = train.fit(run, device="far", folder=tmp_path / "run"), train.fit(run, device="far")
    assert json.dumps([again["curves"], again["terms"]]) == json.dumps([whole["curves"], whole["terms"]])


@pytest.fixture
def birds(tmp_path, monkeypatch):
    """A miniature CUB200-2011 with its decoded copy, where the library looks for it."""
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path / "data"))
    feeds._files.cache_clear()
    build("cub200", "class folders in images", tmp_path / "data")
    accept(monkeypatch, "cub200", load_images("cub200", tmp_path / "data", strict=False))
    prepare("cub200", decoded=True)
    yield
    feeds._files.cache_clear()


@pytest.mark.parametrize("pixels", ["files", "device"])
def test_runs_on_images(birds, far, pixels):
    run = make_run(BIRDS, pixels=pixels, steps=1)
    there, near = (train.fit(run, device=device, workers=0) for device in ("far", "cpu"))
    assert there["terms"]["total"] == pytest.approx(near["terms"]["total"], rel=1e-3)


STEPS = [
    {},
    {"train_stem": True},
    {"method": "Softmax"},
    {"method": "SHT + SEC", "optimizer": "sgd"},
    {**SIMCLR, "optimizer": "sgd", "milestones": "cosine", "lr_decay": 1e-3, "variant": "published"},
    {**BIRDS, **SIMCLR, "batch_size": 2},
    {**BIRDS, "pixels": "files"},
    {**BIRDS, "pixels": "device", "precision": "bf16", "channels_last": True},
    {**BIRDS, "model": "bninception"},
    {**BIRDS, "model": "googlenet"},
]


@pytest.mark.parametrize("fields", STEPS, ids=str)
def test_steps_do_not_wait(birds, far, monkeypatch, fields):
    """Data, network, miner, loss and optimiser; but for miners that say so."""
    for name, make in OPTIMIZERS.items():  # fused, as on a GPU
        monkeypatch.setitem(OPTIMIZERS, name, lambda groups, run, fused, make=make: make(groups, run, True))
    fields = {**TINY, "method": "Margin (D, beta=1.2)", **fields, "steps": 40, "eval_every": 40}
    run = make_run(fields, method="Margin (D, beta=1.2)") if fields["method"] == "Triplet (R)" else make_run(fields)
    feed = feed_of(run, splits_of(run), FAR, views=METHODS[run.method].views)
    state, guard = start(run, feed, FAR), train.Guard()
    batches = feed.stream(state.sampler, 0, run.steps)
    train.train_steps(state, batches, 3, [guard])
    far.waits.clear()
    train.train_steps(state, batches, 6, [guard])
    waits = [wait for wait in far.waits if not (run.method.startswith("SHT") and "nonzero" in wait)]
    assert not waits

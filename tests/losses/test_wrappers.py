"""Around a loss: memory of past batches, nested dimensions, wider heads; and add-ons beside it, by worked cases."""

import copy
import functools
import io
import itertools
import json
import math
import warnings
from pathlib import Path

import pytest
import pytorch_metric_learning.losses as pml
import torch
from edge_batches import CLASSES, DIM, FINITE
from grids import each
from largest import Largest
from tiers import sample
from torch.autograd import gradcheck

from dmlstudy.core.random import generator
from dmlstudy.custom import losses as own
from dmlstudy.distances import unit
from dmlstudy.losses import LOSSES, base, make_loss
from dmlstudy.losses.base import PairLoss
from dmlstudy.losses.wrappers import (
    S2SD,
    Around,
    SummedContrastiveLoss,
    WithMemory,
    distillation,
    matryoshka,
    s2sd,
    with_memory,
)
from dmlstudy.regularizers import make_regularizer
from dmlstudy.study.methods import METHODS
from dmlstudy.study.run import make_run
from dmlstudy.train import Checkpoint, fit
from dmlstudy.train.objective import Objective
from tests.losses.test_pairs import gradient, numeric
from tests.losses.test_ranking import LOOPS
from tests.train.test_train import TINY, content, stop_at

PAIR_LOSSES = [name for name, kind in LOSSES.items() if issubclass(kind, PairLoss)]
RANKS = {  # their hyperparameters here: with their own temperatures a slope cannot be measured
    "smooth_ap": {"tau": 0.2},
    "recall_at_k": {"tau2": 0.2},
    "pnp": {"tau": 0.2},
    "supap": {"tau": 0.2},
    "roadmap": {"tau": 0.2},
    "fast_ap": {"bins": 7},
}
KEPT = [*PAIR_LOSSES, *RANKS]
WITH_PROXIES = [name for name, kind in LOSSES.items() if "dim" in kind.needs]
kept_losses = pytest.mark.parametrize("name", KEPT)


def embeddings(n=8, dim=6, seed=0):
    """Random float64 embeddings that want a gradient."""
    return torch.randn(n, dim, generator=generator(seed, "around"), dtype=torch.float64).requires_grad_()


LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 3, 2])


# ---- worked cases ----


@pytest.fixture(scope="module")
def pair_cases():
    """Batches, a memory, and of each case value and gradient."""
    return json.loads((Path(__file__).parents[1] / "cases/losses_pairs.json").read_text())


def xbm(cases):
    """XBM's contrastive loss with the memory of the cases."""
    loss = with_memory(SummedContrastiveLoss(0.5), 4).eval()
    kept = unit(torch.tensor(cases["memory"], dtype=torch.float64))
    loss.set_extra_state({"steps": 0, "kept": kept, "labels": torch.tensor(cases["memory_labels"])})
    return loss


WORKED = {  # name -> what gives the value, from the file of cases
    "xbm_contrastive": xbm,
    "matryoshka_supcon": lambda cases: matryoshka(make_loss("supcon"), (2, 3)),
    "s2sd_kl": lambda cases: lambda f, labels: distillation(unit(f[:, :2]), unit(f)),
    "threshold_consistent": lambda cases: make_regularizer("threshold_consistent"),
    "margin_contrastive": lambda cases: make_regularizer("threshold_consistent", neg_margin=0.6),
    "coding_rate": lambda cases: make_regularizer("coding_rate", eta=1.0),
}


@each("name", WORKED)
@each("batch", ["even", "uneven"])
def test_worked_case(pair_cases, name, batch):
    said, given = pair_cases["cases"][f"{name}/{batch}"], pair_cases["batches"][batch]
    f = torch.tensor(given["x"], dtype=torch.float64, requires_grad=True)
    value = WORKED[name](pair_cases)(f, torch.tensor(given["labels"]))
    sign = -1 if name == "coding_rate" else 1  # what is subtracted from a loss there is added here
    assert sign * value.item() == pytest.approx(said["value"], abs=1e-9)
    slope = torch.tensor(said["grad_x"], dtype=torch.float64)
    if name == "xbm_contrastive":  # there the batch, too, is compared with constants
        z, same = unit(f), torch.tensor(given["labels"])[:, None] == torch.tensor(given["labels"])
        pairs = SummedContrastiveLoss().pairs
        fixed, both = (pairs(z @ other.T, same.clone().fill_diagonal_(False), ~same) for other in (z.detach(), z))
        value = value - both + fixed
    torch.testing.assert_close(sign * gradient(value, f), slope, rtol=1e-7, atol=1e-8)


# ---- memory ----


def batches(n, size=8, dim=6):
    g = generator(1, "batches")
    for _ in range(n):
        f = torch.randn(size, dim, generator=g, dtype=torch.float64)
        yield f.requires_grad_(), torch.randint(4, (size,), generator=g)


def summed(f, labels, others, of, own=False, margin=0.5):
    """XBM's contrastive in plain loops; an anchor is not compared with itself."""
    total = 0.0
    for i, (x, y) in enumerate(zip(unit(f).tolist(), labels.tolist(), strict=True)):
        for j, (z, other) in enumerate(zip(unit(others).tolist(), of.tolist(), strict=True)):
            s = sum(a * b for a, b in zip(x, z, strict=True))
            if own and i == j:
                continue
            total += (1 - s) * (s < 1 - 1e-5) if y == other else s * (s > margin)
    return total / len(f)


@each("size", [3, 8, 20, 100])
def test_the_batch_against_the_last_embeddings(size):
    """A list of all rows seen, newest batch first, against the queue."""
    loss, seen, of = with_memory(SummedContrastiveLoss(), size, warmup=0), torch.empty(0, 6).double(), []
    for f, labels in batches(5):
        seen, of = torch.cat((f.detach(), seen))[:size], (labels.tolist() + of)[:size]
        value = loss(f, labels)
        by_hand = summed(f, labels, f, labels, True) + summed(f, labels, seen, torch.tensor(of), True)
        assert value.item() == pytest.approx(by_hand, rel=1e-9)
        assert len(loss.kept) == min(size, len(seen)) <= size and not loss.kept.requires_grad
        fixed = seen.clone()

        def both(x, _, y=labels, fixed=fixed, of=of):
            return summed(x, y, x, y, True) + summed(x, y, fixed, torch.tensor(of), True)

        torch.testing.assert_close(gradient(value, f), numeric(both, f, None), rtol=1e-4, atol=1e-6)


@each(
    "name, theirs", [("circle", pml.CircleLoss), ("sincere", lambda: pml.NTXentLoss(0.1)), ("supcon", pml.SupConLoss)]
)
def test_same_as_pytorch_metric_learning(name, theirs):
    """Theirs is the part against the queue."""
    ours, plain = with_memory(make_loss(name), 24, warmup=0), make_loss(name)
    other = pml.CrossBatchMemory(theirs(), 6, memory_size=24)
    for f, labels in batches(6):
        values = ours(f, labels) - plain(f, labels), other(f, labels)
        torch.testing.assert_close(*values)
        torch.testing.assert_close(*(gradient(value, f) for value in values))


@kept_losses
def test_any_loss_of_pairs_or_rankings_takes_a_memory(name):
    plain = make_loss(name, **RANKS.get(name, {})).double()
    loss = with_memory(copy.deepcopy(plain), 12, warmup=1)
    for k, (f, labels) in enumerate(batches(4)):
        value = loss(f, labels)
        assert value.isfinite() and gradient(value, f).isfinite().all()
        assert (value.item() == plain(f, labels).item()) == (k == 0)
    if not LOSSES[name].sets_slope:
        assert gradcheck(lambda f: loss.eval()(f, labels), f)


def of_queries(loop, f, labels, queue, of):
    """The mean over queries of a loop's cost, each in a list of its own: itself, and the queue but for its entry."""
    costs = []
    for i, x in enumerate(unit(f)):
        rest = torch.arange(len(queue)) != i
        w = torch.zeros(int(rest.sum()) + 1, len(queue), dtype=torch.float64)
        w[0, 1:] = (of[rest] == labels[i]).double()
        if w.any():
            costs.append(loop(torch.cat((x[None], queue[rest])), w))
    return sum(costs) / len(costs)


def margins_of_queries(f, labels, queue, of):
    """ROADMAP's two means over all active pairs of a query and the queue."""
    pulls, pushes = [], []
    for i, x in enumerate(unit(f)):
        for j, z in enumerate(queue):
            if i != j and labels[i] == of[j]:
                pulls += [0.9 - x @ z] * bool(x @ z < 0.9)
            elif labels[i] != of[j]:
                pushes += [x @ z - 0.6] * bool(x @ z > 0.6)
    return sum(pulls) / max(1, len(pulls)) + sum(pushes) / max(1, len(pushes))


@pytest.mark.parametrize("name", sample(RANKS, ["smooth_ap"]))
@each("size", [8, 12, 100])
def test_rankings_of_a_memory_against_loops(monkeypatch, name, size):
    """In blocks of one row, of three, and at once: the batch's own ranking, and each query's of the queue."""
    make = lambda: make_loss(name, **RANKS[name])
    loss, plain, loop = with_memory(make(), size, warmup=0), make(), LOOPS[name if name != "roadmap" else "supap"][2]
    loop = functools.partial(loop, **RANKS[name])
    for f, labels in batches(3):
        before, of = loss.kept.double(), loss.kept_labels
        queue, of = torch.cat((unit(f).detach(), before.view(-1, 6)))[:size], torch.cat((labels, of))[:size]
        part = of_queries(loop, f, labels, queue, of)
        if name == "roadmap":
            part = (part + margins_of_queries(f, labels, queue, of)) / 2
        expected = plain(f, labels) + part
        wanted, most = gradient(expected, f), int(of.bincount().max())
        for rows in (1, 3, 1000):
            again = copy.deepcopy(loss)
            monkeypatch.setattr(base, "_AT_ONCE", rows * (most + 1) * len(of))
            value = again(f, labels)
            torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-11, msg=f"the value, {rows} rows at once")
            torch.testing.assert_close(gradient(value, f), wanted, rtol=1e-7, atol=1e-9, msg=f"slopes, {rows} rows")
        loss = again


def test_rankings_of_a_large_memory_in_bounded_memory(monkeypatch):
    """64 queries of a queue of 2,048 in eight classes, 256 positives each: no array of all (64, 256, 2048)."""
    monkeypatch.setattr(base, "_AT_ONCE", 2 * 257 * 2048)
    g = generator(0, "large memory")
    loss = with_memory(make_loss("smooth_ap"), 2048, warmup=0)
    state = {"steps": 1, "kept": unit(torch.randn(2048, 16, generator=g)), "labels": torch.arange(2048) % 8}
    loss.set_extra_state(state)
    f = torch.randn(64, 16, generator=g).requires_grad_()
    with Largest() as mode:
        loss(f, torch.arange(64) % 8).backward()
    assert f.grad.isfinite().all() and f.grad.any()
    assert mode.numbers <= 2 * 258 * 2048 < 64 * 256 * 2048 / 20


def test_circle_as_published_against_a_memory_is_one_softplus():
    loss = with_memory(make_loss("circle", variant="published"), 8, warmup=0)
    f, labels = next(batches(1))
    plain = make_loss("circle", variant="published")(f, labels).item()
    assert loss(f, labels).item() - plain == pytest.approx(plain + 2 * math.log(2), rel=1e-6)  # each pair twice


@each("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_memory_of_any_width(dtype):
    loss = with_memory(make_loss("sincere"), 12, warmup=0)
    for f, labels in batches(3):
        f = f.detach().to(dtype).requires_grad_()
        loss(f, labels).backward()
        assert f.grad.isfinite().all() and f.grad.dtype == dtype
    assert loss.kept.dtype == torch.promote_types(dtype, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(f, labels).dtype == loss.kept.dtype


@pytest.mark.parametrize("name", ["sincere", "circle", "sigmoid_pairs", *RANKS])
@each("case", FINITE)
def test_memory_on_odd_batches(name, case):
    f, labels = FINITE[case]
    loss = with_memory(make_loss(name), 10, warmup=0)
    for _ in range(3):
        x = f.detach().clone().requires_grad_()
        value = loss(x, labels)
        value.backward()
        assert value.isfinite() and x.grad.isfinite().all()


def test_a_diverged_batch_is_seen_and_leaves_the_memory():
    loss = with_memory(make_loss("sincere"), 8, warmup=0)
    good, bad = [*batches(2)]
    values = [loss(f * scale, labels) for (f, labels), scale in ((good, 1), (bad, math.nan), (good, 1))]
    assert [v.isnan().item() for v in values] == [False, True, False]


def test_a_value_kept_while_the_memory_goes_on_has_its_gradient():
    """Two values before one step, as when a batch carries two label sets."""
    (f, labels), (h, other) = batches(2)
    together, apart = (with_memory(make_loss("sincere"), 8, warmup=0) for _ in range(2))
    first, second = together(f, labels), together(h, other)
    (first + second).backward()
    alone = gradient(apart(f, labels), f)
    torch.testing.assert_close(f.grad, alone)


@each("name", [name for name, kind in LOSSES.items() if kind.takes_targets])
def test_rows_of_targets_reach_the_loss_inside(name):
    f, features, made = embeddings(), embeddings(seed=1), make_loss(name, CLASSES, DIM)
    table = torch.rand(8, CLASSES, generator=generator(0, "targets"), dtype=torch.float64)
    nested = matryoshka(made, (2, DIM)).double()
    parts = [part(f[:, :d], positives=table) for part, d in zip(nested.loss, nested.dims, strict=True)]
    torch.testing.assert_close(nested(f, positives=table), sum(parts))
    taught = s2sd(made, DIM, dims=(3,), weight=0.0).double()
    wide = taught.of_heads[0](taught.heads[0](features), positives=table)
    value = taught(f, positives=table, features=features)
    torch.testing.assert_close(value, (made.double()(f, positives=table) + wide) / 2)
    with pytest.raises(ValueError, match=r"must have shape \(8, 4\)"):
        nested(f, positives=torch.eye(8))


@each("name", ["arcface", "proxy_anchor"])
def test_what_takes_labels_alone_does_so_inside(name):
    with pytest.raises(ValueError, match="give labels instead of positives"):
        matryoshka(make_loss(name, CLASSES, DIM), (2,))(embeddings(), positives=torch.eye(8))


def test_evaluation_reads_and_does_not_write():
    loss = with_memory(make_loss("sincere"), 8, warmup=1)
    (f, labels), (h, other) = batches(2)
    assert loss.eval()(f, labels).item() == make_loss("sincere")(f, labels).item() and loss.steps == 0
    loss.train()(f, labels), loss(f, labels)
    state = copy.deepcopy(loss.get_extra_state())
    loss.eval()(h, other)
    assert loss.steps == state["steps"] == 2 and torch.equal(loss.kept, state["kept"])


def test_a_smaller_memory_takes_the_newest_of_a_larger_one_on_any_device():
    large, small = (with_memory(make_loss("supcon"), size, warmup=0).double() for size in (48, 8))
    for f, labels in batches(4):
        large(f, labels)
    small.load_state_dict(large.state_dict())
    assert torch.equal(small.kept, large.kept[:8]) and torch.equal(small.kept_labels, large.kept_labels[:8])
    far = f.to("meta"), labels.to("meta")
    assert small.eval()(*far).device.type == "meta"  # what was loaded lies on the CPU


@kept_losses
@each("at", [1, 2, 5])
def test_saved_and_gone_on_with_equal_bits(name, at):
    whole, values, file = with_memory(make_loss(name), 20, warmup=2).double(), [], io.BytesIO()
    for k, (f, labels) in enumerate(batches(8)):
        if k == at:
            torch.save(whole.state_dict(), file)
        values.append(whole(f, labels))
    again = with_memory(make_loss(name), 20, warmup=2).double()
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    for (f, labels), value in [*zip(batches(8), values, strict=True)][at:]:
        assert torch.equal(again(f, labels), value)


def nested(n_classes, dim):
    return matryoshka(make_loss("softmax", n_classes, dim), (8, dim))


ADDED = {
    "a memory": lambda: own.Own(with_memory(make_loss("sincere"), 150, warmup=3)),
    "nested dimensions": lambda: own.Own(nested),
    "one threshold": lambda: own.Own(make_loss("sincere"), regularizer="threshold_consistent"),
}


@pytest.fixture
def registered(request):
    """A row with an addition; it does not stay behind."""
    before = dict(METHODS)
    yield own.register(ADDED[request.param](), name=request.param)
    METHODS.clear()
    METHODS.update(before)


def six_steps(method):
    return make_run(TINY, method=method, batch_size=60, steps=6, eval_every=3)


@pytest.fixture(scope="module")
def without():
    """What the methods without an addition have as their first total."""
    return {name: fit(six_steps(name), device="cpu")["terms"]["total"][0] for name in ("SINCERE", "Softmax")}


@pytest.mark.slow
@pytest.mark.parametrize("registered", ADDED, indirect=True)
def test_a_stopped_run_with_an_addition_goes_on_with_equal_bits(registered, without, tmp_path):
    run = six_steps(registered)
    whole = fit(run, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        fit(run, "cpu", tmp_path, [stop_at(3), Checkpoint(every=0)])
    assert content(fit(run, device="cpu", folder=tmp_path)) == content(whole)
    plain = without["Softmax" if registered == "nested dimensions" else "SINCERE"]
    at_first, at_last = whole["terms"]["total"]
    assert at_last > at_first == plain if registered == "a memory" else at_first > plain


def test_what_takes_no_memory_is_refused():
    for name in ("triplet", "softmax", "hyperbolic", "in_batch", "contextual"):
        with pytest.raises(ValueError, match="a loss of pairs, such as supcon or circle, or of rankings, such as"):
            with_memory(make_loss(name, 4, 6), 10)
    with pytest.raises(ValueError, match="goes around a loss of this library"):
        with_memory(pml.CircleLoss(), 10)
    for wrong in (0, 1.5, "8", None):
        with pytest.raises(ValueError, match="size of the WithMemory must be an integer"):
            with_memory(make_loss("sincere"), wrong)
    f, labels = next(batches(1))
    with pytest.raises(ValueError, match="each image's class"):
        with_memory(make_loss("sincere"), 8)(f, positives=labels[:, None] == labels)
    with pytest.raises(ValueError, match="without triplets"):
        with_memory(make_loss("sincere"), 8)(f, labels, (labels, labels, labels))


def test_a_dimension_given_as_the_size_of_the_memory_is_warned_of():
    """(loss, embedding_size, memory_size) is pytorch-metric-learning's order; the line warned of is the caller's."""
    f, labels = next(batches(1))
    for wrong in (with_memory(make_loss("sincere"), 6, 100), with_memory(make_loss("smooth_ap"), 6)):
        with pytest.warns(UserWarning, match="the memory has 6 rows, as many as an embedding has dimensions") as said:
            wrong(f, labels), wrong(f, labels)
        assert len(said) == 1 and said[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        with_memory(make_loss("sincere"), 100, 6)(f, labels), with_memory(make_loss("sincere"), 6).eval()(f, labels)


def test_nothing_stays_behind_on_the_cpu():
    loss = with_memory(make_loss("sigmoid_pairs"), 12, warmup=0).to("meta")
    z, labels = torch.empty(8, 6, device="meta", requires_grad=True), torch.empty(8, dtype=torch.int64, device="meta")
    loss.set_extra_state({"steps": 2, "kept": torch.empty(12, 6), "labels": torch.empty(12, dtype=torch.int64)})
    for _ in range(3):  # full: while it fills, a GPU is waited for
        value = loss.value(z, labels)
    value.backward()
    assert value.is_meta and z.grad.is_meta and loss.kept.shape == (12, 6)


def test_parameters_of_the_loss_inside_keep_their_rates():
    inside = make_loss("sigmoid_pairs")
    for loss in (with_memory(inside, 10), matryoshka(inside, (2, 4)), s2sd(inside, 6, dims=(8, 9))):
        rates = {group["lr"] for group in loss.param_groups(0.1) if group.get("weight_decay") == 0}
        assert rates == {1.0}
        listed = [p for group in loss.param_groups(0.1) for p in group["params"]]
        assert {*map(id, listed)} == {*map(id, loss.parameters())} and len(listed) == len([*loss.parameters()])
    total, _ = Objective(with_memory(inside, 10, warmup=0))(embeddings(), LABELS)
    assert total.isfinite()


# ---- nested dimensions ----


@pytest.mark.parametrize("name", LOSSES)
def test_nested_dimensions_of_any_loss(name):
    f, whole = embeddings(), make_loss(name, 4, 6).double()
    nested = matryoshka(whole, (3, 6))
    part = make_loss(name, 4, 3).double()
    for short, long in zip(part.parameters(), whole.parameters(), strict=True):
        short.data = long.data[..., : short.shape[-1]].clone() if long.ndim else long.data.clone()
    if "seed" in vars(whole) and hasattr(whole, "draw"):
        nested.loss[0].draw = nested.loss[1].draw = part.draw = whole.draw = lambda n, device: torch.linspace(0, 0.9, n)
    by_hand = part(f[:, :3], LABELS) + whole(f, LABELS)
    torch.testing.assert_close(nested(f, LABELS), by_hand)
    assert (nested.uses, nested.takes_positives) == (whole.uses, whole.takes_positives)
    for copied, first in zip(nested.loss[1].parameters(), whole.parameters(), strict=True):
        assert torch.equal(copied, first) and copied is not first


def test_embeddings_of_a_wrapped_loss_are_measured_as_those_of_the_loss_inside():
    """Only losses whose paper takes the network's raw output are measured on it."""
    raw = {name for name in LOSSES if not make_loss(name, 4, 6).on_sphere}
    assert raw == {"angular", "cross_entropy", "lifted", "npair"}
    for name in LOSSES:
        for around in (matryoshka(make_loss(name, 4, 6), (3, 6)), s2sd(make_loss(name, 4, 6), 8, dims=(7,))):
            assert around.on_sphere == (name not in raw), (name, around)
            assert own.OwnLoss(around).on_sphere == around.on_sphere
    for kind, more in (("sphereface", {"scale": None}), ("hist", {"lam": 1.0}), ("hyperbolic", {"c": 1.0})):
        assert make_loss(kind, 4, 6, **more).on_sphere


@pytest.mark.slow
def test_one_network_has_one_recall_whatever_will_train_it():
    """Before the first step, on the sphere: additions and distances of its own change nothing that is measured."""
    names = ["MultiSimilarity", "MultiSimilarity + Matryoshka", "Contrastive (D) + Matryoshka", "Hyperbolic"]
    found = [fit(make_run(TINY, method=name, steps=0), "cpu")["curves"]["test"]["recall@1"] for name in names]
    assert found == [found[0]] * 4 and len(found[0]) == 1


def test_facts_of_a_wrapped_loss_are_those_of_the_loss_inside():
    for name, variant in itertools.product(LOSSES, ("corrected", "published")):
        inside = make_loss(name, 4, 6, variant)
        arounds = [matryoshka(inside, (2, 4)), s2sd(inside, 6, dims=(8,))]
        for around in [*arounds, with_memory(inside, 8)] if name in KEPT else arounds:
            assert (around.in_blocks, around.sets_slope) == (inside.in_blocks, inside.sets_slope), (name, variant)


def test_nested_dimensions_take_triplets_and_positives():
    f, i = embeddings(), torch.arange(4)
    triplets = (i, i + 1, i + 4)
    nested = matryoshka(make_loss("triplet"), (2, 5))
    parts = [make_loss("triplet")(f[:, :d], LABELS, triplets) for d in (2, 5)]
    torch.testing.assert_close(nested(f, LABELS, triplets), sum(parts))
    same = LABELS[:, None] == LABELS
    nested = matryoshka(make_loss("sincere"), (2, 5))
    torch.testing.assert_close(nested(f, positives=same), nested(f, LABELS))


def test_nested_dimensions_that_cannot_be():
    for dims in ((), (0,), (2, 1.5), (7,)):
        with pytest.raises(ValueError, match="dims of the Matryoshka must be an integer, at least 1"):
            matryoshka(make_loss("softmax", 4, 6), dims)
    with pytest.raises(ValueError, match="need as long an embedding; got dimension 6"):
        matryoshka(make_loss("supcon"), (8,))(embeddings(), LABELS)
    with pytest.raises(ValueError, match="go around a loss of embeddings alone; got S2SD"):
        matryoshka(s2sd(make_loss("supcon"), 6, dims=(8,)), (2, 4))


def test_nested_dimensions_around_a_memory():
    nested = matryoshka(with_memory(make_loss("sincere"), 12, warmup=0), (2, 6))
    parts = [with_memory(make_loss("sincere"), 12, warmup=0) for _ in range(2)]
    for f, labels in batches(3):
        by_hand = sum(part(f[:, :d], labels) for part, d in zip(parts, (2, 6), strict=True))
        torch.testing.assert_close(nested(f, labels), by_hand)


# ---- wider heads ----


@pytest.mark.parametrize("name", ["supcon", "triplet", *WITH_PROXIES])
def test_wider_heads_of_any_loss(name):
    loss = s2sd(make_loss(name, 4, 6), 10, dims=(7, 12), weight=3.0, temperature=0.5, start=1).double()
    f, h = embeddings(), embeddings(8, 10, seed=1)
    wide = [head(h) for head in loss.heads]
    base = loss.loss(f, LABELS) / 2 + sum(part(g, LABELS) for part, g in zip(loss.of_heads, wide, strict=True)) / 4

    def kl(teacher):
        """Mean over rows, in plain loops."""
        total = 0.0
        for row, other in zip(unit(f) @ unit(f).T, unit(teacher) @ unit(teacher).T, strict=True):
            q, p = (row / 0.5).softmax(0), (other / 0.5).softmax(0).detach()
            total = total + sum(p[j] * (p[j] / q[j]).log() for j in range(8))
        return 0.25 * total / 8

    taught = 3 * (kl(wide[0]) + kl(wide[1])) / 2
    torch.testing.assert_close(loss(f, LABELS, features=h), base + taught)
    value = loss(f, LABELS, features=h)  # the features teach, too
    torch.testing.assert_close(value, base + taught + 3 * kl(h))
    torch.testing.assert_close(gradient(value, f), gradient(loss.loss(f, LABELS) / 2 + taught + 3 * kl(h), f))
    assert loss.of_heads[1] is not loss.of_heads[0] and loss.steps == 2
    plain = loss.eval()(f, LABELS)
    assert torch.equal(plain, loss.loss(f, LABELS)) and loss.steps == 2


def test_heads_are_the_same_from_one_seed_and_go_on():
    before = torch.get_rng_state()
    one, two, three = (s2sd(make_loss("supcon"), 10, dims=(7,), start=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [loss.heads[0][0].weight for loss in (one, two, three)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    f, h = embeddings().float(), embeddings(8, 10, seed=1).float()
    for _ in range(3):
        last = one(f, LABELS, features=h)
    three.load_state_dict(one.state_dict())
    assert three.steps == 3 and torch.equal(three(f, LABELS, features=h), last)


@each("case", FINITE)
def test_wider_heads_on_odd_batches(case):
    f, labels = FINITE[case]
    loss = s2sd(make_loss("softmax", CLASSES, DIM), DIM, dims=(9,), start=0)
    x = f.detach().clone().requires_grad_()
    value = loss(x, labels, features=x.float())
    value.backward()
    assert value.isfinite() and x.grad.isfinite().all()


def test_wider_heads_that_cannot_be():
    loss = s2sd(make_loss("supcon"), 10, dims=(7,))
    for features, got in ((None, "None"), (torch.ones(8, 9), r"\(8, 9\)"), (torch.ones(7, 10), r"\(7, 10\)")):
        with pytest.raises(ValueError, match=rf"heads need features \(8, 10\): .*; got {got}"):
            loss(embeddings(), LABELS, features=features)
    for name, wrong in (("dims", ()), ("dims", (0,)), ("weight", -1), ("temperature", 0), ("start", 0.5)):
        with pytest.raises(ValueError, match=f"{name} of the S2SD must be"):
            s2sd(make_loss("supcon"), 10, **{name: wrong})


def test_all_are_losses_that_show_what_they_are():
    inside = make_loss("supcon")
    made = with_memory(inside, 10), matryoshka(inside, (2, 4)), s2sd(inside, 6, dims=(8,))
    assert [type(loss).__name__ for loss in made] == ["WithMemory", "Matryoshka", "S2SD"]
    assert all(isinstance(loss, Around) for loss in made)
    assert isinstance(made[0], WithMemory) and isinstance(made[2], S2SD)
    shown = [repr(loss).split("\n")[1].strip() for loss in made]
    assert shown[0] == "size=10, warmup=1000" and shown[1] == "dims=(2, 4)" and "weight=50.0" in shown[2]


# ---- add-ons beside a loss ----


def test_add_ons_against_loops():
    f, labels = embeddings(), LABELS
    z = unit(f).detach()
    s = [[float(a @ b) for b in z] for a in z]
    same = [(i, j) for i in range(8) for j in range(8) if i != j and labels[i] == labels[j]]
    other = [(i, j) for i in range(8) for j in range(8) if labels[i] != labels[j]]
    short = [0.9 - s[i][j] for i, j in same if s[i][j] <= 0.9]
    near = [s[i][j] - 0.5 for i, j in other if s[i][j] >= 0.5]
    by_hand = sum(short) / max(1, len(short)) + sum(near) / max(1, len(near))
    assert make_regularizer("threshold_consistent", eta=0.3)(f, labels).item() == pytest.approx(0.3 * by_hand)
    rate = torch.logdet(torch.eye(6).double() + 6 / (8 * 0.2) * z.T @ z) / 2
    assert make_regularizer("coding_rate", eta=0.3, eps2=0.2)(f).item() == pytest.approx(-0.3 * rate.item())
    wide = embeddings(4, 9)
    rate = torch.logdet(torch.eye(9).double() + 9 / (4 * 0.5) * unit(wide).T @ unit(wide)) / 2
    assert make_regularizer("coding_rate", eta=1.0)(wide).item() == pytest.approx(-rate.item())


@each("seed", range(3))
def test_threshold_consistent_of_pytorch_metric_learning(seed):
    f, theirs = embeddings(seed=seed), pml.ThresholdConsistentMarginLoss(margin_plus=0.8, margin_minus=0.1)
    values = make_regularizer("threshold_consistent", pos_margin=0.8, neg_margin=0.1)(f, LABELS), theirs(f, LABELS)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(gradient(value, f) for value in values))


def test_threshold_consistent_takes_a_matrix():
    """Equal labels as a matrix of any weight; and a one-sided matrix of weights, pair by pair."""
    term, same = make_regularizer("threshold_consistent"), LABELS[:, None] == LABELS
    for f in (embeddings(), embeddings().detach().half()):
        for P in (same, 0.3 * same, 7.0 * same.double()):
            torch.testing.assert_close(term(f, positives=P), term(f, LABELS))
    f, P = embeddings(), torch.randint(3, (8, 8), generator=generator(2, "weights")).double()
    z, pairs = unit(f), [(i, j) for i in range(8) for j in range(8) if i != j]
    pulls = [(P[i, j], 0.9 - z[i] @ z[j]) for i, j in pairs if P[i, j] and z[i] @ z[j] < 0.9]
    pushes = [z[i] @ z[j] - 0.5 for i, j in pairs if not P[i, j] and z[i] @ z[j] > 0.5]
    by_hand = sum(w * x for w, x in pulls) / sum(w for w, _ in pulls) + sum(pushes) / max(1, len(pushes))
    values = term(f, positives=P), by_hand
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(gradient(value, f) for value in values))
    for wrong, said in (({"labels": LABELS, "positives": P}, "not both"), ({"positives": P[:5]}, "must have shape")):
        with pytest.raises(ValueError, match=said):
            term(f, **wrong)


@each("name", ["threshold_consistent", "coding_rate"])
@each("case", FINITE)
def test_add_ons_on_odd_batches(name, case):
    f, labels = FINITE[case]
    x = f.detach().clone().requires_grad_()
    value = make_regularizer(name, ramp=3)(x, labels) + make_regularizer(name)(x, labels)
    value.backward()
    assert value.isfinite() and x.grad.isfinite().all() and x.grad.dtype == f.dtype


def test_add_ons_beside_any_loss():
    f = embeddings().float()
    terms = {name: make_regularizer(name) for name in ("threshold_consistent", "coding_rate")}
    total, parts = Objective(make_loss("contrastive"), None, terms)(f, LABELS)
    assert {*parts} == {"loss", *terms} and total.item() == pytest.approx(sum(v.item() for v in parts.values()))
    with pytest.raises(ValueError, match="call it with labels"):
        make_regularizer("threshold_consistent")(f)


def test_parts_of_hist_keep_its_graph_though_it_is_as_wide_as_the_embedding():
    loss = matryoshka(make_loss("hist", 4, 512, lam=1.0), (256, 512))
    f = torch.randn(8, 512, generator=generator(0, "hist")).requires_grad_()
    loss(f, torch.arange(8) // 2).backward()
    assert f.grad.isfinite().all() and f.grad.abs().max() > 0

"""One run: the same bits again, in another process, after a kill; and errors that say what to do."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from disks import small_disk
from tiers import sample

from dmlstudy import train
from dmlstudy.core.random import generator
from dmlstudy.data.loaders import Feed, splits_of
from dmlstudy.metrics import evaluate
from dmlstudy.models import make_model
from dmlstudy.regularizers import make_regularizer
from dmlstudy.samplers import SAMPLERS
from dmlstudy.study.methods import METHODS
from dmlstudy.study.run import make_run
from dmlstudy.train import BROKEN, Checkpoint, Guard, Monitor, Progress, fit, train_steps
from dmlstudy.train.network import Network, decay_rates, embed, matmul_precision, milestone_steps
from dmlstudy.train.state import State, mixup_of, sampler_of, start

TINY = {"dataset": "glyphs_many", "steps": 6, "eval_every": 3, "images_per_class": 4}


def at_start(**fields) -> State:
    run, device = make_run(TINY, **fields), torch.device("cpu")
    return start(run, Feed(run, splits_of(run), device, METHODS[run.method].views), device)


def stop_at(last: int) -> SimpleNamespace:
    """A hook that ends a run at an evaluation, before its checkpoint."""

    def measured(state, step, values):
        if step == last:
            raise KeyboardInterrupt

    return SimpleNamespace(measured=measured)


def content(record: dict) -> str:
    return json.dumps({name: part for name, part in record.items() if name != "made"}, sort_keys=True)


@pytest.mark.slow
def test_same_run_in_another_process():
    code = (
        "import json; from dmlstudy.study.run import make_run; from dmlstudy.train import fit; "
        f"r = fit(make_run({TINY!r}, method='Triplet (D)'), device='cpu'); r.pop('made'); "
        "print(json.dumps(r, sort_keys=True))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    fit(make_run(TINY, method="Softmax", seed=3), device="cpu")
    assert found == content(fit(make_run(TINY, method="Triplet (D)"), device="cpu"))


@pytest.mark.parametrize("method", sample([m for m, row in METHODS.items() if row.loss], every=16))
@pytest.mark.parametrize("variant", ["corrected", pytest.param("published", marks=pytest.mark.slow)])
def test_every_method_trains(method, variant):
    row, fields = METHODS[method], {"steps": 2, "eval_every": 2, "method": method, "variant": variant, "batch_size": 60}
    fields |= {"dataset": "glyphs_fine"} if row.protocol == "simclr" else {}  # its classifier is slow for 629 classes
    run = make_run(TINY, **fields, samples_per_class=row.samples_per_class, sampler=row.sampler)
    record = fit(run, device="cpu")
    assert record["run"]["method"] == method
    assert record["curves"]["test"]["step"] == [0, 2]
    assert all(abs(v) < 1e6 for v in record["terms"]["total"])
    assert record["curves"]["train"]["rho"][0] != record["curves"]["train"]["rho"][1]


@pytest.mark.parametrize("sampler", sample(SAMPLERS, ["gc"]))
def test_every_sampler_trains(sampler):
    run = make_run(TINY, steps=3, eval_every=3, method="Margin (D, beta=1.2)", sampler=sampler)
    assert content(fit(run, device="cpu")) == content(fit(run, device="cpu"))


def test_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    fit(make_run(TINY), device="cpu")
    assert torch.equal(before, torch.get_rng_state())


def test_threads_are_put_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    record = fit(make_run(TINY), device="cpu")
    assert torch.get_num_threads() == 2 and record["made"]["threads"] == 1
    torch.set_num_threads(before)


def test_learning_rates_decay_at_milestones():
    state = at_start(lr=1e-3, lr_decay=0.1, milestones="0.5", head_lr_factor=2.0)
    batches = state.feed.stream(state.sampler, 0, 6)
    train_steps(state, batches, 3)
    assert [g["lr"] for g in state.optimizer.param_groups][:2] == [1e-3, 2e-3]
    train_steps(state, batches, 4)
    assert [g["lr"] for g in state.optimizer.param_groups][:2] == pytest.approx([1e-4, 2e-4])


def test_learning_rates_along_a_cosine_go_on_after_a_stop():
    fields = {"steps": 9, "lr": 0.4, "head_lr_factor": 2.0, "lr_decay": 1e-3, "milestones": "cosine"}
    method = {"method": "SimCLR", "sampler": "shuffle", "samples_per_class": 1, "optimizer": "sgd"}
    state, seen = at_start(**fields, **method), []
    batches = state.feed.stream(state.sampler, 0, 9)
    for step in range(9):
        if step == 5:
            saved, state = state.state_dict(), at_start(**fields, **method)
            state.load_state_dict(saved)
        train_steps(state, batches, step + 1)
        seen.append([g["lr"] for g in state.optimizer.param_groups])
    expected = [4e-4 + (0.4 - 4e-4) * (1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)]
    assert [rates[0] for rates in seen] == pytest.approx(expected) and expected[0] == 0.4
    assert [rates[1] for rates in seen] == pytest.approx([2 * rate for rate in expected])


@pytest.mark.parametrize("train_stem", [False, True])
def test_simclr_sees_two_views_of_each_image(train_stem):
    fields = {"method": "SimCLR", "sampler": "shuffle", "samples_per_class": 1, "batch_size": 24}
    run = make_run(TINY, train_stem=train_stem, **fields)
    feed = Feed(run, splits_of(run), torch.device("cpu"), views=2)
    sampler, held, pairs = sampler_of(run, feed.labels["train"]), feed.inputs["train"], set()
    for indices, x, labels in feed.stream(sampler, 0, 12):
        assert indices.shape == (24,) and len(x) == len(labels) == 48 and len(indices.unique()) == 24
        assert torch.equal(labels, indices.repeat_interleave(2))
        same = (x[:, None] == held[labels]).flatten(2).all(2)  # which of the four views of its image it is
        assert (same.sum(1) >= 1).all() and not (same[0::2] & same[1::2]).any()
        pairs |= {tuple(two) for two in same.int().argmax(1).view(-1, 2).tolist()}
    assert len(pairs) == 12, "all ordered pairs of four views"
    again = [labels for *_, labels in feed.stream(sampler, 0, 12)]
    assert all(torch.equal(a, b) for a, (*_, b) in zip(again, feed.stream(sampler, 0, 12), strict=True))


def test_simclr_learns_without_labels():
    """Other labels, the same run; and its first loss is that of a plain loop over both views of each image."""
    fields = {"method": "SimCLR", "sampler": "shuffle", "samples_per_class": 1, "batch_size": 24, "steps": 3}
    run, ways = make_run(TINY, **fields), []
    for renamed in (False, True):
        feed = Feed(run, splits_of(run), torch.device("cpu"), views=2)
        if renamed:
            feed.labels["train"] = feed.labels["train"].flip(0) // 3
        state = start(run, feed, torch.device("cpu"))
        indices, x, labels = next(feed.stream(state.sampler, 0, 1))
        z = torch.nn.functional.normalize(state.network(x).detach().double())
        train_steps(state, feed.stream(state.sampler, 0, 1), 1)
        ways.append({name: float(value) for name, value in state.sums.items()})
        by_loop = 0.0
        for i in range(48):
            others = [math.exp(float(z[i] @ z[j]) / 0.5) for j in range(48) if j != i]
            by_loop -= math.log(math.exp(float(z[i] @ z[i ^ 1]) / 0.5) / sum(others)) / 48
        assert ways[-1]["loss"] == pytest.approx(by_loop, rel=1e-5)
    assert ways[0] == ways[1]


def test_views_that_there_are_not_are_named():
    run = make_run(TINY, method="SimCLR", sampler="shuffle", samples_per_class=1, train_stem=True)
    splits = {k: dataclasses.replace(split, images=split.images[:, :1]) for k, split in splits_of(run).items()}
    with pytest.raises(ValueError, match="SimCLR asks for 2 different views of an image, and glyphs_many holds 1 of"):
        Feed(run, splits, torch.device("cpu"), views=2)


def test_mixed_tuples_are_mined_once_for_each_set_of_labels():
    """The loss of a step is the weighted sum over both sets, with the tuples that one generator draws for the two."""
    state = at_start(method="Margin (D, beta=1.2)", mixup=2.0)
    _, x, labels = next(state.feed.stream(state.sampler, 0, 1))
    (part, mixup), objective = state.mixup, state.objective
    with mixup.hook(part, labels, generator(state.run.seed, "mixup", 0)) as ((lam, y), (rest, other)):
        f = state.network(x).detach()
    assert 0 < lam < 1 and lam + rest == 1 and torch.equal(y, labels) and not torch.equal(other, labels)
    rng = generator(state.run.seed, "tuples", 0)
    expected = sum(w * objective.terms(f, k, objective.mine(f, k, rng))["loss"] for w, k in ((lam, y), (rest, other)))
    train_steps(state, state.feed.stream(state.sampler, 0, 1), 1)
    assert float(state.sums["loss"]) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_a_mixed_batch_is_regularised_once():
    """The norms do not depend on labels: SEC looks at a mixed batch once, whatever the shares of its label sets."""
    state = at_start(method="SHT + SEC", mixup=2.0)
    _, x, labels = next(state.feed.stream(state.sampler, 0, 1))
    (part, mixup), sec = state.mixup, make_regularizer("sec", eta=1.0)
    with mixup.hook(part, labels, generator(state.run.seed, "mixup", 0)):
        f = state.network(x).detach()
    train_steps(state, state.feed.stream(state.sampler, 0, 1), 1)
    (eta,) = (term.eta for term in state.objective.regularizers.values())
    assert float(state.sums["sec"]) == pytest.approx(eta * float(sec(f, labels)), rel=1e-6)


def test_a_resnet_is_mixed_behind_its_stages():
    run, y = make_run(model="resnet50", weights=None, dataset="cub200", mixup=2.0), torch.arange(4)
    model = make_model("resnet50", 4).eval()
    (net, mixup), x, seen = mixup_of(run, model), torch.rand(4, 3, 32, 32, generator=generator(0, "x")), set()
    for step in range(20):
        mix = mixup.draw(y, generator(0, step))
        if mix.location not in seen:
            seen.add(mix.location)
            h = mix(x) if mix.location == "input" else x
            with torch.no_grad():
                with mixup.hook(net, y, generator(0, step)):
                    f = model(x)
                for name in (*("conv1", "bn1", "relu", "maxpool"), *(f"layer{i}" for i in range(1, 5)), "avgpool"):
                    h = net.get_submodule(name)(h)
                    h = mix(h) if name == mix.location else h
                torch.testing.assert_close(f, model.head(h.flatten(1)))
    assert seen == {"input", "maxpool", "layer1", "layer2"}


def test_frozen_parts_do_not_move():
    state = at_start(method="Softmax", lr=1e-2)
    before = {k: v.clone() for k, v in state.network.model.state_dict().items()}
    train_steps(state, state.feed.stream(state.sampler, 0, 3), 3)
    moved = {k for k, v in state.network.model.state_dict().items() if not torch.equal(before[k], v)}
    assert moved == {
        "backbone.tail.0.weight",
        "backbone.tail.1.weight",
        "backbone.tail.1.bias",
        "head.0.weight",
        "head.0.bias",
    }


@pytest.mark.slow
def test_same_seed_same_start_for_all_methods():
    first = [fit(make_run(TINY, steps=3, method=m), device="cpu") for m in ("Softmax", "Triplet (S)", "NPair")]
    starts = [r["curves"]["test"]["recall@1"][0] for r in first[:2]]
    assert starts[0] == starts[1]
    other = fit(make_run(TINY, steps=3, method="Softmax", seed=1), device="cpu")
    assert other["curves"]["test"]["recall@1"][0] != starts[0]


WHOLE = {**TINY, "dataset": "glyphs_fine", "method": "Softmax", "steps": 4, "eval_every": 2, "train_stem": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "tolerance"), [({"channels_last": True}, 1e-4), ({"compile": True}, 1e-4), ({"precision": "bf16"}, 0.02)]
)
def test_faster_ways_compute_the_same(fields, tolerance):
    if "compile" in fields and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    plain, fast = (fit(make_run(WHOLE | more), device="cpu") for more in ({}, fields))
    assert plain["key"] != fast["key"]
    assert fast["terms"]["loss"] == pytest.approx(plain["terms"]["loss"], rel=tolerance)
    for part in ("train", "test"):
        assert fast["curves"][part]["rho"] == pytest.approx(plain["curves"][part]["rho"], rel=0.05)


def test_only_full_batches_are_compiled(monkeypatch):
    """Each odd size would be a graph of its own, and after eight of them PyTorch gives up silently."""
    graphs, compiled = [], torch.compile

    def backend(graph, inputs):
        graphs.append({x.shape[0] for x in inputs if x.shape[1:] == images.shape[1:]})
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda call, **how: compiled(call, backend=backend, dynamic=how["dynamic"]))
    run = make_run(WHOLE, compile=True, batch_size=8, steps=2)
    feed = Feed(run, splits_of(run), torch.device("cpu"))
    network = start(run, feed, torch.device("cpu")).network
    images = feed.inputs["train"][:, 0]
    for size in (8, 3, 5, 7, 112, 9):
        assert torch.allclose(network(images[:size]), network.eager(images[:size]), atol=1e-5)
    assert graphs == [{8}, {112}]


def flags() -> tuple:
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.slow
def test_float32_means_32_bits_in_convolutions_too(monkeypatch):
    before, seen = flags(), {}
    forward, backward = torch.nn.Conv2d.forward, Network.backward

    def look(self, x):
        seen.setdefault("forward", set()).add((*flags(), torch.is_autocast_enabled("cpu")))
        return forward(self, x)

    def look_back(self, f, gradient):
        f.register_hook(lambda _: seen.setdefault("backward", set()).add(flags()))
        backward(self, f, gradient)

    monkeypatch.setattr(torch.nn.Conv2d, "forward", look)
    monkeypatch.setattr(Network, "backward", look_back)
    exact, fast = ("highest", False), ("high", True)
    for name, want in (("float32", exact), ("tf32", fast), ("bf16", exact)):
        seen.clear()
        fit(make_run(WHOLE | {"steps": 1, "eval_every": 1, "precision": name}), device="cpu")
        assert seen == {"forward": {(*want, name == "bf16")}, "backward": {want}}
        assert flags() == before
    with pytest.raises(ValueError, match="There is no precision 'fp16'"), matmul_precision("fp16"):
        pass


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "small", 1536) as mount:
        yield tmp_path / "small", mount


@pytest.mark.slow
def test_a_full_disk_costs_the_weights_and_not_the_record(disk):
    (place, mount), run = disk, make_run(TINY)
    (place / "filler").write_bytes(bytes(1_400_000))
    with pytest.warns(UserWarning) as told:
        record = fit(run, device="cpu", folder=place, hooks=[Checkpoint(every=0)])
    told = [str(warning.message) for warning in told if "could not be written" in str(warning.message)]
    assert all(f"{place}" in line and "its disk is full" in line for line in told)
    assert "checkpoint.pt" in told[0] and "goes on without" in told[0]
    assert "weights.pt" in told[-1] and "The record is whole" in told[-1]
    assert content(record) == content(fit(run, device="cpu")) and [file.name for file in place.iterdir()] == ["filler"]
    assert mount("-o", "remount,ro")
    with pytest.raises(OSError, match="Read-only"):
        fit(run, "cpu", place, [SimpleNamespace(begin=lambda state: pytest.fail("it was trained first"))])


@pytest.mark.slow
def test_two_runs_in_one_folder_do_not_harm_each_other(tmp_path):
    code = (
        "import sys; from dmlstudy.study.run import make_run; from dmlstudy.train import Checkpoint, fit; "
        f"fit(make_run({TINY!r}, steps=30, eval_every=1), 'cpu', sys.argv[1], [Checkpoint(every=0)])"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert [file.name for file in tmp_path.iterdir()] == ["weights.pt"]


SLOW_PLACES = [pytest.param(place, marks=pytest.mark.slow) for place in (".cuda.matmul", ".cudnn", ".cudnn.conv")]


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", *SLOW_PLACES])
def test_precisions_by_pytorchs_newer_settings(place):
    """They do not mix with the older ones, and are read where a process begins."""
    code = f"""
import torch
from dmlstudy.study.run import make_run
from dmlstudy.train import fit
from dmlstudy.train.network import matmul_precision
b = torch.backends
b{place}.fp32_precision = "tf32"
places = (b, b.cuda.matmul, b.cudnn, b.cudnn.conv, b.cudnn.rnn, b.mkldnn.matmul)
look = lambda: [p.fp32_precision.replace("none", "ieee") for p in places]  # the same, but for what asks a wider place
before = look()
for name in ("float32", "tf32", "bf16"):
    with matmul_precision(name):
        of_places = {{b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision}}
        if "none" in of_places:  # then it is what holds for all of cuDNN
            of_places |= {{b.cudnn.fp32_precision}}
        assert of_places == {{"tf32"}} if name == "tf32" else "tf32" not in of_places, (name, look())
    assert look() == before, (name, look(), before)
fit(make_run({TINY!r}, steps=1, eval_every=1), device="cpu")
assert look() == before, (look(), before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


def test_a_run_says_how_it_is_doing(capsys):
    news = []
    record = fit(make_run(TINY), device="cpu", hooks=[Progress(tell=news.append, every=0)])
    assert [told["step"] for told in news] == [1, 2, 3, 4, 5, 6] and news[-1]["seconds_left"] == 0
    assert all(told["steps"] == 6 and told["images_per_second"] > 0 and "loss" in told["terms"] for told in news)
    shown = capsys.readouterr().err
    assert "672/672" in shown and "image/s" in shown and "loss=" in shown and "validation recall@1=" in shown
    each, begin = [told["terms"]["loss"] for told in news], 0
    for end, mean in zip(record["terms"]["step"], record["terms"]["loss"], strict=True):  # since the evaluation before
        assert mean == pytest.approx(sum(each[begin:end]) / (end - begin), abs=1e-4) and end > begin
        begin = end
    assert begin == 6


@pytest.mark.slow
def test_a_new_network_is_measured_with_the_stem_that_it_keeps(tmp_path):
    """Features of a random stem are shared by all seeds: the weights that are left give the record again."""
    run = make_run(**TINY | {"weights": None, "seed": 1, "method": "Softmax"})
    record, data = fit(run, "cpu", tmp_path), splits_of(run)["test"]
    model = make_model(run.model, run.embed_dim, None, head=run.head)
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    with torch.no_grad():
        f = model.eval()(data.images[:, 0])
    found = evaluate(f, data.labels, ["recall@1"])["recall@1"]
    assert found == pytest.approx(record["curves"]["test"]["recall@1"][-1], abs=1e-6)


def test_the_head_is_fitted_in_evaluation_mode():
    run = make_run(dataset="glyphs_many", images_per_class=4, head="bn", freeze_bn=False, method="ImageNet", steps=0)
    shipped = make_model(run.model, run.embed_dim, run.weights, freeze_bn=False).backbone.tail.state_dict()
    made = start(run, Feed(run, splits_of(run), torch.device("cpu")), torch.device("cpu")).network.model
    assert all(torch.equal(value, shipped[name]) for name, value in made.backbone.tail.state_dict().items())
    assert made.training


@pytest.mark.slow
def test_a_checkpoint_comes_after_all_other_hooks(tmp_path):
    """However they are given: what a Monitor has seen is in the state that is kept."""
    run = make_run(**TINY | {"steps": 6, "eval_every": 2, "monitor": True})
    whole = fit(run, "cpu")["monitor"]
    with pytest.raises(KeyboardInterrupt):
        fit(run, "cpu", tmp_path, [stop_at(4), Checkpoint(every=0), Monitor()])
    assert fit(run, "cpu", tmp_path, [Checkpoint(every=0), Monitor()])["monitor"] == whole
    with pytest.raises(ValueError, match="a Checkpoint keeps the state in the folder of the run: name one"):
        fit(run, "cpu", hooks=[Checkpoint()])


def test_every_hook_hears_of_the_end():
    ends = []
    hooks = [SimpleNamespace(end=lambda state, error: ends.append(error)), stop_at(3)]
    with pytest.raises(KeyboardInterrupt):
        fit(make_run(TINY), device="cpu", hooks=hooks)
    fit(make_run(TINY, steps=0), device="cpu", hooks=hooks)
    assert isinstance(ends[0], KeyboardInterrupt) and ends[1:] == [None]


@pytest.mark.slow
def test_monitors_of_each_step_change_nothing_and_go_on(tmp_path):
    run = make_run(TINY, method="SHT", steps=6, eval_every=2, monitor=True)
    whole, without = fit(run, device="cpu"), fit(make_run(run.changed(), monitor=False), device="cpu")
    assert whole["curves"] == without["curves"] and "monitor" not in without
    assert {name: len(values) for name, values in whole["monitor"].items() if name != "test"} == {
        **dict.fromkeys(("norm_mean", "norm_var", "norm_cv", "violated", "angle"), 6),
        "norm_images": 1,
    }
    assert all(0 < angle < 90 for angle in whole["monitor"]["angle"])
    assert {*map(len, whole["monitor"]["test"].values())} == {sum(whole["classes"]["n"])}
    mean, variance, cv = (whole["monitor"][f"norm_{name}"] for name in ("mean", "var", "cv"))
    assert cv == pytest.approx([v**0.5 / m for m, v in zip(mean, variance, strict=True)], rel=1e-3)
    with pytest.raises(KeyboardInterrupt):
        fit(run, "cpu", tmp_path, [stop_at(4), Checkpoint(every=0)])
    assert content(fit(run, device="cpu", folder=tmp_path)) == content(whole)


@pytest.mark.slow
def test_the_record_holds_what_the_rules_choose():
    record = fit(make_run(TINY, method="Softmax", lr=3e-3, steps=8, eval_every=1), device="cpu")
    test, chosen = record["curves"]["test"], train.chosen_steps(record["curves"])
    assert {*record["classes"]["hits"]} == {*map(str, sum(chosen.values(), []))} and chosen["last"] == [8]
    assert len(chosen["window"]) == 3 and 0 not in chosen["window"]
    for step, hits in record["classes"]["hits"].items():
        assert all(h <= n for h, n in zip(hits, record["classes"]["n"], strict=True))
        recall = test["recall@1"][test["step"].index(int(step))]
        assert sum(hits) / sum(record["classes"]["n"]) == pytest.approx(recall, abs=1e-6)
    for spectra in record["spectra"].values():
        assert {*spectra} == {*map(str, chosen["validation"])}
        assert all(s == sorted(s, reverse=True) and 0 < sum(s) < 1.001 for s in spectra.values())
    assert json.loads(json.dumps(record)) == record


@pytest.mark.slow
def test_a_broken_run_leaves_the_state_that_broke(tmp_path):
    run = make_run(TINY, dataset="glyphs_fine", method="NPair", steps=50, lr=1e18)
    with pytest.raises(train.NonFiniteLoss, match=r"is not finite at step \d+.*The state is kept in .*broken\.pt"):
        fit(run, device="cpu", folder=tmp_path)
    state = torch.load(tmp_path / BROKEN, weights_only=True)
    steps = state["optimizer"]["state"][0]["step"]
    assert 0 < state["step"] == int(steps) < run.steps, "the step that broke was not taken"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["NPair", "Softmax"])
def test_a_late_look_finds_the_step_that_broke(tmp_path, method):
    run = make_run(TINY, dataset="glyphs_fine", method=method, steps=50, eval_every=50, lr=1e18, loss_lr=1e18)
    told = []
    for patience in (1, 50):  # a GPU is asked now and then only
        with pytest.raises(train.NonFiniteLoss) as error:
            fit(run, "cpu", tmp_path / str(patience), [Guard(patience)])
        told.append(str(error.value).partition(". The state")[0])
    early, late = (torch.load(tmp_path / f"{n}" / BROKEN, weights_only=True) for n in (1, 50))
    assert told[0] == told[1] and early["step"] == late["step"] < 49
    for part in ("model", "objective"):
        tensors = {k: v for k, v in early[part].items() if k != "loss._extra_state"}  # draws went on until it was asked
        assert all(torch.equal(v, late[part][k]) for k, v in tensors.items())
    assert int(late["optimizer"]["state"][0]["step"]) == late["step"]


@pytest.mark.slow
def test_hooks_that_served_a_broken_run_serve_the_next(monkeypatch):
    run, guard, monitor = make_run(TINY, steps=2, eval_every=2), Guard(patience=2), Monitor()
    alone = fit(run, "cpu", hooks=[Monitor()])["monitor"]
    call = Network.__call__
    monkeypatch.setattr(Network, "__call__", lambda net, x, step=0: call(net, x, step) / (step < 1))
    with pytest.raises((train.NonFiniteLoss, ZeroDivisionError)):
        fit(run, "cpu", hooks=[guard, monitor])
    monkeypatch.undo()
    assert fit(run, "cpu", hooks=[guard, monitor])["monitor"] == alone


def test_a_network_that_could_not_embed_is_in_the_mode_it_was_in():
    net = make_model("convnet", 4).train()
    with pytest.raises(ValueError, match="this network takes images"):
        embed(net, torch.zeros(3, 7, 24, 24))  # of seven channels
    assert net.training and torch.is_grad_enabled()


@pytest.mark.parametrize("method", ["Margin (D, beta=1.2)", "Triplet (R)", "MultiSimilarity", "Histogram", "Softmax"])
def test_embeddings_that_are_no_numbers_stop_the_run(tmp_path, monkeypatch, method):
    """Also where the loss of such embeddings is a number."""
    call = Network.__call__

    def broken(network, x, step=0):
        f = call(network, x, step)
        return (
            torch.where(torch.arange(len(f))[:, None] == 3, torch.nan, f)
            if torch.is_grad_enabled() and step == 2
            else f
        )

    monkeypatch.setattr(Network, "__call__", broken)
    run = make_run(TINY, method=method)
    with pytest.raises(train.NonFiniteLoss, match=r"the embedding of .* at step 2: .*Training images of the batch: \["):
        fit(run, device="cpu", folder=tmp_path)
    state = torch.load(tmp_path / BROKEN, weights_only=True)
    assert state["step"] == 2 and all(v.isfinite().all() for v in state["model"].values())


def spoil(file, how) -> None:
    """Damage a checkpoint."""
    data = bytearray(file.read_bytes())
    if how == "a bit":
        with zipfile.ZipFile(file) as archive:  # in the middle of its largest tensor
            largest = max(archive.infolist(), key=lambda part: part.file_size)
        data[largest.header_offset + largest.file_size // 2] ^= 1
    elif how == "no optimiser":
        saved = torch.load(file, weights_only=True)
        saved["state"].pop("optimizer")
        torch.save(saved, file)
        return
    file.write_bytes({"half": data[: len(data) // 2], "empty": b"", "words": b"abc" * 999}.get(how, data))


@pytest.mark.parametrize("how", sample(["a bit", "half", "empty", "words", "no optimiser"]))
def test_a_damaged_checkpoint_is_ignored(tmp_path, how):
    run = make_run(TINY, eval_every=2)

    with pytest.raises(KeyboardInterrupt):
        fit(run, "cpu", tmp_path, [stop_at(4), Checkpoint(every=0)])
    spoil(tmp_path / "checkpoint.pt", how)
    damaged = pytest.warns(UserWarning, match="checkpoint.pt is damaged and ignored, the run begins anew")
    with nullcontext() if how == "no optimiser" else damaged:
        again = fit(run, device="cpu", folder=tmp_path)
    assert content(again) == undisturbed(run)


@cache
def undisturbed(run) -> str:
    return content(fit(run, device="cpu"))


@pytest.mark.parametrize(
    ("sampler", "method"),
    sample(
        [
            *((name, "Margin (D, beta=1.2)") for name in ("spc", "gc", "ddm")),
            *(("spc", name) for name in ("NPair", "Angular", "Quadruplet (D)", "R-Triplet (D)", "Triplet (R)")),
            *(("spc", "ProxyNCA"), ("shuffle", "SimCLR + SEC"), ("spc", "Triplet (D); mixed")),
        ]
    ),
)
def test_a_run_stopped_within_an_epoch_goes_on(tmp_path, sampler, method):
    method, _, mixed = method.partition("; ")
    fields = {"steps": 4, "eval_every": 1, "sampler": sampler, "method": method, "lr": 3e-3, "images_per_class": 10}
    fields["mixup"] = 2.0 if mixed else None
    if method == "SimCLR + SEC":  # its rates and its weight change with the step
        fields |= {"variant": "published", "optimizer": "sgd", "milestones": "cosine", "lr_decay": 1e-3}
        fields |= {"measure": "validation"}  # a linear classifier on the test classes takes seconds
    run = make_run(TINY, dataset="glyphs_fine", **fields)
    assert len(sampler_of(run, splits_of(run)["train"].labels)) == 7
    whole = fit(run, device="cpu")

    with pytest.raises(KeyboardInterrupt):
        fit(run, "cpu", tmp_path / "run", [stop_at(3), Checkpoint(every=0)])
    assert torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["state"]["step"] == 2
    shown = Progress(every=0)
    assert content(fit(run, device="cpu", folder=tmp_path / "run", hooks=[shown])) == content(whole)
    assert shown.first == 2 and shown.shown.initial == 2 * run.batch_size  # speed is counted from there


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "glyph_fine"}, "Did you mean 'glyphs_fine'"),
        ({"method": "Margin"}, "There is no method 'Margin'"),
        ({"sampler": "spcr"}, "There is no sampler 'spcr'"),
        ({"model": "resnet"}, "There is no model 'resnet'"),
        ({"head": "batchnorm"}, "There is no head 'batchnorm'"),
        ({"optimizer": "lion"}, "There is no optimizer 'lion'"),
        ({"variant": "original"}, "There is no variant 'original'"),
        ({"fold": 7}, "fold must lie in 0 to 4"),
        ({"batch_size": 111}, "111"),
        ({"precision": "fp16"}, "There is no precision 'fp16'. Did you mean 'bf16'"),
        ({"milestones": "0.5;0.7"}, "milestones are fractions of the steps"),
        ({"steps": -1}, "steps must be a number of at least 0; got -1"),
        ({"eval_every": 0}, "eval_every must be a number of at least 1; got 0"),
        ({"embed_dim": 0}, "embed_dim must be a number of at least 1; got 0"),
        ({"lr": float("nan")}, "lr must be a number of at least 0; got nan"),
        ({"method": "Softmax", "p_switch": 0.1}, "p_switch=0.1 means nothing"),
        ({"method": "Triplet (D)", "eta": 0.1}, "eta=0.1 means nothing"),
        ({"eta": float("nan")}, "eta must be a number of at least 0; got nan"),
        ({"method": "SimCLR"}, "views of at least 2 images, none twice: use sampler='shuffle'; got 'spc'"),
        ({"method": "SimCLR", "sampler": "shuffle", "batch_size": 1}, "at least 2 images.* batch_size=1"),
        ({"milestones": "cosine"}, "with cosine the learning rates fall to lr_decay of what they were"),
        ({"method": "Triplet (D)", "mixup": -1.0}, "mixup must be a number of at least 0; got -1.0"),
        ({"method": "Contrastive (D) + TCM", "mixup": 2.0}, "mixup goes with .* one label a sample"),
        ({"method": "Softmax", "mixup": 2.0, "train_stem": True}, "mixup goes with a frozen stem or a resnet50"),
        ({"fold": -2}, "fold must be a number of at least 0; got -2"),
        ({"method": "Contrastive + memory", "mixup": 2.0}, "mixup goes with .* one label a sample"),
        ({"head": "lda:0.1", "train_stem": True}, "head 'lda:0.1' is fitted to features of a frozen stem; convnet is"),
        ({"head": "standardised", "model": "resnet50"}, "is fitted to features of a frozen stem; resnet50 is trained"),
        ({"long_tail": 0.0}, "ratio of the long tail must be a number, at least 1; got 0.0"),
    ],
)
def test_wrong_settings_are_named_before_training(fields, message):
    with pytest.raises(ValueError, match=message):
        fit(make_run({**TINY, **fields}), device="cpu")


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("train_stem", [False, True])
def test_a_step_does_not_wait_for_the_gpu(train_stem):
    run, device = make_run(dataset="glyphs_fine", train_stem=train_stem), torch.device("cuda")
    steps_without_waiting(start(run, Feed(run, splits_of(run), device), device))


def steps_without_waiting(state) -> None:
    """Three steps; a copy that waits, a count, a look at a value: each raises."""
    batches, guard = state.feed.stream(state.sampler, 0, state.run.steps), Guard()
    train_steps(state, batches, 3, [guard])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        train_steps(state, batches, 6, [guard])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@on_gpu
def test_a_broken_run_on_a_gpu_leaves_the_state_that_broke(tmp_path):
    run = make_run(TINY, dataset="glyphs_fine", method="NPair", steps=50, lr=1e18)
    with pytest.raises(train.NonFiniteLoss, match=r"is not finite at step \d+"):
        fit(run, device="cuda", folder=tmp_path)
    state = torch.load(tmp_path / BROKEN, weights_only=True, map_location="cpu")
    assert state["step"] == int(state["optimizer"]["state"][0]["step"])
    assert all(v.isfinite().all() for v in state["model"].values())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("sampler", ["spc", "gc"])
def test_a_stopped_run_goes_on_on_a_gpu(tmp_path, sampler):
    run = make_run(TINY, dataset="glyphs_fine", steps=4, eval_every=1, sampler=sampler, images_per_class=10)
    whole = fit(run, device="cuda")

    with pytest.raises(KeyboardInterrupt):
        fit(run, "cuda", tmp_path / "run", [stop_at(3), Checkpoint(every=0)])
    again = fit(run, device="cuda", folder=tmp_path / "run")
    assert again["terms"]["loss"] == pytest.approx(whole["terms"]["loss"], rel=1e-3)


@pytest.mark.gpu
@on_gpu
def test_gpu_learns_as_the_cpu_does():
    run = make_run(dataset="glyphs_fine", steps=200, eval_every=100)
    cpu, gpu = (fit(run, device=d)["curves"]["test"]["recall@1"] for d in ("cpu", "cuda"))
    assert abs(cpu[0] - gpu[0]) < 0.005 and abs(cpu[-1] - gpu[-1]) < 0.05


def test_two_milestones_on_one_step_decay_twice():
    state = at_start(lr=1e-3, lr_decay=0.1, milestones="0.5,0.5")
    here = milestone_steps(state.run)[0]
    for step in range(here + 1):
        decay_rates(state.optimizer, state.run, step)
    assert state.optimizer.param_groups[0]["lr"] == pytest.approx(1e-5)


def test_weights_that_cannot_be_written_leave_no_checkpoint(tmp_path, monkeypatch):
    """Its place is what the record needs."""

    def full(*given):
        raise OSError(28, "could not be written, its disk is full", "weights.pt")

    monkeypatch.setattr(train, "write_atomically", full)
    (file := tmp_path / "checkpoint.pt").write_bytes(b"")
    state, hook = SimpleNamespace(folder=tmp_path, network=SimpleNamespace(model=torch.nn.Linear(1, 1))), Checkpoint()
    hook.file = file
    with pytest.warns(UserWarning, match="The record is whole, the weights are not kept"):
        hook.end(state, None)
    assert not [*tmp_path.iterdir()]

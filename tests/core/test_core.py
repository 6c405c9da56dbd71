"""Runs, keys, generators and the error for an unknown name."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from grids import each

from dmlstudy.core.checks import hyperparameters_of, lookup
from dmlstudy.core.paths import cache_dir, outputs, root, write_atomically
from dmlstudy.core.random import generator
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.miners import MINERS, make_miner
from dmlstudy.regularizers import REGULARIZERS, make_regularizer
from dmlstudy.samplers import SAMPLERS, make_sampler
from dmlstudy.study.methods import search_axes
from dmlstudy.study.run import Run, make_run

OTHER = {  # values for fields whose default says nothing of their type, or that must be a name
    **{"method": "Softmax", "fold": 1, "images_per_class": 5, "p_switch": 0.1, "eta": 0.1, "mixup": 2.0},
    **{"loss_lr": 0.1, "milestones": "cosine", "weights": None, "measure": "validation"},
    **{"seed": 1, "train_classes": 5, "train_queries": 5, "loss_args": "margin=0.1"},
    **{"long_tail": 10.0, "label_noise": 0.2},
}


def test_key_covers_every_field():
    for field in dataclasses.fields(Run):
        base = Run(method={"p_switch": "R-Triplet (D)", "eta": "SHT + SEC"}.get(field.name, Run.method))
        more = {bool: lambda v: not v, str: lambda v: v + "x"}.get(type(field.default), lambda v: v + 1)
        other = OTHER[field.name] if field.name in OTHER else more(field.default)
        assert dataclasses.replace(base, **{field.name: other}).key() != base.key(), field.name


def test_key_is_the_same_in_another_process():
    code = "from dmlstudy.study.run import make_run; print(make_run(seed=5, method='Softmax', lr=1e-3).key())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == make_run(lr=1e-3, method="Softmax", seed=5).key()


def test_a_replicate_brings_its_own_seed():
    run = make_run(replicate=3)
    assert (run.seed, run.changed()) == (3, {"replicate": 3})
    assert make_run(replicate=3, seed=3).key() == run.key() == make_run(dataclasses.asdict(run)).key()
    assert len({make_run(replicate=r, seed=s).key() for r in range(3) for s in range(3)}) == 9


def test_keys_of_recorded_runs_are_what_they_were():
    """Fields that came later are at their defaults there."""
    for file in sorted((root() / "outputs/records").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            assert "key" not in record or make_run(record["run"]).key() == record["key"], (file.name, record["key"])


@pytest.mark.parametrize("fields", [{"lr": "0.1"}, {"seed": 1.0}, {"train_stem": 1}, {"method": None}, {"steps": True}])
def test_wrong_types_are_refused(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        make_run(fields)


def test_unknown_field_names_the_near_one():
    with pytest.raises(ValueError, match="Did you mean 'dataset'"):
        make_run(datset="cub200")


def test_generators_are_apart():
    draws = {tuple(torch.rand(4, generator=generator(s, p)).tolist()) for s in range(20) for p in ("a", "b", "c")}
    assert len(draws) == 60


def test_lookup_lists_what_there_is():
    assert lookup("letter", "a", {"a": 1}) == 1
    with pytest.raises(ValueError, match="There is no letter 'z'.*'a', 'b'"):
        lookup("letter", "z", ["a", "b"])


@pytest.mark.parametrize(
    ("given", "known", "near"),
    [
        ("Margn", ["ImageNet", "Margin (D, beta=0.6)", "Margin (D, beta=1.2)"], "'Margin (D, beta=0.6)' or 'Margin"),
        ("SEC", ["SimCLR", "SHT + SEC", "Softmax"], "'SHT + SEC'?"),
        ("cub", ["cars196", "cub200", "sop"], "'cub200'?"),
        ("dim", ["images_per_class", "embed_dim"], "'embed_dim'?"),
        ("tripplet", ["triplet", "margin"], "'triplet'?"),
    ],
)
def test_lookup_knows_names_that_begin_or_end_so(given, known, near):
    with pytest.raises(ValueError) as error:
        lookup("name", given, known)
    assert f"Did you mean {near}" in str(error.value)


def test_lookup_among_many_names_says_the_nearest():
    known = {f"loss_{i}": i for i in range(60)} | {"triplet": 0}
    with pytest.raises(ValueError, match=r"Did you mean 'triplet'\? There are 61\.$"):
        lookup("loss", "tripplet", known)
    with pytest.raises(ValueError, match=r"Did you mean 'lr'"):
        make_run(dataset="omniglot_few", method="Softmax", seed=0, learning_rate=0.1)
    with pytest.raises(ValueError, match="There are: 'loss_0', 'loss_1', "):  # where none is near, all
        lookup("loss", "qqqq", known)


@pytest.mark.parametrize("given", [None, 3, "", "x" * 100_000])
def test_lookup_of_what_is_no_name(given):
    with pytest.raises(ValueError, match="There are: 'ImageNet', 'Softmax'"):
        lookup("name", given, ["ImageNet", "Softmax"])
    with pytest.raises(ValueError, match="There is no name"):
        lookup("name", given, [])


def test_root_is_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    assert root() == tmp_path
    monkeypatch.delenv("DMLSTUDY_ROOT")
    monkeypatch.chdir(tmp_path)
    assert root() == tmp_path


def test_folders_of_the_environment_may_be_empty_or_begin_at_home(tmp_path, monkeypatch):
    """As in a file of variables, where no shell expands ~."""
    monkeypatch.delenv("DMLSTUDY_CACHE", raising=False)
    for name, value in {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "DMLSTUDY_OUTPUTS": "~/study"}.items():
        monkeypatch.setenv(name, value)
    assert (cache_dir(), outputs()) == (tmp_path / ".cache/dmlstudy", tmp_path / "study")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_cut_of_power_leaves_the_old_file_or_the_new_one(tmp_path, monkeypatch):
    """The content is on the disk before it gets its name, and the name before it is said to be written."""
    done, sync, replace = [], os.fsync, Path.replace
    held = lambda place: Path(os.readlink(f"/proc/self/fd/{place}"))
    monkeypatch.setattr(os, "fsync", lambda place: (done.append((held(place).parent, held(place).suffix)), sync(place)))
    monkeypatch.setattr(Path, "replace", lambda old, new: (done.append("named"), replace(old, new)))
    write_atomically(tmp_path / "below/a.txt", "x")
    assert done == [(tmp_path / "below", ".tmp"), "named", (tmp_path, "")]


def numeric_hyperparameters():
    """(name to make it by, what makes it, hyperparameter) of all that has a number to choose."""
    labels = torch.arange(40) // 2
    for name, kind in LOSSES.items():
        yield from ((name, partial(make_loss, name, 4, 5), k, v) for k, v in hyperparameters_of(kind).items())
    for name, kind in MINERS.items():
        yield from ((name, partial(make_miner, name), k, v) for k, v in hyperparameters_of(kind).items())
    for name, kind in REGULARIZERS.items():
        yield from ((name, partial(make_regularizer, name), k, v) for k, v in hyperparameters_of(kind).items())
    for name, kind in SAMPLERS.items():
        sizes = {"dim": 5, "big_batch": 20} if "big_batch" in hyperparameters_of(kind) else {}
        make = partial(lambda name, sizes, **more: make_sampler(name, labels, 10, **(sizes | more)), name, sizes)
        yield from ((name, make, k, v) for k, v in hyperparameters_of(kind).items())


MAY_BE_NONE = {"lr", "n_triplets", "upper_cutoff", "weight_cap", "ramp", "scale", "loss_scale", "max_positive"}
MAY_BE_NONE |= {"batches", "project_dim"}


def numeric() -> list[tuple]:
    return [
        (name, make, key)
        for name, make, key, default in numeric_hyperparameters()
        if (name, key) != ("shuffle", "samples_per_class")  # which it does not use
        and (isinstance(default, int | float) and not isinstance(default, bool) and key != "seed")
        or (default is None and key in MAY_BE_NONE)
    ]


@each("name, make, key", numeric)
def test_every_number_is_looked_at(name, make, key):
    make()
    for wrong in (math.nan, math.inf, "2", [1]):
        with pytest.raises(ValueError, match=rf"^{key} of the \w+ must be an? (number|integer).*; got "):
            make(**{key: wrong})


def test_a_notebook_never_replaces_a_loss_of_the_library():
    ours = LOSSES["triplet"]

    class Again(ours, name="triplet"):
        __module__ = "__main__"

    assert LOSSES["triplet"] is ours is type(make_loss("triplet"))
    try:
        first, second = (
            type("Mine", (ours,), {"__module__": "__main__"}, name="mine of these tests") for _ in range(2)
        )
        assert LOSSES["mine of these tests"] is second is not first  # a cell executed again
    finally:
        del LOSSES["mine of these tests"]


@each("name", LOSSES)
def test_each_loss_has_two_axes_to_search_and_its_default_lies_inside(name):
    axes, loss = search_axes(name), make_loss(name, n_classes=10, dim=8)
    network = 1e-5  # the rate beside which the papers' absolute rates stand
    rate = loss.lr_factor if loss.lr is None else loss.lr / network
    fields = {"loss_lr": rate, "samples_per_class": Run.samples_per_class}
    assert len(axes) == 2
    for axis, (low, high, log) in axes.items():
        own = hyperparameters_of(type(loss))
        assert (axis in own) != (axis in fields), axis
        default = fields[axis] if axis in fields else own[axis]
        assert low < high and low <= default <= high and (low > 0 or not log), (axis, default)
        for value in (low, high) if axis in own else ():
            make_loss(name, n_classes=10, dim=8, **{axis: round(value) if isinstance(default, int) else value})
    assert "loss_lr" not in axes or list(loss.parameters()), "nothing learned of its own"

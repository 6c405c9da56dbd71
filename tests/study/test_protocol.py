"""The protocols of both papers, row by row, against what a run of the `paper` profile is made of."""

import dataclasses
import re
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from grids import each
from PIL import Image
from protocol_values import exists, literal, live, name_of, protocol, read_value, value_of, verdict
from tiers import sample

from dmlstudy.data.formats import SOURCES
from dmlstudy.study.config import PROFILES
from dmlstudy.study.methods import ADDED_METHODS, METHODS, SINCE_METHODS
from dmlstudy.study.run import Run, make_run
from dmlstudy.train.network import param_groups
from dmlstudy.train.state import start


@cache
def table() -> pd.DataFrame:
    return protocol()


@cache
def rows() -> list[dict]:
    return table().to_dict("records")


def methods(row: dict) -> list[str]:
    trained = [n for n, m in METHODS.items() if m.loss and not m.pairs and m.protocol == row["paper"]]
    return trained if row["methods"] == "*" else row["methods"].split("; ")


@pytest.mark.parametrize("every", sample([36, 1], [36]))
@each("name, row", lambda every: {name_of(row): row for row in rows()[::every]})
def test_row_is_as_it_says(name, row):
    """Else a value drifted, or a departure was mended: python tools/protocol_values.py writes the table anew."""
    found = read_value(row)
    assert (literal(found), verdict(row, found)) == (row["here"], row["verdict"])


@each("name, row", lambda: {name_of(row): row for row in rows()})
def test_row_is_sound(name, row):
    assert row["print"] or row["code"]
    assert exists(row["set_in"]) and row["open"] in ("", "yes")
    assert row["note"] or row["verdict"] == "same", "a departure says why"
    assert {*row["datasets"].split("; ")} <= SOURCES.keys()
    assert all(METHODS[m].protocol == row["paper"] for m in methods(row))


def test_agreement_of_values():
    """Oracle of the comparison: sets are "at least these", yes is not 1, nothing is not a number."""
    row = lambda **given: {"print": "", "code": ""} | given
    for text, found in (("[0.9, 0.999]", (0.9, 0.999)), ("{'nmi'}", {"nmi", "f1"}), ("1", 1.0), ("None", None)):
        assert verdict(row(code=text), found) == "same"
    for text, found in (("True", 1), ("0.5", None), ("{'ami'}", {"nmi"}), ("[1]", 1)):
        assert verdict(row(code=text), found) == "differs"
    assert verdict(row(print="127", code="128"), 128) == "as the code"
    assert all(value_of(literal(v)) == v for v in (None, 0.5, (1, "a"), {"a", "b"}, "sgd"))
    assert exists("losses.triplet.TripletLoss") and not exists("losses.triplet.Tripletloss") and not exists("loss")
    assert exists("study.config.PROFILES: lr, seeds") and not exists("study.config.PROFILES: rate")


def test_every_method_set_and_field_has_a_row():
    specific = table().query("topic == 'methods'").to_dict("records")
    assert {m for row in specific for m in methods(row)} == {
        n
        for n, m in METHODS.items()
        if m.loss and n not in {**SINCE_METHODS, **ADDED_METHODS} and not (m.equalize or m.pairs)
    }
    data = table().query("topic == 'data' and item == 'classes/images'")
    assert {*data["datasets"]} == {"cub200", "cars196", "sop", "inshop", "cifar10"}
    texts = [row[name].replace(".", " ").replace(",", " ") for row in rows() for name in ("set_in", "read")]
    said = {word for text in texts for word in text.split()}
    apart = {"dataset", "method", "seed"}  # which run it is
    apart |= {
        "long_tail",
        "label_noise",
        "noise_coarse",
        "images_per_class",
        "train_classes",
        "replicate",
        "train_queries",
        "train_stem",
    }  # of embedded sets
    apart |= {"p_switch", "eta", "loss_lr", "optimizer", "loss_args"}  # the method's own, which has rows; Adam has some
    apart |= {"strict_data", "mixup", "monitor", "measure"}  # no part of a published protocol of these rows
    assert {f.name for f in dataclasses.fields(Run)} - said - apart == set(), "a field of a run without a row"


@pytest.mark.parametrize(
    ("dataset", "method"),
    [("cub200", "Margin (D, beta=0.6)"), ("sop", "ProxyNCA"), ("cars196", "T + SEC"), ("cifar10", "SimCLR")],
)
def test_what_is_read_is_what_training_starts_with(dataset, method):
    run = live(dataset, method, "")
    state = start(make_run(run.run.changed(), weights=None), run.feed, torch.device("cpu"))
    said = lambda objective: re.sub(r"seed=\d+", "", repr(objective))  # the seed of first proxies is the run's
    assert said(state.objective) == said(run.objective)
    assert vars(state.objective.loss).keys() == vars(run.objective.loss).keys()
    wanted = [(g["lr"], g["weight_decay"]) for g in param_groups(run.run, state.network.model, state.objective)]
    assert [(g["lr"], g["weight_decay"]) for g in state.optimizer.param_groups] == wanted
    assert wanted[0] == (run.body.lr, run.body.decay) and (run.head.lr, run.head.decay) in wanted


@pytest.fixture
def fresh():
    live.cache_clear()
    yield
    live.cache_clear()


@pytest.mark.parametrize(
    ("paper", "field", "value", "item"),
    [
        ("roth", "batch_size", 111 * 2, "images in a batch"),
        ("roth", "lr", 2e-5, "learning rate, backbone"),
        ("sec", "decay_bn", True, "weight decay, head BN"),
        ("sec", "transform", "base", "test"),
    ],
)
def test_a_changed_value_is_found(monkeypatch, fresh, paper, field, value, item):
    profile = PROFILES["paper"]
    sets = {d: {**by, paper: {**by.get(paper, {}), field: value}} for d, by in profile.by_dataset.items()}
    monkeypatch.setitem(PROFILES, "paper", dataclasses.replace(profile, by_dataset=sets))
    some = table()[(table()["paper"] == paper) & (table()["item"] == item) & table()["datasets"].str.contains("cub200")]
    (row,) = some.assign(datasets="cub200").to_dict("records")
    assert verdict(row, read_value(row)) != "same"


def test_a_row_must_be_one_value():
    some = table().query("item == 'epochs'").head(1).assign(datasets="cub200; sop")
    with pytest.raises(ValueError, match="split the row"):
        read_value(some.to_dict("records")[0])


def test_rows_of_any_number_of_images_a_class_can_be_trained_on_a_small_folder(tmp_path, monkeypatch):
    """Batches of 26 could not hold three images of each class, nor thirteen classes of ten."""
    from dmlstudy.data.image_folder import resolve_folder
    from dmlstudy.data.loaders import splits_of
    from dmlstudy.study.config import run_of
    from dmlstudy.train.state import sampler_of

    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    for c, image in enumerate(np.random.default_rng(0).integers(0, 255, (18, 5, 16, 16, 3), dtype=np.uint8)):
        (tmp_path / f"photos/class {c}").mkdir(parents=True)
        for i, pixels in enumerate(image):
            Image.fromarray(pixels).save(tmp_path / f"photos/class {c}/{i}.png")
    name = resolve_folder(f"folder:{tmp_path / 'photos'}")
    for method in ("Softmax", "SHT", "SHT + SEC", "NNP", "T"):
        run = run_of("photos", name, method, None, replicate=1)
        assert len(sampler_of(run, splits_of(run)["train"].labels)) and run.batch_size % run.samples_per_class == 0

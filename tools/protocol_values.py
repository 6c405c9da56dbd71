"""Values of the protocol table, `dmlstudy/assets/protocol.csv`, read from what a run of the `paper` profile is made of.

A value is never typed: it is read from network (without weights), optimiser, sampler, transforms and objective, made as
training makes them. `python tools/protocol_values.py` writes the columns `here` and `verdict` of the table anew;
tests/study/test_protocol.py fails where they are out of date, and nbs/experiments/methods/protocol.ipynb shows them.
"""

import ast
import dataclasses
import importlib
import inspect
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from operator import attrgetter
from types import SimpleNamespace

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dmlstudy.core.paths import asset
from dmlstudy.data.formats import SOURCES
from dmlstudy.data.loaders import feed_of
from dmlstudy.data.splits import Split
from dmlstudy.data.transforms import Scaling, Transform, draw_box, flip
from dmlstudy.metrics import evaluate
from dmlstudy.metrics.clustering import kmeans
from dmlstudy.metrics.geometry import rho_of
from dmlstudy.models.backbones import Pool
from dmlstudy.report.tables import intervals, published
from dmlstudy.samplers.by_class import SPCSampler
from dmlstudy.study.config import PROFILES, Profile, methods_of, run_of
from dmlstudy.study.methods import ADDED_METHODS, METHODS, SINCE_METHODS
from dmlstudy.study.run import Run, make_run
from dmlstudy.study.selection import SELECTIONS, selected
from dmlstudy.train.network import decay_rates, matmul_precision, milestone_steps
from dmlstudy.train.objective import make_objective
from dmlstudy.train.state import metrics_of, sampler_of, start


def common(
    values,  # any number of them
):  # the value, if all are equal; else all different ones, sorted; None for none
    "What some values have in common"
    found = sorted(set(values))
    return found[0] if len(found) == 1 else tuple(found) or None


def part(
    module: nn.Module,  # of the network, in training mode
    optimizer: torch.optim.Optimizer,
) -> SimpleNamespace:
    "How a part of the network is trained"
    group = {p: g for g in optimizer.param_groups for p in g["params"]}
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    affine = {p for m in norms for p in m.parameters()}
    trained = [p for p in module.parameters() if p in group]
    return SimpleNamespace(
        lr=common(group[p]["lr"] for p in trained),
        decay=common(group[p]["weight_decay"] for p in trained if p not in affine),
        norm_decay=common(group[p]["weight_decay"] for p in trained if p in affine),
        norms_trained=any(p in group for p in affine),
        norms_move=any(m.training for m in norms),
        dropout=tuple(m.p for m in module.modules() if isinstance(m, nn.Dropout)),
        layers=tuple(type(m).__name__ for m in module.children()),
    )


def words(transform: Transform) -> str:  # such as "resize 256, center crop 224"
    "The steps of a transform"
    told = lambda v: "–".join(f"{x:g}" for x in v) if isinstance(v, tuple) else f"{v:g}"
    chance = {"flip": (default(flip, "p"),)}
    return ", ".join(
        " ".join([name.replace("_", " "), *map(told, arguments or chance.get(name, ()))])
        for name, *arguments in transform.steps
    )


def default(
    function,  # or a class
    name: str,  # of a parameter
):  # its default
    "What a function does if it is not told"
    return inspect.signature(function).parameters[name].default


def pixels(scaling: Scaling) -> str:  # in units of the network's input, in the order of its channels
    "What is done to pixels"
    unit = 255 if max(scaling.std) < 0.1 else 1  # Caffe's networks count to 255
    mean, std = ([round(unit * v, 4) for v in values] for values in (scaling.mean, scaling.std))
    order = slice(None, None, -1 if scaling.bgr else 1)
    told = lambda values: " ".join(f"{v:g}" for v in values[order])
    return f"{'BGR' if scaling.bgr else 'RGB'} 0–{unit}, mean {told(mean)}, std {told(std)}"


class Live:
    "What a run of the `paper` profile is made of"

    def __init__(
        self,
        dataset: str,  # of the paper
        method: str,  # name in METHODS
        **fields,  # of the run, where the paper varies them
    ):
        self.run, self.profile = run_of("paper", dataset, method, **fields), PROFILES["paper"]
        self.splits = SOURCES[dataset]["splits"]
        self.protocol = METHODS[method].protocol

    @cached_property
    def feed(self):
        classes, images = self.splits["train"]
        names = tuple(map(str, range(classes)))
        train = Split(range(images), torch.arange(images) % classes, names)
        return feed_of(self.run, {"train": train}, CPU, views=METHODS[self.run.method].views)

    @cached_property
    def trained(self) -> SimpleNamespace:  # body, head, optimizer; the network itself is not kept
        state = start(make_run(self.run.changed(), weights=None), self.feed, CPU)
        model = state.network.model
        body, head = (part(m, state.optimizer) for m in (model.backbone, model.head))
        backbone, last = model.backbone, model.head[-1]
        body.dim, body.pooling = backbone.dim, common(m.kind for m in backbone.modules() if isinstance(m, Pool))
        head.dim, head.bias = last.out_features, last.bias is not None
        reach = max(float(p.detach().abs().max()) for p in last.parameters()) * math.sqrt(last.in_features)
        head.first = f"U(±{'1' if 0.99 < reach <= 1.00001 else f'{reach:g}'}/√{last.in_features})"
        groups = state.optimizer.param_groups
        found = {name: common(g.get(name) for g in groups) for name in ("betas", "eps", "momentum")}
        optimizer = SimpleNamespace(name=type(state.optimizer).__name__, **found)
        return SimpleNamespace(body=body, head=head, optimizer=optimizer)

    body, head, optimizer = (property(attrgetter(f"trained.{name}")) for name in ("body", "head", "optimizer"))

    @cached_property
    def objective(self):
        return make_objective(METHODS[self.run.method], self.run, self.splits["train"][0])

    @cached_property
    def sampler(self):
        return sampler_of(self.run, self.feed.labels["train"])

    @cached_property
    def own(self) -> SimpleNamespace:  # class boundaries, proxies
        groups = self.objective.param_groups(self.run.lr, self.run.loss_lr)
        return SimpleNamespace(**{to: common(g[name] for g in groups) for to, name in _GROUP.items()})


CPU, _GROUP = torch.device("cpu"), {"lr": "lr", "decay": "weight_decay"}


class Protocol(Live):
    "A run's protocol in the words of the papers"

    split_sizes = property(lambda self: ", ".join(f"{k} {c}/{n}" for k, (c, n) in self.splits.items()))
    held_out = property(lambda self: "none" if self.run.fold is None else f"fold {self.run.fold}")
    milestones = property(lambda self: tuple(milestone_steps(self.run)))
    epochs = property(lambda self: self.run.steps / len(self.sampler))
    evaluated_every = property(lambda self: self.run.eval_every / len(self.sampler))  # epochs
    batches = property(lambda self: len(self.sampler))
    metrics = property(lambda self: SimpleNamespace(**{k: set(v) for k, v in metrics_of(self.run.dataset).items()}))
    n_seeds = property(lambda self: len(self.profile.seeds))
    short = property(lambda self: default(SPCSampler, "short"))
    aspect = property(lambda self: default(draw_box, "ratio"))
    rho_mode = property(lambda self: default(rho_of, "mode"))
    drop_smallest = property(lambda self: default(rho_of, "drop_smallest"))
    kmeans_rounds = property(lambda self: default(kmeans, "rounds"))
    kmeans_starts = property(lambda self: default(evaluate, "kmeans_restarts"))

    @property
    def images(self) -> SimpleNamespace:
        "The transforms of the run"
        train, test = (self.feed.transform[train] for train in (True, False))
        return SimpleNamespace(train=words(train), test=words(test), pixels=pixels(test.scaling))

    @property
    def schedule(self) -> str:  # head / body / factor @ steps, as the rebuttal of Zhang et al. writes it
        "Learning rates"
        at = "cosine" if self.run.milestones == "cosine" else ", ".join(map(str, self.milestones))
        return f"{self.head.lr:g} / {self.body.lr:g} / " + (f"{self.run.lr_decay:g} @ {at}" if at else "constant")

    @property
    def falls(self) -> str:  # never, milestone, step
        "How often learning rates fall"
        if self.run.lr_decay == 1 or not self.run.milestones:
            return "never"
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        for step in (0, 1):
            decay_rates(optimizer, self.run, step)
        return "step" if optimizer.param_groups[0]["lr"] < 1 else "milestone"

    @property
    def rows(self) -> int:
        "How many rows of the paper's tables are in the profile"
        printed = published(self.protocol).query("dataset == @self.run.dataset")["method"]
        return len({*printed} & {*methods_of("paper", self.run.dataset)})

    @property
    def rule(self) -> str:
        "By which rule the profile's tables choose the epoch"
        parts = ("test", "train") if self.run.fold is None else ("test", "train", "validation")
        record = {"curves": {name: {"step": [0], "recall@1": [0.5]} for name in parts}}
        return next(rule for rule in SELECTIONS if selected(record, rule))

    @property
    def deviation(self) -> str:
        "What the standard deviation over seeds divides by"
        two = intervals(pd.DataFrame({"of": "", "value": [0.0, 2.0]}), ["of"])["std"][0]
        return "n" if math.isclose(two, 1) else "n - 1"

    @property
    def tf32(self) -> bool:
        "Whether convolutions of a run may be computed in TF32 on a GPU"
        with matmul_precision(self.run.precision):
            return torch.backends.cudnn.allow_tf32


def protocol() -> pd.DataFrame:  # a row for each value; strings
    "Both papers' protocols"
    return pd.read_csv(asset("protocol.csv"), dtype=str, keep_default_na=False)


def value_of(
    text: str,  # a Python literal, or words
):
    "A value of the table"
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def without_tensors(
    value,  # as read
):  # bool, number, word, tuple of them, or set
    "A value without tensors"
    if isinstance(value, Tensor):
        return common(round(v, 7) for v in value.detach().flatten().double().tolist())
    return tuple(map(without_tensors, value)) if isinstance(value, (list, tuple)) else value


def agree(
    wanted,  # as from `value_of`
    found,  # as from `plain`
) -> bool:
    "Whether a value is the one in the table"
    if isinstance(wanted, AbstractSet):
        return wanted <= set(found)
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        same_length = isinstance(found, tuple) and len(found) == len(wanted)
        return same_length and all(map(agree, wanted, found))
    if isinstance(wanted, bool) or isinstance(found, bool) or not isinstance(wanted, (int, float)):
        return wanted is found or (type(wanted) is type(found) and wanted == found)
    return isinstance(found, (int, float)) and math.isclose(wanted, found, rel_tol=1e-6)


@lru_cache(maxsize=256)
def live(dataset: str, method: str, fields: str) -> Protocol:
    "One run, made once"
    return Protocol(dataset, method, **dict(value_of(fields) or {}))


def read_value(
    row: Mapping,  # of the table
):  # as from `plain`; of a set those that the table has
    "The value in this library"
    names = row["methods"].split("; ")
    if names == ["*"]:
        printed = {name: m for name, m in METHODS.items() if name not in {**SINCE_METHODS, **ADDED_METHODS}}
        names = [n for n, m in printed.items() if m.loss and not m.pairs and m.protocol == row["paper"]]
    read, wanted = attrgetter(row["read"]), value_of(row["print"] or row["code"])
    cases = [(d, m) for d in row["datasets"].split("; ") for m in names]
    values = {case: without_tensors(read(live(*case, row["fields"]))) for case in cases}
    if isinstance(wanted, AbstractSet):
        values = {case: value & wanted for case, value in values.items()}
    first = next(iter(values.values()))
    if other := [case for case, value in values.items() if value != first]:
        raise ValueError(f"{row['item']}: {first} for {cases[0]}, {values[other[0]]} for {other[0]}: split the row")
    unset = {"0": 0, "none": "none"}  # how the table writes what is not set
    return unset.get(row["here"], first) if first is None else first


def verdict(
    row: Mapping,  # of the table
    found,  # as from `here`
) -> str:  # name in VERDICTS
    "How a value compares with paper and code; where one of them is silent, the other counts"
    equal = {name: agree(value_of(row[name]), found) for name in ("print", "code") if row[name]}
    if all(equal.values()):
        return "same"
    return "as printed" if equal.get("print") else "as the code" if equal.get("code") else "differs"


def exists(
    place: str,  # such as losses.triplet.TripletLoss, or study.PROFILES: lr, weight_decay
) -> bool:
    "Whether there is such a name in the library, and such fields of a run or a profile"
    place, _, fields = place.partition(": ")
    known = {f.name for kind in (Run, Profile) for f in dataclasses.fields(kind)}
    if fields and not {*fields.split(", ")} <= known:
        return False
    names = place.split(".")
    for n in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(["dmlstudy", *names[:n]]))
        except ModuleNotFoundError:
            continue
        return not names[n:] or _has(module, names[n:])
    return False


def _has(owner, names: Sequence[str]) -> bool:
    for name in names:
        if not hasattr(owner, name):
            return False
        owner = getattr(owner, name)
    return True


def name_of(
    row: Mapping,  # of the table
) -> str:
    "What a row is about"
    return f"{row['paper']}, {row['topic']}: {row['item']} ({row['datasets']}; {row['shown'] or row['methods']})"


def literal(
    value,  # as from `read_value`
) -> str:  # `value_of` gives the value back
    "A value as it stands in the table"
    if isinstance(value, AbstractSet):
        return "{" + ", ".join(map(repr, sorted(value))) + "}"
    return value if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    rows = protocol().to_dict("records")
    for row in rows:
        found = read_value(row)
        row |= {"here": literal(found), "verdict": verdict(row, found)}
    pd.DataFrame(rows).to_csv(asset("protocol.csv"), index=False, lineterminator="\n")

"""Train trials of a method again, measured on more validation classes: python tools/validation_classes.py SHT.

A search of set 20 chooses by 20 characters. Here its trials are measured on these, on 20 and on 60 further ones beside
them, and on test characters; page `validation` reads the file. It takes about 45 minutes; what is there is kept.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from dmlstudy.core.paths import outputs, write_atomically
from dmlstudy.core.random import generator
from dmlstudy.data.loaders import feed_of, splits_of
from dmlstudy.study.run import Run
from dmlstudy.study.search import search_runs
from dmlstudy.train import fit

SEARCHES, FURTHER = range(130, 136), {"validation": 0, "40 classes": 20, "80 classes": 60}


def place(method: str) -> Path:
    """The file of a method: key of a trial -> curve -> recall@1 at each evaluation; and its commit."""
    return outputs() / "records" / f"validation_{''.join(filter(str.isalnum, method)).lower()}.json"


class MoreClasses:
    """A hook: a run is also measured on test characters, and on validation characters with further ones beside them."""

    def __init__(self, x: torch.Tensor, labels: torch.Tensor):  # stem features (N, views, ...); (N,), 0 to 59
        self.x, self.labels = x, labels

    def begin(self, state) -> None:
        x, y = state.feed.inputs["validation"], state.feed.labels["validation"]
        for name, n in FURTHER.items():
            some = self.labels < n
            state.feed.inputs[name] = torch.cat([x, self.x[some]])
            state.feed.labels[name] = torch.cat([y, self.labels[some] + y.max() + 1])
            state.metrics[name] = (name, ("recall@1",))
        state.metrics["test"] = ("test", ("recall@1",))


def further(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """60 characters at random of those that the replicate of a run did not draw, as `MoreClasses` takes them."""
    names = {name for part in ("train", "validation") for name in splits_of(run)[part].class_names}
    whole = replace(run, dataset="omniglot", replicate=0, fold=None)
    split = splits_of(whole)["train"]
    order = torch.randperm(len(split.class_names), generator=generator(run.replicate, "further classes")).tolist()
    chosen = [c for c in order if split.class_names[c] not in names][: max(FURTHER.values())]
    rank = torch.full((len(split.class_names),), -1)
    rank[chosen] = torch.arange(len(chosen))
    labels = rank[split.labels]
    x = feed_of(whole, {"train": split}, torch.device("cpu")).inputs["train"]
    return x[labels >= 0], labels[labels >= 0]


def main(method: str) -> None:
    """Write the file of a method, a trial after another."""
    file = place(method)
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for at in SEARCHES:
        trials, more = search_runs("omniglot_placebo", "omniglot_few", None, [method], at), None
        for run in (run for run in trials if run.key() not in found):
            more = more or MoreClasses(*further(run))
            record = fit(run, hooks=[more])
            found[run.key()] = {name: record["curves"][name]["recall@1"] for name in (*FURTHER, "test")}
            found[run.key()]["git"] = record["made"]["git"]
            write_atomically(file, json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

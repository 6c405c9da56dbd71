"""A loss of one's own, from a file and from a notebook: trained like the others, set beside them, or refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from dmlstudy import cli, compare
from dmlstudy.custom import compare as comparison
from dmlstudy.custom import losses as own
from dmlstudy.stats.decisions import verdict
from dmlstudy.study import config
from dmlstudy.study.executor import record_for
from dmlstudy.study.methods import METHODS
from dmlstudy.study.records import load_record
from dmlstudy.study.run import make_run
from dmlstudy.study.search import trials
from dmlstudy.study.selection import selected

ROOT = Path(__file__).resolve().parents[2]
METHOD = """
import torch
from pytorch_metric_learning import losses, miners
from dmlstudy.custom.losses import Own

class MyLoss(torch.nn.Module):
    def forward(self, f, labels):
        same = labels[:, None] == labels
        d = torch.cdist(f, f)
        return d[same].mean() - d[~same].clamp(max=4).mean()

Rings = Own(losses.CircleLoss(), miner=miners.MultiSimilarityMiner())
Anchors = Own(losses.ProxyAnchorLoss)
Mined = Own(losses.TripletMarginLoss(), miner="distance", regularizer="sec")
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch, tmp_path):
    """In a folder of its own; no row stays behind."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)
    own._read.clear()


def test_keys_of_committed_records_are_what_they_were(committed_records):
    for record in committed_records("glyphs"):
        assert make_run(record["run"]).key() == record["key"]


@pytest.mark.slow
def test_a_file_of_losses_is_a_batch(tmp_path, capsys):
    file = tmp_path / "my_method.py"
    file.write_text(METHOD)
    words = ["run", "--profile", "drill", "--jobs", "1", "--extend", str(file)]
    assert cli.main([*words, "--methods", "MyLoss"]) == 0, "a name that only the file knows"
    told = capsys.readouterr().out
    assert "2 runs, 0 of them recorded" in told and "Nothing to compare with" in told and "**MyLoss**" in told
    assert cli.main([*words, "--dry-run"]) == 0
    assert "6 runs on" in capsys.readouterr().out
    status = cli.main([*words, "--methods", "MyLoss; Rings; Anchors; Mined; Softmax"])
    told = capsys.readouterr().out
    assert status == 0 and told.count("On glyphs_fine, ") >= 4 and "Softmax" in told, told
    table = pd.read_csv(tmp_path / "outputs/custom/tables/Anchors_Mined_MyLoss_Rings_glyphs_fine.csv")
    assert {*table["method"]} == {"MyLoss", "Rings", "Anchors", "Mined", "Softmax"}
    mine = table[table["yours"]]
    assert mine["difference low"].le(mine["difference high"]).all() and (mine["seeds"] == 2).all()
    assert (tmp_path / "outputs/custom/figures/Anchors_Mined_MyLoss_Rings_glyphs_fine.png").stat().st_size > 5000
    planned = [json.loads(line) for file in (tmp_path / "outputs/records").glob("*.jsonl") for line in file.open()]
    assert {r["run"]["method"] for r in planned} == {"Softmax"}, "the study's records hold the study's rows alone"
    status = cli.main([*words, "--methods", "MyLoss; Softmax"])
    assert status == 0 and "4 runs, 4 of them recorded; 0 to train" in capsys.readouterr().out


SEARCHED = """
import torch
from dmlstudy.custom.losses import Own

class Clipped(torch.nn.Module):
    def __init__(self, reach=1.0):
        super().__init__()
        self.reach = reach

    def forward(self, f, labels):
        same, d = labels[:, None] == labels, torch.cdist(f, f)
        return d[same].mean() + (self.reach - d[~same]).relu().mean()

Searched = Own(Clipped, axes={"reach": (0.2, 2.0), "samples_per_class": (2, 4)})
"""


@pytest.mark.slow
def test_a_loss_of_ones_own_joins_the_race(tmp_path, monkeypatch):
    """Trials in a box of its own axes, then replicates, judged against a baseline at a declared look."""
    box = {"trials": 4, "replicates": [101], "folds": [0], "rule": "window", "lr": [1e-4, 1e-3]}
    more = {"search": box, "replicates": (20, 21, 22, 23, 24), "tuned": "tuned_race.json"}
    monkeypatch.setitem(config.PROFILES, "race", replace(config.PROFILES["drill"], **more))
    file = tmp_path / "my_method.py"
    file.write_text(SEARCHED)
    (mine,) = own.extend(file)
    table = compare(mine, profile="race", baselines=["Softmax"])
    row = table.set_index("method").loc[mine]
    assert row["seeds"] == 5 and row["unit"] == "replicates"
    assert row["difference low"] < row["difference"] < row["difference high"]
    (chosen,) = json.loads((tmp_path / "outputs/custom/tuned_race.json").read_text())["glyphs_fine"].values()
    first, *tried = trials("race", "glyphs_fine", mine)
    assert {*chosen} in ({"lr", "loss_args", "samples_per_class"}, {*first}) and chosen["samples_per_class"] in (2, 4)
    plain = config.run_of("drill", "glyphs_fine", mine)
    assert all(getattr(plain, name) == value for name, value in first.items()) and first["lr"] == plain.lr, first
    assert len({t["loss_args"] for t in tried}) == 3 and all(0.2 <= float(t["loss_args"][6:]) <= 2 for t in tried)
    assert {t["samples_per_class"] for t in tried} <= {2, 4}
    run = config.run_of("race", "glyphs_fine", mine, None, replicate=20)
    kept = load_record(run)
    score = {n: load_record(config.run_of("race", "glyphs_fine", n, None, replicate=20)) for n in (mine, "Softmax")}
    assert kept["run"]["loss_args"] == chosen["loss_args"], "trained with what the search chose"
    assert score[mine]["curves"] != score["Softmax"]["curves"]
    runs = {n: [config.run_of("race", "glyphs_fine", n, None, replicate=r) for r in range(20, 25)] for n in score}
    a, b = (
        np.array([100 * selected(load_record(r), "window")["recall@1"] for r in runs[n]]) for n in (mine, "Softmax")
    )
    assert row["difference"] == pytest.approx((a - b).mean())
    half = stats.t.isf(0.0047 / 2, 4) * (a - b).std(ddof=1) / 5**0.5
    assert row["difference high"] - row["difference"] == pytest.approx(half, rel=0.01)
    (told,) = comparison.verdicts(table)
    word = comparison.COMPARED[verdict(row["difference low"], row["difference high"], 0.5)]
    assert "against Softmax, in points: recall@1 " in told and f"]: {word}; MAP@R" in told and "replicates: 5" in told


def test_the_first_trial_has_the_defaults_of_a_loss_whatever_was_chosen(tmp_path):
    (file := tmp_path / "my_method.py").write_text(SEARCHED)
    (mine,) = own.extend(file)
    profile, dataset = config.PROFILES["omniglot_objectives"], "omniglot_few"
    tried, plain = trials("omniglot_objectives", dataset, mine), config.run_of("omniglot_objectives", dataset, mine)
    config.keep_choice(profile, {dataset: {mine: tried[3]}})
    chosen = config.run_of("omniglot_objectives", dataset, mine)
    assert chosen != plain and {name: getattr(chosen, name) for name in tried[3]} == tried[3]
    assert trials("omniglot_objectives", dataset, mine) == tried and len(tried) == 20
    assert {name: getattr(plain, name) for name in tried[0]} == tried[0]


@pytest.mark.slow
def test_a_plan_says_its_time_and_a_first_answer_comes_before_the_search(tmp_path, monkeypatch, capsys):
    """One replicate with the rate of the protocol; not again once the trials are recorded."""
    search = {"trials": 2, "replicates": [101], "folds": [0], "rule": "window", "lr": [1e-4, 1e-3]}
    more = {"search": search, "replicates": (20, 21), "tuned": "tuned_race.json"}
    monkeypatch.setitem(config.PROFILES, "race", replace(config.PROFILES["drill"], **more))
    monkeypatch.setattr(cli, "_train", lambda args, runs: [*map(record_for, runs)][:0])  # in this process
    (file := tmp_path / "my_method.py").write_text(SEARCHED)
    words = ["run", "--extend", str(file), "--profile", "race", "--against", "Softmax", "--jobs", "1"]
    own.extend(file)
    runs = [config.run_of("race", "glyphs_fine", m, None, replicate=20) for m in ("Searched", "Softmax")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    plan, rest = said.split("First answer, provisional: one replicate, rates that no search chose\n")
    assert "search glyphs_fine     2 " in plan and "6 runs on 1 workers: about" in plan
    a, b = (100 * selected(load_record(run), "window")["recall@1"] for run in runs)
    assert f"On glyphs_fine, Searched against Softmax, in points: recall@1 {a - b:+.1f}; MAP@R" in rest.split("\n")[0]
    assert rest.split("\n")[0].endswith("(replicates: 1).") and "replicates: 2" not in rest.split("\n")[0]
    assert cli.main(words) == 0 and "First answer" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, planned",
    [
        ([], {"search": ("omniglot_few", 40), "objectives": ("omniglot_few", 5)}),
        (["--against", "Contrastive (D)"], {"search": ("omniglot_few", 40), "objectives": ("omniglot_few", 10)}),
        (["--profile", "drill"], {"objectives": ("glyphs_fine", 2)}),
        (["--datasets", "glyphs_fine"], {"search": ("glyphs_fine", 10), "objectives": ("glyphs_fine", 5)}),
    ],
)
def test_a_file_races_unless_a_profile_or_other_data_are_named(tmp_path, capsys, words, planned):
    """Nothing is recorded here: 20 trials in two folds, then five replicates, also of the baseline that is named."""
    file = tmp_path / "my_method.py"
    file.write_text(SEARCHED)
    cli.main(["run", "--extend", str(file), *words, "--dry-run"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith(tuple(planned))]
    assert {name: (dataset, int(runs)) for name, dataset, runs, *_ in rows} == planned


@pytest.mark.parametrize(
    "axes, said",
    [
        ({"reach": (1.5, 2.0)}, "'reach' must be an argument with a default from 1.5 to 2.0"),
        ({"range": (0.2, 2.0)}, "'range' must be an argument"),
        ({"reach": (2.0, 0.2)}, "give the lower end first"),
    ],
)
def test_axes_that_cannot_be_searched(tmp_path, axes, said):
    file = tmp_path / "my_method.py"
    file.write_text(SEARCHED.replace('{"reach": (0.2, 2.0), "samples_per_class": (2, 4)}', repr(axes)))
    with pytest.raises(ValueError, match=re.escape(said)):
        own.extend(file)


@pytest.mark.parametrize(
    "body, said",
    [
        ("return f.norm(dim=1)", "returned a tensor of shape (24,): a loss is one number, such as a mean"),
        ("return f.mean() * float('nan')", "Bad is nan on random embeddings: a loss must be a finite number"),
        ("return labels.float().mean()", "Bad does not depend on the embeddings: its gradient is 0"),
        ("return f.nothing()", "AttributeError: 'Tensor' object has no attribute 'nothing'"),
        ("return 1.0", "returned 1.0: a loss is one number"),
    ],
)
def test_a_bad_loss_gets_one_sentence(tmp_path, capsys, body, said):
    file = tmp_path / "bad.py"
    file.write_text(f"import torch\nclass Bad(torch.nn.Module):\n    def forward(self, f, labels):\n        {body}\n")
    assert cli.main(["run", "--profile", "drill", "--extend", str(file)]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1 and "Traceback" not in complaint
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    "text, said",
    [
        (None, "empty.py: name a Python file that holds a loss"),
        ("x = 1", "holds no loss: define a class of torch.nn.Module"),
        ("import torhc", "cannot be read: ModuleNotFoundError"),
        ("import torch\nclass Softmax(torch.nn.Module): pass", "is a row of the study: give yours another name"),
    ],
)
def test_a_file_without_losses_is_refused(tmp_path, capsys, text, said):
    file = tmp_path / "empty.py"
    if text is not None:
        file.write_text(text)
    assert cli.main(["run", "--profile", "drill", "--extend", str(file)]) == 2
    assert said in capsys.readouterr().err


def test_an_own_names_its_row_and_bases_are_none(tmp_path):
    file = tmp_path / "my_method.py"
    file.write_text("""
import torch
from dmlstudy import Own

class Base(torch.nn.Module):
    def forward(self, f, labels):
        return self.sign * torch.pdist(f).mean()

class Apart(Base):
    sign = -1.0

class Together(Base):
    sign = 1.0

mine = Own(Apart, name="My row")
""")
    assert own.extend(file) == ["Together", "My row"]


def test_equal_runs_give_equal_records_though_the_loss_draws():
    import torch

    from dmlstudy.train import fit

    class Noisy(torch.nn.Module):
        def forward(self, f, labels):
            return ((f + 0.1 * torch.rand_like(f)) ** 2).mean()

    own.register(Noisy())
    run = make_run(method="Noisy", steps=2, eval_every=2, images_per_class=4, batch_size=24)
    strip = lambda record: {name: part for name, part in record.items() if name != "made"}
    first = strip(fit(run, "cpu"))
    torch.rand(5)
    assert strip(fit(run, "cpu")) == first


def test_a_file_that_ends_python_is_reported(tmp_path, capsys):
    file = tmp_path / "ends.py"
    file.write_text("raise SystemExit(0)")
    assert cli.main(["run", "--profile", "drill", "--extend", str(file)]) == 2
    assert "cannot be read: SystemExit: 0" in capsys.readouterr().err


def test_each_file_has_the_helper_beside_it(tmp_path):
    """Two folders, a helper of one name in each."""
    values = []
    for part, far in (("one", 1.0), ("two", 100.0)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "far_away.py").write_text(f"FAR = {far}\n")
        (file := tmp_path / part / f"losses_{part}.py").write_text(
            "import torch\nfrom far_away import FAR\n\n\n"
            f"class Of{part}(torch.nn.Module):\n    def forward(self, f, labels):\n        return FAR * f.norm()\n"
        )
        (name,) = own.extend(file)
        loss, _ = METHODS[name].make(3, 4)
        values.append(float(loss(torch.ones(6, 4), torch.arange(6) // 2)))
    assert values[1] == pytest.approx(100 * values[0])


def test_a_changed_helper_is_another_loss(tmp_path):
    """Modules beside the file are found, also below a package, and count as part of it."""
    (tmp_path / "parts_of_mine").mkdir()
    (tmp_path / "parts_of_mine/__init__.py").write_text("from .far import FAR\n")
    deep = tmp_path / "parts_of_mine/far.py"
    deep.write_text("FAR = 1.0\n")
    file = tmp_path / "helped.py"
    file.write_text(
        "import torch\nfrom parts_of_mine import FAR\n\n\nclass Helped(torch.nn.Module):\n"
        "    def forward(self, f, labels):\n        return FAR * f.norm()\n"
    )
    keys = []
    for text in ("FAR = 1.0\n", "FAR = 2.0\n", "FAR = 1.0\n"):
        deep.write_text(text)
        assert own.extend(file) == ["Helped"]
        keys.append(make_run(method="Helped").key())
    assert keys[0] == keys[2] != keys[1]

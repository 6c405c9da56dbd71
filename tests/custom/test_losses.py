"""A loss of one's own, from a file and from a notebook: trained like the others, set beside them, or refused."""

import functools
import json
import re
import threading
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
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.stats.decisions import verdict
from dmlstudy.study import config
from dmlstudy.study.executor import FailedRuns, _work, record_for
from dmlstudy.study.methods import METHODS
from dmlstudy.study.records import held, load_record
from dmlstudy.study.run import make_run
from dmlstudy.study.search import search_runs, trials
from dmlstudy.study.selection import selected
from dmlstudy.train.objective import make_objective

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
        ({"eta": (0.1, 10.0)}, "eta is a field of a run; give the argument another name"),
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


class Far(torch.nn.Module):
    """A loss with settings, and a count of its own."""

    def __init__(self, reach=1.0):
        super().__init__()
        self.reach, self.seen, self.full, self.names = reach, 0, False, []

    def forward(self, f, labels):
        self.seen, self.full = self.seen + 1, True
        return (self.reach - torch.cdist(f, f)[labels[:, None] != labels]).relu().mean()

    def __len__(self):  # nothing at first, as a queue
        return len(self.names)


class Near(Far):
    def forward(self, f, labels):
        return -super().forward(f, labels)


OF_A_FILE = """
import torch
class Mine(torch.nn.Module):
    def forward(self, f, labels):
        return {} * f.norm()
"""
RACE = ("omniglot_objectives", "omniglot_few")


def test_the_miner_has_what_the_run_says():
    """It was made at its defaults; the search set its p_switch, and nothing changed."""
    run = make_run(method=own.register(own.Own(make_loss("triplet"), miner="rho_distance", name="Mine")), p_switch=0.55)
    assert make_objective(METHODS["Mine"], run, 10).miner.p_switch == run.recipe()["miner"]["p_switch"] == 0.55


def test_a_loss_named_as_one_of_the_library_has_its_own_settings():
    class snr(torch.nn.Module):
        def __init__(self, lam=7.0, margin=9.0):
            super().__init__()
            self.lam, self.margin = lam, margin

    run = make_run(method=own.register(own.Own(snr)))
    made = make_objective(METHODS["snr"], run, 5).loss.module
    assert (made.lam, made.margin) == (7.0, 9.0) and {"lam", "margin"}.isdisjoint(run.recipe()["loss"])


def test_what_one_search_chose_is_not_left_in_the_next():
    """Of other axes: neither in its trials, nor in what it keeps."""
    keep = lambda **fields: config.keep_choice(config.PROFILES[RACE[0]], {RACE[1]: {"Far": {"lr": 1e-3} | fields}})
    own.register(own.Own(Far, axes={"reach": (0.2, 2.0), "samples_per_class": (2, 8)}))
    keep(loss_args="reach=1.5", samples_per_class=8)
    assert config.run_of(*RACE, "Far").samples_per_class == 8
    own.register(own.Own(Far, axes={"reach": (0.2, 2.0)}))
    assert {run.samples_per_class for run in search_runs(*RACE, None, ["Far"])} == {2}
    keep(loss_args="reach=0.5")
    assert config.chosen_for(config.PROFILES[RACE[0]], RACE[1], "Far") == {"lr": 1e-3, "loss_args": "reach=0.5"}


def test_a_choice_waits_until_another_process_has_kept_its_own(tmp_path):
    own.register(Far)
    profile, file = config.PROFILES["glyphs"], tmp_path / "outputs/custom/tuned_glyphs.json"
    keep = threading.Thread(target=config.keep_choice, args=(profile, {"glyphs_fine": {"Far": {"lr": 1e-3}}}))
    with held(file, print):
        keep.start()
        keep.join(0.3)
        assert keep.is_alive() and not file.exists()
        file.write_text('{"glyphs_fine": {"Other 0123": {"lr": 1.0}}}')
    keep.join()
    assert len(json.loads(file.read_text())["glyphs_fine"]) == 2


def test_a_loss_that_was_edited_since_its_batch_began_is_not_trained(tmp_path):
    """It was, under another key, and the batch told of no failure."""
    (file := tmp_path / "mine.py").write_text(OF_A_FILE.format(1.0))
    run = make_run(method=own.extend(file)[0])
    key = run.key()
    file.write_text(OF_A_FILE.format(2.0))
    with pytest.raises(FailedRuns, match="Mine is other code here than where the batch began"):
        _work(run, key, {}, str(file), None)
    assert not (tmp_path / "outputs/runs").exists()


def test_of_two_files_with_one_name_the_last_that_was_read_has_it(tmp_path):
    """Also where it was read before."""
    values = []
    for part, scale in (("a", 1.0), ("b", 100.0), ("a", 1.0)):
        (file := tmp_path / f"{part}.py").write_text(OF_A_FILE.format(scale))
        assert own.extend(file) == ["Mine"]
        values.append(float(METHODS["Mine"].make(2, 4)[0](torch.ones(4, 4), torch.arange(4) // 2)))
    assert values == [4.0, 400.0, 4.0]


def test_a_checkpoint_of_another_loss_is_not_gone_on_with(tmp_path):
    """The loss was edited after the run had been stopped, and its folder is the same."""
    from dmlstudy.train.state import material, resume, save_checkpoint
    from tests.train.test_train import at_start

    own.register(Far(), "Mine")
    file, few = tmp_path / "checkpoint.pt", {"measure": "validation", "train_classes": 6, "batch_size": 12}
    state = at_start(method="Mine", **few)
    save_checkpoint(file, state, material(state))
    assert resume(file, state, material(state))
    own.register(Near(), "Mine")
    assert not resume(file, state, material(state))


def test_what_a_loss_counts_goes_on_after_a_stop():
    (first, _), (again, _) = (own.Own(Far()).parts(5, 8) for _ in range(2))
    for _ in range(3):
        first(torch.rand(6, 8), torch.arange(6) // 2)
    again.load_state_dict(first.state_dict())
    assert (again.calls, again.module.seen, again.module.full) == (3, 3, True)


def test_a_loss_that_draws_its_weights_by_a_seed_has_that_of_the_run():
    one, other, same = (own.Own(LOSSES["proxy_anchor"]).parts(10, 4, seed)[0].state_dict() for seed in (1, 2, 1))
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.parametrize("kind", [np.int64, np.float32, torch.tensor, lambda value: np.full(3, value)])
def test_losses_with_other_settings_are_told_apart(kind):
    two, three, again = (own.fingerprint(Far(kind(value))) for value in (2, 3, 2))
    assert two == again != three


def test_a_loss_of_which_some_arguments_are_set_has_the_name_of_its_class():
    assert own.register(functools.partial(Far, reach=0.3)) == "Far"
    assert METHODS["Far"].make(5, 8)[0].module.reach == 0.3


def test_a_file_goes_without_leaving_images_out(tmp_path, capsys):
    """Its trials and its comparison ask for whole data sets: what was trained without some was looked for in vain."""
    (file := tmp_path / "mine.py").write_text(OF_A_FILE.format(1.0))
    assert cli.main(["run", "--profile", "drill", "--extend", str(file), "--no-strict-data", "--dry-run"]) == 2
    assert "--extend and folders of images go without --fresh, --no-strict-data" in capsys.readouterr().err

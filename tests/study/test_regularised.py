"""Additions crossed on eight losses: what is run, with whose choices, and that it was registered first (set 21)."""

import hashlib

import pytest
from registered import check_registered

from dmlstudy.evidence.preregistered import asked, read_ledger
from dmlstudy.study.config import PROFILES, setting_of, tuned
from dmlstudy.study.methods import METHODS
from dmlstudy.study.plan import all_runs, jobs_of

NAME = "omniglot_regularised"
SWITCHED = {f"R-{name}": name for name in ("Contrastive (D)", "Margin (D, beta=1.2)", "Triplet (D)")}
ALONE = SWITCHED | {"CrossEntropy": "CrossEntropy (label_smoothing=0)", "Softmax + smoothing": "Softmax"}
ADDED = {"": None, " + SEC": "sec", " + MCR": "coding_rate"}


@pytest.fixture(scope="module")
def runs() -> list:
    return all_runs(jobs_of(NAME))


def level_of(method: str) -> str:
    """The row without a regulariser."""
    return method.removesuffix(" + SEC").removesuffix(" + MCR")


def loss_of(method: str) -> str:
    """The row of the loss with nothing added."""
    return ALONE.get(level_of(method), level_of(method))


def test_registered_runs_stay_what_they_are(runs):
    keys = {run.key() for run in runs}
    assert len(keys) == len(runs) == 680
    assert hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:12] == "194ad32efe75"


def test_additions_are_crossed_on_few_classes_and_each_stands_alone_on_many(runs):
    losses = {loss_of(run.method) for run in runs}
    assert len(losses) == 8
    for dataset, count in (("omniglot_few", 78), ("omniglot", 58)):
        cells = {(run.method, run.mixup) for run in runs if run.dataset == dataset}
        assert len(cells) == count == len([run for run in runs if run.dataset == dataset and run.replicate == 150])
        for loss in losses:
            levels = [loss] + [name for name, alone in ALONE.items() if alone == loss]
            every = {(level + more, mixup) for level in levels for more in ADDED for mixup in (None, 2.0)}
            single = {(loss + more, None) for more in ADDED} | {(levels[-1], None), (loss, 2.0)}
            both = {(levels[-1] + more, 2.0) for more in ADDED}
            own = {cell for cell in cells if loss_of(cell[0]) == loss}
            assert own == (every if dataset == "omniglot_few" or len(levels) == 1 else single | both)


def test_rows_differ_from_their_loss_in_what_is_added():
    for method in PROFILES[NAME].methods:
        row, level = METHODS[method], METHODS[loss_of(method)]
        more = ADDED[method.removeprefix(level_of(method))]
        assert (row.loss, row.protocol, row.samples_per_class) == (level.loss, level.protocol, level.samples_per_class)
        assert row.regularizer == more
        assert (row.miner == "rho_distance") == method.startswith("R-") or row.miner == level.miner
        smoothed = level_of(method) in ALONE and not method.startswith("R-")
        loss = level.args("loss", "omniglot") | ({"label_smoothing": 0.1} if smoothed else {})
        assert row.args("loss", "omniglot") == loss


def test_replicates_take_the_choices_of_the_searches_of_set_20(runs):
    """Replicate s of five: the best of 20 trials of search s for the loss alone. Nothing that is added is searched."""
    chosen = tuned(PROFILES["omniglot_placebo"])["omniglot_few"]
    shares = {"omniglot_few": 0.3, "omniglot": 0.15}
    weights = {"sec": 0.5, "coding_rate": 0.01}
    for run in runs:
        fields = chosen[loss_of(run.method)]["best trial, 20"][run.replicate - 150]
        assert all(getattr(run, name) == value for name, value in fields.items())
        assert (run.fold, run.eval_every * 10, run.seed) == (0, run.steps, run.replicate)
        recipe = run.recipe()
        assert run.p_switch == (shares[run.dataset] if run.method.startswith("R-") else None)
        if recipe["regularizer"]:
            assert recipe["regularizer"]["eta"] == weights[recipe["regularizer"]["name"]]
        if recipe["loss"]["name"] in ("cross_entropy", "softmax"):
            assert recipe["loss"].get("label_smoothing", 0) == (0.1 if level_of(run.method) in ALONE else 0)


def test_every_run_is_asked_about(runs):
    ledger = read_ledger(21)
    named = {(q["dataset"], row.partition(" | ")) for q in asked(ledger) for pair in q["rows"] for row in pair}
    named = {(dataset, method, setting) for dataset, (method, _, setting) in named}
    assert {(run.dataset, run.method, setting_of(NAME, run)) for run in runs} == named


def test_each_effect_changes_one_thing():
    pairs = read_ledger(21)["pairs"]
    for name, some in pairs.items():
        for one, other in some:
            (a, _, mixed), (b, _, plain) = one.partition(" | "), other.partition(" | ")
            kind = name.split("_")[0]
            if kind == "mixup":
                assert (a, mixed, plain) == (b, "mixup=2", "")
            elif kind in ("sec", "coding"):
                assert (a, mixed) == (b + {"sec": " + SEC", "coding": " + MCR"}[kind], plain)
            elif kind in ("rho", "smoothing"):
                assert mixed == plain and a != b and loss_of(a) == loss_of(b) and a.startswith("R-") == (kind == "rho")
                assert a.removeprefix(level_of(a)) == b.removeprefix(level_of(b))


def test_set_21_was_registered_before_its_runs(runs):
    records = check_registered(NAME, "ledger_21.toml", "tuned_regularised.json")
    assert {record["key"] for record in records} <= {run.key() for run in runs}

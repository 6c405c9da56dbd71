"""The choices of ten searches, trained again on all classes: the same runs but for the classes and the steps."""

from dataclasses import asdict

import pytest
from registered import check_registered

from dmlstudy.study.config import PROFILES, tuned
from dmlstudy.study.plan import all_runs, jobs_of
from dmlstudy.study.records import read_batch
from dmlstudy.study.search import planned
from dmlstudy.train.network import milestone_steps

SEARCHED, AGAIN, DATASET = "omniglot_placebo", "omniglot_retrained", "omniglot_few"


@pytest.fixture(scope="module")
def pairs() -> list[tuple]:
    """Each run of a search's choice on its own replicate, with its record, and the same trained again."""
    plan = planned(SEARCHED, tuned(PROFILES[SEARCHED]), DATASET)
    own = plan[(plan["part"] == "searches") & (plan["replicate"] == 140 + plan["search"])]
    records = {record["key"]: record for record in read_batch(SEARCHED)}
    again = {(run.method, run.replicate): run for run in all_runs(jobs_of(AGAIN))}
    return [(row.run, records[row.run.key()], again[row.method, row.replicate]) for row in own.itertuples()]


def test_each_choice_is_trained_again_for_the_steps_that_validation_classes_chose(pairs):
    assert len({again.key() for *_, again in pairs}) == len(pairs) == 19 * 10
    for stopped, record, again in pairs:
        curve = record["curves"]["validation"]
        assert again.steps == curve["step"][curve["recall@1"].index(max(curve["recall@1"]))]
        differ = {name for name, value in asdict(stopped).items() if value != getattr(again, name)}
        assert {"fold", "seed"} <= differ <= {"fold", "seed", "steps", "eval_every", "milestones", "train_queries"}
        assert (stopped.fold, again.fold) == (0, None)
        assert milestone_steps(again) == [step for step in milestone_steps(stopped) if step < again.steps]


def test_the_choices_were_committed_before_the_runs():
    records = check_registered(AGAIN, "tuned_retrained.json")
    assert {record["key"] for record in records} == {run.key() for run in all_runs(jobs_of(AGAIN))}

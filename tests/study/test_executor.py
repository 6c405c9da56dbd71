"""Batches in real processes, killed, interrupted, out of disk: always the same results, each run trained once."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pytest
import torch
from disks import small_disk
from filelock import FileLock, Timeout
from waiting import LONG, wait_until
from work import calls

from dmlstudy import cli, train
from dmlstudy.core import paths
from dmlstudy.core.paths import write_atomically
from dmlstudy.data import DATASETS, SOURCES
from dmlstudy.study import executor as batch
from dmlstudy.study import records
from dmlstudy.study.config import run_of
from dmlstudy.study.plan import all_runs, jobs_of
from dmlstudy.study.run import make_run

CHECKOUT = Path(batch.__file__).parents[2]
ASKED = ("--profile", "drill", "--jobs", "2")  # four runs
MAIN = "import sys; from dmlstudy.cli import main; sys.exit(main())"


SITE = CHECKOUT / "tests/support/changed_site.py"


class Study:
    """A folder with one question, in which the command is called."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "nbs/experiments/roth").mkdir(parents=True)
        shutil.copy(CHECKOUT / "nbs/experiments/roth/roth_table2.ipynb", folder / "nbs/experiments/roth")
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.environment = {**os.environ, "DMLSTUDY_ROOT": str(folder), "PYTHONPATH": str(CHECKOUT)}
        self.environment["TMPDIR"] = str(self.temporary)

    def change(self, **what: str) -> None:
        """Let all processes that are started from now on be as `changed_site` says."""
        self.environment.update(what)
        site = self.folder / "site"
        if not site.exists():
            site.mkdir()
            shutil.copy(SITE, site / "sitecustomize.py")
        self.environment["PYTHONPATH"] = f"{site}{os.pathsep}{CHECKOUT}"

    def spoil(self, what: str) -> None:
        """Let something happen whenever Contrastive is trained."""
        self.change(DRILL_SPOILED=what)

    def hold(self) -> None:
        """Let the first training of Contrastive wait, until its process is killed or told to end."""
        self.spoil(f"hold({str(self.folder / 'held')!r})")

    def held(self) -> dict:
        """The run that waits: the event that began it, with its key and the process, which may have trained others."""
        wait_until(lambda: (self.folder / "held").exists() and (self.folder / "held").read_text())
        pid = int((self.folder / "held").read_text())
        own = [event for event in self.events() if event["pid"] == pid]
        ended = {event["key"] for event in own if event["event"] != "begun"}
        (waits,) = (event for event in own if event["key"] not in ended)
        return waits

    def mend(self) -> None:
        self.environment.pop("DRILL_SPOILED")

    def start(self, *words: str, code: str = MAIN) -> subprocess.Popen:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": self.folder}
        heed = lambda: [signal.signal(sign, signal.SIG_DFL) for sign in (signal.SIGINT, signal.SIGHUP)]  # nohup, shells
        main = [sys.executable, "-c", code, *words]
        return subprocess.Popen(main, env=self.environment, preexec_fn=heed, **options)

    def call(self, *words: str, code: str = MAIN) -> tuple[int, str]:
        process = self.start(*words, code=code)
        told = process.communicate(timeout=LONG)[0]
        return process.returncode, told

    def results(self) -> dict[str, dict]:
        """Key -> record in the profile's file, but for what made it."""
        lines = (self.folder / "outputs/records/drill.jsonl").read_text().splitlines()
        return {record["key"]: {**record, "made": 0} for record in map(json.loads, lines)}

    def events(self, *kinds: str) -> list[dict]:
        """The journals of all runs, with the run's key."""
        found = []
        for file in (self.folder / "outputs/runs").glob("*/journal.jsonl"):
            found += [{**event, "key": file.parent.name} for event in batch.history(file.parent)]
        return [event for event in found if not kinds or event["event"] in kinds]

    def is_clean(self) -> None:
        """A batch that ended in any way left nothing but results."""
        assert not [*self.temporary.iterdir()]
        assert {file.name for file in (self.folder / "outputs").iterdir()} <= {"runs", "records", "notebooks", "drill"}
        assert not [*(self.folder / "outputs").rglob("*.tmp")]

    def trained(self) -> Counter:
        """How often each run was trained to its end."""
        return Counter(event["key"] for event in self.events("done"))

    def wait_for(self, kind: str, n: int = 1) -> list[dict]:
        return wait_until(lambda: found if len(found := self.events(kind)) >= n else None)


@pytest.fixture
def study(tmp_path, monkeypatch) -> Study:
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    return Study(tmp_path)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Study:
    study = Study(tmp_path_factory.mktemp("undisturbed"))
    status, told = study.call("run", *ASKED)
    assert status == 0, told
    return study


@pytest.fixture
def quick(study, undisturbed) -> None:
    """A run gives the record of the undisturbed one after half a second, and no notebook is drawn."""
    study.change(DRILL_RECORDS=str(undisturbed.folder / "outputs/records/drill.jsonl"))
    (study.folder / "nbs/experiments/roth/roth_table2.ipynb").unlink()


def small(**fields):
    """A run of a second."""
    return make_run(
        **{"method": "Softmax", "steps": 4, "eval_every": 4, "images_per_class": 4, "batch_size": 8} | fields
    )


# an undisturbed batch


@pytest.mark.slow
def test_undisturbed(undisturbed):
    assert set(undisturbed.trained().values()) == {1} and len(undisturbed.trained()) == 4
    assert len(undisturbed.results()) == 4
    (copy,) = (undisturbed.folder / "outputs/notebooks").glob("*.ipynb")
    assert copy.stem == "drill-roth_table2" and '"output_type": "error"' not in copy.read_text()
    status, told = undisturbed.call("run", *ASKED)
    assert status == 0 and "4 of them recorded; 0 to train" in told
    assert f"report.html    {undisturbed.folder / 'outputs/drill/report.html'}" in told and "took" in told
    status, told = undisturbed.call("values", "--profile", "drill")
    table = (
        pd.read_csv(told.strip(), keep_default_na=False)
        if told.strip().endswith("gz")
        else pd.read_parquet(told.strip())
    )
    assert status == 0 and len(table) > 200 and [*table][:4] == ["key", "profile", "dataset", "method"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dask", "processes"])
def test_any_executor_gives_the_same_results(study, undisturbed, kind, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    if kind == "dask":
        distributed = pytest.importorskip("distributed")
        options = {"processes": True, "dashboard_address": None, "host": "127.0.0.1"}
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster:
            status, told = study.call("run", *ASKED, "--scheduler", cluster.scheduler_address)
        assert status == 0, told
    else:
        with ProcessPoolExecutor(2, get_context("spawn")) as executor:
            assert batch.run_batch(all_runs(jobs_of("drill")), 2, executor) == []
        assert study.call("run", *ASKED)[0] == 0
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


# killed, interrupted, two at once


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_worker(study, undisturbed):
    study.hold()
    process = study.start("run", *ASKED)
    victim = study.held()
    os.kill(victim["pid"], signal.SIGKILL)
    assert process.wait(LONG) == 0, process.stdout.read()
    assert [event["event"] for event in study.events() if event["key"] == victim["key"]] == ["begun", "begun", "done"]
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


def _killed(run, folders) -> None:
    """In a worker: train a run, keep its state at every evaluation, and be killed at the second."""
    os.environ.update(folders)

    def measured(state, step, values):
        if step == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    batch.record_for(run, hooks=[train.Checkpoint(every=0.0), SimpleNamespace(measured=measured)])


def test_a_run_goes_on_where_its_killed_process_was(study):
    """The process is killed after a checkpoint; the record is that of an uninterrupted run, bit by bit."""
    run = small(steps=6, eval_every=2)
    checkpoint = records.run_folder(run) / "checkpoint.pt"
    with batch.Workers(1) as pool:
        (done,) = filter(None, pool.each(_killed, [(run, batch.worker_folders())]))
        with pytest.raises(BrokenProcessPool):
            done[1].result()
    assert checkpoint.exists() and not records.recorded(run)
    record = batch.record_for(run)
    assert [event["event"] for event in batch.history(run)] == ["begun", "begun", "done"] and not checkpoint.exists()
    with batch.fresh_outputs():
        whole = batch.record_for(run)
    assert {**whole, "made": 0} == {**record, "made": 0}


# a ledger of one claim, on runs of a second
DECIDE = """import dataclasses
import sys

from dmlstudy import cli
from dmlstudy.evidence import preregistered as ledger
from dmlstudy.study import config
from dmlstudy.study import plan as study

config.PROFILES["drill"] = dataclasses.replace(config.PROFILES["drill"], replicates=(10, 11, 12, 13, 14))
claim = {"id": "D1", "paper": "ours", "source": "", "statement": "", "effect": "gain", "metric": "recall@1"}
claim |= {"pairs": "one", "over": ["each"], "rule": "last", "delta": 0.5}
own = {"profile": "drill", "dataset": "glyphs_fine", "cap": 5, "claim": [claim]}
ledger.read_ledger = lambda version: own | {"pairs": {"one": [["Softmax", "Contrastive (D)"]]}}
sys.exit(cli.main(["decide", "--ledger", "2", "--hours", "1", "--jobs", "2"]))
"""


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_decide_is_killed_and_goes_on(study):
    """Killed with its workers after three runs, it keeps these, trains the other seven, and gives the verdict."""
    process = study.start(code=DECIDE)
    study.wait_for("done", 3)
    workers = psutil.Process(process.pid).children(recursive=True)
    for one in (psutil.Process(process.pid), *workers):
        one.kill()
    process.wait(LONG)
    before = study.trained()
    status, told = study.call(code=DECIDE)
    assert status == 0 and "D1   Contrastive (D)          not looked at yet" in told, told
    assert "each effect is decided or at its cap" in told
    assert set(study.trained().values()) == {1} and len(study.trained()) == 10 and before <= study.trained()
    replicates = {record["run"]["replicate"] for record in study.results().values()}
    assert len(study.results()) == 10 and replicates == {10, 11, 12, 13, 14}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_again_and_again(study):
    """A run that always takes its process along fails, after a second trial alone; the others are trained."""
    study.spoil("os.kill(os.getpid(), 9)")
    status, told = study.call("run", *ASKED)
    assert status == 1 and "2 failed:" in told and "died twice (killed, or out of memory)" in told, told
    begun = Counter(event["key"] for event in study.events("begun"))
    assert sorted(begun.values()) == [1, 1, 2, 2] and len(study.trained()) == 2


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_a_stopped_process_is_named_and_keeps_only_its_own_run(study, undisturbed):
    """Another batch trains the others, says for whom it waits, and goes on when the stopped process ends."""
    study.hold()
    slow = study.start("run", "--profile", "drill", "--jobs", "1")
    victim = study.held()
    os.kill(victim["pid"], signal.SIGSTOP)
    os.kill(slow.pid, signal.SIGSTOP)
    other = study.start("run", *ASKED)
    study.wait_for("done", 3)
    said = ""
    while "waiting for" not in said:
        assert (said := other.stdout.readline())
    assert f"process {victim['pid']} on " in said and f"since {victim['time']}" in said, said
    os.kill(victim["pid"], signal.SIGKILL)
    assert other.wait(LONG) == 0
    os.kill(slow.pid, signal.SIGCONT)
    assert slow.wait(LONG) == 0, slow.stdout.read()
    assert study.results() == undisturbed.results() and set(study.trained().values()) == {1}


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def gone(pids) -> bool:
    """Wait until all these processes have ended."""
    return wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_batch(study, undisturbed):
    study.hold()
    process = study.start("run", *ASKED)
    pids = {study.held()["pid"]}
    process.kill()
    process.wait()
    assert study.call("run", *ASKED)[0] == 0
    assert gone(pids)
    study.is_clean()
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_batch_at_up_to_ten_random_moments(study, undisturbed):
    draw, n = random.Random(0), lambda: len(study.events("begun"))
    for _ in range(10):
        before, process = n(), study.start("run", *ASKED)
        wait_until(lambda: process.poll() is not None or n() > before)  # noqa: B023, called at once
        if process.poll() is not None:  # nothing is left to train
            break
        time.sleep(draw.uniform(0, 0.6))  # a run takes half a second
        process.kill()
        process.wait()
    assert study.call("run", *ASKED)[0] == 0
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}  # a kill between record and journal may hide one


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(study, undisturbed, sign):
    study.hold()
    process = study.start("run", *ASKED)
    pids = {study.held()["pid"]}
    process.send_signal(sign)
    assert process.wait(LONG) == 130 and gone(pids)
    told = process.stdout.read()
    assert "the same command goes on from there" in told and "Traceback" not in told, told
    study.is_clean()
    assert study.call("run", *ASKED)[0] == 0
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_two_batches_share_the_work(study, undisturbed):
    processes = [study.start("run", *ASKED) for _ in range(2)]
    told = [process.communicate(timeout=LONG)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(told)
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1} and len(study.trained()) == 4


# a cluster that loses its parts


@pytest.fixture
def cluster(quick, study, tmp_path):
    """A Dask scheduler, two workers and the scheduler's address; the worker that first trains Contrastive waits."""
    study.hold()
    distributed = pytest.importorskip("distributed")
    dask = lambda *words: subprocess.Popen([sys.executable, "-m", "dask", *words], env=study.environment, cwd=tmp_path)
    address = tmp_path / "scheduler.json"
    parts = [dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", f"--scheduler-file={address}")]
    worker = ("worker", f"--scheduler-file={address}", "--nthreads=1", "--no-nanny", "--no-dashboard")
    parts += [dask(*worker), dask(*worker)]
    try:
        with distributed.Client(scheduler_file=str(address), timeout=LONG) as client:
            client.wait_for_workers(2, timeout=LONG)
        yield parts, json.loads(address.read_text())["address"]
    finally:
        for process in parts:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_worker_of_a_cluster(study, undisturbed, cluster):
    (_, *workers), address = cluster
    process = study.start("run", *ASKED, "--scheduler", address)
    victim = study.held()
    (worker,) = (worker for worker in workers if worker.pid == victim["pid"])
    worker.kill()
    assert process.wait(LONG) == 0, process.stdout.read()
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_killed_scheduler(study, undisturbed, cluster):
    (scheduler, *workers), address = cluster
    process = study.start("run", *ASKED, "--scheduler", address)
    study.held()
    kept = {event["key"] for event in study.wait_for("done")}
    scheduler.kill()
    assert process.wait(LONG) == 2
    told = process.stdout.read()
    assert "the scheduler was lost" in told and "Traceback" not in told, told
    assert kept and all(map(records.recorded, kept))
    for worker in workers:  # one of them holds the lock of its run
        worker.kill()
        worker.wait()
    assert study.call("run", *ASKED)[0] == 0
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1}


# failures


def test_each_data_set_is_looked_for_but_drawings(monkeypatch, tmp_path):
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path))
    asked = [SimpleNamespace(dataset=name, strict_data=True) for name in DATASETS]
    assert {name for name, _ in batch.obstacles(asked)} == {*SOURCES}


@pytest.mark.slow
def test_failures_are_told_and_retried(study):
    study.spoil("raise FileNotFoundError('cub200 is not at /data')")
    asked = ("--profile", "drill", "--jobs", "2")
    status, told = study.call("run", *asked, "--seeds", "0")
    assert status == 1 and "1 failed:" in told and "Contrastive (D) on glyphs_fine, seed 0" in told, told
    assert "FileNotFoundError: cub200 is not at /data" in told and "Run the same command" in told
    assert set(study.trained().values()) == {1}
    assert [record["run"]["method"] for record in study.results().values()] == ["Softmax"]
    assert "Softmax" in (study.folder / "outputs/drill/tables/roth_table2.md").read_text()  # drawn from what there is
    study.mend()
    status, told = study.call("run", *asked)
    assert status == 0 and "4 runs, 1 of them recorded; 3 to train" in told, told
    rows = [line.split() for line in study.call("status")[1].splitlines()]
    assert ["objectives", "glyphs_fine", "4", "4", "0", "0"] in rows


def test_a_failing_run_leaves_the_others(study):
    bad, good = small(lr=1e30), small(seed=1)
    with pytest.raises(batch.FailedRuns, match="1 of 2 runs failed\nSoftmax on glyphs_fine.*is not finite at step"):
        batch.records_for([bad, good])
    assert records.load_record(good) and not records.recorded(bad)
    assert "NonFiniteLoss" in batch.history(bad)[-1]["error"]


@pytest.mark.slow
def test_a_failed_run_is_tried_once_a_batch(study):
    run, good = small(dataset="glyphs_fine", lr=1e30), small(seed=1)
    for trials in (1, 2):
        (failure,) = batch.run_batch([run, good], 2, out=lambda text: None)
        assert failure.key == run.key() and failure.why.startswith("NonFiniteLoss")
        assert [event["event"] for event in batch.history(run)] == ["begun", "failed"] * trials
    assert [event["event"] for event in batch.history(good)] == ["begun", "done"]


def test_a_full_disk_is_survived_without_a_journal(study, monkeypatch):
    """What is not recorded is missing, whatever the journal says."""
    run = small()

    def fail(*args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(batch, "_note", lambda *args: None)
        full.setattr(train, "fit", fail)
        with pytest.raises(batch.FailedRuns, match="No space left"):
            batch.record_for(run)
    assert batch.history(run) == [] and batch.state_of(run.key()) is None
    assert batch.record_for(run)["key"] == run.key()


def test_stale_record_is_refused_and_half_a_record_redone(study):
    stale, half = (small(seed=seed) for seed in (0, 1))
    first = [batch.record_for(run) for run in (stale, half)]
    file = records.save_record(first[0])
    file.write_text(json.dumps({**first[0], "run": {**first[0]["run"], "lr": 1.0}}) + "\n")
    before = file.read_text()
    (records.run_folder(half) / "record.json").write_text(json.dumps(first[1])[:99])
    with pytest.raises(batch.FailedRuns, match="1 of 2 runs failed(.|\n)*StaleRecord.*lr: asked 0.0006, recorded 1.0"):
        batch.records_for([stale, half])
    assert file.read_text() == before
    again = records.load_record(half)
    assert {**again, "made": 0} == {**first[1], "made": 0}


def test_stale_record_in_a_batch(study):
    run = all_runs(jobs_of("drill", methods=["Softmax"]))[0]
    write_atomically(
        records.run_folder(run) / "record.json",
        json.dumps({"key": run.key(), "run": {**asdict(run), "steps": 7}, "curves": {}, "made": {}}) + "\n",
    )
    (failure,) = batch.run_batch([run])
    assert "steps: asked 40, recorded 7" in failure.why and failure.key == run.key()


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_a_damaged_file_of_records_stops_every_command(study, undisturbed):
    """File, line and the way back are named, and nothing is written; restored, the batch goes on."""
    shutil.copytree(undisturbed.folder / "outputs", study.folder / "outputs")
    file = records.batch_file("drill")
    whole = file.read_text()
    lines = whole.splitlines()
    for damaged, number in (("\n".join([lines[0], "no record", *lines[1:]]), 2), (whole[:-500], len(lines))):
        file.write_text(damaged)
        for words in (("tables", "--profile", "drill"), ("run", *ASKED)):
            status, told = study.call(*words)
            wanted = f"dmlstudy: {file}, line {number}: it is not a record"
            assert status == 2 and wanted in told and f"git checkout -- {file}" in told, told
            assert file.read_text() == damaged and not [*file.parent.glob("*.aside-*")]
    file.write_text(whole)
    status, told = study.call("run", *ASKED)
    assert status == 0 and file.read_text() == whole, told


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_lines_leave_only_by_name(study, undisturbed):
    """Seeds 0 to 4, then the plan's 0 and 1: nothing is lost; what is beside the plan is printed."""
    shutil.copytree(undisturbed.folder / "outputs", study.folder / "outputs")
    status, told = study.call("run", *ASKED, "--seeds", "1-2", "--methods", "Softmax")
    assert status == 0 and "beside the plan of profile drill" in told and "Softmax" in told.partition("beside")[2], told
    status, told = study.call("run", *ASKED)
    assert status == 0 and study.results() == undisturbed.results()
    custom = records.custom_file("drill").read_text().splitlines()
    assert [json.loads(line)["run"]["seed"] for line in custom] == [2]
    shutil.rmtree(study.folder / "outputs/runs")
    status, told = study.call("run", *ASKED, "--seeds", "0-2", "--methods", "Softmax")
    assert status == 0 and "3 of them recorded; 0 to train" in told, told
    key = min(study.results())
    status, told = study.call("drop", key)
    assert status == 0 and "set aside" in told and {*study.results()} == {*undisturbed.results()} - {key}
    (kept,) = records.batch_file("drill").parent.glob("drill.jsonl.aside-*")
    assert json.loads(kept.read_text())["key"] == key
    assert study.call("drop", key)[0] == 2


@pytest.mark.parametrize("text", ["5\n", '{"key": "", "run": {}, "curves": {}, "made": null}\n', "\xff\n"])
def test_what_is_no_whole_record_is_set_aside_and_trained_again(study, text):
    run = small()
    file = records.run_folder(run) / "record.json"
    write_atomically(file, text.encode("latin-1"))
    batch._note(run, "begun")
    with open(file.with_name("journal.jsonl"), "ab") as journal:
        journal.write(b'5\nnull\n{"event": "failed"}\n\xff\n')
    assert [event["event"] for event in batch.history(run)] == ["begun", "failed"]
    with pytest.warns(UserWarning, match="it is not a record.* It is kept as record.damaged.json"):
        assert not records.recorded(run)
    assert batch.record_for(run) == records.load_record(run)
    assert file.with_name("record.damaged.json").read_bytes() == text.encode("latin-1")


def test_times_are_estimated_from_runs_that_trained():
    imagenet, softmax = (run_of("smoke", "glyphs_fine", method) for method in ("ImageNet", "Softmax"))
    record = lambda run, seconds: {"run": asdict(run), "made": {"seconds": seconds}}
    guess = batch.typical([])
    assert batch.typical([record(imagenet, 7.0)])(softmax) == guess(softmax)
    assert batch.typical([record(imagenet, 7.0)])(imagenet) == 7.0
    seconds = batch.typical([record(imagenet, 7.0), record(softmax, 9.0), {"run": asdict(softmax)}])
    assert seconds(softmax) == 9.0 and seconds(run_of("smoke", "glyphs_fine", "SHT")) < 9.0


@pytest.mark.slow
def test_a_notice_of_a_run_reaches_the_terminal(study, monkeypatch, capfd):
    """It is trained in a process of its own."""
    (study.folder / "cache").write_text("a file where the folder would be")
    monkeypatch.setenv("DMLSTUDY_CACHE", str(study.folder / "cache"))
    assert batch.run_batch([small()], 1, out=lambda text: None) == []
    assert "glyphs_fine is drawn again in each process" in capfd.readouterr().err


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "outputs", 64) as mount:
        yield mount


@pytest.mark.slow
def test_full_and_read_only_disk(disk, study, undisturbed):
    status, told = study.call("run", *ASKED)
    assert status == 1 and "No space left on device" in told or "is full" in told, told
    assert disk("-o", "remount,size=100m") and disk("-o", "remount,ro")
    status, told = study.call("run", *ASKED)
    assert status == 2 and "Read-only file system" in told and str(study.folder / "outputs") in told, told
    assert disk("-o", "remount,rw")
    assert study.call("run", *ASKED)[0] == 0
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1} and len(study.trained()) == 4


# locks


def _take(turn: int) -> bool:
    """In another process: try to take a lock, and keep it until all four have tried."""
    file = records.run_folder(make_run(seed=0)) / "lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    tried = file.parent.parent / "tried"
    tried.mkdir(exist_ok=True)
    try:
        with FileLock(file, timeout=0):
            (tried / str(turn)).touch()
            return wait_until(lambda: len([*tried.iterdir()]) == 4)
    except Timeout:
        (tried / str(turn)).touch()
        return False


@pytest.mark.slow
def test_one_of_many_takes_a_lock(study):
    with ProcessPoolExecutor(4, get_context("spawn")) as pool:
        assert sum(pool.map(_take, range(4))) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_the_wall_clock_set_back_or_forth(study, undisturbed):
    """Two batches, of which one is an hour ahead or late, and files an hour old."""
    slow = study.start("run", *ASKED)
    study.wait_for("begun")
    study.change(DRILL_CLOCK="3600")
    for file in study.folder.glob("outputs/**/lock"):
        os.utime(file, (time.time() - 3600,) * 2)
    fast = study.start("run", *ASKED)
    told = [process.communicate(timeout=LONG)[0] for process in (slow, fast)]
    assert [slow.returncode, fast.returncode] == [0, 0], told
    assert study.results() == undisturbed.results()
    assert set(study.trained().values()) == {1} and len(study.trained()) == 4


# GPUs, status


def _device(folder: Path) -> tuple:
    """In a worker: its GPU and threads, when all four are there."""
    (folder / str(os.getpid())).touch()
    wait_until(lambda: len([*folder.iterdir()]) == 4)
    return os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["OMP_NUM_THREADS"], os.getpid()


@pytest.mark.slow
def test_gpus_are_dealt_out_in_turn(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert batch.default_workers() == 2
    with batch.Workers(4) as pool:
        found = [done[1].result() for done in pool.each(_device, [(tmp_path,)] * 4) if done]
    assert sorted(device for device, *_ in found) == ["3", "3", "5", "5"]
    assert {threads for _, threads, _ in found} == {"1"} and len({pid for *_, pid in found}) == 4
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert batch.default_workers() == paths.cores()


@pytest.mark.parametrize("sharing", [1, 2, 64])
def test_runs_side_by_side_share_the_cores_among_their_readers(sharing):
    assert paths.reader_processes(sharing) == max(1, min(8, paths.cores() // sharing))


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_workers_end_with_the_process_that_started_them(study):
    """However it ends, and also when it is stopped by an error."""
    study.hold()
    process = study.start("run", *ASKED)
    pids = {study.held()["pid"]}
    process.kill()
    process.wait()
    assert gone(pids)
    with pytest.raises(ZeroDivisionError), batch.Workers(1) as pool:
        for _ in pool.each(time.sleep, [(10 * LONG,)]):
            pids = {child.pid for child in active_children()}
            raise ZeroDivisionError
    assert gone(pids)


def test_what_went_wrong_in_a_reader_is_told_without_its_traceback():
    def read(i):
        raise ValueError(f"the image {i} cannot be read")

    loader = torch.utils.data.DataLoader(Reader(read), num_workers=1)
    with pytest.raises(ValueError, match="Caught") as caught:
        next(iter(loader))
    assert batch.explained(caught.value) == "ValueError: the image 0 cannot be read"


class Reader(torch.utils.data.Dataset):
    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 2

    def __getitem__(self, i):
        return self.read(i)


def test_a_broken_gpu_ends_the_process_and_spoils_no_other_run(study, monkeypatch):
    runs, tried = [small(seed=seed) for seed in range(3)], []

    def fail(run, *args, **options):
        tried.append(run)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(train, "fit", fail)
    with pytest.raises(batch.FailedRuns, match="device-side assert.* The GPU must be opened anew"):
        batch.records_for(runs)
    assert tried == runs[:1] and [event["key"] for event in study.events("failed")] == [runs[0].key()]


@pytest.mark.slow
def test_status_of_ten_thousand_records_is_fast(study, capsys):
    with open(CHECKOUT / "outputs/records/glyphs.jsonl") as file:
        record = file.readline()
    keys = [run.key() for run in all_runs(jobs_of("glyphs"))]
    keys += [f"{i:012x}" for i in range(10_000 - len(keys))]
    for i, key in enumerate(keys):
        folder = study.folder / "outputs/runs" / key
        folder.mkdir(parents=True)
        (folder / "record.json").write_text(record if i != 7 else record[:99])
    assert cli.main(["status"]) == 0  # what is read once for a process has been read
    capsys.readouterr()
    work = calls(lambda: cli.main(["status"]))
    told = capsys.readouterr().out
    rows = [line.split() for line in told.splitlines()]
    n = len(all_runs(jobs_of("glyphs", ["objectives"], ["glyphs_fine"])))
    assert ["objectives", "glyphs_fine", str(n), str(n - 1), "0", "0"] in rows, told
    assert work < 1000 * len(keys)


@pytest.mark.slow
def test_records_that_came_with_the_project_count_as_recorded(study, undisturbed):
    shutil.copytree(undisturbed.folder / "outputs/records", study.folder / "outputs/records")
    rows = [line.split() for line in study.call("status")[1].splitlines()]
    assert ["objectives", "glyphs_fine", "4", "4", "0", "0"] in rows
    status, told = study.call("run", *ASKED)
    assert status == 0 and "4 of them recorded; 0 to train" in told and study.results() == undisturbed.results()
    assert not (study.folder / "outputs/runs").exists()
    file = records.batch_file("drill")
    first, *others = [json.loads(line) for line in file.read_text().splitlines()]
    first["curves"]["test"]["nmi"][0] += 0.25
    records.write_batch("drill", [first, *others])
    status, told = study.call("run", *ASKED, "--fresh")
    assert status == 0 and "4 runs trained anew, 1 of them with other values" in told, told
    assert f"({first['key']})\n    test/nmi: differs by up to 0.25\n" in told and told.count("differs") == 1
    assert "1 lines have other values now" in told and len([*file.parent.glob("drill.jsonl.aside-*")]) == 1
    assert study.results() == undisturbed.results() and set(study.trained().values()) == {1}
    assert not (study.folder / "outputs/fresh").exists()


def test_progress_on_a_terminal(study, capsys, monkeypatch):
    """A bar with the time that is left by the runs of this batch, and lines that stay."""
    runs, now = all_runs(jobs_of("smoke", methods=["Softmax", "NPair"])), [0.0]
    monkeypatch.setattr(batch.time, "perf_counter", lambda: now[0])
    progress = batch.BatchProgress(runs, lambda run: 60.0 if run == runs[0] else 600.0, 1)
    assert progress.ahead() == 660.0
    now[0] = 90.0
    progress.show(runs[0])  # took one and a half times as long as those before
    assert progress.ahead() == 900.0
    progress.bar.refresh()
    progress.say("a line that stays")
    progress.failure(runs[1], "ValueError: no")
    progress.bar.close()
    out, shown = capsys.readouterr()
    assert out.startswith("a line that stays\nfailed: ") and progress.ahead() == 0
    assert "1 of 2 runs |" in shown and "about 15:00 min to go" in shown


@pytest.mark.parametrize("others", [[], pytest.param([small()], marks=pytest.mark.slow)])
def test_a_data_set_that_is_not_there_is_named_once_and_others_are_trained(study, others):
    runs = [*others, *(make_run(dataset="cub200", method="Softmax", seed=seed) for seed in range(3))]
    (failure,) = batch.run_batch(runs, 1)
    assert failure.what == "3 runs on cub200" and failure.why.startswith("cub200 was not found below")
    assert all(map(records.recorded, others))

"""Records: never lost, read in one way, checked to the bottom, small; laid out faster than in the plain way."""

import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock
from grids import each
from work import calls

from dmlstudy.report import files as report_files
from dmlstudy.report.files import tidy
from dmlstudy.study import records, selection
from dmlstudy.study.methods import METHODS
from dmlstudy.study.records import batch_file, each_record
from dmlstudy.study.run import make_run
from dmlstudy.study.selection import SELECTIONS

COMMITTED = Path(__file__).resolve().parents[2] / "outputs/records/glyphs.jsonl"
PARTS = ("run", "curves")
RULES = {"best_test": "test", "last": "train", "validation": "validation", "window": "validation"}
PLACES = {"test": "", "visits": "visits/", "train": "train/", "validation": "validation/"}
BETTER = ("recall@", "coarse_recall@", "map", "r_precision", "nmi", "ami", "f1")


@pytest.fixture
def many(tmp_path, monkeypatch) -> Path:
    """The file of a profile with the committed records, under other keys."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    batch_file("glyphs").parent.mkdir(parents=True)
    lines = COMMITTED.read_text().splitlines(keepends=True)
    keyed = (f'{{"key":"{i:012x}"{line[line.index(",") :]}' for i, line in enumerate(lines))
    batch_file("glyphs").write_text("".join(keyed))
    return batch_file("glyphs")


def whole(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def plain_tidy(found: list[dict]) -> pd.DataFrame:
    """A value a row, by the definition of the rules."""
    rows = []
    for r in found:
        run = r["run"]
        for rule, judge in RULES.items():
            if not (curve := r["curves"].get(judge)):
                continue
            scores = curve["recall@1"]
            at = len(scores) - 1 if rule == "last" else scores.index(max(scores))
            if rule == "window":
                some = [i for i, step in enumerate(curve["step"]) if step] or [0]
                best = max(some, key=lambda i: (scores[i], -i))
                near = sorted(some, key=lambda i: (abs(i - best), i))[:3]  # shifted inwards at an end
                read = lambda v, near=near: sum(v[i] for i in sorted(near)) / len(near)
            else:
                read = lambda v, at=at: v[at]
            values = {"step": read(curve["step"])}
            for part, prefix in (
                ("test", ""),
                ("visits", "visits/"),
                ("train", "train/"),
                ("validation", "validation/"),
            ):
                for name, v in r["curves"].get(part, {}).items():
                    best = rule == "best_test" and part in ("test", "visits") and name.startswith(BETTER)
                    values |= {prefix + name: max(v) if best else read(v)} if name != "step" else {}
            head = (
                r["key"],
                "glyphs",
                run["dataset"],
                run["method"],
                run["variant"],
                "",
                run["seed"],
                run["replicate"],
                rule,
            )
            rows += [(*head, name, value) for name, value in values.items()]
    columns = [*report_files._COLUMNS, "value"]
    return pd.DataFrame(rows, columns=columns).sort_values(columns[:-1], kind="stable", ignore_index=True)


def peak(function) -> int:
    """Bytes that are held at once."""
    tracemalloc.start()
    function()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_parts_of_records_are_those_of_the_whole(many):
    assert [*each_record("glyphs", PARTS)] == [{name: r[name] for name in ("key", *PARTS)} for r in whole(many)]


def test_lines_of_any_writer_are_read(many):
    lines = many.read_text().splitlines(keepends=True)
    spaced = json.dumps(dict(reversed(json.loads(lines[1]).items()))) + "\r\n"  # as another program may write it
    many.write_text("".join([lines[0], "\n", spaced, lines[0], lines[3].strip()]))
    assert [record["key"] for record in each_record("glyphs", PARTS)] == [f"{i:012x}" for i in (0, 1, 3)]
    assert records.recorded_keys() == {f"{i:012x}" for i in (0, 1, 3)}  # one reader


@pytest.mark.parametrize("how", ["no record", "cut off", "another with its key"])
def test_a_damaged_line_stops_with_the_way_back(many, how):
    """File, line and command are named; nothing is written, and nothing is lost."""
    lines = many.read_text().splitlines(keepends=True)[:4]
    other = re.sub(r'"seed":\d+', '"seed":77', lines[0])
    lines[2] = {"no record": "<<<<<<< HEAD\n", "cut off": lines[2][:900] + "\n", "another with its key": other}[how]
    many.write_text("".join(lines))
    wanted = rf"glyphs.jsonl, line 3: .* Nothing was written; git checkout -- {re.escape(str(many))} restores"
    changed = json.loads(lines[1])
    changed["curves"]["test"]["recall@1"][0] = 0.123
    for call in (lambda: [*each_record("glyphs", PARTS)], lambda: records.merge_records(many, [changed])):
        with pytest.raises(records.DamagedRecords, match=wanted):
            call()
    assert many.read_text() == "".join(lines) and not [*many.parent.glob("*.aside-*")]
    assert not FileLock(many.with_name(f".{many.name}.lock")).acquire(timeout=0).lock.release()


DAMAGE = {
    "a short curve": lambda r: r["curves"]["test"].update({"recall@1": [0.5]}),
    "a word in a curve": lambda r: r["curves"]["test"].update({"nmi": ["a"] * len(r["curves"]["test"]["step"])}),
    "no steps": lambda r: r["curves"]["test"].pop("step"),
    "a curve that is none": lambda r: r["curves"].update({"test": 5}),
    "terms of two lengths": lambda r: r["terms"].update({"loss": [0.1]}),
    "a format to come": lambda r: r.update({"format": records.FORMAT + 1}),
    "an unknown field": lambda r: r["run"].update({"colour": "red"}),
    "a field of another type": lambda r: r["run"].update({"lr": "much"}),
    "more hits than queries": lambda r: r["classes"].update({"n": [30, 30], "hits": {"0": [30, 99]}}),
    "an unknown method": lambda r: r["run"].update({"method": "Nobody knows it"}),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_record_is_named(many, what):
    lines = many.read_text().splitlines(keepends=True)[:3]
    record = json.loads(lines[1])
    DAMAGE[what](record)
    many.write_text(lines[0] + json.dumps(record) + "\n" + lines[2])
    with pytest.raises(records.DamagedRecords, match="glyphs.jsonl, line 2: "):
        [*each_record("glyphs")]


def test_kept_records_of_older_formats(tmp_path, monkeypatch):
    """Format 1: no number, lists of hits. Everything is read as it was meant."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    kept = Path(__file__).parents[1] / "cases/records_format_1.jsonl"
    old = [json.loads(line) for line in kept.read_text().splitlines()]
    batch_file("glyphs").parent.mkdir(parents=True)
    batch_file("glyphs").write_text(kept.read_text())
    new = {record["key"]: record for record in each_record("glyphs")}
    assert [*new] == [record["key"] for record in old] and all(r["format"] == records.FORMAT for r in new.values())
    for before in old:
        after = new[before["key"]]
        assert (after["run"], after["curves"], after["made"]) == (before["run"], before["curves"], before["made"])
        for rule in SELECTIONS:
            assert selection.selected(before, rule) == selection.selected(after, rule)
            for curve in ("test", "visits"):
                pairs = [selection.class_hits(record, rule, curve) for record in (before, after)]
                assert str(pairs[0]) == str(pairs[1])
    assert any(record.get("classes") for record in old) and any("visits" in (r.get("classes") or {}) for r in old)


def test_a_record_of_659_classes_and_6_evaluations_is_small():
    record = json.loads((Path(__file__).parents[1] / "cases/records_format_1.jsonl").read_text().splitlines()[1])
    assert len(record["classes"]["n"]) > 500
    draw, steps = np.random.default_rng(0), [0, 400, 800, 1200, 1600, 2000]
    curve = lambda names: {name: steps if name == "step" else draw.random(6).round(6).tolist() for name in names}
    record["curves"] = {part: curve(names) for part, names in record["curves"].items()}
    n = [20] * 659
    hits = {str(step): draw.binomial(n, 0.6).tolist() for step in steps}
    record["classes"] = {"n": n, "hits": hits}
    small = records.packed(record)
    assert len(records._line(small)) < 8000 < len(records._line(record))
    found = {**small, "curves": {**small["curves"], "train": {"step": steps, "recall@1": [0.1] * 6}}}
    assert [v.tolist() for v in selection.class_hits(found, "last")] == [hits["2000"], n]


RAW = "angular", "cross_entropy", "lifted", "npair"  # measured on the raw output, as their papers do
SAME = "dataset replicate seed train_classes fold model embed_dim weights train_stem head freeze_bn transform precision"


@pytest.mark.slow
@each("name, file", lambda: {file.stem: file for file in sorted(COMMITTED.parent.glob("*.jsonl"))})
def test_one_network_has_one_recall_before_it_is_trained(name, file):
    """A row on the sphere that differs there is measured otherwise than the others, so its effects are none."""
    found = {}
    for record in whole(file):
        run, test = record["run"], record["curves"].get("test")
        if test and test["step"][0] == 0 and METHODS[run["method"]].loss not in RAW:
            made = record["made"].get("device"), record["made"].get("versions", {}).get("torch")
            found.setdefault((*made, *map(run.get, SAME.split())), {})[run["method"]] = test["recall@1"][0]
    for rows in found.values():
        assert len({*rows.values()}) == 1, rows


@each("name, file", lambda: {file.stem: file for file in sorted(COMMITTED.parent.glob("*.jsonl"))})
def test_committed_records_say_what_made_them_and_are_small(name, file):
    """Those that name their code come from a commit, and know their weights; on average 8 KB a run, 3 KB a trial."""
    found = whole(file)
    trials = name.endswith("_search")  # measured on validation classes alone; set 20 has 2,900
    assert file.stat().st_size <= (3000 * len(found) if trials else min(8000 * len(found), 5_000_000))
    for record in (record for record in found if "code" in record["made"]):
        made, run = record["made"], record["run"]
        assert re.fullmatch(r"[0-9a-f]{40}", made["git"]) and re.fullmatch(r"[0-9a-f]{12}", made["code"]), record["key"]
        assert ("weights_sha256" in made) == (run["weights"] is not None), record["key"]


def _merge(root: str, seeds: range) -> None:
    """In another process: merge runs one by one."""
    os.environ["DMLSTUDY_ROOT"] = root
    for seed in seeds:
        run = make_run(seed=seed)
        records.merge_records(batch_file("drill"), [{"key": run.key(), "run": asdict(run), "curves": {}, "made": {}}])


def test_two_that_merge_at_once_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        [*pool.map(_merge, [str(tmp_path)] * 2, [range(20), range(20, 40)])]
    assert {record["run"]["seed"] for record in each_record("drill")} == {*range(40)}


def test_a_file_that_is_held_is_waited_for(tmp_path, monkeypatch):
    """Nothing is written while another holds the lock of the file; all is, afterwards."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    file, run = batch_file("drill"), make_run(seed=1)
    file.parent.mkdir(parents=True)
    record = {"key": run.key(), "run": asdict(run), "curves": {}, "made": {}}
    writer = threading.Thread(target=records.merge_records, args=(file, [record], lambda text: None))
    with FileLock(file.with_name(f".{file.name}.lock")):
        writer.start()
        writer.join(0.5)
        assert writer.is_alive() and not file.exists()
    writer.join()
    assert [found["key"] for found in each_record("drill")] == [run.key()]


@pytest.mark.slow
def test_a_wait_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    code = (
        "from dmlstudy.study import records\n"
        "with records.held(records.batch_file('drill'), print):\n    print('held', flush=True)\n    input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other, told, run = subprocess.Popen([sys.executable, "-c", code], **pipes), [], make_run(seed=1)
    assert other.stdout.readline() == "held\n"

    def tell(text: str) -> None:
        """What is said lets the other process go on."""
        told.append(text)
        other.stdin.write("\n")
        other.stdin.close()

    records.merge_records(batch_file("drill"), [{"key": run.key(), "run": asdict(run), "curves": {}, "made": {}}], tell)
    assert "another process is writing it" in told[0] and len([*each_record("drill")]) == 1
    other.wait()


def test_what_leaves_a_file_is_named_and_kept(many):
    """A line with other values, and a line that is dropped."""
    lines = many.read_text().splitlines(keepends=True)[:3]
    many.write_text("".join(lines))
    kept = lambda: sorted(file.read_text() for file in many.parent.glob("*.aside-*"))
    changed, told = json.loads(lines[1]), []
    changed["curves"]["test"]["recall@1"][0] = 0.123
    records.merge_records(many, [changed], told.append)
    assert kept() == [lines[1]] and "1 lines have other values now" in told[0]
    records.drop_records([f"{0:012x}"], told.append)
    assert kept() == sorted(lines[:2]) and "1 lines are set aside" in told[1]
    assert [record["key"] for record in each_record("glyphs")] == [f"{i:012x}" for i in (1, 2)]


def test_results_are_those_of_the_plain_way(many):
    table, plain = tidy("glyphs", each_record("glyphs", PARTS)), plain_tidy(whole(many))
    assert table.astype(object).to_numpy().tolist() == plain.astype(object).to_numpy().tolist()
    assert [*table] == [*plain] and {*table["selection"]} == {*SELECTIONS}


@pytest.mark.slow
def test_many_records_take_little_work_and_memory(many):
    found, some = whole(many), [*each_record("glyphs", PARTS)]
    assert calls(lambda: tidy("glyphs", some)) < calls(lambda: plain_tidy(found))
    assert peak(lambda: tidy("glyphs", each_record("glyphs", PARTS))) < peak(lambda: plain_tidy(whole(many))) / 3


def test_outputs_alike_stay_untouched(tmp_path, monkeypatch):
    """Rounding and edges of another processor change no file; a value that differs does."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    table = lambda value: report_files.write_table("toy", pd.DataFrame({"a": [value]}), profile="smoke")
    file = table(0.1)
    before = file.read_bytes()
    table(0.1 + 1e-9)
    assert file.read_bytes() == before
    table(0.2)
    assert file.read_bytes() != before


def test_cells_are_neither_formulas_nor_new_rows(tmp_path, monkeypatch):
    """A name of a user's own reaches a spreadsheet as text, and a table in one line."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    names = ["=1+1", "@x", "+cmd", "-cmd", "+ SEC", "-2", "a = b", "two\nlines", "two\r\nlines", "a|b"]
    table = pd.DataFrame({"na\nme": names, "value": range(-5, 5)})
    file = report_files.write_table("toy", table, profile="smoke")
    read = pd.read_csv(file.with_suffix(".csv"), lineterminator="\n")
    assert [*read["na\nme"][:7]] == ["'=1+1", "'@x", "'+cmd", "'-cmd", "+ SEC", "-2", "a = b"]
    assert [*read["value"]] == [*range(-5, 5)]
    rows = [line for line in file.read_text().splitlines() if line]
    assert len(rows) == 1 + 2 + len(names) and all(row.startswith("| ") and row.endswith(" |") for row in rows[1:])
    assert rows[1] == "| na me | value |" and rows[-3:] == ["| two lines | 2 |", "| two lines | 3 |", "| a\\|b | 4 |"]


def test_a_record_of_a_newer_version_stays_where_it_is(tmp_path, monkeypatch):
    """A mere look at the status set it aside as damaged."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    run = make_run(seed=3)
    newer = {"key": run.key(), "run": asdict(run), "curves": {}, "made": {}, "format": records.FORMAT + 1}
    file = records.write_atomically(records.run_folder(run) / "record.json", json.dumps(newer) + "\n")
    for look in (lambda: records.load_record(run), records.recorded_keys):
        with pytest.raises(records.StaleRecord, match="it has format .*; it stays where it is"):
            look()
    assert [*file.parent.iterdir()] == [file]


def test_a_record_with_a_nan_is_equal_to_itself(tmp_path, monkeypatch):
    """The ratio of a collapsed embedding: its line was said to have other values at each merge."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    run, told = make_run(seed=3), []
    for value in ("NaN", "NaN", "0.5"):
        curves = {"test": {"step": [0], "ratio": [float(value)]}}
        records.merge_records(
            batch_file("drill"), [{"key": run.key(), "run": asdict(run), "curves": curves, "made": {}}], told.append
        )
        assert len(told) == (value != "NaN")

"""Records by the thousand: read, laid out and written faster than in the plain way, with equal results."""

import json
import re
import time
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest

from dmlstudy import records
from dmlstudy.records import SELECTIONS, batch_file, each_record, tidy, write_results

COMMITTED = Path(__file__).resolve().parents[1] / "outputs/records/glyphs.jsonl"
PARTS = ("run", "curves")
RULES = {"best_test": "test", "last": "train", "validation": "validation"}
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
            values = {"step": curve["step"][at]}
            for part, prefix in (
                ("test", ""),
                ("visits", "visits/"),
                ("train", "train/"),
                ("validation", "validation/"),
            ):
                for name, v in r["curves"].get(part, {}).items():
                    best = rule == "best_test" and part in ("test", "visits") and name.startswith(BETTER)
                    values |= {prefix + name: max(v) if best else v[at]} if name != "step" else {}
            head = r["key"], "glyphs", run["dataset"], run["method"], run["variant"], "", run["seed"], rule
            rows += [(*head, name, value) for name, value in values.items()]
    columns = [*records._COLUMNS, "value"]
    return pd.DataFrame(rows, columns=columns).sort_values(columns[:-1], kind="stable", ignore_index=True)


def plain_csv(file: Path, table: pd.DataFrame) -> None:
    table.to_csv(file, index=False, float_format="%.6g", lineterminator="\n", na_rep="nan")


def seconds(function, turns: int = 3) -> float:
    """Of this process's time, the least of some turns."""
    spent = []
    for _ in range(turns):
        began = time.process_time()
        function()
        spent.append(time.process_time() - began)
    return min(spent)


def peak(function) -> int:
    """Bytes that are held at once."""
    tracemalloc.start()
    function()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_parts_of_records_are_those_of_the_whole(many):
    assert [*each_record("glyphs", PARTS)] == [{name: r[name] for name in ("key", *PARTS)} for r in whole(many)]


def test_a_damaged_line_is_found_when_parts_are_read(many):
    lines = many.read_text().splitlines(keepends=True)
    spaced = json.dumps(json.loads(lines[1])) + "\n"  # as another program writes it: read whole
    other = re.sub(r'"seed":\d+', '"seed":77', lines[0])
    many.write_text("".join([lines[0], spaced, lines[2][:900] + "\n", "<<<<<<< HEAD\n", lines[0], other]))
    found = each_record("glyphs", PARTS)
    assert [next(found)["key"] for _ in range(2)] == [f"{i:012x}" for i in range(2)]
    with pytest.raises(records.DamagedRecords, match=r"line 3 \(and 2 more lines\)"):
        next(found)


def test_results_are_those_of_the_plain_way(many, tmp_path):
    table, plain = tidy("glyphs", each_record("glyphs", PARTS)), plain_tidy(whole(many))
    assert table.astype(object).to_numpy().tolist() == plain.astype(object).to_numpy().tolist()
    assert [*table] == [*plain] and {*table["selection"]} == {*SELECTIONS}
    table["setting"] = pd.Categorical(table["key"].map(lambda key: 'a, "b"\nc' if key[-1] == "7" else ""))
    table.loc[5, "value"] = float("nan")
    plain_csv(tmp_path / "plain.csv", table)
    assert write_results(tmp_path / "ours.csv", table).read_bytes() == (tmp_path / "plain.csv").read_bytes()


def test_many_records_take_little_time_and_memory(many, tmp_path):
    """A third is the aim, reached on an idle machine; half is demanded, so that a busy one does not fail.

    Parts that are half of a record cannot be read in a third of the time of the whole.
    """
    found, some = whole(many), [*each_record("glyphs", PARTS)]
    assert seconds(lambda: [*each_record("glyphs", PARTS)]) < seconds(lambda: whole(many)) * 3 / 4
    assert seconds(lambda: tidy("glyphs", some)) < seconds(lambda: plain_tidy(found)) / 2
    table, plain = tidy("glyphs", some), plain_tidy(found)
    ours = seconds(lambda: write_results(tmp_path / "ours.csv", table))
    assert ours < seconds(lambda: plain_csv(tmp_path / "plain.csv", plain)) / 2
    assert peak(lambda: tidy("glyphs", each_record("glyphs", PARTS))) < peak(lambda: plain_tidy(whole(many))) / 3

"""The second ledger: written before its replicates, and recomputed from the records alone."""

import json
import statistics
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dmlstudy.ledger import asked, effects, judge, read_ledger

ROOT = Path(__file__).resolve().parents[1]
FILE = "dmlstudy/assets/ledger_2.toml"
LEDGER = read_ledger()
RECORDS = [json.loads(line) for line in (ROOT / f"outputs/records/{LEDGER['profile']}.jsonl").open(encoding="utf-8")]
TABLE = pd.read_csv(ROOT / "outputs/tables/ledger.csv").set_index(["id", "of"])


def git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


def test_the_ledger_was_there_before_its_records():
    """Each record is of clean, committed code that held the ledger as it is now, and of a replicate that was new."""
    assert RECORDS and all(r["run"]["replicate"] >= 10 for r in RECORDS)
    commits = {r["made"]["git"] for r in RECORDS}
    assert all(commit and not commit.endswith("+") for commit in commits), "made from code that was not committed"
    assert all(len(r["made"]["code"]) == 12 for r in RECORDS)
    known = [commit for commit in commits if git("cat-file", "-e", f"{commit}^{{commit}}").returncode == 0]
    if len(known) < len(commits):
        pytest.skip("the history is not here")
    for commit in commits:
        assert git("show", f"{commit}:{FILE}").stdout == (ROOT / FILE).read_text(encoding="utf-8")
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def recalls(method: str, replicate: int, head: float = 1.0) -> list[float]:  # at each evaluation
    wanted = method, replicate, head
    (found,) = (
        r["curves"]["test"]["recall@1"]
        for r in RECORDS
        if (r["run"]["method"], r["run"]["replicate"], r["run"]["head_lr_factor"]) == wanted
    )
    return found


def best(*run) -> float:
    return max(recalls(*run))


def last(*run) -> float:
    return recalls(*run)[-1]


@pytest.mark.parametrize(
    "cell, value",
    [
        (("W1", "Contrastive (D)"), lambda r: best("R-Contrastive (D)", r) - best("Contrastive (D)", r)),
        (("W2", "Margin (D, beta=0.6)"), lambda r: last("R-Margin (D, beta=0.6)", r) - last("Margin (D, beta=0.6)", r)),
        (("W7", "Triplet (R)"), lambda r: best("Triplet (D)", r) - best("Triplet (R)", r)),
        (("Z1", "T"), lambda r: best("T + SEC", r) - best("T", r)),
        (("Z2", "MS"), lambda r: last("MS + SEC", r) - last("MS", r)),
        (("Z3", "NNP"), lambda r: best("NNP + SEC", r, 5.0) - best("NNP", r, 5.0)),
        (
            ("Z1", "mean"),
            lambda r: statistics.mean(best(f"{m} + SEC", r) - best(m, r) for m in ("T", "SHT", "NNP", "MS")),
        ),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_cells_from_the_records_alone(cell, value):
    """Recall is a share of 1 in the records; the interval is a t interval at the level of the look."""
    row = TABLE.loc[cell]
    look = int(row["look"])
    level = {5: 0.0133, 10: 0.0377}[look]
    values = [100 * value(r) for r in range(10, 10 + look)]
    mean, half = statistics.mean(values), stats.t.isf(level / 2, look - 1) * statistics.stdev(values) / look**0.5
    assert row[["effect", "low", "high"]].tolist() == pytest.approx([mean, mean - half, mean + half], abs=2e-3)


def test_planted_effects_get_their_verdicts():
    """None, half the size of interest, the size, twice: through the whole path, at the declared error rates."""
    question = next(q for q in asked(LEDGER) if q["id"] == "Z2" and q["of"] == "mean")
    said = {}
    for planted in (0.0, 0.25, 0.5, 1.0):
        rng, found = np.random.default_rng(7), []
        for _ in range(200):
            noise = rng.normal(0, 0.003, (10, 4)) + planted / 100
            rows = [(r, b, "recall@1", "last", 0.6, "") for r in range(10, 20) for _, b in question["rows"]]
            for j, (a, _) in enumerate(question["rows"]):
                rows += [(r, a, "recall@1", "last", 0.6 + noise[r - 10, j], "") for r in range(10, 20)]
            names = ["replicate", "method", "metric", "selection", "value", "setting"]
            found.append(judge(question, pd.DataFrame(rows, columns=names), LEDGER["cap"])["verdict"])
        said[planted] = pd.Series(found).value_counts(normalize=True)
    assert said[0.0].get("negligible", 0) > 0.9 and said[0.0].get("above delta", 0) == 0
    assert said[0.0].get("positive, size open", 0) + said[0.0].get("reversed", 0) < 0.09
    assert said[0.5].get("above delta", 0) < 0.05 and said[0.5].get("negligible", 0) < 0.05
    assert said[1.0].get("above delta", 0) > 0.95


def test_a_replicate_that_lacks_a_run_ends_the_count():
    question = next(q for q in asked(LEDGER) if q["id"] == "Z2" and q["of"] == "T")
    rows = [(r, m, "recall@1", "last", 0.5, "") for r in range(10, 18) for m in ("T", "T + SEC")]
    names = ["replicate", "method", "metric", "selection", "value", "setting"]
    table = pd.DataFrame(rows, columns=names)
    assert effects(question, table).shape == (1, 8)
    assert effects(question, table[(table["replicate"] != 13) | (table["method"] != "T")]).shape == (1, 3)

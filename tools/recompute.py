"""Recompute the article's effects from the JSON lines of the runs alone: python tools/recompute.py [-v].

It reads the pre-registered sets (dmlstudy/assets/ledger_*.toml) and the records (outputs/records/*.jsonl), and compares
with the tables that the article reads. Nothing of dmlstudy is imported.
"""

import csv
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETS = {"ledger": [2], "tuned": [3], "reality": [4], "searches": [14, 15, 16], "last_step": [8], "other_sets": [7]}
SETS |= {"added": [11], "all_drawings": [17], "other_sets_rates": [9], "reality_sets": [10, 12], "factors": [6]}
SETS |= {"cars": [22], "cars_objectives": [24], "placebo": [20], "regularise": [21], "unfrozen": [23]}
FIELD = {21: "mixup", 23: "train_stem"}  # set -> field of a run that tells two of its cells apart, beside the method


def score(record: dict, rule: str, metric: str) -> float:
    """A metric of a run on test classes, in points, under one of four rules."""
    test, steps = record["curves"]["test"][metric], record["curves"]["test"]["step"]
    if rule in ("best_test", "last"):
        return 100 * (max(test) if rule == "best_test" else test[-1])
    judge = record["curves"]["validation"]["recall@1"]
    if rule == "validation":
        return 100 * test[max(range(len(judge)), key=judge.__getitem__)]
    trained = [at for at, step in enumerate(steps) if step > 0]
    best = max(range(len(trained)), key=lambda i: judge[trained[i]])  # window: three evaluations around the best
    first = max(0, min(best - 1, len(trained) - 3))
    return 100 * sum(test[at] for at in trained[first : first + 3]) / 3


def read(profile: str) -> list[dict]:
    """The records of a profile."""
    return [*map(json.loads, (ROOT / f"outputs/records/{profile}.jsonl").read_text(encoding="utf-8").splitlines())]


def runs_of(profile: str, field: str | None) -> dict[tuple, dict]:
    """(data set, cell, replicate) -> its record; where other settings differ, that with the profile's usual ones."""
    records = read(profile)
    settings = {name: Counter(str(r["run"].get(name)) for r in records) for name in records[-1]["run"]}
    usual = {name: found.most_common(1)[0][0] for name, found in settings.items()}
    rare = lambda record: sum(str(record["run"].get(name)) != value for name, value in usual.items())
    found: dict[tuple, dict] = {}
    for record in sorted(records, key=rare, reverse=True):  # the last one stays
        run = record["run"]
        cell = run["method"] + (f" | {field}={run[field]}".removesuffix(".0") if field and run[field] else "")
        found[run["dataset"], cell, run["replicate"]] = record
    return found


def effects(number: int, known: dict) -> Iterator[tuple[str, str, float]]:
    """Claim, what it is of, and mean effect in points as the claim expects it."""
    runs, sets = runs_of(known["profile"], FIELD.get(number)), known.get("datasets") or [known["dataset"]]
    for claim in known["claim"]:
        pairs = [*map(tuple, known["pairs"][claim["pairs"]])] if claim["effect"] == "gain" else []
        settings = {"setting", "less", "rates"} & {*claim} or any(" | " in cell for pair in pairs for cell in pair)
        if claim["metric"] not in ("recall@1", "map@r") or settings and number not in FIELD:
            continue
        more, sign = f" | {claim['setting']}" if "setting" in claim else "", claim.get("sign", 1)
        for dataset in claim.get("datasets", sets):
            at = lambda cell, r, d=dataset, c=claim: score(runs[d, cell, r], c["rule"], c["metric"])
            gain = lambda a, b, more, r, at=at: at(a + more, r) - at(b + more, r)
            less = lambda a, b, r, c=claim, gain=gain: gain(a, b, "", r) if "less" in c else 0
            gains = {}
            for a, b in pairs:
                both = sorted(r for d, cell, r in runs if (d, cell) == (dataset, a) and (d, b, r) in runs)
                gains[a, b] = [sign * (gain(a, b, more, r) - less(a, b, r)) for r in both[: known["cap"]]]
            yield from named(claim, gains, dataset if sets[1:] else "")


def of_searches(number: int, known: dict) -> Iterator[tuple[str, str, float]]:
    """The same of a set in which each method has ten searches, each trained on three of ten replicates."""
    tuned = json.loads((ROOT / "dmlstudy/assets/tuned_placebo.json").read_text(encoding="utf-8"))[known["dataset"]]
    by_seed: dict[tuple, list[dict]] = {}
    for record in read(known["profile"]):
        by_seed.setdefault((record["run"]["method"], record["run"]["seed"]), []).append(record)

    def runs(method: str) -> list[dict]:
        found = []
        for s, fields in enumerate(tuned[method][known["choice"]]):
            for replicate in (140 + (s + j) % 10 for j in range(3)):
                same = by_seed[method, 1000 * (s + 1) + replicate]  # of this search: of other budgets, too
                same = [r for r in same if all(r["run"][name] == value for name, value in fields.items())]
                found.append(min(same, key=lambda r: sum(r["run"][n] is not None for n in ("loss_args", "loss_lr"))))
        return found

    trained = {m: runs(m) for m in {m for pairs in known["pairs"].values() for pair in pairs for m in pair}}
    for claim in known["claim"]:
        at = lambda m, claim=claim: [score(r, claim["rule"], claim["metric"]) for r in trained[m]]
        pairs = map(tuple, known["pairs"][claim["pairs"]])
        yield from named(claim, {(a, b): [x - y for x, y in zip(at(a), at(b), strict=True)] for a, b in pairs}, "")


def named(claim: dict, gains: dict[tuple, list], dataset: str) -> Iterator[tuple[str, str, float]]:
    """A claim's effects as its table names them: the mean over pairs of methods, or each pair."""
    alike, n = len({b for _, b in gains}) < len(gains), min(map(len, gains.values()), default=0)
    if n and "mean" in claim.get("over", []):
        yield claim["id"], dataset or "mean", sum(sum(d[:n]) / n for d in gains.values()) / len(gains)
    for (a, b), gain in gains.items() if "each" in claim.get("over", []) else ():
        of = a if alike else b
        if gain:
            yield claim["id"], f"{of}, {dataset}" if dataset else of, sum(gain) / len(gain)


def main() -> int:
    """Compare with the tables; the number of effects that differ."""
    wrong = count = 0
    for stem, numbers in SETS.items():
        with open(ROOT / f"outputs/tables/{stem}.csv", encoding="utf-8", newline="") as file:
            shown = {(row["id"], row["of"]): float(row["effect"]) for row in csv.DictReader(file)}
        for number in numbers:
            known = tomllib.loads((ROOT / f"dmlstudy/assets/ledger_{number}.toml").read_text(encoding="utf-8"))
            for claim, of, mean in (of_searches if number == 20 else effects)(number, known):
                table, count = shown[claim, of], count + 1
                differs = abs(table - mean) > 1e-4
                wrong += differs
                if differs or "-v" in sys.argv:
                    print(f"{stem} {claim} {of}: {mean:+.4f} here, {table:+.4f} in the table")
    print(f"{count} effects recomputed, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))

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
SETS |= {"cars": [22], "placebo": [20], "regularise": [21]}


def recall(record: dict, rule: str, metric: str = "recall@1") -> float:
    """Recall@1, or MAP@R, of a run, in points, under one of four rules."""
    test, steps = record["curves"]["test"][metric], record["curves"]["test"]["step"]
    if rule == "best_test":
        return 100 * max(test)
    if rule == "last":
        return 100 * test[-1]
    judge = record["curves"]["validation"]["recall@1"]
    trained = [at for at, step in enumerate(steps) if step > 0]
    if rule == "validation":
        return 100 * test[max(range(len(judge)), key=judge.__getitem__)]
    best = max(range(len(trained)), key=lambda i: judge[trained[i]])  # window: three evaluations around the best
    first = max(0, min(best - 1, len(trained) - 3))
    return 100 * sum(test[at] for at in trained[first : first + 3]) / 3


def runs_of(profile: str) -> dict[tuple, dict]:
    """(data set, method, replicate) -> its record; where settings differ, the one with the profile's usual ones."""
    lines = (ROOT / f"outputs/records/{profile}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    settings = {name: Counter(str(r["run"].get(name)) for r in records) for name in records[-1]["run"]}
    usual = {name: found.most_common(1)[0][0] for name, found in settings.items()}
    rare = lambda record: sum(str(record["run"].get(name)) != value for name, value in usual.items())
    found: dict[tuple, dict] = {}
    for record in sorted(records, key=rare, reverse=True):  # the last one stays
        found[record["run"]["dataset"], record["run"]["method"], record["run"]["replicate"]] = record
    return found


def effects(number: int) -> Iterator[tuple[str, str, float]]:
    """Claim, what it is of, and mean effect in points as the claim expects it: gains of recall@1 in plain settings."""
    known = tomllib.loads((ROOT / f"dmlstudy/assets/ledger_{number}.toml").read_text(encoding="utf-8"))
    runs, sets = runs_of(known["profile"]), known.get("datasets") or [known["dataset"]]
    for claim in known["claim"]:
        if (claim["effect"], claim["metric"]) != ("gain", "recall@1") or {"setting", "less", "rates"} & {*claim}:
            continue
        pairs = known["pairs"][claim["pairs"]]
        if any(" | " in method for pair in pairs for method in pair):
            continue
        for dataset in claim.get("datasets", sets):
            replicates = sorted({of[2] for of in runs if of[0] == dataset})
            at = lambda m, r: recall(runs[dataset, m, r], claim["rule"])  # noqa: B023
            gains = {}
            for a, b in pairs:
                both = [r for r in replicates if (dataset, a, r) in runs and (dataset, b, r) in runs]
                gains[a, b] = [at(a, r) - at(b, r) for r in both[: known["cap"]]]
            means = {pair: claim.get("sign", 1) * sum(d) / len(d) for pair, d in gains.items() if d}
            alike = len({b for _, b in pairs}) < len(pairs)
            for over in claim.get("over", ["all"]):
                if over == "mean":
                    n = min(map(len, gains.values()))
                    first = [sum(d[i] for d in gains.values()) / len(gains) for i in range(n)]
                    yield claim["id"], dataset if sets[1:] else "mean", claim.get("sign", 1) * sum(first) / n
                for (a, b), mean in means.items() if over == "each" else ():
                    of = a if alike else b
                    yield claim["id"], f"{of}, {dataset}" if sets[1:] else of, mean


def of_searches(number: int) -> Iterator[tuple[str, str, float]]:
    """The same of a set in which each method has ten searches, each trained on three of ten replicates."""
    known = tomllib.loads((ROOT / f"dmlstudy/assets/ledger_{number}.toml").read_text(encoding="utf-8"))
    tuned = json.loads((ROOT / "dmlstudy/assets/tuned_placebo.json").read_text(encoding="utf-8"))[known["dataset"]]
    lines = (ROOT / f"outputs/records/{known['profile']}.jsonl").read_text(encoding="utf-8").splitlines()
    by_seed: dict[tuple, list[dict]] = {}
    for record in map(json.loads, lines):
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
        at = lambda m, claim=claim: [recall(r, claim["rule"], claim["metric"]) for r in trained[m]]
        pairs = [*map(tuple, known["pairs"][claim["pairs"]])]
        gains = {pair: sum(x - y for x, y in zip(*map(at, pair), strict=True)) / len(at(pair[0])) for pair in pairs}
        if claim["over"] == ["mean"]:
            yield claim["id"], "mean", sum(gains.values()) / len(gains)
        alike = len({b for _, b in pairs}) < len(pairs)
        for (a, b), gain in gains.items() if claim["over"] == ["each"] else ():
            yield claim["id"], a if alike else b, gain


def of_cells(number: int) -> Iterator[tuple[str, str, float]]:
    """The same of a set in which additions are crossed: a cell is a method, with or without mixup."""
    known = tomllib.loads((ROOT / f"dmlstudy/assets/ledger_{number}.toml").read_text(encoding="utf-8"))
    lines = (ROOT / f"outputs/records/{known['profile']}.jsonl").read_text(encoding="utf-8").splitlines()
    trained: dict[tuple, list[dict]] = {}
    for record in map(json.loads, lines):
        run = record["run"]
        cell = run["method"] + (f" | mixup={run['mixup']:g}" if run["mixup"] else "")
        trained.setdefault((run["dataset"], cell), []).append(record)
    full = lambda d: all(len(found) == known["cap"] for (of, _), found in trained.items() if of == d)
    for claim, dataset in ((c, d) for c in known["claim"] for d in c["datasets"] if full(d)):
        score = lambda r, c=claim: recall(r, c["rule"], c["metric"])
        mean = lambda cell, d=dataset, score=score: sum(map(score, trained[d, cell])) / len(trained[d, cell])
        pairs = [*map(tuple, known["pairs"][claim["pairs"]])]
        if "setting" in claim:
            more = f" | {claim['setting']}"
            gains = [mean(a + more) - mean(b + more) - mean(a) + mean(b) for a, b in pairs]
        else:
            gains = [mean(a) - mean(b) for a, b in pairs]
        if claim["over"] == ["mean"]:
            yield claim["id"], dataset, sum(gains) / len(gains)
        alike = len({b for _, b in pairs}) < len(pairs)
        for (a, b), gain in zip(pairs, gains, strict=True) if claim["over"] == ["each"] else ():
            yield claim["id"], f"{a if alike else b}, {dataset}", gain


OTHER = {20: of_searches, 21: of_cells}  # set -> how it is read, where it is not as the others


def main() -> int:
    """Compare with the tables; the number of effects that differ."""
    wrong = count = 0
    for stem, numbers in SETS.items():
        with open(ROOT / f"outputs/tables/{stem}.csv", encoding="utf-8", newline="") as file:
            shown = {(row["id"], row["of"]): float(row["effect"]) for row in csv.DictReader(file)}
        for number in numbers:
            for claim, of, mean in OTHER.get(number, effects)(number):
                table, count = shown[claim, of], count + 1
                differs = abs(table - mean) > 1e-4
                wrong += differs
                if differs or "-v" in sys.argv:
                    print(f"{stem} {claim} {of}: {mean:+.4f} here, {table:+.4f} in the table")
    print(f"{count} effects recomputed, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))

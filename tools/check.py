"""Run checks in order, the cheap ones first, and say what to do when one fails: python tools/check.py [NAME ...]."""

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
KEPT = ("nbs", "dmlstudy", "tests", "tools", "outputs", "README.md", "index_files")
PASSING = {"__pycache__", ".ipynb_checkpoints", "runs", "notebooks", "smoke", "custom"}  # what a run may leave

PYTEST = ["pytest", "-n", "2", "--dist", "worksteal", "--tb=short", "--durations=15"]
LIBRARY = ["nbdev_test", "--n_workers", "2", "--skip_folder_re", "^[_.]|^tutorials$"]  # `shown` runs tutorials, too
CHECKS = [  # name, commands, what to do when a command fails or files change
    ("style", [["ruff", "check", "."], ["ruff", "format", "--check", "--quiet", "."]], "run make prepare"),
    ("clean", [["nbdev_clean"]], "notebooks carried metadata, which is taken out now: commit them"),
    ("export", [["python", "tools/export.py"]], "the library is exported anew: edit only notebooks, and commit both"),
    ("readme", [["python", "tools/readme.py"]], "README.md is written anew from nbs/index.ipynb: commit it"),
    ("fresh", [["python", "tools/fresh.py"]], "run python tools/fresh.py draw"),
    ("notebooks", [LIBRARY], "a notebook wrote into the tree, or fails: see above"),
    ("tests", [[*PYTEST, "-m", "not slow"]], "a test wrote into the tree, or fails: see above"),
]
SLOW = [
    ("outputs", [["dmlstudy", "tables", "--profile", "glyphs"]], "outputs/ differ from what the records give"),
    ("shown", [["python", "tools/same.py"]], "fill the notebooks that differ again with tools/fill.py"),
    ("slow", [[*PYTEST, "-m", "slow"]], "a test wrote into the tree, or fails: see above"),
]


def snapshot() -> dict[str, bytes]:
    """Path -> content of every file that is kept."""
    files = [f for name in KEPT for f in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))]
    return {
        str(f.relative_to(ROOT)): f.read_bytes()
        for f in files
        if f.is_file() and not PASSING & set(f.relative_to(ROOT).parts)
    }


def run(name: str, commands: list[list[str]], mend: str) -> str:
    """What is wrong after one check; empty if nothing."""
    from dmlstudy.report.files import alike

    before = snapshot()
    for command in commands:
        if subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT).returncode:
            return f"{' '.join(command)}: {mend}"
    after = snapshot()
    paths = sorted(before.keys() | after.keys())
    kind = lambda path: Path(path).suffix if path.startswith("outputs/") else ""  # all else is text by hand or export
    moved = [path for path in paths if not alike(before.get(path), after.get(path), kind(path))]
    return f"{mend}\n  " + "\n  ".join(moved[:20]) if moved else ""


began = time.perf_counter()
for check in [*CHECKS, *SLOW]:
    if check[0] not in (sys.argv[1:] or [name for name, *_ in CHECKS]):
        continue
    started = time.perf_counter()
    print(f"== {check[0]}: {'; '.join(' '.join(c) for c in check[1])}", flush=True)
    if problem := run(*check):
        sys.exit(f"== {check[0]} FAILED: {problem}")
    print(f"== {check[0]}: ok, {time.perf_counter() - started:.0f} s", flush=True)
print(f"All checks passed in {(time.perf_counter() - began) / 60:.1f} minutes.")

"""Change the library in one small wrong way at a time, and see which changes the tests of its room do not find.

python tools/mutate.py [--fast] [FILE ...]: all of tests/mutations.toml, or the changes of some files, such as
losses/triplet.py. A change that no fast test finds is tried on the slow ones, unless --fast says not to. The test that
found a change is tried first the next time. Runs at low priority; 191 changes take about a quarter of an hour alone.
"""

import argparse
import compileall
import gc
import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from py_compile import PycInvalidationMode

import matplotlib.pyplot  # noqa: F401, loaded once for all
import pandas  # noqa: F401
import pytest
import pytorch_metric_learning.losses  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch  # noqa: F401
import torchvision  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
ROOMS = tomllib.loads((ROOT / "tests/mutations.toml").read_text())["room"]
FOUND = ROOT / ".pytest_cache/mutations.json"  # room -> change -> the test that found it
SECONDS = ROOT / ".pytest_cache/seconds.json"  # test -> how long it took last
WAIT = 600  # seconds for the tests of a room; a change that makes them hang is found
TIERS = {"fast": "not slow", "slow": "slow"}
KINDS = (*TIERS, "survived", "broken")


def copy_of_project(place: Path) -> None:
    """The library and the tests as copies, all else as links."""
    for path in ROOT.iterdir():
        if path.name in ("dmlstudy", "tests"):
            shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name not in (".git", ".pytest_cache"):
            (place / path.name).symlink_to(path)
    # compiled once, and known by its content: a change within the same second is seen
    compileall.compile_dir(place / "dmlstudy", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def read(file: Path) -> dict:
    """What an earlier run has noted; empty before the first."""
    return json.loads(file.read_text()) if file.exists() else {}


def write(file: Path, noted: dict) -> None:
    """Note something for the next run."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(noted, indent=1))


class First:
    """Tests that have found something come first, then the short ones; the one that fails is named in a file."""

    def __init__(self, first: list[str], file: Path):
        self.place, self.file = {name: i for i, name in enumerate(first)}, file
        self.known, self.seconds = read(SECONDS), {}

    def pytest_collection_modifyitems(self, items):
        key = lambda name: (self.place.get(name, len(self.place)), self.known.get(name, 0.0))
        items.sort(key=lambda item: key(item.nodeid))

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.file.write_text(report.nodeid)

    def pytest_sessionfinish(self):
        write(SECONDS, self.known | self.seconds)

    def pytest_collectreport(self, report):
        if report.failed:
            self.file.write_text(report.nodeid)


def test(place: Path, tests: list[str], tier: str, first: list[str]) -> None:
    """In a process of its own, which has loaded all but the library."""
    os.chdir(place)
    sys.path.insert(0, str(place))
    os.environ |= {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ["FIRST_FAILURE"] = "1"  # of a grid (tests/support/grids.py)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        words = ["-x", "-q", "-m", TIERS[tier], "-p", "no:cacheprovider", *tests]
        status = pytest.main(words, plugins=[First(first, place / "failed")])
    nothing = pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR  # no slow test; one that is there no more
    os._exit(0 if status in nothing else int(status))


def finds(place: Path, tests: list[str], tier: str, first: list[str] = ()) -> str:
    """The test that fails; empty if all pass."""
    (place / "failed").unlink(missing_ok=True)
    process = get_context("fork").Process(target=test, args=(place, tests, tier, [*first]))
    process.start()
    process.join(WAIT)
    hangs = process.is_alive()
    process.kill()
    process.join()
    if process.exitcode == 0:
        return ""
    return "it hangs" if hangs else (place / "failed").read_text() if (place / "failed").exists() else "it ends"


class Room:
    """The changes of one file, and the tests that are to find them."""

    def __init__(self, place: Path, room: dict, known: dict, tiers: list[str]):
        self.place, self.tiers, self.known = place, tiers, known
        self.file, self.changes = place / "dmlstudy" / room["file"], room["changes"]
        self.tests, self.sound = [f"tests/{name}" for name in room["tests"].split()], self.file.read_text()

    def found_by(self, what: str, old: str, new: str) -> tuple[str, str]:
        """(Tier, test) that finds a change; ("survived", "") if none does, ("broken", why) if it cannot be made."""
        if self.sound.count(old) != 1:
            return "broken", f"{old!r} stands there {self.sound.count(old)} times"
        tier, name = self.known.get(what, ("", ""))
        tries = [(tier, [name])] if tier in self.tiers and "::" in name else []
        self.file.write_text(self.sound.replace(old, new))
        try:
            for tier, tests in [*tries, *((tier, self.tests) for tier in self.tiers)]:
                if found := finds(self.place, tests, tier, [name for t, name in self.known.values() if t == tier]):
                    return tier, found
        finally:
            self.file.write_text(self.sound)
        return "survived", ""

    def results(self) -> dict[str, tuple[str, str]]:
        """Change -> (tier, test); a test that fails without any change, too, has found nothing."""
        found = {}
        for what, old, new in self.changes:
            found[what] = self.found_by(what, old, new)
        for tier in self.tiers:
            names = {name for at, name in found.values() if at == tier}
            whole = not all("::" in name for name in names)
            if names and finds(self.place, self.tests if whole else sorted(names), tier):
                wrong = {name for name in names if finds(self.place, [name] if "::" in name else self.tests, tier)}
                found |= {k: ("broken", f"{v[1]} fails anyway") for k, v in found.items() if v[1] in wrong}
        return found


def main() -> int:
    """How many changes no test found. A process that a test starts imports this file: nothing runs by itself."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fast", action="store_true", help="the fast tests alone")
    parser.add_argument("files", nargs="*", metavar="FILE", help="below dmlstudy/; all if none is named")
    args, began = parser.parse_args(), time.perf_counter()
    os.nice(10)
    gc.freeze()
    known, counts = read(FOUND), {}
    with tempfile.TemporaryDirectory() as folder:
        copy_of_project(Path(folder))
        for room in ROOMS:
            file = room["file"]
            if file in (args.files or [file]):
                one = Room(Path(folder), room, known.setdefault(file, {}), [*TIERS][: 1 if args.fast else 2])
                results = one.results()
                known[file] |= {what: by for what, by in results.items() if by[0] in TIERS}
                write(FOUND, known)
                counts[file] = {kind: sum(by[0] == kind for by in results.values()) for kind in KINDS}
                for what, (kind, why) in results.items():
                    if kind not in TIERS:
                        print(f"{kind.upper()} {file}: {what} {why}", flush=True)
                print(f"{file}: {counts[file]}, {time.perf_counter() - began:.0f} s", flush=True)
    counts["all"] = {kind: sum(count[kind] for count in counts.values()) for kind in KINDS}
    for file, count in counts.items():
        print(f"{file:24}" + "".join(f"{n:5} {kind}" for kind, n in count.items()))
    return counts["all"]["survived"] + counts["all"]["broken"]


if __name__ == "__main__":
    sys.exit(bool(main()))

"""Change the library in one small wrong way at a time, and see which changes the tests of its room do not find.

python tools/mutate.py [FILE ...]: all of tests/mutations.toml, or the changes of some files, such as losses/tuples.py.
"""

import os
import shutil
import sys
import tempfile
import time
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path

import pandas  # noqa: F401, loaded once for all
import pytest
import scipy.stats  # noqa: F401
import torch  # noqa: F401
import torchvision  # noqa: F401

sys.dont_write_bytecode = True

ROOT = Path(__file__).resolve().parents[1]
ROOMS = tomllib.loads((ROOT / "tests/mutations.toml").read_text())["room"]
WAIT = 600  # seconds for the tests of a room; a change that makes them hang is found


def copy_of_project(place: Path) -> None:
    """The library and the tests as copies, all else as links."""
    for path in ROOT.iterdir():
        if path.name in ("dmlstudy", "tests"):
            shutil.copytree(path, place / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name not in (".git", ".pytest_cache"):
            (place / path.name).symlink_to(path)


def test(place: Path, tests: str) -> None:
    """In a process of its own, which has loaded all but the library."""
    os.chdir(place)
    sys.path.insert(0, str(place))
    os.environ |= {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        files = [f"tests/{name}" for name in tests.split()]
        status = pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files])
    os._exit(int(status))


def passes(place: Path, tests: str) -> bool:
    """Whether the tests of a room pass."""
    process = get_context("fork").Process(target=test, args=(place, tests))
    process.start()
    process.join(WAIT)
    process.kill()
    process.join()
    return process.exitcode == 0


def main() -> int:
    """How many changes no test found. A process that a test starts imports this file: nothing runs by itself."""
    with tempfile.TemporaryDirectory() as folder:
        place, survived, n = Path(folder), [], 0
        copy_of_project(place)
        rooms = [room for room in ROOMS if room["file"] in (sys.argv[1:] or [room["file"]])]
        for tests in dict.fromkeys(room["tests"] for room in rooms):
            if not passes(place, tests):
                sys.exit(f"the tests {tests} fail without any change")
        for room in rooms:
            file, began = place / "dmlstudy" / room["file"], time.perf_counter()
            sound = file.read_text()
            for what, old, new in room["changes"]:
                if sound.count(old) != 1:
                    sys.exit(f"{room['file']}: {what}: {old!r} stands there {sound.count(old)} times")
                file.write_text(sound.replace(old, new))
                if passes(place, room["tests"]):
                    survived.append(f"{room['file']}: {what}")
                    print(f"SURVIVED {survived[-1]}", flush=True)
            file.write_text(sound)
            n += len(room["changes"])
            print(f"{room['file']}: {len(room['changes'])} changes, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"{n - len(survived)} of {n} changes are found ({100 * (n - len(survived)) / n:.0f} %)")
    return len(survived)


if __name__ == "__main__":
    sys.exit(bool(main()))

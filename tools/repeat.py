"""Run the drills again and again beside a busy core, and count their failures: python tools/repeat.py 30 [TEST ...]

Without names: the tests that kill, stop and interrupt processes. A core is kept busy for each core of the machine but
one, so that a test that waits for a clock in place of an event fails here. One process runs all rounds: what the drills
share is trained once. A failure ends its own test alone; each test that has failed is named with its count at the end.
"""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORDS = "killed or stopped_process or interrupted or share_the_work or takes_a_lock or wall_clock or workers_end"
BUSY = "while True: sum(range(100_000))"


class Rounds:
    """Every test as many times as there are rounds, one round after the other."""

    def __init__(self, n: int):
        self.n, self.each, self.done, self.failed, self.began = n, 0, 0, Counter(), time.perf_counter()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        metafunc.fixturenames.append("round_of")
        metafunc.parametrize("round_of", range(1, self.n + 1))

    @pytest.hookimpl(trylast=True)  # when -k has chosen
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.callspec.params["round_of"])
        self.each = len(items) // self.n

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed[re.sub(r"[-\[]\d+\]$", "", report.nodeid)] += report.failed
        self.done += report.when == "teardown"
        if report.when == "teardown" and self.done % self.each == 0:
            minutes = (time.perf_counter() - self.began) / 60
            print(f"\nround {self.done // self.each} of {self.n}, {minutes:.1f} min", flush=True)


def main(times: int = 30, *tests: str) -> int:
    """How many tests have failed."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(max(1, os.cpu_count() - 1))]
    os.chdir(ROOT)
    rounds = Rounds(int(times))
    try:
        chosen = tests or ("tests/study/test_executor.py", "-k", WORDS)
        pytest.main(["-p", "no:cacheprovider", *chosen], plugins=[rounds])
    finally:
        for process in busy:
            process.kill()
    failed = {name: n for name, n in rounds.failed.items() if n}
    for name, n in failed.items():
        print(f"{name}: failed {n} of {times} times")
    print(f"{rounds.done} of {rounds.each * int(times)} tests were run, {sum(failed.values())} failed")
    return sum(failed.values())


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))

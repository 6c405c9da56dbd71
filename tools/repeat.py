"""Run some tests again and again beside a busy core, and count how often they pass: python tools/repeat.py 30 TEST ...

Without names: the drills, which kill, stop and interrupt processes. A core is kept busy for each core of the machine
but one, so that what waits for a clock in place of an event fails here.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRILLS = [
    "tests/train/test_batch.py",
    "-k",
    "kill or stopped or interrupted or workers_end or share or scheduler or lock",
]
BUSY = "while True: sum(range(100_000))"

times, tests = int((sys.argv[1:] or ["30"])[0]), sys.argv[2:] or DRILLS
busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(max(1, os.cpu_count() - 1))]
passed = 0
try:
    for i in range(times):
        done = subprocess.run([sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests], cwd=ROOT)
        passed += done.returncode == 0
        print(f"{passed} of {i + 1} rounds passed", flush=True)
finally:
    for process in busy:
        process.kill()
sys.exit(passed < times)

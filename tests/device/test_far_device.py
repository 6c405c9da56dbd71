"""Everything on a device beside the CPU, in a process of its own: what a machine without a GPU can know about one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow(190)
def test_the_library_on_another_device():
    place = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(place / "far_checks.py")]
    paths = os.pathsep.join(filter(None, [str(place), str(place.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

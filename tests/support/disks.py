"""A disk that is small enough to be filled."""

import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(place, size):
    """Mount one of so many kilobytes at a new folder, if that is allowed; gives how to mount it otherwise."""
    place.mkdir()
    mount = lambda *options: subprocess.run(["mount", *options, str(place)], capture_output=True).returncode == 0
    if not mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs"):
        pytest.skip("needs the right to mount")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)

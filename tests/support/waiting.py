"""Wait for an event, however long it takes beside other work."""

import time
from collections.abc import Callable

LONG = 900  # seconds after which what is waited for has not come: no check of speed


def wait_until(happened: Callable, seconds: float = LONG):
    """What the call gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"it has not happened in {seconds:.0f} s")

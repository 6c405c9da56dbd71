"""What many tests read, read once a session; seeds; and which unmarked tests took over two seconds."""

import json
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONG = 2.0  # seconds of a test, with its fixtures, above which it is to be marked slow


@pytest.fixture(scope="session")
def cells() -> Callable[[Path], list[dict]]:
    """The cells of a notebook."""
    return cache(lambda path: json.loads(path.read_text(encoding="utf-8"))["cells"])


@pytest.fixture(scope="session")
def committed_records() -> Callable[[str], list[dict]]:
    """The committed records of a profile, as they stand in their file; nobody changes them."""
    lines = lambda profile: open(ROOT / f"outputs/records/{profile}.jsonl", encoding="utf-8")
    return cache(lambda profile: [json.loads(line) for line in lines(profile)])


@pytest.fixture(autouse=True)
def seeds() -> None:
    """A test that forgets a seed gives the same every time."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, `slow(seconds)`: no worker begins one of minutes when the others have nothing left."""
    items.sort(key=lambda item: -max((m.args[0] for m in item.iter_markers("slow") if m.args), default=0))


spent: dict[str, float] = {}  # test -> seconds


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "slow" not in report.keywords:
        spent[report.nodeid] = spent.get(report.nodeid, 0.0) + report.duration


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    """Name the unmarked tests over two seconds, and keep the list for `make prepare`: nothing fails by the clock."""
    long = {test: round(seconds, 1) for test, seconds in spent.items() if seconds > LONG}
    if hasattr(config, "cache") and len(spent) > 500:  # the whole fast tier, or nearly
        config.cache.set("dmlstudy/long", long)
    for test, seconds in sorted(long.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"over {LONG:g} s and not marked slow: {seconds:5.1f} s {test}")

"""What the fast tests take of a grid: a fixed sample, while `make test-slow` takes the rest."""

from collections.abc import Iterable

import pytest


def sample(values: Iterable, fast: Iterable = (), every: int = 0) -> list:
    """Parameters of a grid, marked slow but for those in `fast` and each `every`-th."""
    values, fast = [*values], [*fast]
    assert all(value in values for value in fast), "a value of the sample is not in the grid"
    slow = lambda i, value: value not in fast and not (every and i % every == 0)
    parts = lambda value: value if isinstance(value, tuple) else (value,)
    return [pytest.param(*parts(v), marks=pytest.mark.slow) if slow(i, v) else v for i, v in enumerate(values)]

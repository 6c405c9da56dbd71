"""What the fast tests take of a grid: a fixed sample, while `make test-slow` takes the rest."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dmlstudy.study.config import PROFILES, Profile


def sample(values: Iterable, fast: Iterable = (), every: int = 0) -> list:
    """Parameters of a grid, marked slow but for those in `fast` and each `every`-th."""
    values, fast = [*values], [*fast]
    assert all(value in values for value in fast), "a value of the sample is not in the grid"
    slow = lambda i, value: value not in fast and not (every and i % every == 0)
    parts = lambda value: value if isinstance(value, tuple) else (value,)
    return [pytest.param(*parts(v), marks=pytest.mark.slow) if slow(i, v) else v for i, v in enumerate(values)]


def short_photos(steps: int, rates: int) -> Profile:
    """The profile for folders of images, with few steps and learning rates."""
    photos, short = PROFILES["photos"], {"steps": steps, "eval_every": steps}
    protocols = {name: values | short for name, values in photos.protocols.items()}
    return replace(photos, protocols=protocols, search=photos.search | {"lr": photos.search["lr"][-rates:]})

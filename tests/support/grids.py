"""Grids within one case: a test goes through all values and reports every failure, not the first alone."""

import functools
import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Mapping

import pytest


class Recipes(Mapping):
    """Values by name, each made when it is first asked for."""

    def __init__(self, recipes: Mapping[str, Callable]):
        self.recipes, self.made = dict(recipes), {}

    def __getitem__(self, name: str):
        if name not in self.made:
            self.made[name] = self.recipes[name]()
        return self.made[name]

    def __iter__(self):
        return iter(self.recipes)

    def __len__(self):
        return len(self.recipes)


class Failures(AssertionError):
    """All failures of one grid: where, in which line, and what."""

    def __init__(self, failures: list[tuple[str, str]]):
        lines = [f"{at}: {what}" for at, what in failures]
        super().__init__("\n  ".join([f"{len(failures)} of the grid fail:", *lines]))
        self.failures = failures


def described(error: BaseException, file: str) -> str:
    """The line of the test that fails, and the first lines of the message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    message = "; ".join(line.strip() for line in str(error).strip().splitlines()[:4])
    return f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {message}"


def text(value) -> str:
    """The name of a value within a grid."""
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items()) or "defaults"
    return getattr(value, "__name__", None) or " ".join(str(value).split())[:60]


def each(names: str, values: Iterable | Callable[..., Iterable]) -> Callable:
    """Call a test for each of some values within one case, and fail once with the list of all failures.

    `names` and `values` are those of `pytest.mark.parametrize`; `values` may be a function of other arguments, by
    their names. A mapping gives its keys to one name and its items to two. `monkeypatch` is a new one for each value.
    With FIRST_FAILURE in the environment the first failure ends the grid, as tools/mutate.py wants it.
    """
    keys = [name.strip() for name in names.split(",")]

    def around(test: Callable) -> Callable:
        own = inspect.signature(test).parameters
        asked = inspect.signature(values).parameters if callable(values) else {}
        file = inspect.unwrap(test).__code__.co_filename

        @functools.wraps(test)
        def loop(**given):
            listed = values(**{name: given[name] for name in asked}) if callable(values) else values
            listed = [*(listed.items() if isinstance(listed, Mapping) and len(keys) == 2 else listed)]
            assert listed, f"there are no {names} to test"
            failures, first = [], None
            given = {name: value for name, value in given.items() if name in own}
            for value in listed:
                chosen = dict(zip(keys, value if len(keys) > 1 else (value,), strict=True))
                at = " ".join(map(text, chosen.values()))
                try:
                    with pytest.MonkeyPatch.context() as patch:
                        test(**given | chosen | ({"monkeypatch": patch} if "monkeypatch" in own else {}))
                except Failures as inside:
                    failures += [(f"{at}, {place}", what) for place, what in inside.failures]
                    first = first or inside
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((at, described(error, file)))
                    first = first or error
                if failures and "FIRST_FAILURE" in os.environ:
                    break
            if failures:
                raise Failures(failures) from first

        outside = {**{name: p for name, p in own.items() if name not in keys}, **asked}
        loop.__signature__ = inspect.Signature([*outside.values()])
        return loop

    return around

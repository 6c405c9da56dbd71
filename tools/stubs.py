"""Write what the registries say: dmlstudy/__init__.pyi with types, and the names in the docstrings of `make_loss` and
the others. tools/export.py runs it."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import dmlstudy
from dmlstudy.core.checks import hyperparameters_of
from dmlstudy.losses import LOSSES
from dmlstudy.miners import MINERS
from dmlstudy.regularizers import REGULARIZERS
from dmlstudy.samplers import SAMPLERS
from tools.names import lines, metric_lines

FILE = Path(dmlstudy.__file__).with_suffix(".pyi")
HEAD = '''"""Written by tools/stubs.py from the registries; not edited by hand."""

from collections.abc import Mapping, Sequence
from typing import Literal, overload

from numpy import ndarray
from torch import Tensor

from .losses.base import Loss
from .miners import Miner
from .regularizers import Regularizer
from .samplers.coreset import MemoryBank
from .samplers.by_class import LabelSampler
'''
MADE = {  # function -> registry, what it returns, what every one of the registry takes
    "make_loss": (LOSSES, "Loss", ""),
    "make_miner": (MINERS, "Miner", ""),
    "make_sampler": (SAMPLERS, "LabelSampler", "labels: Tensor | Sequence[int], batch_size: int, seed: int = 0"),
    "make_regularizer": (REGULARIZERS, "Regularizer", ""),
}
VARIANT = "variant: Literal['corrected', 'published'] = 'corrected'"


def plain(annotation: str) -> str:
    """A type without the modules of its names."""
    return re.sub(r"\b(\w+\.)+(?=\w)", "", annotation)


def annotated(kind: type) -> dict[str, str]:
    """The type of each hyperparameter of a class, from the first of its parents that says it."""
    found = {}
    for parent in reversed(kind.__mro__):
        parameters = inspect.signature(parent.__init__).parameters.values()
        found |= {p.name: inspect.formatannotation(p.annotation) for p in parameters if p.annotation is not p.empty}
    return {name: plain(text) for name, text in found.items()}


def sizes(kind: type, taken: dict) -> str:
    """The arguments n_classes, dim and variant of `make_loss`: required where the loss needs them."""
    size = lambda name: f"{name}: int" if name in kind.needs else f"{name}: int | None = None"
    taken.pop("variant")
    return ", ".join([size("n_classes"), size("dim"), VARIANT])


def overloads(function: str) -> Iterator[str]:
    """One overload for each name of a registry, with its hyperparameters."""
    registry, made, common = MADE[function]
    for name, kind in registry.items():
        taken, types = hyperparameters_of(kind), annotated(kind)
        first = common or (sizes(kind, taken) if function == "make_loss" else "")
        given = {key: default for key, default in taken.items() if not re.search(rf"\b{key}:", first)}
        more = [f"{key}: {types[key]} = {default!r}" for key, default in given.items()]
        parts = [f"name: Literal[{name!r}]", *([first] if first else []), *(["*", *more] if more else [])]
        yield f"@overload\ndef {function}({', '.join(parts)}) -> {made}: ..."


def measured() -> Iterator[str]:
    """`evaluate`: what it returns goes by per_query."""
    kind, given = inspect.Parameter.KEYWORD_ONLY, inspect.signature(dmlstudy.evaluate).parameters.values()
    before = ", ".join(plain(str(p)) for p in given if p.name != "per_query")
    values = "dict[str, float]"
    for usual, made in (("Literal[False] = False", values), ("Literal[True]", f"tuple[{values}, dict[str, Tensor]]")):
        more = "" if any(p.kind == kind for p in given) else "*, "
        yield f"@overload\ndef evaluate({before}, {more}per_query: {usual}) -> {made}: ..."


def text() -> str:
    """The whole file."""
    homes = [(name, module) for name, (module, *_) in dmlstudy._NAMES.items() if name not in (*MADE, "evaluate")]
    imports = "".join(f"from .{module} import {name} as {name}\n" for name, module in homes)
    names = ", ".join(map(repr, dmlstudy._NAMES))
    made = "\n".join(line for function in MADE for line in overloads(function))
    made += "\n" + "\n".join(measured())
    return f"{HEAD}{imports}\n__version__: str\n__all__ = [{names}]\n\n{made}\n"


def with_lines(source: str, function: str, argument: str, listed: list[str]) -> str:
    """A module with more lines under an argument in the docstring of a function."""
    start = source.index(f"\n        {argument}: ", source.index("    Args:", source.index(f"def {function}(")))
    end = source.index("\n", start + 1)
    return source[:end] + "".join(f"\n            {line}" for line in listed) + source[end:]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    listed = {name: ("hyperparameters", lines(name.removeprefix("make_"))) for name in MADE}
    for function, more in (listed | {"evaluate": ("metrics", metric_lines())}).items():
        module = Path(inspect.getfile(getattr(dmlstudy, function)))
        module.write_text(with_lines(module.read_text(encoding="utf-8"), function, *more), encoding="utf-8")

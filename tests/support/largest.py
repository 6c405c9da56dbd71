"""How large the arrays are that a computation makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Largest(TorchDispatchMode):
    """The most numbers that any array holds which an operation gives out."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        given = operation(*args, **(kwargs or {}))
        arrays = [x for x in (given if isinstance(given, tuple | list) else [given]) if isinstance(x, torch.Tensor)]
        self.numbers = max([self.numbers, *(x.untyped_storage().nbytes() // x.element_size() for x in arrays)])
        return given

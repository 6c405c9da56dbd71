"""Batches on which losses, miners and regularizers must stay finite, or refuse clearly: used by several test files."""

import torch
from grids import Recipes

from dmlstudy.core.random import generator

CLASSES, DIM = 4, 6


def draw(n: int, dtype=torch.float32, purpose: str = "edge batches") -> torch.Tensor:
    """Normal embeddings (n, DIM), the same in every run."""
    return torch.randn(n, DIM, generator=generator(0, purpose, n)).to(dtype)


PAIRS = torch.arange(CLASSES).repeat_interleave(2)  # two images of each class
CENTRES = torch.eye(CLASSES, DIM)

# name -> (embeddings, labels); labels are below CLASSES
FINITE = Recipes(
    {
        "easy": lambda: (CENTRES[PAIRS] + 0.01 * draw(8), PAIRS),
        "random": lambda: (draw(8), PAIRS),
        "singletons": lambda: (draw(4), torch.arange(CLASSES)),
        "one singleton": lambda: (draw(5), torch.tensor([0, 0, 1, 1, 2])),
        "one class": lambda: (draw(6), torch.zeros(6, dtype=torch.int64)),
        "unequal classes": lambda: (draw(9), torch.tensor([0, 3, 0, 1, 0, 3, 0, 1, 0])),
        "duplicates": lambda: (draw(4)[PAIRS], PAIRS),
        "duplicates across classes": lambda: (draw(2).repeat(4, 1), PAIRS),
        "zero vectors": lambda: (draw(8) * (torch.arange(8) % 3 > 0)[:, None], PAIRS),
        "all zero": lambda: (torch.zeros(8, DIM), PAIRS),
        "antipodal": lambda: (draw(1) * torch.tensor([1.0, -1.0]).repeat(4)[:, None], PAIRS),
        "collapsed": lambda: (draw(1).repeat(8, 1), PAIRS),
        "constant": lambda: (torch.ones(8, DIM), PAIRS),
        "long": lambda: (1e3 * draw(8), PAIRS),
        "short": lambda: (1e-6 * draw(8), PAIRS),
        "two": lambda: (draw(2), torch.tensor([0, 0])),
        "one": lambda: (draw(1), torch.tensor([1])),
        "none": lambda: (draw(0), torch.tensor([], dtype=torch.int64)),
        "labels int32": lambda: (draw(8), PAIRS.int()),
        "not contiguous": lambda: (draw(DIM)[:, :8].repeat(1, 2).T[:8], PAIRS),
        "float64": lambda: (draw(8, torch.float64), PAIRS),
        "float16": lambda: (draw(8, torch.float16), PAIRS),
        "bfloat16": lambda: (draw(8, torch.bfloat16), PAIRS),
        "float16, long": lambda: (1e3 * draw(8, torch.float16), PAIRS),
        "bfloat16, collapsed": lambda: (draw(1, torch.bfloat16).repeat(8, 1), PAIRS),
    }
)

# name -> (embeddings, labels, what the ValueError says)
REFUSED = Recipes(
    {
        "one vector": lambda: (draw(8)[0], PAIRS, "shape (B, D)"),
        "integer embeddings": lambda: (draw(8).long(), PAIRS, "floating point"),
        "too few labels": lambda: (draw(8), PAIRS[:7], "shape (8,)"),
        "labels in a column": lambda: (draw(8), PAIRS[:, None], "shape (8,)"),
        "float labels": lambda: (draw(8), PAIRS.float(), "use labels.long()"),
        "boolean labels": lambda: (draw(8), PAIRS > 1, "use labels.long()"),
        "labels elsewhere": lambda: (draw(8), PAIRS.to("meta"), "labels are on meta"),
    }
)

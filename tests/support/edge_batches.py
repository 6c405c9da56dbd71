"""Batches on which losses, miners and regularizers must stay finite, or refuse clearly: used by several test files."""

import torch

from dmlstudy.core import generator

CLASSES, DIM = 4, 6


def draw(n: int, dtype=torch.float32, purpose: str = "edge batches") -> torch.Tensor:
    """Normal embeddings (n, DIM), the same in every run."""
    return torch.randn(n, DIM, generator=generator(0, purpose, n)).to(dtype)


PAIRS = torch.arange(CLASSES).repeat_interleave(2)  # two images of each class
CENTRES = torch.eye(CLASSES, DIM)

# name -> (embeddings, labels); labels are below CLASSES
FINITE = {
    "easy": (CENTRES[PAIRS] + 0.01 * draw(8), PAIRS),
    "random": (draw(8), PAIRS),
    "singletons": (draw(4), torch.arange(CLASSES)),
    "one singleton": (draw(5), torch.tensor([0, 0, 1, 1, 2])),
    "one class": (draw(6), torch.zeros(6, dtype=torch.int64)),
    "unequal classes": (draw(9), torch.tensor([0, 3, 0, 1, 0, 3, 0, 1, 0])),
    "duplicates": (draw(4)[PAIRS], PAIRS),
    "duplicates across classes": (draw(2).repeat(4, 1), PAIRS),
    "zero vectors": (draw(8) * (torch.arange(8) % 3 > 0)[:, None], PAIRS),
    "all zero": (torch.zeros(8, DIM), PAIRS),
    "antipodal": (draw(1) * torch.tensor([1.0, -1.0]).repeat(4)[:, None], PAIRS),
    "collapsed": (draw(1).repeat(8, 1), PAIRS),
    "constant": (torch.ones(8, DIM), PAIRS),
    "long": (1e3 * draw(8), PAIRS),
    "short": (1e-6 * draw(8), PAIRS),
    "two": (draw(2), torch.tensor([0, 0])),
    "one": (draw(1), torch.tensor([1])),
    "none": (draw(0), torch.tensor([], dtype=torch.int64)),
    "labels int32": (draw(8), PAIRS.int()),
    "not contiguous": (draw(DIM)[:, :8].repeat(1, 2).T[:8], PAIRS),
    "float64": (draw(8, torch.float64), PAIRS),
    "float16": (draw(8, torch.float16), PAIRS),
    "bfloat16": (draw(8, torch.bfloat16), PAIRS),
    "float16, long": (1e3 * draw(8, torch.float16), PAIRS),
    "bfloat16, collapsed": (draw(1, torch.bfloat16).repeat(8, 1), PAIRS),
}

# name -> (embeddings, labels, what the ValueError says)
REFUSED = {
    "one vector": (draw(8)[0], PAIRS, "shape (B, D)"),
    "integer embeddings": (draw(8).long(), PAIRS, "floating point"),
    "too few labels": (draw(8), PAIRS[:7], "shape (8,)"),
    "labels in a column": (draw(8), PAIRS[:, None], "shape (8,)"),
    "float labels": (draw(8), PAIRS.float(), "use labels.long()"),
    "boolean labels": (draw(8), PAIRS > 1, "use labels.long()"),
    "labels elsewhere": (draw(8), PAIRS.to("meta"), "labels are on meta"),
}

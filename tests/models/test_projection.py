"""Projections fitted to features: what cannot be fitted is refused."""

import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.models.projection import fit_projection


@pytest.mark.parametrize("kind, n, ridge", [("whitened", 10, 0.0), ("whitened", 1, 0.01), ("lda", 12, 0.01)])
def test_features_that_do_not_vary_enough_are_refused(kind, n, ridge):
    """Fewer images than directions and no ridge; one image; one image a class."""
    features = torch.randn(n, 64, generator=generator(0, "features"))
    with pytest.raises(ValueError, match=f"{kind} of these features is not finite: they vary in too few directions"):
        fit_projection(kind, features, torch.arange(n), None if ridge == 0 else 4, ridge)


def test_a_ridge_makes_few_features_enough():
    weight, bias = fit_projection("whitened", torch.randn(10, 64, generator=generator(0, "features")), ridge=0.01)
    assert weight.isfinite().all() and bias.isfinite().all()

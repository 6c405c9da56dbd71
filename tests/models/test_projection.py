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


@pytest.mark.parametrize(
    "features, dim, said",
    [
        (torch.full((3, 4), torch.nan), None, "finite features"),
        (torch.zeros(0, 4), None, "finite features"),
        (torch.eye(4), 2.0, "dim of the projection must be an integer or None, at least 1 and at most 4; got 2.0"),
        (torch.eye(4), 5, "at most 4; got 5"),
    ],
)
def test_features_and_dimensions_that_fit_nothing_are_refused(features, dim, said):
    with pytest.raises(ValueError, match=said):
        fit_projection("whitened", features, dim=dim)

"""The network of the photographs in two parts, against timm's whole one."""

import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.models.efficientnet_lite import _Tail, make_lite0


def test_the_two_parts_are_timms_network():
    """With the same weights: its last convolution, normalisation and pooling are the tail."""
    timm = pytest.importorskip("timm")
    net, whole = make_lite0(None, generator(1, "model")).eval(), timm.create_model("tf_efficientnet_lite0").eval()
    stem = dict(zip(("conv_stem", "bn1", "blocks"), net.stem, strict=True))
    for name, part in stem.items():
        getattr(whole, name).load_state_dict(part.state_dict())
    whole.conv_head.weight.data = net.tail.conv.weight.data[..., None, None]
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = getattr(net.tail.bn, name).data
        value.uniform_(0.5, 1.5, generator=generator(1, name))
        getattr(whole.bn2, name).data = value
    images = torch.randn(2, 3, 96, 128, generator=generator(0, "images"))
    with torch.no_grad():
        expected = whole.global_pool(whole.forward_features(images))
        assert torch.allclose(net(images), expected, atol=1e-5)
        assert net.stem_features(images).shape == (2, 12, 320)


def test_new_weights_are_those_of_their_generator():
    pytest.importorskip("timm")
    weights = lambda seed: torch.cat([v.flatten() for v in make_lite0(None, generator(seed, "model")).parameters()])
    assert torch.equal(weights(1), weights(1)) and not torch.equal(weights(1), weights(2))


def test_the_tail_divides_by_the_networks_own_epsilon():
    """Where the variance is as small as epsilon, the default of torch would give 1.4 times as much."""
    tail = _Tail(4, 4).eval()
    with torch.no_grad():
        tail.conv.weight.copy_(torch.eye(4))
        tail.bn.running_var.fill_(1e-3)
    assert tail(torch.full((1, 1, 4), 0.1)).tolist()[0] == pytest.approx([0.1 / 0.002**0.5] * 4, rel=1e-5)

"""From images on disk to two training steps."""

import pytest
import torch
from miniatures import (
    accept,
    build,
    own_cache,  # noqa: F401, a fixture of all tests here
)
from torch import nn
from torch.utils.data import DataLoader

from dmlstudy.data.formats import load_images
from dmlstudy.data.images import verify
from dmlstudy.data.prepare import check
from dmlstudy.data.transforms import Views, make_transform
from dmlstudy.models.backbones import freeze_batchnorm, make_backbone
from tests.data.test_transforms import numbered

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


RUNS = [
    ("cub200", "class folders in images", "base", "resnet50", 224),
    ("cars196", "official list", "base", "googlenet", 227),
    ("sop", "lists in Info_Files", "red", "bninception", 224),
    ("inshop", "official folders", "sec", "bninception", 227),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout", "transform", "backbone", "size"), RUNS)
def test_two_training_steps_at_the_papers_sizes(name, layout, transform, backbone, size, tmp_path, monkeypatch):
    root = build(name, layout, tmp_path)
    accept(monkeypatch, name, load_images(name, root, strict=False))
    assert check(name, root).ok
    data = load_images(name, root)
    train = verify({"train": data.train})[0]["train"]
    views = Views(train, make_transform(transform, True, backbone))
    loader = DataLoader(views, batch_sampler=numbered([[0, 1, 3, 4], [5, 4, 2, 0]]))
    net = make_backbone(backbone)
    model = nn.Sequential(net if backbone == "googlenet" else freeze_batchnorm(net), nn.Linear(net.dim, 2)).train()
    before = {k: v.clone() for k, v in net.named_parameters()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=4e-4)
    for x, y, _ in loader:
        assert tuple(x.shape) == (4, 3, size, size)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    assert all(not torch.equal(before[k], v) and v.isfinite().all() for k, v in net.named_parameters())
    test = data.query or data.test
    test = Views(test, make_transform(transform, False, backbone))
    with torch.inference_mode():
        f = net.eval()(next(iter(DataLoader(test, batch_size=2)))[0])
    assert tuple(f.shape) == (2, net.dim) and f.isfinite().all()

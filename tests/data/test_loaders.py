"""What a run is fed with: features of a frozen stem, and what is held in memory."""

import pytest
import torch
from miniatures import own_cache  # noqa: F401, a fixture of all tests here
from PIL import Image

from dmlstudy.data import loaders
from dmlstudy.data.images import Files
from dmlstudy.data.splits import Data, Split
from dmlstudy.study.run import Run


class Stem(torch.nn.Module):
    """A frozen stem that notes whether convolutions may be in TF32."""

    def __init__(self):
        super().__init__()
        self.w, self.seen = torch.nn.Parameter(torch.zeros(1)), []

    def stem_features(self, x):
        self.seen.append(torch.backends.cudnn.allow_tf32)
        return x.flatten(1)


def test_a_frozen_stem_convolves_in_float32_and_leaves_gradients_on(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # torch's default
    net = Stem()
    for _ in loaders._pieces([*range(20)], net, lambda image: torch.zeros(3, 4, 4)):
        assert torch.is_grad_enabled() and torch.backends.cudnn.allow_tf32
    loaders.in_pieces(net.stem_features, torch.zeros(4, 1, 4, 4))
    assert len(net.seen) > 1 and not any(net.seen)


def test_a_frozen_stem_of_what_is_held_in_memory_is_refused(monkeypatch):
    split = Split(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.arange(4) // 2, ("a", "b"))
    monkeypatch.setattr(loaders, "data_of", lambda run: Data("cifar10", split, split))
    run = Run(dataset="cifar10", model="efficientnet_lite0", transform="squash128", weights=None, fold=None)
    with pytest.raises(ValueError, match="cifar10 is held in memory, and a frozen stem reads files: .*train_stem=True"):
        loaders.feed_of(run, {"train": split, "test": split}, torch.device("cpu"))


def test_images_are_held_where_their_cache_cannot_be_written(tmp_path, monkeypatch):
    for i in range(2):
        Image.new("RGB", (9, 9), (99 * i,) * 3).save(tmp_path / f"{i}.png")
    split = Split(Files(tmp_path, ["0.png", "1.png"]), torch.tensor([0, 1]), ("a", "b"))
    monkeypatch.setattr(loaders, "data_of", lambda run: Data("mine", split, split))
    run = Run(dataset="mine", transform="squash96", pixels="held", model="resnet50")
    held = []
    for _ in range(2):  # into the cache, and out of it
        held.append(loaders._held_bytes.__wrapped__(run, tmp_path, torch.device("cpu")))
    (tmp_path / "none").write_text("a file where the folder would be")
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "none"))
    held.append(loaders._held_bytes.__wrapped__(run, tmp_path, torch.device("cpu")))
    assert all(places == {"0.png": 0, "1.png": 1} and x.equal(held[0][1]) for places, x in held)
    assert held[0][1].shape == (2, 2, 3, 96, 96) and held[0][1].flatten(1).unique(dim=1).tolist() == [[0], [99]]

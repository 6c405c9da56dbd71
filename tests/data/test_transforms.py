"""Transforms against torchvision, views, and batches made on a device."""

import itertools

import numpy as np
import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.functional as F
from miniatures import (
    own_cache,  # noqa: F401, a fixture of all tests here
    photograph,
)
from PIL import Image, ImageOps
from scipy.stats import ks_2samp
from torch import nn
from torch.utils.data import DataLoader

from dmlstudy.core.random import generator
from dmlstudy.data.images import Decoded, Files, write_decoded
from dmlstudy.data.splits import Split
from dmlstudy.data.transforms import (
    SCALINGS,
    STEPS,
    TRANSFORMS,
    BatchTransform,
    Pixels,
    Transform,
    Views,
    draw_box,
    draw_boxes,
    groups_of_sizes,
    make_transform,
    pad_pixels,
    padded,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*It is taken all the same:UserWarning"
)  # miniatures are never complete


RRC, FLIP, NORM = (
    T.RandomResizedCrop,
    T.RandomHorizontalFlip(),
    T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)


THEIRS = {
    "base": [RRC(224), FLIP],
    "red": [T.Resize(256), T.RandomCrop(224), FLIP],
    "big": [RRC(256), FLIP],
    "adv": [RRC(224), T.RandomGrayscale(0.2), T.ColorJitter(0.2, 0.2, 0.2, 0.2), FLIP],
    "sec": [T.Resize(256), RRC(227, scale=(0.16, 1)), FLIP],
    "simclr": [
        RRC(32, scale=(0.2, 1)),
        FLIP,
        T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
        T.RandomGrayscale(0.2),
    ],
    "cifar": [RRC(32, scale=(0.2, 1)), FLIP],
    **{f"squash{n}": [T.Resize((n, n), T.InterpolationMode.BICUBIC), FLIP] for n in (96, 128, 160, 224)},
    **{f"fit{n}": [T.Lambda(lambda image, n=n: inside(image, n)), FLIP] for n in (96, 128, 160, 224)},
}


def inside(image, n):
    """The longer side n pixels, in the middle of a grey square."""
    long, short = max(image.size), min(image.size)
    size = [n if side == long else round(n * short / long) for side in image.size]
    square = Image.new("RGB", (n, n), (127, 127, 127))
    square.paste(image.resize(size, Image.Resampling.BICUBIC), [round((n - side) / 2) for side in size])
    return square


@pytest.mark.parametrize(
    "name, mean, std",
    [
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ("resnet18.a1_in1k", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ("hf-hub:timm/resnet18.a1_in1k", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # not asked of the hub
    ],
)
def test_networks_of_timm_get_their_own_normalisation(name, mean, std):
    pytest.importorskip("timm")
    scaling = make_transform("base", False, f"timm:{name}").scaling
    assert (scaling.mean, scaling.std) == (mean, std)


def test_all_transforms_are_compared():
    assert set(THEIRS) == set(TRANSFORMS)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_training_transforms_equal_torchvisions_bit_for_bit(name):
    ours = make_transform(name, train=True)
    theirs = T.Compose([*THEIRS[name], T.ToTensor(), NORM if ours.scaling is SCALINGS["imagenet"] else nn.Identity()])
    for seed, size in enumerate([(300, 260), (260, 300), (640, 100), (256, 256)] * 2):
        image = photograph(*size, seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            want = theirs(image)
            before = torch.get_rng_state()
            got = ours(image, torch.Generator().manual_seed(seed))
            assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone
        if ours.scaling is SCALINGS["cifar"]:
            want = T.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))(want)
        assert torch.equal(got, want)


@pytest.mark.parametrize(("name", "size"), [("base", 224), ("red", 224), ("adv", 224), ("big", 256), ("sec", 227)])
def test_test_transforms_equal_torchvisions(name, size):
    image = photograph(333, 301)
    theirs = T.Compose([T.Resize(256), T.CenterCrop(size), T.ToTensor()])
    assert torch.equal(make_transform(name, False)(image), NORM(theirs(image)))
    mean = torch.tensor([104.0, 117, 123 if name == "sec" else 128])[:, None, None]
    caffe = theirs(image).flip(0) * 255 - mean
    torch.testing.assert_close(make_transform(name, False, "bninception")(image), caffe, atol=1e-3, rtol=0)
    google = make_transform(name, False, "googlenet")(image)
    assert tuple(google.shape) == (3, *[227 if size == 224 else size] * 2)


def test_boxes_equal_torchvisions():
    for seed in range(300):
        g = generator(seed, "sizes")
        height, width = torch.randint(1, 400, (2,), generator=g).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            want = T.RandomResizedCrop.get_params(torch.empty(3, height, width), [0.08, 1.0], [3 / 4, 4 / 3])
        assert draw_box(height, width, (0.08, 1.0), torch.Generator().manual_seed(seed)) == want


def test_boxes_of_a_batch_are_distributed_as_single_ones():
    n, g = 3000, generator(0, "boxes")
    batch = draw_boxes(torch.tensor([[256, 341]]).repeat(n, 1), (0.08, 1.0), g)
    single = torch.tensor([draw_box(256, 341, (0.08, 1.0), g) for _ in range(n)])
    for column in range(4):
        assert ks_2samp(batch[:, column].numpy(), single[:, column].numpy()).pvalue > 1e-3
    assert (
        (batch[:, :2] >= 0).all()
        and (batch[:, 0] + batch[:, 2] <= 256).all()
        and (batch[:, 1] + batch[:, 3] <= 341).all()
    )
    odd = torch.tensor([[10, 1000], [1000, 10], [1, 1]])
    want = [draw_box(*size, (1.0, 1.0), generator(0, "odd")) for size in odd.tolist()]
    assert draw_boxes(odd, (1.0, 1.0), generator(0, "odd")).tolist() == [list(box) for box in want]


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    "A split of eight photographs of different sizes, with a decoded copy"
    tmp_path = tmp_path_factory.mktemp("photographs")
    sizes = [(300, 260), (260, 300), (400, 256), (256, 256), (500, 300), (270, 512), (333, 301), (256, 700)]
    for i, size in enumerate(sizes):
        photograph(*size, i).save(tmp_path / f"{i}.png")
    files = Files(tmp_path, [f"{i}.png" for i in range(8)])
    write_decoded(files, tmp_path / "decoded.json")
    files = Files(tmp_path, files.paths, decoded=Decoded(tmp_path / "decoded.json"))
    return Split(files, torch.arange(8) // 2, tuple("abcd"))


def numbered(batches, epoch=0):
    """Images with the epoch and their position in it."""
    starts = itertools.accumulate(map(len, batches), initial=0)
    return [[(i, epoch, start + k) for k, i in enumerate(batch)] for batch, start in zip(batches, starts, strict=False)]


@pytest.mark.parametrize("name", ["adv", "sec"])
def test_views_do_not_depend_on_the_workers(some, name):
    views, images = Views(some, make_transform(name, True), seed=3), [[0, 5, 5], [7, 1, 2]]
    load = lambda epoch, n: [*DataLoader(views, batch_sampler=numbered(images, epoch), num_workers=n)]
    alone, together = ([*load(0, workers), *load(1, workers)] for workers in (0, 2))
    for (x, y, i), (x2, y2, i2) in zip(alone, together, strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2) and torch.equal(i, i2)
    x = alone[0][0]
    assert alone[0][1].tolist() == [0, 2, 2] and not torch.equal(x[1], x[2]) and not torch.equal(x, alone[2][0])
    assert all(torch.equal(a[0], b[0]) for a, b in zip(load(1, 0), alone[2:], strict=True))
    assert not torch.equal(Views(some, views.transform, seed=4)[0, 0, 0][0], x[0])


def crops(split, transform, sizes, seed):
    "Image by image, the boxes and flips that the batch drew"
    box, flips, size = BatchTransform(transform).boxes(sizes, generator(seed))
    for i, ((top, left, h, w), flipped) in enumerate(zip(box.tolist(), flips.tolist(), strict=True)):
        crop = split[i][0].crop((left, top, left + w, top + h)).resize((size, size), Image.Resampling.BILINEAR)
        yield transform.scaling(T.functional.to_tensor(ImageOps.mirror(crop) if flipped else crop))


@pytest.mark.parametrize("backbone", ["resnet50", "bninception"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", ["base", "red", "big", "sec"])
def test_a_batch_equals_image_by_image(some, name, train, backbone):
    transform = make_transform(name, train, backbone)
    loader = DataLoader(Pixels(some), batch_size=8, collate_fn=pad_pixels)
    pixels, sizes, labels, indices = next(iter(loader))
    assert torch.equal(labels, some.labels) and indices.tolist() == [*range(8)] and pixels.dtype == torch.uint8
    got = BatchTransform(transform)(pixels, sizes, generator(1))
    want = torch.stack([*crops(some, transform, sizes, 1)])
    levels = (got - want).abs().mul(torch.tensor(transform.scaling.std)[:, None, None]).mul(255)
    exact = not train or name == "red"  # nothing is resized
    assert levels.max() < (0.01 if exact else 1.1)
    if not train:
        one_by_one = torch.stack([transform(some[i][0]) for i in range(8)])
        torch.testing.assert_close(got, one_by_one, atol=1e-3 if backbone == "bninception" else 1e-5, rtol=0)


def as_items(sizes):
    return [(np.asarray(photograph(w, h, i)), i % 3, 10 + i) for i, (h, w) in enumerate(sizes)]


def test_an_ordinary_batch_is_one_tensor_with_the_same_pixels_as_ever():
    g = generator(0, "sizes")
    longer = torch.randint(256, 520, (24,), generator=g).tolist()
    items = as_items([(256, n) if i % 3 else (n, 256) for i, n in enumerate(longer)])
    pixels, sizes, labels, indices = pad_pixels(items)
    assert torch.equal(pixels, padded([image for image, *_ in items])) and labels.tolist() == [0, 1, 2] * 8
    assert indices.tolist() == [*range(10, 34)] and sizes.tolist() == [[*image.shape[:2]] for image, *_ in items]
    transform = BatchTransform(make_transform("base", True))
    box, flips, size = transform.boxes(sizes, generator(1))
    assert torch.equal(transform(pixels, sizes, generator(1)), transform.cut(pixels, box, flips, size))


@pytest.mark.parametrize("name", ["base", "red", "sec"])
@pytest.mark.parametrize("train", [True, False])
def test_panoramas_do_not_blow_a_batch_up(name, train):
    ordinary = [(256, 300), (340, 256)] * 6
    places = {2: (256, 3000), 5: (3100, 256), 9: (256, 5760), 12: (256, 3000)}
    sizes = ordinary[:]
    [sizes.insert(i, size) for i, size in sorted(places.items())]
    items = as_items(sizes)
    parts, held, labels, indices = pad_pixels(items)
    assert sum(part.numel() for _, part in parts) <= 4 * sum(image.size for image, *_ in items)
    assert sorted(i for rows, _ in parts for i in rows.tolist()) == [*range(16)] and held.tolist() == [
        [*size] for size in sizes
    ]
    transform = BatchTransform(make_transform(name, train))
    got = transform(parts, held, generator(3))
    box, flips, size = transform.boxes(held, generator(3))
    for i, (image, *_) in enumerate(items):
        alone = transform.cut(padded([image]), box[i : i + 1], flips[i : i + 1], size)
        torch.testing.assert_close(got[i : i + 1], alone, atol=1e-5, rtol=0)
    assert indices.tolist() == [*range(10, 26)] and labels.tolist() == [i % 3 for i in range(16)]


def test_groups_of_sizes_are_bounded():
    g = generator(0, "groups")
    for _ in range(300):
        n = int(torch.randint(1, 60, (1,), generator=g))
        longer = (256 * torch.exp(4 * torch.rand(n, generator=g) ** 3)).long()
        sizes = torch.stack([torch.full_like(longer, 256), longer], 1)
        sizes = torch.where(torch.rand(n, 1, generator=g) < 0.5, sizes, sizes.flip(1)).numpy()
        groups = groups_of_sizes(sizes)
        assert sorted(np.concatenate(groups).tolist()) == [*range(n)]
        for rows in groups:
            assert len(rows) * sizes[rows].max(0).prod() <= 4 * sizes[rows].prod(1).sum()
        if n * sizes.max(0).prod() <= 4 * sizes.prod(1).sum():
            assert len(groups) == 1


@pytest.mark.parametrize("name", ["cifar", "simclr"])
def test_a_transform_that_does_not_crop_makes_no_batch(name):
    with pytest.raises(ValueError, match="without a crop leaves images in different sizes"):
        BatchTransform(make_transform(name, False))


def test_flips_are_fair(some):
    _, flips, _ = BatchTransform(make_transform("red", True)).boxes(torch.full((4000, 2), 256), generator(0))
    assert abs(flips.float().mean() - 0.5) < 0.04


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_batch_on_cuda(some):
    pixels, sizes, *_ = pad_pixels([Pixels(some)[i] for i in range(8)])
    transform = BatchTransform(make_transform("base", True))
    got = transform(pixels.cuda(), sizes, generator(0)).cpu()
    torch.testing.assert_close(got, transform(pixels, sizes, generator(0)), atol=2e-2, rtol=0)


def test_what_is_done_without_torchvision_is_what_it_does():
    """Crops of the centre at odd and even rests, grey, and pixels of pictures, arrays and tensors, to the bit."""
    rng, transform = np.random.default_rng(0), Transform((), SCALINGS["imagenet"])
    for h, w in ((30, 41), (37, 30), (31, 31)):
        array = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        picture, expected = Image.fromarray(array), transform.scaling(F.to_tensor(array))
        for given in (picture, array, torch.from_numpy(array).permute(2, 0, 1)):
            assert torch.equal(transform(given), expected)
        for size in (5, 22, 27, 30):
            cut = STEPS["center_crop"](picture, None, size)
            assert np.array_equal(cut, F.center_crop(picture, [size, size]))
        grey = STEPS["grey"](picture, generator(0), 1.0)
        assert np.array_equal(grey, F.rgb_to_grayscale(picture, 3))
        assert torch.equal(transform(picture.convert("L")), transform(grey))  # one channel stands for three
        assert torch.equal(transform(torch.from_numpy(np.array(grey)[None, :, :, 0])), transform(grey))

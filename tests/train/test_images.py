"""A run on images on disk: the same record however many workers decode, resumed, and refused with the file's name."""

import hashlib
import math
import shutil

import pytest
import torch
from miniatures import accept, build, photograph
from PIL import Image

from dmlstudy import train
from dmlstudy.core.random import generator
from dmlstudy.data import loaders as feeds
from dmlstudy.data.formats import load_images
from dmlstudy.data.images import Files
from dmlstudy.data.prepare import prepare
from dmlstudy.data.splits import first_of_each_class
from dmlstudy.data.transforms import padded
from dmlstudy.models.backbones import make_backbone
from dmlstudy.samplers import make_sampler
from dmlstudy.study import records
from dmlstudy.study.config import run_of
from dmlstudy.study.run import make_run
from tests.train.test_train import on_gpu, steps_without_waiting, stop_at

BIRDS = {
    "dataset": "cub200", "fold": None, "model": "resnet50", "weights": None, "embed_dim": 8, "method": "Triplet (R)",
    "batch_size": 4, "steps": 2, "eval_every": 1, "lr": 1e-4,
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where the library looks for data sets."""
    monkeypatch.setenv("DMLSTUDY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path / "data"))
    feeds._files.cache_clear()
    yield tmp_path / "data"
    feeds._files.cache_clear()


@pytest.fixture
def birds(place, monkeypatch):
    """A miniature CUB200-2011 where the library looks for it."""
    build("cub200", "class folders in images", place)
    accept(monkeypatch, "cub200", load_images("cub200", place, strict=False))
    return place


def content(record: dict) -> dict:
    return {name: part for name, part in record.items() if name != "made"}


@pytest.mark.slow
@pytest.mark.parametrize("pixels", ["files", "decoded", "device"])
def test_workers_change_nothing_and_a_stopped_run_goes_on(birds, tmp_path, pixels):
    if pixels != "files":
        prepare("cub200", decoded=True)
    run = make_run(BIRDS, pixels=pixels)
    whole = train.fit(run, device="cpu", workers=0)
    assert whole["curves"]["test"]["step"] == [0, 1, 2] and whole["terms"]["step"] == [1, 2]
    assert content(train.fit(run, device="cpu", workers=2)) == content(whole)

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train.fit(run, "cpu", folder, [stop_at(2), train.Checkpoint(every=0)], 0)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["state"]["step"] == 1
    assert content(train.fit(run, device="cpu", folder=folder, workers=0)) == content(whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sampler", "precision"),
    [("googlenet", "spc", "float32"), ("bninception", "spc", "bf16"), ("resnet50", "gc", "tf32")],
)
def test_networks_samplers_and_precisions(birds, model, sampler, precision):
    fields = {
        **BIRDS,
        "model": model,
        "sampler": sampler,
        "precision": precision,
        "steps": 1,
        "transform": "sec",
        "channels_last": sampler == "gc",
    }
    record = train.fit(make_run(fields), device="cpu", workers=0)
    assert record["curves"]["test"]["step"] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layout", "part"),
    [
        ("inshop", "list and images", "recall@10"),
        ("sop", "official lists", "recall@1000"),
        ("cars196", "official halves", "nmi"),
    ],
)
def test_every_set_is_checked_trained_measured_and_recorded(place, monkeypatch, name, layout, part):
    build(name, layout, place)
    run = make_run(BIRDS, dataset=name)
    with pytest.raises(ValueError, match="--no-strict"):
        train.fit(run, device="cpu", workers=0)
    with pytest.warns(UserWarning):
        record = train.fit(make_run(run.changed(), strict_data=False), device="cpu", workers=0)
    test = record["curves"]["test"]
    assert test["step"] == [0, 1, 2] and all(0 <= value <= 1 for value in test[part])
    assert test["norm_mean"][0] != test["norm_mean"][2]


def stopped(run, folder):
    """A run that ends after its first evaluation but one."""

    with pytest.raises(KeyboardInterrupt):
        train.fit(run, "cpu", folder, [stop_at(2), train.Checkpoint(every=0)], 0)
    assert (folder / "checkpoint.pt").is_file()


@pytest.mark.slow
def test_a_run_with_images_left_out_is_not_gone_on_with(birds, tmp_path):
    broken = next(birds.rglob("*Auk_1.jpg"))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:300])
    run, folder = make_run(BIRDS, strict_data=False), tmp_path / "run"
    stopped(run, folder)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["material"]["train"] == 5
    broken.write_bytes(whole)
    feeds._files.cache_clear()  # as in another process
    again, fresh = train.fit(run, "cpu", folder, workers=0), train.fit(run, "cpu", workers=0)
    assert content(again) == content(fresh) and "skipped_images" not in again["made"]


@pytest.mark.slow
def test_a_run_with_other_images_of_the_same_number_is_not_gone_on_with(birds, tmp_path):
    run, folder = make_run(BIRDS), tmp_path / "run"
    stopped(run, folder)
    photograph(301, 207, seed=99).save(next(birds.rglob("*Auk_1.jpg")))
    again, fresh = train.fit(run, "cpu", folder, workers=0), train.fit(run, "cpu", workers=0)
    assert content(again) == content(fresh)


@pytest.mark.slow
def test_a_run_from_other_weights_is_not_gone_on_with_and_says_which_it_had(birds, tmp_path):
    file, folder = tmp_path / "weights.pth", tmp_path / "run"
    net = make_backbone("resnet50", None, rng=generator(0, "first")).state_dict()
    torch.save(net, file)
    run = make_run(BIRDS, weights=str(file), steps=2, eval_every=1)
    stopped(run, folder)
    torch.save({name: x * 0.9 if name == "conv1.weight" else x for name, x in net.items()}, file)
    again, fresh = train.fit(run, "cpu", folder, workers=0), train.fit(run, "cpu", workers=0)
    assert content(again) == content(fresh)
    assert again["made"]["weights_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.slow
def test_images_that_could_not_be_read_for_a_while_are_read_again(birds, monkeypatch):
    shutil.rmtree(birds.parent / "cache/verified")  # `birds` has read them all
    opened, failing = Image.open, True

    def flaky(path, *args, **options):
        if failing and path.name == "Owl_1.jpg":
            raise OSError(5, "Input/output error", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Image, "open", flaky)
    run = make_run(BIRDS, steps=0)
    with pytest.raises(ValueError, match="1 of 12 images cannot be read: .*Owl_1.jpg"):
        train.fit(run, device="cpu", workers=0)
    failing = False
    lax = make_run(run.changed(), strict_data=False)
    assert "skipped_images" not in train.fit(lax, device="cpu", workers=0)["made"]


def test_what_fails_at_once_fails_before_images_are_read(birds, monkeypatch):
    monkeypatch.setattr(train.state, "verify", lambda *_: pytest.fail("images were read first"))
    with pytest.raises(FileNotFoundError, match="There is no weight file"):
        train.fit(make_run(BIRDS, weights="no/such/file.pth"), device="cpu", workers=0)


def test_files_are_embedded_with_any_network(birds):
    """In pieces, and as a run embeds them."""
    run, cpu = make_run(BIRDS), torch.device("cpu")
    splits = feeds.splits_of(run)
    state = train.state.start(run, feeds.feed_of(run, splits, cpu), cpu)
    by_run = train.network.embed_split(state.network, state.feed, "test")
    for data in (splits["test"], splits["test"].images):
        torch.testing.assert_close(train.network.embed(state.network.model, data, size=4), by_run, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("transform", ["cifar", "simclr"])
def test_a_transform_for_images_of_one_size_is_refused_elsewhere(birds, transform):
    with pytest.raises(ValueError, match=f"transform '{transform}' keeps the size of an image"):
        train.fit(make_run(BIRDS, transform=transform), device="cpu", workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["corrected", "published"])
def test_simclr_on_cifar(place, monkeypatch, variant):
    """The paper's rows on miniature batches of CIFAR-10: the profile's own run, but for its length."""
    build("cifar10", "python", place)
    accept(monkeypatch, "cifar10", load_images("cifar10", place, strict=False))
    fields = {"batch_size": 6, "steps": 5, "eval_every": 5, "lr": 0.01, "variant": variant}
    run = run_of("paper", "cifar10", "SimCLR + SEC", 0, **fields)
    record = train.fit(run, device="cpu", workers=0)
    assert content(train.fit(run, device="cpu", workers=2)) == content(record)
    assert record["classes"]["n"] == [0, 0, 0, 0, 0, 2, 2] and not math.isnan(record["curves"]["test"]["recall@1"][0])
    assert set(record["curves"]) == {"train", "test"} and set(record["terms"]) == {"step", "loss", "sec", "total"}
    feed = feeds.feed_of(run, feeds.splits_of(run), torch.device("cpu"), views=2)
    sampler = train.state.sampler_of(run, feed.labels["train"])
    indices, x, labels = next(iter(feed.stream(sampler, 0, 1)))
    assert x.shape == (12, 3, 32, 32) and torch.equal(labels, indices.repeat_interleave(2))
    assert not any(torch.equal(x[2 * i], x[2 * i + 1]) for i in range(6))


def test_images_that_are_alone_in_their_class_are_no_hits(birds):
    """No query has anything to find: recall@1 has no value, and the classes have 0 hits, which a file can hold."""
    run = make_run(BIRDS, method="ImageNet", steps=0)
    splits = feeds.splits_of(run)
    splits["test"] = first_of_each_class(splits["test"], 1)
    state = train.state.start(run, feeds.feed_of(run, splits, torch.device("cpu")), torch.device("cpu"))
    with pytest.warns(UserWarning, match="2 of 2 queries have no other image of their class"):
        values = train.measure(state)["test"]
    assert math.isnan(values["recall@1"]) and values["hits"] == [0, 0]
    assert records.unpack(records.pack(values["hits"], [1, 1]), [1, 1]) == [0, 0]


@pytest.mark.parametrize("pixels", ["decoded", "device"])
def test_cifar_is_held_in_memory(place, monkeypatch, pixels):
    build("cifar10", "python", place)
    accept(monkeypatch, "cifar10", load_images("cifar10", place, strict=False))
    run = make_run(BIRDS, dataset="cifar10", model="resnet50_cifar", transform="cifar", pixels=pixels)
    with pytest.raises(ValueError, match="cifar10 is held in memory: leave pixels at 'files'"):
        train.fit(run, device="cpu")


@pytest.mark.parametrize("pixels", ["files", "decoded", "device"])
def test_two_views_of_images_on_disk(birds, pixels):
    if pixels != "files":
        prepare("cub200", decoded=True)
    fields = {"method": "SimCLR", "sampler": "shuffle", "samples_per_class": 1, "batch_size": 3, "pixels": pixels}
    run = make_run(BIRDS, **fields)
    feed = feeds.feed_of(run, feeds.splits_of(run), torch.device("cpu"), views=2)
    sampler = train.state.sampler_of(run, feed.labels["train"])
    seen = list(feed.stream(sampler, 0, 2))
    for indices, x, labels in seen:
        assert x.shape == (6, 3, 224, 224) and labels.tolist() == torch.as_tensor(indices).repeat_interleave(2).tolist()
        assert not any(torch.equal(x[2 * i], x[2 * i + 1]) for i in range(3))
    (_, x, labels), *_ = feed.stream(sampler, 1, 2)
    assert torch.equal(x, seen[1][1]) and torch.equal(labels, seen[1][2])


@pytest.mark.slow
def test_images_held_on_the_device_are_those_of_the_files(birds):
    """Bytes on the device in place of files: the same test images, a batch of images or their mirror images."""
    run = make_run(BIRDS, transform="squash96", pixels="held")
    record = train.fit(run, device="cpu")
    files = make_run(BIRDS, transform="squash96")
    feed, other = (feeds.feed_of(one, feeds.splits_of(one), torch.device("cpu")) for one in (run, files))
    assert torch.equal(*(torch.cat([*one.pieces("test")]) for one in (feed, other)))
    sampler = train.state.sampler_of(run, feed.labels["train"])
    steps = [*feed.stream(sampler, 0, 3)]
    plain = torch.cat([*feed.pieces("train")])
    pairs = [(a, plain[i]) for indices, x, _ in steps for i, a in zip(indices, x, strict=True)]
    assert all(torch.equal(a, b) or torch.equal(a, b.flip(-1)) for a, b in pairs)
    assert 0 < sum(torch.equal(a, b) for a, b in pairs) < len(pairs), "some are mirrored, some are not"
    assert (
        train.fit(files, device="cpu", workers=0)["curves"]["test"]["recall@1"][0]
        == record["curves"]["test"]["recall@1"][0]
    )
    with pytest.raises(
        ValueError, match="pixels='held' keeps a photograph and its mirror image alone: use a transform"
    ):
        train.fit(make_run(BIRDS, pixels="held"), device="cpu")


def test_weights_that_are_no_numbers_are_named(birds, tmp_path):
    net = make_backbone("resnet50", None).state_dict()
    net["layer1.0.conv1.weight"][0, 0] = torch.nan
    torch.save(net, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match="do not fit ResNet: 1 not finite: layer1.0.conv1.weight"):
        train.fit(make_run(BIRDS, weights=str(tmp_path / "weights.pth")), device="cpu", workers=0)


@pytest.mark.slow
def test_embeddings_that_are_no_numbers_are_named(birds, tmp_path):
    with pytest.raises(FloatingPointError, match="the embeddings of train and test are not finite: a smaller lr"):
        train.fit(make_run(BIRDS, lr=1e30), "cpu", tmp_path, workers=0)


def test_a_misspelt_way_to_read_pixels_is_no_missing_copy(birds):
    with pytest.raises(ValueError, match="There is no way to read pixels 'devise'. Did you mean 'device'"):
        train.fit(make_run(BIRDS, pixels="devise"), device="cpu")


def test_the_environment_may_change_within_a_session(birds, tmp_path, monkeypatch):
    run = make_run(BIRDS)
    first = feeds.splits_of(run)["train"].images
    assert feeds.splits_of(run)["train"].images is first, "read once"
    build("cub200", "class folders in images", tmp_path / "other")
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path / "other"))
    assert feeds.splits_of(run)["train"].images.folder == tmp_path / "other" / "cub200"
    next((tmp_path / "other").rglob("*Owl_1.jpg")).unlink()  # its numbers are not those of `birds` any more
    with pytest.warns(UserWarning):
        assert len(feeds.splits_of(make_run(BIRDS, strict_data=False))["train"]) == 5
    feeds._files.cache_clear()
    with pytest.raises(ValueError, match="--no-strict"):
        feeds.splits_of(run)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_with_panoramas_is_read_on_the_device(birds, workers):
    for i, (name, size) in enumerate({"Auk_1": (900, 40), "Owl_2": (40, 900)}.items()):
        photograph(*size, i).save(next(birds.rglob(f"{name}.jpg")))
    prepare("cub200", decoded=True)
    run, cpu = make_run(BIRDS, pixels="device"), torch.device("cpu")
    feed = feeds.feed_of(run, splits := feeds.splits_of(run), cpu, workers)
    sampler = make_sampler("spc", splits["train"].labels, 6, 0, samples_per_class=3)
    indices, x, labels = next(iter(feed.stream(sampler, 0, 1)))
    assert x.shape == (6, 3, 224, 224) and torch.equal(labels, splits["train"].labels[indices])
    images = [splits["train"].images.decoded[splits["train"].images.paths[i]] for i in indices.tolist()]
    sizes = torch.tensor([image.shape[:2] for image in images])
    box, flips, size = feed.transform[True].boxes(sizes, generator(run.seed, "views", 0))
    for i, image in enumerate(images):
        alone = feed.transform[True].cut(padded([image]), box[i : i + 1], flips[i : i + 1], size)
        torch.testing.assert_close(x[i : i + 1], alone, atol=1e-5, rtol=0)
    assert next(iter(feed.pieces("train"))).shape == (6, 3, 224, 224)


def test_features_of_a_decoded_copy_lie_in_a_file_of_their_own(birds):
    prepare("cub200", decoded=True)
    net, images = torch.nn.Module(), feeds.splits_of(make_run(BIRDS, pixels="device"))["train"].images
    net.stem = torch.nn.Linear(1, 1)
    files = [
        feeds._features_file(Files(images.folder, images.paths, decoded=d), net, None) for d in (None, images.decoded)
    ]
    assert len({*files}) == 2 and files[1] == feeds._features_file(images, net, None)


@pytest.mark.slow
def test_a_copy_with_images_left_out_is_trained_on_and_recorded(birds, monkeypatch):
    broken = next(birds.rglob("*Owl_1.jpg"))
    broken.write_bytes(broken.read_bytes()[:300])
    prepare("cub200", decoded=True, strict=False)
    run = make_run(BIRDS, pixels="device", steps=0)
    with pytest.raises(ValueError, match=r"Owl_1\.jpg.*--no-strict"):
        train.fit(run, device="cpu", workers=0)
    lax = make_run(run.changed(), strict_data=False)
    assert train.fit(lax, device="cpu", workers=0)["made"]["skipped_images"] == 1


def test_a_decoded_copy_is_asked_for_by_name(birds):
    with pytest.raises(FileNotFoundError, match="There is no decoded copy .*decoded_256.json"):
        train.fit(make_run(BIRDS, pixels="device"), device="cpu")
    prepare("cub200", decoded=True)
    with pytest.raises(ValueError, match=r"\['grey', 'jitter'\] belong in the loader's workers"):
        train.fit(make_run(BIRDS, pixels="device", transform="adv"), device="cpu")
    with pytest.raises(ValueError, match="There is no way to read pixels 'gpu'"):
        train.fit(make_run(BIRDS, pixels="gpu"), device="cpu")
    with pytest.raises(ValueError, match="transform 'cifar' does not go with pixels='device'.* without a crop"):
        train.fit(make_run(BIRDS, pixels="device", transform="cifar"), device="cpu")
    keys = {make_run(BIRDS, pixels=pixels).key() for pixels in feeds.PIXELS}
    assert len(keys) == len(feeds.PIXELS) == 4, "what is read decides what comes out"


@pytest.mark.slow
def test_an_unreadable_image_stops_the_run_before_it_begins(birds):
    broken = next(birds.rglob("*Owl_1.jpg"))
    broken.write_bytes(broken.read_bytes()[:300])
    with pytest.raises(ValueError, match=r"Owl_1\.jpg"):
        train.fit(make_run(BIRDS), device="cpu", workers=0)
    record = train.fit(make_run(BIRDS, steps=0, strict_data=False), device="cpu", workers=0)
    assert record["made"]["skipped_images"] == 1


def test_data_and_network_must_go_together(birds):
    with pytest.raises(ValueError, match="cub200 goes with a network for colour images"):
        train.fit(make_run(BIRDS, model="convnet", weights="glyphs"), device="cpu")
    with pytest.raises(ValueError, match="glyphs_fine goes with a convnet"):
        train.fit(make_run(BIRDS, dataset="glyphs_fine"), device="cpu")
    with pytest.raises(ValueError, match="leave pixels at 'files'"):
        train.fit(make_run(pixels="decoded"), device="cpu")


def test_a_missing_data_set_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_DATA", str(tmp_path))
    feeds._files.cache_clear()
    with pytest.raises(FileNotFoundError, match="sop"):
        train.fit(make_run(BIRDS, dataset="sop"), device="cpu")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pixels", ["files", "device"])
def test_a_memory_bank_is_asked_when_an_epoch_is_over(birds, pixels, workers):
    class Planned:  # as the samplers that look at embeddings
        bank, done = object(), 0

        def __len__(self):
            return 3

        def batch(self, epoch, i):
            assert self.done >= 3 * epoch, f"batch {i} of epoch {epoch} was drawn after {self.done} steps"
            return torch.tensor([epoch, i])

    if pixels == "device":
        prepare("cub200", decoded=True)
    run, sampler = make_run(BIRDS, pixels=pixels), Planned()
    feed = feeds.feed_of(run, feeds.splits_of(run), torch.device("cpu"), workers)
    seen = []
    for step, (indices, _, _) in enumerate(feed.stream(sampler, 1, 8), 1):
        seen.append(indices.tolist())
        sampler.done = step + 1
    assert seen == [[step // 3, step % 3] for step in range(1, 8)]


def test_dropout_draws_by_seed_and_step(birds):
    run, cpu = make_run(BIRDS, model="googlenet", freeze_bn=False), torch.device("cpu")
    feed = feeds.feed_of(run, feeds.splits_of(run), cpu)
    network = train.state.start(run, feed, cpu).network
    x, before = torch.randn(2, 3, 64, 64, generator=generator(0, "x")), torch.get_rng_state()
    with torch.no_grad():
        first, other, again = (network(x, step) for step in (1, 2, 1))
        network.model.eval()
        one, two = (network(x, step) for step in (1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other) and torch.equal(one, two)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("pixels", ["files", "device"])
def test_a_gpu_computes_what_the_cpu_computes(birds, pixels):
    if pixels == "device":
        prepare("cub200", decoded=True)
    run = make_run(BIRDS, pixels=pixels, method="MultiSimilarity")  # which draws nothing
    cpu, gpu = (train.fit(run, device=device, workers=2) for device in ("cpu", "cuda"))
    assert gpu["terms"]["loss"] == pytest.approx(cpu["terms"]["loss"], rel=0.02)
    for name in ("norm_mean", "intra", "inter"):
        ours, theirs = (record["curves"]["test"][name] for record in (gpu, cpu))
        assert ours[0] == pytest.approx(theirs[0], rel=1e-3) and ours == pytest.approx(theirs, rel=0.05)
    assert gpu["curves"]["test"]["step"] == [0, 1, 2]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("model", ["resnet50", "bninception"])
@pytest.mark.skipif(not shutil.which("gcc"), reason="torch.compile needs a C compiler")
def test_the_fast_way_on_a_gpu(birds, model):
    prepare("cub200", decoded=True)
    fields = BIRDS | {"model": model, "pixels": "device"}
    plain = train.fit(make_run(fields), device="cuda", workers=2)
    fast = make_run(fields, precision="bf16", channels_last=True, compile=True)
    fast = train.fit(fast, device="cuda", workers=2)
    assert fast["terms"]["loss"] == pytest.approx(plain["terms"]["loss"], rel=0.1)
    assert fast["curves"]["test"]["norm_mean"][0] == pytest.approx(plain["curves"]["test"]["norm_mean"][0], rel=0.05)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("fields", [{}, {"pixels": "device"}, {"model": "googlenet"}, {"precision": "bf16"}], ids=str)
def test_a_step_on_images_does_not_wait_for_the_gpu(birds, fields):
    prepare("cub200", decoded=True)
    run, device = make_run(BIRDS | fields, method="Margin (D, beta=1.2)", steps=40), torch.device("cuda")
    feed = feeds.feed_of(run, feeds.splits_of(run), device, workers=2)
    steps_without_waiting(train.state.start(run, feed, device))

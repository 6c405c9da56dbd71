"Backbones: BN-Inception against its published table, weights from files, frozen batch normalisation, seeded weights"

import copy
import hashlib
import pickle

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dmlstudy.core.random import generator
from dmlstudy.models import make_model, weights_sha256
from dmlstudy.models.backbones import (
    BACKBONES,
    BNINCEPTION_FILE,
    BNInception,
    Pool,
    freeze_batchnorm,
    inception_convolutions,
    load_weights,
    make_backbone,
    read_weights,
    seeded,
)

# the published table: block, in, 1x1, 3x3 reduce -> out, double reduce -> mid -> out, projection, out, side at 224
TABLE = """
3a 192 64 64 64 64 96 96 32 256 28
3b 256 64 64 96 64 96 96 64 320 28
3c 320 0 128 160 64 96 96 0 576 14
4a 576 224 64 96 96 128 128 128 576 14
4b 576 192 96 128 96 128 128 128 576 14
4c 576 160 128 160 128 160 160 128 608 14
4d 608 96 128 192 160 192 192 128 608 14
4e 608 0 128 192 192 256 256 0 1056 7
5a 1056 352 192 320 160 224 224 128 1024 7
5b 1024 352 192 320 192 224 224 128 1024 7
"""
ROWS = [(name, *map(int, rest)) for name, *rest in map(str.split, TABLE.strip().splitlines())]


def images(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed, "test images"))


@pytest.fixture(scope="module")
def inception():
    return make_backbone("bninception", rng=generator(3)).eval()


def public_shapes():
    "Names and shapes of the public weight file, written out from the table"
    convs = {"conv1_7x7_s2": (64, 3, 7, 7), "conv2_3x3_reduce": (64, 64, 1, 1), "conv2_3x3": (192, 64, 3, 3)}
    for block, width, one, r, out, dr, mid, dout, proj, _, _ in ROWS:
        p = f"inception_{block}_"
        if one:
            convs[p + "1x1"] = (one, width, 1, 1)
            convs[p + "pool_proj"] = (proj, width, 1, 1)
        convs[p + "3x3_reduce"] = (r, width, 1, 1)
        convs[p + "3x3"] = (out, r, 3, 3)
        convs[p + "double_3x3_reduce"] = (dr, width, 1, 1)
        convs[p + "double_3x3_1"] = (mid, dr, 3, 3)
        convs[p + "double_3x3_2"] = (dout, mid, 3, 3)
    shapes = {"last_linear.weight": (1000, 1024), "last_linear.bias": (1000,)}
    for name, shape in convs.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        shapes |= {f"{name}_bn.{part}": shape[:1] for part in ("weight", "bias", "running_mean", "running_var")}
    return shapes


def test_names_and_shapes_are_those_of_the_public_file(inception):
    ours = {k: tuple(v.shape) for k, v in inception.state_dict().items() if not k.endswith("num_batches_tracked")}
    public = public_shapes()
    assert ours == {k: v for k, v in public.items() if not k.startswith("last_linear")}
    learned = [torch.Size(v).numel() for k, v in public.items() if "running" not in k]
    assert sum(learned) == 11_295_240
    assert len(inception_convolutions()) == 69


@pytest.mark.parametrize("side", [224, 227])
def test_every_block_has_the_shape_of_the_table(inception, side):
    with torch.inference_mode():
        x = inception.stem(torch.zeros(1, 3, side, side))
        for block, width, one, _, out3, _, _, outd, proj, out, size in ROWS:
            assert x.shape[1] == width
            x = inception.block(block, x)
            assert tuple(x.shape) == (1, out, size, size)
            assert out == one + out3 + outd + (proj or width)


def unit(state, name, x, stride=1, padding=0):
    x = F.conv2d(x, state[name + ".weight"], state[name + ".bias"], stride, padding)
    mean, var, weight, bias = (
        state[f"{name}_bn.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias")
    )
    return torch.relu((x - mean) / torch.sqrt(var + 1e-5) * weight + bias)


@pytest.mark.parametrize("block", ["3a", "3c", "5b"])
def test_a_block_is_its_branches_in_order(inception, block):
    net = copy.deepcopy(inception).double()
    for layer in net.modules():  # statistics and affine parts that are not trivial
        if isinstance(layer, _BatchNorm):
            g = generator(0, "norm", layer.num_features)
            for tensor in (layer.running_mean, layer.weight.data, layer.bias.data):
                tensor.uniform_(-0.5, 0.5, generator=g)
            layer.running_var.uniform_(0.5, 2, generator=g)
    state, p = net.state_dict(), f"inception_{block}_"
    x = images(2, dict((r[0], r[1]) for r in ROWS)[block], 8, 8).double()
    stride = 2 if block == "3c" else 1
    three = unit(state, p + "3x3", unit(state, p + "3x3_reduce", x), stride, 1)
    double = unit(state, p + "double_3x3_1", unit(state, p + "double_3x3_reduce", x), 1, 1)
    double = unit(state, p + "double_3x3_2", double, stride, 1)
    if block == "3c":
        padded = F.pad(x, (0, 1, 0, 1), value=-torch.inf)
        pooled = padded.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))
        want = torch.cat([three, double, pooled], 1)
    else:
        windows = F.pad(x, (1, 1, 1, 1), value=0 if block == "3a" else -torch.inf).unfold(2, 3, 1).unfold(3, 3, 1)
        pooled = windows.mean((-1, -2)) if block == "3a" else windows.amax((-1, -2))
        want = torch.cat([unit(state, p + "1x1", x), three, double, unit(state, p + "pool_proj", pooled)], 1)
    torch.testing.assert_close(net.block(block, x), want)


def test_bninception_refuses_sides_that_do_not_fit(inception):
    with pytest.raises(ValueError, match=r"images of \(240, 224\)"):
        inception(torch.zeros(1, 3, 240, 224))


@pytest.mark.parametrize("squeezed", [True, False], ids=["vectors", "a leading 1"])
def test_a_public_file_loads(tmp_path, squeezed):
    g = generator(1, "file")
    state = {
        k: torch.rand(v if squeezed or "_bn." not in k else (1, *v), generator=g) for k, v in public_shapes().items()
    }
    torch.save(state, tmp_path / "bn_inception.pth")
    net = make_backbone("bninception", tmp_path / "bn_inception.pth")
    got = net.state_dict()
    assert all(torch.equal(got[k].flatten(), v.flatten()) for k, v in state.items() if not k.startswith("last_linear"))


def test_safetensors_and_wrapped_files(tmp_path):
    layer = nn.Linear(3, 2)
    save_file({k: v.detach() for k, v in layer.state_dict().items()}, tmp_path / "a.safetensors")
    torch.save({"model": {"module." + k: v for k, v in layer.state_dict().items()}, "epoch": 3}, tmp_path / "b.pth")
    for name in ("a.safetensors", "b.pth"):
        assert torch.equal(load_weights(nn.Linear(3, 2), tmp_path / name).weight, layer.weight)


def test_a_file_that_is_a_program_is_not_run(tmp_path):
    with open(tmp_path / "bad.pth", "wb") as f:
        pickle.dump(print, f, protocol=2)
    torch.save(layer := nn.Linear(3, 2), tmp_path / "module.pth")
    torch.save(layer.state_dict(), tmp_path / "whole.pth")
    (tmp_path / "half.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:999])
    (tmp_path / "page.pth").write_text("<html>not found</html>")
    (tmp_path / "none.safetensors").write_bytes(b"")
    for name in ("bad.pth", "module.pth", "half.pth", "page.pth", "none.safetensors"):
        with pytest.raises(ValueError, match=f"{name} cannot be read as tensors alone.*save its state_dict instead"):
            read_weights(tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds no state dict .* but a list"):
        read_weights(tmp_path / "list.pth")
    torch.save({0: torch.zeros(2)}, tmp_path / "numbers.pth")
    with pytest.raises(ValueError, match="numbers.pth holds no state dict"):
        read_weights(tmp_path / "numbers.pth")


def test_what_does_not_fit_is_listed_and_nothing_is_loaded():
    net = BNInception()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = {k: torch.ones_like(v) for k, v in before.items()}
    del state["conv2_3x3.bias"]
    state["conv9.weight"] = torch.zeros(1)
    state["conv1_7x7_s2.weight"] = torch.zeros(64, 3, 3, 3)
    with pytest.raises(ValueError) as error:
        load_weights(net, state, "file.pth")
    for part in (
        "file.pth",
        "1 missing: conv2_3x3.bias",
        "1 unexpected: conv9.weight",
        "(64, 3, 3, 3) for (64, 3, 7, 7)",
    ):
        assert part in str(error.value)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("pool", ["avg", "double"])
@pytest.mark.parametrize("name", BACKBONES)
def test_features_are_pooled_maps(name, pool):
    net, maps = make_backbone(name, pool=pool).eval(), []
    pools = [m for m in net.modules() if isinstance(m, Pool)]
    pools[0].register_forward_pre_hook(lambda module, args: maps.append(args[0]))
    x = images(2, 3, 64, 64)
    with torch.inference_mode():
        f = net(x)
    want = maps[0].mean((2, 3)) + (maps[0].amax((2, 3)) if pool == "double" else 0)
    assert len(pools) == 1 and tuple(f.shape) == (2, net.dim) and net.dim == (2048 if "resnet" in name else 1024)
    torch.testing.assert_close(f, want)


def test_googlenet_rescales_its_input_and_has_no_auxiliary_heads():
    net = make_backbone("googlenet").eval()
    assert net.aux1 is None and net.aux2 is None and net.dropout.p == 0.2
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = torch.rand(2, 3, 64, 64, generator=generator(0, "pixels"))
    with torch.inference_mode():
        f = net((pixels - mean) / std)
        net.transform_input = False
        torch.testing.assert_close(net((pixels - 0.5) / 0.5), f, rtol=1e-4, atol=1e-5)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_random_weights_depend_on_the_seed_alone():
    before = torch.get_rng_state()
    a = make_backbone("bninception", rng=generator(1))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)  # another state of the global generator
    assert same(a, make_backbone("bninception", None, rng=generator(1)))
    assert not same(a, make_backbone("bninception", rng=generator(2)))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", ["resnet50", "bninception"])
def test_frozen_batchnorm(name, affine):
    net = freeze_batchnorm(make_backbone(name), affine).train()
    norms = {k: m for k, m in net.named_modules() if isinstance(m, _BatchNorm)}
    convs = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert net.training and convs[0].training and not any(m.training for m in norms.values())
    before = {k: v.clone() for k, v in net.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        net.train()(images(2, 3, 64, 64, seed=step)).square().mean().backward()
        optimizer.step()
    after = net.state_dict()
    for k in norms:
        for part in ("running_mean", "running_var", "num_batches_tracked"):
            assert torch.equal(before[f"{k}.{part}"], after[f"{k}.{part}"])
        assert norms[k].weight.requires_grad == affine
    moved = [not torch.equal(before[f"{k}.bias"], after[f"{k}.bias"]) for k in norms]
    assert all(moved) if affine else not any(moved)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copy_of_a_frozen_network_is_frozen(duplicate):
    net = freeze_batchnorm(freeze_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm1d(2))))
    other = duplicate(net).train()
    assert other.training and not other[1].training and not other[2].training
    net[1].training = True
    other[1].train()
    assert net[1].training and not other[1].training  # the copy's layer, not the original's


def test_freezing_keeps_the_class_of_a_layer():
    class Activated(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    layer = freeze_batchnorm(Activated(3)).train()
    x = images(2, 3, 4, 4)
    torch.testing.assert_close(layer(x), (x / (1 + 1e-5) ** 0.5).relu())


@pytest.mark.parametrize(
    ("name", "weights", "says"),
    [
        ("resnet-50", None, "Did you mean 'resnet50'"),
        ("resnet50", "IMAGENET", "There are: 'IMAGENET1K_V1', 'IMAGENET1K_V2'"),
        ("bninception", "IMAGENET1K_V1", "There are: 'imagenet'"),
        ("googlenet", "no/such/file.pth", "There is no weight file"),
    ],
)
def test_wrong_names_say_what_would_do(name, weights, says):
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        make_backbone(name, weights)


def test_the_public_file_is_found_where_torch_hub_keeps_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"bn_inception-52deb4733\.pth .* put it into .*checkpoints"):
        make_backbone("bninception", "imagenet")
    net, folder = make_backbone("bninception", rng=generator(1)), tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(net.state_dict(), folder / BNINCEPTION_FILE)
    with pytest.raises(ValueError, match="is not the public file"):
        make_backbone("bninception", "imagenet")
    digest = hashlib.sha256((folder / BNINCEPTION_FILE).read_bytes()).hexdigest()
    other = f"bn_inception-{digest[:9]}.pth"
    (folder / BNINCEPTION_FILE).rename(folder / other)
    monkeypatch.setattr("dmlstudy.models.backbones.BNINCEPTION_FILE", other)
    assert same(net, make_backbone("bninception", "imagenet", rng=generator(2)))


def test_weights_that_cannot_be_fetched_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(OSError, match=r"resnet50-.*\.pth .*put the file into .*hub/checkpoints"):
        make_backbone("resnet50", "imagenet")


def test_the_affine_part_of_frozen_layers_can_be_frozen_too():
    net = make_model("bninception", 8, head="bn", bn_affine=False)
    norms = [m for m in net.backbone.modules() if isinstance(m, _BatchNorm)]
    assert norms and not any(p.requires_grad for m in norms for p in m.parameters())
    assert all(p.requires_grad for p in net.head.parameters()) and net.head[0].training
    assert net.backbone.conv1_7x7_s2.weight.requires_grad


def test_timm(tmp_path):
    try:
        import timm
    except ImportError:
        with pytest.raises(ImportError, match="'timm:resnet10t' needs timm"):
            make_backbone("timm:resnet10t")
        return
    net = make_backbone("timm:resnet10t", rng=generator(4))
    assert same(net, make_backbone("timm:resnet10t", rng=generator(4)))
    assert tuple(net.eval()(images(2, 3, 64, 64)).shape) == (2, net.dim)
    torch.save(timm.create_model("resnet10t", num_classes=7).state_dict(), tmp_path / "t.pth")
    assert not same(net, make_backbone("timm:resnet10t", tmp_path / "t.pth"))
    assert not any(m.training for m in freeze_batchnorm(net).train().modules() if isinstance(m, _BatchNorm))


def test_a_network_of_timm_with_a_layer_behind_its_pooling_has_that_layers_length():
    pytest.importorskip("timm")
    net = make_model("timm:mobilenetv3_small_050", 8, None).eval()
    assert net.backbone.dim == 1024 and tuple(net(images(2, 3, 64, 64)).shape) == (2, 8)


def test_a_network_is_made_on_the_cpu_whatever_the_default_device():
    makes = lambda: make_model("convnet", 8, "glyphs"), lambda: seeded(lambda: nn.Linear(3, 2), generator(1))
    for make in makes:
        with torch.device("meta"):
            net = make()
        assert {p.device.type for p in net.parameters()} == {"cpu"} and same(net, make())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", BACKBONES)
def test_cuda_agrees_with_cpu(name):
    net, x = make_backbone(name).eval(), images(2, 3, 64, 64)
    with torch.inference_mode():
        want, got = net(x), net.cuda()(x.cuda()).cpu()
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3 * want.abs().max().item())


def test_weights_of_timm_are_hashed_where_its_hub_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert weights_sha256("timm:resnet18.a1_in1k", "imagenet") is None
    assert weights_sha256("timm:hf-hub:timm/resnet18.a1_in1k", "imagenet") is None  # timm has no configuration of it
    model = tmp_path / "models--timm--resnet18.a1_in1k"
    for name, content in {"refs/main": b"4af1", "snapshots/4af1/model.safetensors": b"weights"}.items():
        (model / name).parent.mkdir(parents=True)
        (model / name).write_bytes(content)
    assert weights_sha256("timm:resnet18.a1_in1k", "imagenet") == hashlib.sha256(b"weights").hexdigest()


@pytest.mark.parametrize("weights", ["glyphs", "imagnet", "IMAGENET1K_V2"])
def test_timm_has_imagenet_weights_alone(weights):
    """Any word meant these, and the record said another."""
    with pytest.raises(ValueError, match=f"There is no weights of timm '{weights}'"):
        make_backbone("timm:resnet18", weights)

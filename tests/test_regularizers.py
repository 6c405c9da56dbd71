"""Regularizers: values, gradients and drift laws of SEC and l2, balanced gradients, manifold mixup."""

import copy

import pytest
import torch
from grids import each
from scipy import stats
from torch import nn

from dmlstudy.core.random import generator
from dmlstudy.distances import unit
from dmlstudy.regularizers import (
    REGULARIZERS,
    SEC,
    L2Norm,
    ManifoldMixup,
    Mix,
    Ring,
    balance_gradients,
    draw_beta,
    make_regularizer,
)

names = pytest.mark.parametrize("name", REGULARIZERS)
widths = each("dtype, eps", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def batch(*purpose, n=60, dim=64, dtype=torch.float64):
    """Embeddings with log-normal norms around 10."""
    g = generator(0, *purpose)
    f = unit(torch.randn(n, dim, generator=g, dtype=torch.float64))
    return (f * 10 * (0.6 * torch.randn(n, 1, generator=g, dtype=torch.float64)).exp()).to(dtype).requires_grad_()


def named(name, **hyperparameters):
    """A regularizer by its name, on pairs of neighbours where it asks for labels."""
    reg = make_regularizer(name, **hyperparameters)
    return lambda f: reg(f, torch.arange(len(f), device=f.device) // 2)


def grad(value, f):
    return torch.autograd.grad(value, f)[0]


def relative(x, y):
    return float((x - y).norm() / y.norm())


def angular_loss(f):
    """Any loss that sees directions only."""
    z = unit(f)
    return (z @ z.roll(1, 0).T).logsumexp(1).mean()


# ---- values and gradients ----


@widths
def test_sec_is_the_variance_and_its_gradient_is_radial(dtype, eps):
    f = batch("E7", dtype=dtype)
    n, eta = f.detach().norm(dim=1), 0.7
    value = SEC(eta=eta)(f, torch.zeros(60, dtype=torch.int64))
    assert abs(value.item() / (eta * n.var(correction=0).item()) - 1) < eps
    g = grad(value, f)
    assert relative(g, eta * 2 / 60 * (n - n.mean())[:, None] * f.detach() / n[:, None]) < eps
    other = grad(angular_loss(f), f)
    assert ((g * other).sum(1).abs() / (g.norm(dim=1) * other.norm(dim=1))).max() < 10 * eps


@widths
def test_detaching_the_mean_changes_nothing_without_memory(dtype, eps):
    f = batch("attached", dtype=dtype)
    n = f.norm(dim=1)
    assert relative(grad(SEC(eta=1)(f), f), grad((n - n.mean()).square().mean(), f)) < eps


def test_detaching_the_mean_matters_with_memory():
    first, f = batch("first"), batch("second")
    sec = SEC(eta=1, momentum=0.3).double()
    sec(first)
    n, old = f.norm(dim=1), first.detach().norm(dim=1).mean()
    attached = (n - (0.7 * old + 0.3 * n.mean())).square().mean()
    value = sec(f)
    assert abs(value.item() / attached.item() - 1) < 1e-12
    assert relative(grad(value, f), grad(attached, f)) > 1e-3
    mu = (0.7 * old + 0.3 * n.mean()).detach()
    assert relative(grad(sec.train(False)(f), f), 2 / 60 * ((n - mu) / n)[:, None].detach() * f.detach()) < 1e-12


@each("momentum", [1.0, 0.5, 0.01])
def test_running_mean(momentum):
    sec, mu = SEC(eta=1, momentum=momentum).double(), None
    for t in range(20):
        f = batch("running", t)
        now = f.detach().norm(dim=1).mean().item()
        mu = now if mu is None else (1 - momentum) * mu + momentum * now
        expected = (f.detach().norm(dim=1) - mu).square().mean().item()
        assert abs(sec(f).item() / expected - 1) < 1e-12 and abs(sec.mu.item() / mu - 1) < 1e-12
    kept = copy.deepcopy(sec.state_dict())
    sec.eval()(3 * f)
    assert torch.equal(sec.mu, kept["mu"])
    again = SEC(eta=1, momentum=momentum)
    again.load_state_dict(kept)
    assert abs(again.mu.item() / mu - 1) < 1e-6


def test_not_the_center_invariant_regularizer():
    theirs = pytest.importorskip("pytorch_metric_learning.regularizers").CenterInvariantRegularizer()
    f = unit(torch.randn(5, 9, generator=generator(1))) * torch.tensor([8.0, 10, 12, 9, 11])[:, None]
    assert abs(theirs(f).item() - 200.7) < 0.05
    assert abs(SEC(eta=1)(f).item() - 2.0) < 1e-4
    assert abs(L2Norm(eta=1)(f).item() - 102.0) < 1e-3


def test_l2_is_the_lp_regularizer_of_power_two():
    theirs = pytest.importorskip("pytorch_metric_learning.regularizers").LpRegularizer
    f = batch("lp").detach().float()
    assert L2Norm(eta=1)(f).item() == pytest.approx(theirs(power=2)(f).item(), rel=1e-5)
    assert theirs()(f).item() == pytest.approx(f.norm(dim=1).mean().item(), rel=1e-5)


def test_l2_gradient():
    f = batch("l2")
    assert relative(grad(L2Norm(eta=0.3)(f), f), 0.3 * 2 / 60 * f.detach()) < 1e-12


@names
def test_gradcheck_and_weight(name):
    f = batch("gradcheck", n=5, dim=3)
    assert torch.autograd.gradcheck(named(name, eta=0.3), f)
    assert abs(named(name, eta=0.6)(f).item() / named(name, eta=0.2)(f).item() - 3) < 1e-12
    assert named(name, eta=0)(f).item() == 0


@names
@each("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_odd_batches_are_finite(name, dtype):
    for f in (torch.zeros(3, 4), torch.ones(1, 4), torch.ones(0, 4), torch.full((2, 512), 6e4), torch.eye(3, 4)):
        f = f.to(dtype).requires_grad_()
        value = named(name, eta=1e-3)(f)
        assert value.dtype == torch.float32 and value.isfinite() and value.ndim == 0
        g = grad(value, f)
        assert g.isfinite().all() and g.dtype == dtype
    f = batch("16 bit").detach().to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = named(name)(f)
    assert torch.equal(mixed, named(name)(f.float()))


@names
def test_a_batch_without_rows_leaves_no_trace(name):
    reg, f = make_regularizer(name, **({"momentum": 0.5} if name == "sec" else {})), batch("after")
    fresh = copy.deepcopy(reg)
    reg(torch.zeros(0, 4), torch.zeros(0).long())
    labels = torch.arange(len(f)) // 2
    assert torch.equal(reg(f, labels), fresh(f, labels))


@each("name", ["sec", "l2"])
def test_the_weight_rises_with_the_steps_and_goes_on_after_a_stop(name):
    f, whole = batch("ramp"), make_regularizer(name, eta=0.4)(batch("ramp")).item()
    reg, again = make_regularizer(name, eta=0.4, ramp=5), make_regularizer(name, eta=0.4, ramp=5)
    shares = [reg(f).item() / whole for _ in range(3)]
    assert reg.eval()(f).item() / whole == pytest.approx(0.6) and shares == pytest.approx([0, 0.2, 0.4])
    again.load_state_dict(reg.state_dict())
    assert [again(f).item() / whole for _ in range(4)] == pytest.approx([0.6, 0.8, 1, 1])
    assert make_regularizer(name)(f.float()).dtype == make_regularizer(name, ramp=5)(f.float()).dtype == torch.float32


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="Did you mean 'sec'"):
        make_regularizer("sce")
    with pytest.raises(ValueError, match="There are: 'eta', 'momentum'"):
        make_regularizer("sec", momentun=0.1, eta=1)
    with pytest.raises(ValueError, match="at least 0; got -0.1"):
        L2Norm(eta=-0.1)
    for eta in ("1", torch.nan, None):
        with pytest.raises(ValueError, match="eta of the SEC must be a number, at least 0"):
            SEC(eta=eta)
    for ramp in (-1, 0.5):
        with pytest.raises(ValueError, match="ramp of the L2Norm must be an integer or None, at least 1"):
            L2Norm(ramp=ramp)
    for momentum in (0, -1, 1.5):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            SEC(momentum=momentum)
    with pytest.raises(ValueError, match=r"shape \(B, D\)"):
        SEC()(torch.ones(3))
    with pytest.raises(ValueError, match=r"labels must have shape \(3,\)"):
        SEC()(torch.ones(3, 2), torch.zeros(2, dtype=torch.int64))
    for wrong in ([[1.0, 2.0]], None):
        with pytest.raises(ValueError, match="embeddings must be a tensor; got (list|NoneType): use torch.as_tensor"):
            L2Norm()(wrong)


@each("name", sorted({*REGULARIZERS} - {"sec"}))  # which looks at the numbers of its first batch
def test_a_device_without_autocast_will_do(name):
    f, reg = torch.empty(6, 4, device="meta", requires_grad=True), make_regularizer(name).to("meta")
    assert grad(reg(f, torch.arange(6, device="meta") // 2), f).is_meta


# ---- drift laws of gradient descent on the term alone ----


def descend(reg, f, steps, rate):
    path = [f.detach()]
    for _ in range(steps):
        leaf = path[-1].clone().requires_grad_()
        path.append(leaf.detach() - rate * grad(reg(leaf), leaf))
    return torch.stack(path)


def test_sec_keeps_the_mean_and_shrinks_the_spread():
    f, eta, rate = batch("drift"), 0.5, 1.0
    path = descend(SEC(eta=eta), f, 100, rate)
    n = path.norm(dim=2)
    shrink = (1 - 2 * eta * rate / 60) ** 200
    assert (n.mean(1) / n[0].mean() - 1).abs().max() < 1e-10
    assert abs(n[-1].var(correction=0).item() / n[0].var(correction=0).item() / shrink - 1) < 1e-10
    assert (unit(path[-1]) - unit(path[0])).norm(dim=1).max() < 1e-10


def test_l2_shrinks_all_norms_alike():
    f, eta, rate = batch("drift"), 0.5, 1.0
    path = descend(L2Norm(eta=eta), f, 100, rate)
    n = path.norm(dim=2)
    spread = n.std(1) / n.mean(1)
    assert abs(n[-1].mean().item() / n[0].mean().item() / (1 - 2 * eta * rate / 60) ** 100 - 1) < 1e-10
    assert (spread / spread[0] - 1).abs().max() < 1e-10
    assert (unit(path[-1]) - unit(path[0])).norm(dim=1).max() < 1e-10


def test_thresholds_by_loops():
    """Means over the active hinges alone, of positives and of negatives (Zhang et al., ICLR 2024)."""
    f, labels = batch("thresholds", n=12, dim=4).detach(), torch.arange(12) % 4
    z, pulls, pushes = unit(f), [], []
    for i in range(12):
        for j in set(range(12)) - {i}:
            s, same = float(z[i] @ z[j]), labels[i] == labels[j]
            (pulls if same else pushes).append(0.7 - s if same else s - 0.2)
    active = [[h for h in hinges if h > 0] for hinges in (pulls, pushes)]
    assert all(0 < len(some) < len(every) for some, every in zip(active, (pulls, pushes), strict=True))
    reg = make_regularizer("threshold_consistent", eta=0.5, pos_margin=0.7, neg_margin=0.2)
    assert float(reg(f, labels)) == pytest.approx(0.5 * sum(sum(some) / len(some) for some in active))


def test_ring_learns_its_radius():
    f, ring = batch("ring"), Ring(eta=1)
    n = f.detach().norm(dim=1)
    assert abs(ring(f).item() / n.var(correction=0).item() - 1) < 1e-12
    assert ring.radius.dtype == torch.float32 and ring.radius.item() == n.mean().float().item()
    groups = ring.param_groups(0.1)
    assert groups[0]["lr"] == 0.1 and groups[0]["weight_decay"] == 0.0
    optimizer = torch.optim.SGD(groups)
    for _ in range(100):
        optimizer.zero_grad()
        ring(2 * f.detach()).backward()
        optimizer.step()
    assert abs(ring.radius.item() / (2 * n.mean().item()) - 1) < 1e-6
    assert SEC().param_groups(0.1) == L2Norm().param_groups(0.1) == []


# ---- balanced gradients ----


@each("power", [0.0, 1.0, 2.0])
def test_one_step_turns_by_norm_to_the_power_minus_two(power):
    direction = unit(torch.randn(1, 64, generator=generator(2), dtype=torch.float64))
    n = torch.logspace(-2, 2, 21, dtype=torch.float64)[:, None]
    f = (n * direction).requires_grad_()
    target = unit(torch.randn(64, generator=generator(3), dtype=torch.float64))
    step = 1e-9 * grad((unit(balance_gradients(f, power)) @ target).sum(), f)
    turned = (step.norm(dim=1) / n[:, 0]).atan()
    slope = stats.linregress(n[:, 0].log(), turned.log()).slope
    assert abs(slope - (power - 2)) < 1e-3


@widths
def test_balanced_gradients_leave_the_value_and_scale_the_rows(dtype, eps):
    f = batch("balance", dtype=dtype)
    n = f.detach().norm(dim=1, keepdim=True)
    assert torch.equal(balance_gradients(f, 1.5), f)
    plain = grad(angular_loss(f), f)
    for power in (0.0, 1.0, 2.0):
        balanced = grad(angular_loss(balance_gradients(f, power)), f)
        assert relative(balanced, plain * (n / n.mean()) ** power) < eps
    beside = grad(angular_loss(balance_gradients(f)) + SEC(eta=1)(f), f)
    assert relative(beside, plain * n / n.mean() + grad(SEC(eta=1)(f), f)) < eps


@each("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_balanced_gradients_of_odd_batches(dtype):
    for f in (torch.zeros(3, 4), torch.ones(0, 4), torch.ones(1, 4), torch.tensor([[0.0, 0], [1, 0]])):
        f = f.to(dtype).requires_grad_()
        g = grad(balance_gradients(f).sum(), f)
        assert g.isfinite().all() and g.dtype == dtype
    assert not balance_gradients(torch.ones(2, 2)).requires_grad
    with pytest.raises(ValueError, match="at least 0; got -1"):
        balance_gradients(torch.ones(2, 2), -1)


# ---- manifold mixup ----


class Network(nn.Module):
    """A little convolutional network with named stages, one of them used twice and one never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.layer1 = nn.Conv2d(1, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
        self.twice, self.never, self.head = nn.Conv2d(4, 4, 1), nn.Identity(), nn.Linear(4, 3)

    def forward(self, images, scale=1.0):
        h = self.layer1(self.stem(images))
        return self.head(scale * self.twice(self.twice(h)).mean((2, 3)))


def images_and_labels():
    return torch.randn(6, 1, 8, 8, generator=generator(4)), torch.arange(6) // 2


@each("alpha", [0.2, 0.5, 0.7, 1.0, 2.0, 8.0])
def test_lam_is_beta_distributed(alpha):
    g = generator(5, str(alpha))
    drawn = [draw_beta(alpha, g) for _ in range(3000)]
    assert 0 <= min(drawn) <= max(drawn) <= 1
    assert stats.kstest(drawn, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


@each("location", ["input", "stem", "layer1", "layer1.0", "twice", "head"])
def test_mixing_at_a_location(location):
    model, (images, labels) = Network(), images_and_labels()
    mix = ManifoldMixup(location, seed=2).draw(labels)
    with ManifoldMixup(location, seed=2).hook(model, labels) as label_sets:
        mixed = model(images, scale=2.0)
    assert 0 < mix.lam < 1 and sorted(mix.partner.tolist()) == list(range(6))
    h = model.stem(mix(images) if location == "input" else images)
    h = model.layer1[0](mix(h) if location == "stem" else h)
    h = model.layer1[1](mix(h) if location == "layer1.0" else h)
    h = model.twice(mix(h) if location == "layer1" else h)
    h = model.head(2 * model.twice(mix(h) if location == "twice" else h).mean((2, 3)))
    assert torch.allclose(mixed, mix(h) if location == "head" else h, atol=1e-6)
    assert label_sets[0][0] == mix.lam and label_sets[1][0] == 1 - mix.lam
    assert torch.equal(label_sets[0][1], labels) and torch.equal(label_sets[1][1], labels[mix.partner])


def test_two_label_sets_are_soft_targets():
    model, (images, labels) = Network(), images_and_labels()
    with ManifoldMixup("stem").hook(model, labels) as label_sets:
        logits = model(images)
    twice = sum(weight * nn.functional.cross_entropy(logits, y) for weight, y in label_sets)
    soft = sum(weight * nn.functional.one_hot(y, 3) for weight, y in label_sets)
    assert torch.allclose(twice, nn.functional.cross_entropy(logits, soft), atol=1e-6)
    twice.backward()
    assert model.stem.weight.grad.abs().sum() > 0


def test_hooks_are_gone_whatever_happens():
    model, (images, labels) = Network(), images_and_labels()
    plain, mixup = model(images), ManifoldMixup(("input", "stem", "head"))
    for _ in range(6):
        with pytest.raises(KeyError), mixup.hook(model, labels):
            raise KeyError("the step failed")
    assert torch.equal(model(images), plain)
    with pytest.raises(RuntimeError, match="did not come through 'never'"), ManifoldMixup("never").hook(model, labels):
        model(images)
    with pytest.raises(ValueError, match="no submodule to mix at 'layer3'. Did you mean 'layer1'"):
        ManifoldMixup("layer3").hook(model, labels).__enter__()
    with pytest.raises(ValueError, match="'stem' has 6 rows for a batch of 5"):
        with ManifoldMixup("stem").hook(model, labels[:5]):
            model(images)
    assert torch.equal(model(images), plain)
    for wrong in ({"alpha": 0.0}, {"locations": ()}):
        with pytest.raises(ValueError, match="needs a location|alpha of the ManifoldMixup must be a number, above 0"):
            ManifoldMixup(**wrong)


def test_mixup_draws_from_its_generator_only():
    labels, state = torch.arange(10), torch.get_rng_state()
    locations = ("input", "stem", "layer1", "head")
    mixup, again = ManifoldMixup(locations, seed=1), ManifoldMixup(locations, seed=1)
    drawn = [mixup.draw(labels) for _ in range(400)]
    for mix in drawn[:20]:
        same = again.draw(labels)
        assert (mix.lam, mix.location, mix.partner.tolist()) == (same.lam, same.location, same.partner.tolist())
    handed = [mixup.draw(labels, generator(6)) for _ in range(2)]
    assert handed[0].lam == handed[1].lam and torch.equal(handed[0].partner, handed[1].partner)
    assert torch.equal(torch.get_rng_state(), state)
    assert stats.chisquare([sum(mix.location == place for mix in drawn) for place in locations]).pvalue > 1e-3


def test_mixing_by_hand():
    mix = Mix(0.25, torch.tensor([2, 0, 1]), "stem")
    h = torch.tensor([[[0.0, 4.0]], [[8.0, 0.0]], [[4.0, 4.0]]])
    assert mix(h).tolist() == [[[3.0, 4.0]], [[2.0, 3.0]], [[7.0, 1.0]]]


@pytest.mark.parametrize("name", [pytest.param(name, marks=gpu) for name in REGULARIZERS])
def test_no_wait_on_a_gpu(name):
    f, reg = torch.randn(12, 8, generator=generator(1)).cuda().requires_grad_(), named(name).cuda()
    reg(f)  # the first batch is looked at
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(2):
            (reg(f) + balance_gradients(f).sum()).backward()
            ManifoldMixup().draw(f)(f)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert abs(reg(f).item() / named(name)(f.detach().cpu()).item() - 1) < 1e-4


@each("bad", [torch.nan, torch.inf])
def test_sec_forgets_a_batch_that_is_not_finite(bad):
    f, reg, clean = torch.randn(6, 4, generator=generator(7)), make_regularizer("sec", momentum=0.3), []
    for batch in (f, f * bad, 2 * f):
        clean.append(reg(batch).isfinite().item())
    other = make_regularizer("sec", momentum=0.3)
    other(f), other(2 * f)
    assert clean == [True, False, True] and torch.equal(reg.mu, other.mu)


def test_mixing_an_input_given_by_name():
    class Named(nn.Module):
        def forward(self, x, scale=1.0):
            return scale * x

    model, x, labels = Named(), torch.randn(6, 3, generator=generator(8)), torch.arange(6) // 2
    mixup = ManifoldMixup("input", seed=3)
    mixed = []
    for call in (lambda: model(x, scale=2.0), lambda: model(x=x, scale=2.0)):
        with mixup.hook(model, labels, generator(9)):
            mixed.append(call())
    assert torch.equal(*mixed) and not torch.equal(mixed[0], 2 * x)


@each("wrong", [torch.nan, torch.inf])
def test_ring_starts_at_the_first_finite_batch(wrong):
    """A first batch that diverged leaves neither a radius nor a trace in the optimiser."""
    ring = make_regularizer("ring")
    optimizer = torch.optim.Adam(ring.parameters(), lr=0.1)
    for f in (torch.full((4, 3), wrong), 2.0 * torch.eye(3), 3.0 * torch.eye(3)):
        optimizer.zero_grad()
        value = ring(f.requires_grad_())
        value.backward()
        optimizer.step()
        assert value.isfinite() == f.isfinite().all()
    assert 1.9 < ring.radius < 2.3


def test_a_float64_batch_leaves_the_type_of_the_running_mean():
    sec = make_regularizer("sec", momentum=0.1)
    for dtype in (torch.float64, torch.float32, torch.float16):
        sec(torch.eye(3, dtype=dtype) * 3)
        assert sec.mu.dtype == torch.float32
    assert sec.mu == 3 and sec.double().mu.dtype == torch.float64


def test_whole_numbers_are_not_mixed():
    """Bytes became fractions of 0 to 255, which a network that scales bytes alone took for 0 to 1."""
    mix = Mix(0.3, torch.tensor([1, 0]), "input")
    with pytest.raises(ValueError, match="'input' is torch.uint8: mix floating point"):
        mix(torch.zeros(2, 4, dtype=torch.uint8))

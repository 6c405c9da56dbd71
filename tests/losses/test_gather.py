"""Two processes with gathered batches: value and gradients of one process with the whole batch, for every loss."""

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from dmlstudy import gather, make_loss, make_miner, matryoshka, with_memory
from dmlstudy.losses import LOSSES

PARTS = (slice(0, 7), slice(7, 16))  # of unequal size, as the last batch of an epoch may be
WRAPPED = ("with_memory", "matryoshka")
LABELS = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 2])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def loss_named(name: str) -> nn.Module:
    if name == "with_memory":
        return with_memory(make_loss("supcon"), 40).double()
    if name == "matryoshka":
        return matryoshka(make_loss("proxy_anchor", 4, 5), (2, 5)).double()
    return make_loss(name, 4, 5).double()


def trained(name: str, net: nn.Module, part: slice) -> list[torch.Tensor]:
    """Values and gradients of two steps on parts of the batch: those of network and loss."""
    loss, found = loss_named(name), []
    for step in range(2):
        x = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        f, y = gather(net(x[part]), LABELS[part])
        triplets = make_miner("all")(f, y) if getattr(loss, "needs_triplets", False) else None
        net.zero_grad(), loss.zero_grad()
        (value := loss(f, y, triplets)).backward()
        grads = [p.grad for p in (*net.parameters(), *loss.parameters()) if p.grad is not None]
        found += [value.detach(), *(grad.clone() for grad in grads)]
    return found


def process(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    found = {name: trained(name, DistributedDataParallel(network()), PARTS[rank]) for name in (*LOSSES, *WRAPPED)}
    f, weights = gather(torch.full((rank + 1, 2), float(rank), dtype=torch.bfloat16), torch.eye(3)[: rank + 1])
    _, short = gather(f[:3].T.contiguous().T, torch.arange(3 * rank, 3 * rank + 3, dtype=torch.int16))
    torch.save((found, f, weights, short), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(process, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_are_as_one(two):
    wrong = []
    for name in (*LOSSES, *WRAPPED):
        one = trained(name, network(), slice(0, 16))
        for rank, (found, *_) in enumerate(two):
            pairs = zip(one, found[name], strict=True)
            far = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-6)) for a, b in pairs)
            wrong += [f"{name}, process {rank}: {far:.1e}"] * (far > 1e-9)
    assert not wrong


@pytest.mark.slow
def test_rows_come_in_the_order_of_the_processes(two):
    for _, f, weights, short in two:
        assert f.dtype == torch.bfloat16 and f[:, 0].tolist() == [0, 1, 1]
        assert torch.equal(weights, torch.eye(3)[[0, 0, 1]]) and short.tolist() == [*range(6)]


def test_what_is_handed_over_can_be_handed_over(monkeypatch):
    """NCCL refuses what is not contiguous, and no backend knows int16; two processes with equal batches."""

    def all_gather(parts, x):
        assert x.dtype != torch.int16 and all(t.is_contiguous() for t in (x, *parts))
        for part in parts:
            part.copy_(x)

    for name, stand_in in (("is_initialized", lambda: True), ("get_world_size", lambda: 2), ("all_gather", all_gather)):
        monkeypatch.setattr(distributed, name, stand_in)
    f, labels = torch.arange(12.0).view(3, 4).T, torch.arange(4, dtype=torch.int16)
    whole, of = gather(f, labels)
    assert torch.equal(whole, torch.cat((f, f))) and of.tolist() == 2 * labels.tolist()
    assert gather(f, f[:, 0])[1].dtype == torch.float32  # such labels are the loss's to refuse

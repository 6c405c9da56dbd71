"""What is said to whoever gives a loss what it cannot take, or names it as another library does."""

import math
import re
from pathlib import Path

import pytest
import torch

from dmlstudy.core.random import generator
from dmlstudy.losses import LOSSES, make_loss
from dmlstudy.losses.wrappers import matryoshka
from dmlstudy.metrics import evaluate
from dmlstudy.miners import make_miner
from dmlstudy.samplers import make_sampler

LABELS = torch.arange(8) // 2
F = torch.randn(8, 6, generator=generator(0, "messages"))

FIRST = {  # what another library calls it -> what is named first
    "TripletMarginLoss": "triplet",
    "triplet_margin": "triplet",
    "NTXentLoss": "ntxent",
    "LiftedStructureLoss": "lifted",
    "NPairsLoss": "npair",
    "SignalToNoiseRatioContrastiveLoss": "snr",
}


@pytest.mark.parametrize("name", FIRST)
def test_a_loss_of_another_library_points_to_ours_first(name):
    with pytest.raises(ValueError, match=f"^There is no loss '{name}'. Did you mean '{FIRST[name]}'"):
        make_loss(name)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: make_loss("CrossBatchMemory"), r"Use with_memory\(loss, size\)"),
        (lambda: make_loss("arcface", num_classes=4), "mean 'n_classes'.*'n_classes', 'dim', 'variant', 'margin'"),
        (lambda: make_loss("arcface", embedding_size=6), "Did you mean 'dim'"),
        (lambda: make_loss("triplet", indices_tuple=1), r"Use loss\(f, labels, triplets\)"),
        (lambda: make_loss("tuplet_margin", num_classes=4), "Did you mean 'n_classes'"),
        (lambda: make_sampler("MPerClassSampler", LABELS, 4), "Did you mean 'spc'"),
        (lambda: make_sampler("spc", LABELS, 4, m=2), "Did you mean 'samples_per_class'"),
        (lambda: make_miner("DistanceWeightedTripletMiner"), "Did you mean 'distance'"),
        (lambda: evaluate(F, LABELS, ["precision_at_1"]), "Use recall@1"),
        (lambda: evaluate(F, LABELS, ["mean_average_precision_at_r"]), "Did you mean 'map@r'"),
        (lambda: make_loss("triplet")(F, LABELS, indices_tuple=None), r"Use loss\(f, labels, triplets\)"),
        (lambda: make_loss("supcon")(F, LABELS, ref_emb=F), r"Use with_memory\(loss, size\).*'triplets', 'positives'"),
        (lambda: matryoshka(make_loss("triplet"), (2, 4))(F, LABELS, triplet=None), "Did you mean 'triplets'"),
        (lambda: make_loss("triplet", margin=-1), "margin of the TripletLoss must be a number, at least 0; got -1"),
        (lambda: make_loss("quadruplet", margin_2=-0.1), "margin_2 of the QuadrupletLoss must be"),
    ],
)
def test_what_is_said(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_the_tutorial_names_the_losses_that_use_norms():
    text = (Path(__file__).parents[2] / "nbs/tutorials/sec.ipynb").read_text(encoding="utf-8")
    (said,) = re.findall("losses of directions; (.*?), which use norms", text)
    assert {*re.findall("`(.+?)`", said)} == {name for name in LOSSES if not make_loss(name, 4, 6).normalizes}


def test_embeddings_that_are_not_finite_are_refused_in_evaluation_and_seen_in_training():
    for name in LOSSES:
        loss, f = make_loss(name, 4, 6), F.clone()
        f[[2, 5], 1] = torch.tensor([math.nan, math.inf])
        assert not loss(f, LABELS).isfinite(), name
        with pytest.raises(ValueError, match="2 of 8 embeddings hold NaN or infinity; first rows: 2, 5"):
            loss.eval()(f, LABELS)

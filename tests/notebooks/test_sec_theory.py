"""E1 to E10 of nbs/experiments/sec/sec_theory.ipynb, with tolerances of their own, and with what must not pass."""

import json
from pathlib import Path
from unittest.mock import patch

import matplotlib
import pytest
import torch

from dmlstudy.losses import make_loss
from dmlstudy.train.objective import Objective

NOTEBOOK = Path(__file__).resolve().parents[2] / "nbs" / "experiments" / "sec" / "sec_theory.ipynb"
pytestmark = pytest.mark.slow
LAWS = {  # id -> (law, tolerance in float64, in float32) of each measured number; None: it must be above the tolerance
    "E1": [(0, 1e-12, 1e-5)],
    "E2a": [(0, 1e-12, 1e-5)],
    "E2b": [(0, 1e-12, 1e-5)],
    "E2c": [(-1, 1e-6, 1e-4)],
    "E3": [(0, 1e-12), (0, 1e-6)],
    "E4": [(-2, 1e-3), (-2, 0.05), (-2, 1e-3), (-2, 0.05), (-1, 1e-3), (-1, 0.05)],
    "E5": [(0, 1e-10), (None, 1e-2)] * 3,
    "E6": [(None, 1e-2), (0, 1e-12)],
    "E7": [(0, 1e-12, 1e-5)] * 3,
    "E8": [(0, 1e-10)] * 5,
    "E9a": [(0, 1e-6), (-1, 1e-6)],
    "E10": [(-2, 1e-3), (-1, 1e-3), (0, 1e-3)],
}


@pytest.fixture(scope="module")
def theory(tmp_path_factory):
    """The names that the cells of the notebook define."""
    cells = [c for c in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    names = {}
    with pytest.MonkeyPatch.context() as change, matplotlib.rc_context({"backend": "agg"}):
        change.setenv("DMLSTUDY_OUTPUTS", str(tmp_path_factory.mktemp("outputs")))
        for cell in cells:
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    return names


@pytest.mark.parametrize("name", LAWS)
def test_law(theory, name):
    found = theory["table"].query("id == @name and precision == 'float64'")["measured"]
    single = theory["table"].query("id == @name and precision == 'float32'")["measured"]
    for (law, tolerance, *_), value in zip(LAWS[name], found, strict=True):
        assert value > tolerance if law is None else abs(value - law) <= tolerance
    for (law, _, tolerance), value in zip([law for law in LAWS[name] if len(law) > 2], single, strict=True):
        assert abs(value - law) <= tolerance


def test_all_is_told(theory):
    assert {*theory["table"]["id"]} == {*LAWS} and theory["table"]["holds"].all()
    assert len(theory["LOSSES"]) == 7


def test_a_loss_that_sees_norms_is_found(theory):
    """The N-pair loss on raw embeddings is not angular."""
    with patch.dict(theory["LOSSES"], NNP=Objective(make_loss("npair"))):
        assert theory["cosine_with_gradient"]("NNP", theory["batch"]()) > 1e-3
        assert max(map(abs, theory["lengthened"]("NNP", theory["batch"]()))) > 1e-3
        assert (theory["gradient_slope"]("NNP", theory["MODEST"]) + 1).abs().max() > 1e-2
        assert max(map(abs, theory["one_step"]("NNP", theory["batch"]()))) > 1e-6


def test_wrong_exponents_are_found(theory):
    """A broken law moves a slope by more than the tolerance: power of the control, epsilon of Adam."""
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    assert abs(theory["turn_slope"]("T", sgd, 1e-6, power=0.01).median() + 2) > 5e-3
    large = lambda leaves, lr: adam(leaves, lr=lr, eps=1e-2)
    assert -2 < theory["turn_slope"]("T", large, 1e-6).median() < -1.5  # |g| is far below epsilon: towards SGD's law
    for name, (_, p) in theory["OPTIMIZERS"].items():
        assert theory["APART"][name][3 - p].max() > 1e-2 > 1e-10 > theory["APART"][name][p].max()


def test_sec_with_another_mean_is_found(theory):
    """A running mean is not the batch mean: value and gradient differ from E7's."""
    real = theory["make_regularizer"]

    def remembering(name, eta):
        made = real(name, eta=eta, momentum=0.5)
        made(2 * theory["batch"]())
        return made

    with patch.dict(theory, make_regularizer=remembering):
        assert min(theory["sec_errors"](theory["batch"]())) > 1e-3


def test_bias_breaks_the_laws_of_the_shared_layer(theory):
    of_w, of_h = theory["biased"]
    assert 0.1 < of_w < 0.9 and -0.9 < of_h < -0.1

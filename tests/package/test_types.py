"""What a type checker sees: names and hyperparameters of the registries, by the generated stub."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dmlstudy
from dmlstudy.metrics import DEFAULT, METRICS, check_names, parse
from tools import names, stubs

ROOT = Path(__file__).resolve().parents[2]
GOOD = """
import torch
import dmlstudy
from dmlstudy import evaluate, gather, make_loss, make_miner, make_regularizer, make_sampler, with_memory
f, labels = torch.randn(8, 64), torch.arange(8) // 2
loss = make_loss("margin", n_classes=10, beta=0.8)
reveal_type(loss)  # Loss
reveal_type(make_loss("proxy_anchor", 10, 64, alpha=16.0))  # Loss
reveal_type(loss(f, labels))  # Tensor
reveal_type(make_miner("semihard", margin=0.1, rule="nearest"))  # Miner
reveal_type(make_sampler("gc", labels, 4, samples_per_class=2, dim=64))  # LabelSampler
reveal_type(make_regularizer("sec", eta=0.3))  # Regularizer
reveal_type(evaluate(f, labels, ["recall@1"])["recall@1"])  # float
reveal_type(evaluate(f, labels, per_query=True)[1]["nearest"])  # Tensor
reveal_type(gather(f, labels)[0])  # Tensor
reveal_type(with_memory(loss, 100)(f, labels))  # Tensor
reveal_type(dmlstudy.Run().key())  # str
"""
BAD = """
import dmlstudy
from dmlstudy import make_loss
dmlstudy.make_los
make_loss("no_such")
make_loss("margin", n_classes=10, betta=0.8)
make_loss("proxy_anchor", 10)
make_loss("triplet", margin="wide")
make_loss("triplet", variant="corrupted")
dmlstudy.make_miner("semi_hard")
dmlstudy.make_sampler("spc", [0, 1])
dmlstudy.make_regularizer("sec", alpha=1.0)
dmlstudy.evaluate([[0.0]], [0])
"""


def test_the_stub_is_what_the_registries_give():
    assert stubs.FILE.read_text(encoding="utf-8") == stubs.text(), "run tools/export.py"


def test_the_defaults_are_those_of_what_is_made():
    """Also where a class hands on to its parents what it has another default for."""
    for what in ("miner", "regularizer"):
        for name in names.REGISTRIES[what]:
            made = getattr(dmlstudy, f"make_{what}")(name)
            for key, default in names.hyperparameters(what, name).items():
                assert getattr(made, key, default) == default, (name, key)
    assert names.hyperparameters("miner", "rho_distance")["singletons"] == "drop"


def test_help_lists_names_and_units():
    """Metrics, those that have no gallery among them; what every argument of a public function is."""
    said = inspect.getdoc(dmlstudy.evaluate)
    alone = re.search(r"only without a gallery: ([^:]*)\n.*only with labels", said)[1].split(", ")
    for name in (*DEFAULT, "recall@2"):
        assert name.split("@")[0] in said
        if parse(name)[0] in alone:
            with pytest.raises(ValueError, match="with a gallery only retrieval metrics"):
                check_names([name], own=False)
        else:
            check_names([name], own=False)
    assert {"nmi", "rho", "inter"} <= {*alone} <= {*METRICS}
    said = inspect.getdoc(dmlstudy.with_memory)
    assert "size: embeddings (rows)" in said and "warmup: training steps" in said
    for name in {*dmlstudy.__all__} - {"main", "Own", "Run"}:
        made = getattr(dmlstudy, name)
        for argument in inspect.signature(made).parameters:
            assert f"\n    {argument}: " in inspect.getdoc(made), (name, argument)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Line -> what mypy says of it, for both scripts."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("types")
    (folder / "good.py").write_text(GOOD), (folder / "bad.py").write_text(BAD)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    lines = re.findall(r"(good|bad)\.py:(\d+): (?:error|note): (?!Possible| )(.*)", done.stdout)
    found = {"good": {}, "bad": {}}
    for file, line, text in lines:
        found[file].setdefault(int(line), text)
    return found


@pytest.mark.slow
def test_a_good_script_has_its_types(said):
    wanted = {n: line.rpartition("# ")[2] for n, line in enumerate(GOOD.split("\n"), 1) if "reveal_type" in line}
    found = {n: re.sub(r'Revealed type is "(?:\w+\.)*(\w+)"', r"\1", text) for n, text in said["good"].items()}
    assert found == wanted


@pytest.mark.slow
def test_every_line_of_a_bad_script_is_refused(said):
    lines = BAD.split("\n")
    assert [n for n in said["bad"]] == [n for n, line in enumerate(lines, 1) if line and "import" not in line]
    assert 'has no attribute "make_los"' in said["bad"][4] and "betta" in said["bad"][6]

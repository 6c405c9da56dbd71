"""Embeddings of any origin: two files in, every metric with an interval out."""

import numpy as np
import pandas as pd
import pytest

from dmlstudy import cli
from dmlstudy.metrics import DEFAULT, evaluate

_SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 10000), }"
HUGE = b"\x93NUMPY\x01\x00\x76\x00" + _SHAPE.ljust(117) + b"\n"  # 128 bytes that announce 36 TiB


@pytest.fixture
def files(tmp_path):
    """Embeddings of 24 classes whose names are words."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"class {i}" for i in range(24)], 5)
    f = rng.normal(size=(24, 8)).repeat(5, 0) + 0.6 * rng.normal(size=(120, 8))
    np.save(tmp_path / "f.npy", f.astype(np.float32))
    np.save(tmp_path / "y.npy", labels)
    return tmp_path


def test_every_metric_has_its_value_and_interval(files, capsys):
    words = ["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--csv", str(files / "out.csv")]
    assert cli.main(words) == 0
    told, table = capsys.readouterr().out, pd.read_csv(files / "out.csv").set_index("metric")
    assert "120 embeddings of 8 dimensions" in told and [*table.index] == [*DEFAULT]
    f, labels = np.load(files / "f.npy"), np.unique(np.load(files / "y.npy"), return_inverse=True)[1]
    for name, value in evaluate(f, labels, DEFAULT, kmeans_restarts=5).items():
        if name.endswith("_std"):
            continue
        assert table.loc[name, "value"] == pytest.approx(value, rel=1e-5), name
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()
    assert table["high"].sub(table["low"]).drop(["recall@8"]).gt(0).all()


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda d: np.save(d / "y.npy", np.arange(119)), "got (120, 8) and (119,)"),
        (lambda d: (d / "f.npy").write_text("0.1, 0.2"), "is not an .npy file: write one with np.save"),
        (lambda d: np.savez(open(d / "f.npy", "wb"), f=np.zeros((120, 8))), "is not an .npy file"),
        (lambda d: (d / "f.npy").write_bytes((d / "f.npy").read_bytes()[:200]), "is damaged, or holds other things"),
        (lambda d: (d / "f.npy").write_bytes(HUGE), "is damaged, or too large for this memory"),
        (lambda d: (d / "f.npy").unlink(), "No such file"),
        (lambda d: np.save(d / "f.npy", np.full((120, 8), np.nan)), "hold NaN or infinity"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(files, capsys, change, said):
    change(files)
    assert cli.main(["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--metrics", "recall@1"]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1


def test_few_classes_have_no_interval(files, capsys):
    np.save(files / "y.npy", np.repeat(np.arange(6), 20))
    assert cli.main(["evaluate", str(files / "f.npy"), str(files / "y.npy"), "--metrics", "recall@1", "nmi"]) == 0
    assert capsys.readouterr().out.count("NaN") == 4

"""What was imported by the module names of earlier versions can still be imported, with a warning."""

import importlib
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from grids import each

import dmlstudy
from dmlstudy.study.run import make_run

NAMES = json.loads((Path(__file__).parents[1] / "cases/names_0_2.json").read_text(encoding="utf-8"))


def test_every_old_module_is_tested():
    assert NAMES.keys() == dmlstudy._MOVED.keys()


@each("module, names", NAMES)
def test_every_old_name_is_that_of_its_new_module(module, names):
    old = importlib.import_module(f"dmlstudy.{module}")
    for name in names.split():
        new = dmlstudy._RENAMED.get(f"{module}.{name}", name)
        with pytest.warns(
            DeprecationWarning, match=rf"dmlstudy\.{module} is gone: from dmlstudy\.[\w.]+ import {new}$"
        ):
            found = getattr(old, name)
        assert found is not None or name.isupper()
        where = getattr(found, "__module__", None)
        assert where is None or where.removeprefix("dmlstudy.") != module


@pytest.mark.slow
def test_new_names_give_no_warning():
    code = "import dmlstudy.study.plan, dmlstudy.stats.intervals, dmlstudy.report.page, dmlstudy.train"
    assert subprocess.run([sys.executable, "-W", "error::DeprecationWarning:dmlstudy", "-c", code]).returncode == 0


def test_a_pickle_of_an_old_name_can_be_read():
    """Pickles hold the module of a class; so do the files of `torch.save`."""
    run = make_run(seed=3)
    old = pickle.dumps(run, protocol=0).replace(b"cdmlstudy.study.run\n", b"cdmlstudy.core\n")
    assert b"dmlstudy.core" in old
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert pickle.loads(old) == run


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dmlstudy.no_such")
    with pytest.raises(ImportError, match="cannot import name 'no_such'"):
        exec("from dmlstudy.kept import no_such")

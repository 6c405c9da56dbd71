"""The wheel: lean, lazy, and of use where nothing but PyTorch, NumPy and tqdm is installed."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import sys

class Without:  # what the extras bring
    names, finders = {names}, sys.meta_path[:]
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            return None
        return next(filter(None, (finder.find_spec(name, path, target) for finder in self.finders)), None)

sys.meta_path[:] = [Without()]
sys.path.insert(0, {folder!r})
"""
EXTRAS = {"torchvision", "PIL", "safetensors", "matplotlib", "pandas", "papermill", "ipykernel", "nbformat", "nbclient"}
EXTRAS |= {"jupyter_client", "psutil", "mistune", "scipy", "statsmodels", "faiss", "sklearn", "timm", "IPython"}
LOOP = """
import torch, dmlstudy
assert dmlstudy.__file__.startswith({folder!r}), dmlstudy.__file__
from dmlstudy import evaluate, make_loss, make_miner, make_regularizer, make_sampler
labels = torch.arange(12).repeat_interleave(8)
rng = torch.Generator().manual_seed(0)
images = torch.randn(12, 16, generator=rng)[labels] + torch.randn(96, 16, generator=rng)
net = torch.nn.Linear(16, 8)
sampler = make_sampler("spc", labels, batch_size=24, samples_per_class=4)
miner, loss, sec = make_miner("distance"), make_loss("margin", n_classes=12), make_regularizer("sec")
adam = torch.optim.Adam([{{"params": net.parameters(), "lr": 1e-2}}, *loss.param_groups(1e-2)])
before = evaluate(net(images).detach(), labels)
for epoch in range(10):
    for batch in sampler:
        f = net(images[batch])
        value = loss(f, labels[batch], miner(f, labels[batch], rng)) + sec(f, labels[batch])
        adam.zero_grad(); value.backward(); adam.step()
after = evaluate(net(images).detach(), labels)
assert after["recall@1"] > before["recall@1"] and {{"nmi", "map@r", "rho"}} <= after.keys()
import pydoc, rlcompleter
shown = pydoc.plain(pydoc.render_doc(dmlstudy))
assert "make_loss         make a loss" in shown and "semihard(margin=0.2" in shown
assert not {{"fit", "compare"}} & {{*dir(dmlstudy)}}
assert all(getattr(dmlstudy, name) is not None for name in dir(dmlstudy))
tab = rlcompleter.Completer({{"dmlstudy": dmlstudy}})
assert [tab.complete("dmlstudy.m", i) for i in range(2)] == ["dmlstudy.main(", "dmlstudy.make_loss("]
assert "pandas" not in sys.modules
from dmlstudy import *
for name, extra in (("fit", "data"), ("make_data", "data"), ("compare", "study")):
    try:
        getattr(dmlstudy, name)
    except ImportError as error:
        assert f"pip install 'dmlstudy[{{extra}}]'" in str(error), error
    else:
        raise AssertionError(name)
import numpy as np
drawn = np.random.default_rng(0)
y = np.repeat([f"class {{i}}" for i in range(25)], 4)
np.savez("both.npz", embeddings=drawn.normal(size=(25, 8)).repeat(4, 0) + 0.5 * drawn.normal(size=(100, 8)), labels=y)
assert dmlstudy.main(["evaluate", "both.npz", "--csv", "table.csv"]) == 0
rows = [line.split(",") for line in open("table.csv").read().splitlines()]
assert rows[0] == ["metric", "value", "low", "high"] and len(rows) > 15
assert all(float(low) <= float(value) <= float(high) for _, value, low, high in rows[1:])
try:
    dmlstudy.main(["--version"])  # arguments are read before anything heavy is imported
except SystemExit as end:
    assert not end.code
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The folder into which the wheel is unpacked, and what its METADATA says."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # building leaves folders behind
    source.mkdir()
    files = (
        "settings.ini setup.py pyproject.toml MANIFEST.in README.md LICENSE CHANGELOG.md CITATION.cff constraints.txt"
    )
    for name in [*files.split(), "dmlstudy"]:
        (source / name).symlink_to(ROOT / name)
    how = ["--no-isolation", "--outdir", str(folder), str(source)]  # a source archive, and the wheel from it
    subprocess.run([sys.executable, "-m", "build", *how], check=True, cwd=folder, capture_output=True)
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(folder / "site")
    return folder / "site", next((folder / "site").glob("*.dist-info/METADATA")).read_text()


@pytest.mark.slow
@pytest.mark.slow
def test_types_come_with_the_wheel(wheel):
    assert "def make_loss" in (wheel[0] / "dmlstudy/__init__.pyi").read_text()
    assert (wheel[0] / "dmlstudy/py.typed").is_file()


@pytest.mark.slow
def test_the_version_is_the_same_everywhere(wheel):
    """In the wheel, the citation, the README's BibTeX and on top of the changes, with one date."""
    version = re.search(r"^Version: (\S+)", wheel[1], re.M)[1]
    text = {name: (ROOT / name).read_text() for name in ("CITATION.cff", "README.md", "CHANGELOG.md", "settings.ini")}
    head, date = re.search(r"^## (\S+) \(([\d-]+)\)", text["CHANGELOG.md"], re.M).groups()
    assert head == version == re.search(r"^version: (\S+)", text["CITATION.cff"], re.M)[1]
    assert f"\nversion = {version}\n" in text["settings.ini"] and f"version = {{{version}}}" in text["README.md"]
    assert f"date-released: {date}" in text["CITATION.cff"]


@pytest.mark.slow
def test_the_wheel_asks_for_three_packages(wheel):
    needs = [line.partition(": ")[2] for line in wheel[1].splitlines() if line.startswith("Requires-Dist")]
    assert sorted(need.split(">")[0] for need in needs if "extra ==" not in need) == ["numpy", "torch", "tqdm"]
    for extra, name in (("data", "torchvision"), ("study", "torchvision"), ("study", "papermill"), ("dev", "pandas")):
        assert any(need.startswith(name) and f'extra == "{extra}"' in need for need in needs), (extra, name)


@pytest.mark.slow
def test_the_library_works_without_the_extras(wheel, tmp_path):
    folder = str(wheel[0])
    code = BARE.format(names=sorted(EXTRAS), folder=folder) + LOOP.format(folder=folder)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_losses_load_torch_and_nothing_else(wheel, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(wheel[0])!r}); import torch; before = {{*sys.modules}}; "
    code += "import dmlstudy.losses; print(*{name.partition('.')[0] for name in {*sys.modules} - before})"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert {*found.split()} - {*sys.stdlib_module_names} <= {"dmlstudy", "torch"}

"""Imports go downhill, nothing draws from a global generator, and what reads records does not load torch."""

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from grids import each

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "dmlstudy").rglob("*.py"))


@cache
def numbers() -> dict[str, int]:
    """Module -> number of its notebook."""
    out = {}
    for path in (ROOT / "nbs").glob("[0-9][0-9]_*.ipynb"):
        text = "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"])
        if found := re.search(r"^#\|\s*default_exp (\S+)", text, re.M):
            out[found[1].removesuffix(".__init__")] = int(path.name[:2])
    return out


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "dmlstudy").with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> list[str]:
    """The project's modules that a module imports, by their names without the package."""
    package = [*path.relative_to(ROOT / "dmlstudy").parts[:-1]]
    out = []
    for node in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)):
        if node.level or (node.module or "").split(".")[0] == "dmlstudy":
            base = package[: len(package) - node.level + 1] if node.level else []
            base += (node.module or "").removeprefix("dmlstudy" if not node.level else "").strip(".").split(".")
            names = [".".join([*filter(None, base), alias.name]) for alias in node.names]
            out += [name if name in numbers() else ".".join(filter(None, base)) for name in names]
    return out


def modules() -> dict[str, Path]:
    return {module_of(p): p for p in LIBRARY if module_of(p) in numbers()}


WINGS = {f"custom.{name}" for name in ("compare", "cross_validation", "export", "serve")}  # beside the study
WITHOUT_TORCH = ("study", "stats", "evidence", "report")


def test_every_module_has_a_notebook():
    orphans = {module_of(p) for p in LIBRARY} - numbers().keys() - {"", "_modidx", "__init__"}
    empty = {m for m in orphans if not (ROOT / "dmlstudy" / Path(*m.split(".")) / "__init__.py").read_text().strip()}
    assert orphans == empty


@each("name, path", modules)
def test_imports_go_downhill(name, path):
    own = numbers()[module_of(path)]
    uphill = {m: numbers()[m] for m in imported(path) if m in numbers() and numbers()[m] >= own}
    assert not uphill, f"{module_of(path)} ({own}) imports {uphill}"
    assert module_of(path) in WINGS | {"cli"} or not WINGS & {*imported(path)}, "only the command imports a wing"


def test_no_star_imports():
    door = ROOT / "dmlstudy/losses/__init__.py"  # gives on what its rooms say is public
    for path in (path for path in LIBRARY if path != door):
        assert not re.search(r"^from .* import \*", path.read_text(), re.M), path


DRAWS = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "rand_like", "randn_like"}
FILLS = {"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_"}


@each("name, path", modules)
def test_nothing_draws_from_a_global_generator(name, path):
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            assert "random" not in [alias.name for alias in node.names], f"line {node.lineno}"
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        text, name = ast.unparse(node), node.func.attr
        owner = ast.unparse(node.func.value)
        keywords = {k.arg for k in node.keywords}
        if owner == "torch" and name in DRAWS or name in FILLS:
            handed = "generator" in keywords or (
                None in keywords and '"generator"' in source or "dict(generator" in source
            )
            assert handed, f"{path.name}:{node.lineno} draws without a generator: {text}"
        if owner in ("np.random", "numpy.random"):
            assert name in ("Generator", "PCG64", "default_rng"), f"{path.name}:{node.lineno}: {text}"
            assert name != "default_rng" or node.args, f"{path.name}:{node.lineno} is not seeded: {text}"
        assert not (owner == "torch" and name in ("manual_seed", "seed")), f"{path.name}:{node.lineno}: {text}"


@pytest.mark.slow
def test_reading_records_does_not_load_torch():
    """Nor does planning runs, or drawing what they say."""
    names = [f"dmlstudy.{name}" for name in modules() if name.partition(".")[0] in WITHOUT_TORCH]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    code += "    assert 'torch' not in sys.modules, name"
    assert len(names) > 15
    assert subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT).returncode == 0


PLAN = "cli; dmlstudy.cli.main('run --profile drill --dry-run'.split())"


@pytest.mark.slow
@pytest.mark.parametrize("what, late", [("train", "torchvision"), ("study.executor", "scipy.stats"), (PLAN, "torch")])
def test_what_takes_seconds_is_loaded_where_it_is_needed(what, late):
    code = f"import sys, dmlstudy.{what}; assert {late!r} not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_public_name_has_one_meaning():
    """No two modules define one."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        for node in ast.parse(path.read_text()).body:
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            names = [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]
            for public in [getattr(node, "name", "_"), *names]:
                if not public.startswith("_"):
                    found.setdefault(public, set()).add(name)
    assert not {public: where for public, where in found.items() if len(where) > 1}


@pytest.mark.slow
def test_every_module_imports_alone():
    names = ["dmlstudy." + module_of(p) if module_of(p) else "dmlstudy" for p in modules().values()]
    code = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    assert subprocess.run([sys.executable, "-c", code, *reversed(names)], cwd=ROOT).returncode == 0


def test_pinned_versions_have_hashes():
    """Both files of versions say the same, and name no server."""
    spelled = lambda text: re.sub(r"[-_.]+", "-", text).lower()
    plain = [line.split("==") for line in (ROOT / "constraints.txt").read_text().split()]
    hashed = (ROOT / "constraints.hashed.txt").read_text()
    found = re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", hashed, re.M)
    assert {spelled(name): version for name, version, _ in found} == {spelled(name): v for name, v in plain}
    assert "://" not in hashed and len(found) == hashed.count("==")

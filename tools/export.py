"""Export the library from nothing, so that no module of a renamed notebook stays behind."""

from pathlib import Path

import nbdev

for module in (Path(__file__).resolve().parents[1] / "dmlstudy").rglob("*.py"):
    module.unlink()
nbdev.nbdev_export()

"""What Python reads first in the processes of a drill, as sitecustomize.py; DRILL_... of the environment changes it.

DRILL_SPOILED: code that runs whenever Contrastive is trained, such as `hold(file)`, which lets the first one wait.
DRILL_RECORDS: a file of records; to train takes half a second and gives one of these, and PyTorch is not loaded.
DRILL_CLOCK: seconds by which the clock is ahead.
"""

import importlib.util
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

SPOILED, RECORDS = os.environ.get("DRILL_SPOILED"), os.environ.get("DRILL_RECORDS")


def hold(file: str) -> None:
    """Wait until the process ends, if none has waited before."""
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(descriptor, str(os.getpid()).encode())
    while True:
        time.sleep(0.1)


def fit(run, **options) -> dict:
    """As in `dmlstudy.train`: the record that a run had when it was trained; of another run, any of them as its own."""
    import json
    from dataclasses import asdict

    with open(RECORDS) as file:
        known = {record["key"]: record for record in map(json.loads, file)}
    time.sleep(0.5)
    return {**known.get(run.key(), next(iter(known.values()))), "key": run.key(), "run": asdict(run)}


class Changed(MetaPathFinder):
    """Finds the module that trains."""

    def find_spec(self, name, path, target=None):
        if name != "dmlstudy.train":
            return None
        spec = importlib.util.spec_from_file_location(name, __file__) if RECORDS else PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            fit = getattr(module, "fit", None)

            def spoiled(run, **options):
                if run.method.startswith("Contrastive"):
                    exec(SPOILED)
                return fit(run, **options)

            if fit and SPOILED:
                module.fit = spoiled

        spec.loader.exec_module = exec_module
        return spec


if "dmlstudy" not in __name__:  # else it is in the place of a module that trains
    sys.meta_path.insert(0, Changed())
    if "DRILL_CLOCK" in os.environ:
        clock = time.time
        time.time = lambda: clock() + float(os.environ["DRILL_CLOCK"])

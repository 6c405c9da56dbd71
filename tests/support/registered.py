"""Were claims and choices committed, and the code clean, before the runs that answer them?"""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def git(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)


def check_registered(stem: str, *assets: str) -> list[dict]:
    """Each record is of a clean commit of this history that held the assets as they are now; the records."""
    file = ROOT / f"outputs/records/{stem}.jsonl"
    if not file.is_file():
        pytest.skip("none is there yet")
    records = [json.loads(line) for line in file.open(encoding="utf-8")]
    for commit in {record["made"]["git"] for record in records}:
        assert commit and not commit.endswith("+")
        if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
            pytest.skip("the history is not here")
        for name in assets:
            path = f"dmlstudy/assets/{name}"
            assert git("show", f"{commit}:{path}").stdout == (ROOT / path).read_text(encoding="utf-8")
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    return records

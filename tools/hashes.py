"""Write constraints.hashed.txt: every pinned version with the hashes of its wheels for Linux on x86_64.

uv pip compile --universal --no-deps --python-version 3.11.5 --format pylock.toml constraints.txt |
    python tools/hashes.py
"""

import re
import sys
import tomllib
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "constraints.hashed.txt"
NOTE = "# Written from constraints.txt, see tools/hashes.py: wheels for Linux on x86_64 and CPython from 3.11.5 on\n"
FITS = re.compile(r"-(py2\.py3|py3|cp31[1-9]|cp3\d+-abi3)\S*-(any|(?!musl)[^-]*linux[^-]*_x86_64)\.whl$")


def pinned(package: dict) -> str:
    """A requirement with the hashes of the wheels that fit, whatever server they come from."""
    fits = [w for w in package["wheels"] if FITS.search(w.get("name") or w["url"])]
    hashes = sorted(f"--hash=sha256:{wheel['hashes']['sha256']}" for wheel in fits)
    return " \\\n    ".join([f"{package['name']}=={package['version']}", *hashes]) + "\n"


FILE.write_text(NOTE + "".join(map(pinned, tomllib.loads(sys.stdin.read())["packages"])), encoding="utf-8")

"""Print a notebook as text for git: git config diff.nbtext.textconv 'python tools/nbtext.py'."""

import hashlib
import json
import sys


def digest(kind: str, value) -> str:
    """Short text as it is, anything else as its size and hash."""
    value = "".join(value)
    if kind.startswith("text") and len(value) < 400 and "<" not in value:
        return f"#> {value}"
    return f"#> [{kind}, {len(value)} characters, {hashlib.sha1(value.encode()).hexdigest()[:8]}]"


with open(sys.argv[1], encoding="utf-8") as file:
    cells = json.load(file)["cells"]
for cell in cells:
    print(f"# %% [{cell['cell_type']}]", cell.get("id", ""), *cell["metadata"].get("tags", []))
    print("".join(cell["source"]))
    for output in cell.get("outputs", []):
        for kind, value in output.get("data", {"text": output.get("text", output.get("evalue", ""))}).items():
            print(digest(kind, value))

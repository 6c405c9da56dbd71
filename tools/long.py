"""Name the tests that took over two seconds when they last ran and are not marked slow; nothing fails for it."""

import json
from pathlib import Path

kept = Path(__file__).resolve().parents[1] / ".pytest_cache/v/dmlstudy/long"
long = json.loads(kept.read_text()) if kept.exists() else {}
for test, seconds in sorted(long.items(), key=lambda item: -item[1]):
    print(f"over 2 s when it last ran, and not marked slow: {seconds:5.1f} s {test}")

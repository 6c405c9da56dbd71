"""The article: short, complete, of registered claims, and recomputed by code that does not know the library."""

import re
import subprocess
import sys
from pathlib import Path

from dmlstudy.evidence.preregistered import read_ledger

ROOT = Path(__file__).resolve().parents[2]


def test_the_article_has_the_size_of_a_short_paper_and_stands_alone():
    page = (ROOT / "outputs/article.html").read_text(encoding="utf-8")
    body = page.partition("<main>")[2].partition("</main>")[0]
    words = re.sub(r"<[^>]+>", " ", body).split()
    assert 3000 < len(words) <= 4500
    assert [body.count(part) for part in ("<img ", "<b>", "<script")] == [6, 0, 0]
    for kind in ("Table", "Figure"):
        numbers = [int(n) for n in re.findall(rf"<strong>{kind} (\d)\.</strong>", body)]
        assert numbers == [*range(1, 5 if kind == "Table" else 7)], numbers
    sources = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert not [s for s in sources if re.match(r"(?!https://doi\.org/10\.)[a-z]+:(?!image/png)", s)]
    assert not [s for s in sources if ":" not in s and not (ROOT / "outputs" / s).exists()]


def test_every_claim_of_the_article_is_registered(cells):
    known = {c["id"] for n in range(2, 25) for c in read_ledger(n)["claim"]}
    code = "\n".join("".join(c["source"]) for c in cells(ROOT / "nbs/article.ipynb") if c["cell_type"] == "code")
    named = {*re.findall(r'(?:effect|bounds)\("(\w+)"', code)}
    assert len(named) > 15 and named <= known


def test_effects_are_recomputed_without_the_library():
    done = subprocess.run([sys.executable, str(ROOT / "tools/recompute.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 400
    assert not re.search(r"(?m)^\s*(?:from|import) dmlstudy", (ROOT / "tools/recompute.py").read_text())

"""The site: every notebook and module has a page, links lead somewhere, and nothing is fetched from a network."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("mkdocs")
    began = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "tools/docs.py")], check=True, capture_output=True)
    assert time.perf_counter() - began < 180
    return ROOT / "_docs/site"


def test_every_notebook_and_module_has_a_page(site):
    for notebook in (ROOT / "nbs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" not in notebook.parts:
            assert (site / notebook.relative_to(ROOT)).with_suffix(".html").is_file(), notebook
    page = (site / "reference/dmlstudy.miners.html").read_text()
    assert 'id="make_miner"' in page and "40_miners.html" in page and "hyperparameters" in page
    assert (site / "outputs/tables/roth_table2.html").is_file() and "40_miners" in (site / "index.html").read_text()


def test_pages_need_no_network(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        tags = re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", text)
        fetched = [tag for tag in tags if re.search(r'(src|href)="(https?:)?//', tag) and 'rel="canonical"' not in tag]
        assert not fetched, (page, fetched)
    for name in ("50_losses.ranking", "60_regularizers", "paper/sec_theory"):
        text = re.search(r"<article.*?</article>", (site / f"nbs/{name}.html").read_text(), re.S)[0]
        prose = re.sub(r"<(pre|code|table|style|script)\b.*?</\1>", "", text, flags=re.S)
        assert "<math" in prose and not re.search(r"\$\S", prose), name


def test_links_between_pages_lead_somewhere(site):
    for page in [site / "index.html", *(site / "nbs").rglob("*.html"), *(site / "reference").glob("*.html")]:
        article = re.search(r"<article.*?</article>", page.read_text(), re.S)[0]
        for link in re.findall(r'(?:href|src)="([^"#?]+)', article):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / link).exists(), (page, link)

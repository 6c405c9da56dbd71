"""The site: every notebook and module has a page, links lead somewhere, and nothing is fetched from a network."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def tool():
    """tools/docs.py as a module."""
    spec = importlib.util.spec_from_file_location("docs", ROOT / "tools/docs.py")
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.mark.parametrize(
    "text, shown",
    [
        ("| a <img src=x onerror=alert(1)> |", "| a &lt;img src=x onerror=alert(1)> |"),
        ("[go](javascript:alert(1)) on", "go) on"),
        ("[go](Java\nScript&colon;x)", "go"),
        ("[go]( data:text/html,x)", "go"),
        ("![pixel](https://elsewhere/x.png)", "pixel"),
        ("![pixel](//elsewhere/x.png)", "pixel"),
        ("![figure](../figures/a.png) and [a page](https://elsewhere/)", None),
    ],
)
def test_tables_bring_no_markup_of_their_own(text, shown):
    assert tool().harmless(text) == (shown or text)


def test_only_what_is_named_is_published(tmp_path):
    for name in (
        "tables/a.md",
        "figures/a.png",
        "custom/model/card.md",
        "own/a.md",
        "records/a.jsonl",
        "smoke/tables/b.md",
    ):
        (tmp_path / "outputs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "outputs" / name).write_text("a <b>")
    tool().publish(tmp_path / "outputs", tmp_path / "site")
    found = {str(p.relative_to(tmp_path / "site")) for p in (tmp_path / "site").rglob("*") if p.is_file()}
    assert found == {"tables/a.md", "figures/a.png"}
    assert (tmp_path / "site/tables/a.md").read_text() == "a &lt;b>"


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("mkdocs")
    began = time.perf_counter()
    subprocess.run([sys.executable, str(ROOT / "tools/docs.py")], check=True, capture_output=True)
    assert time.perf_counter() - began < 180
    return ROOT / "_docs/site"


@pytest.mark.slow
def test_every_notebook_and_module_has_a_page(site):
    for notebook in (ROOT / "nbs").rglob("*.ipynb"):
        if ".ipynb_checkpoints" not in notebook.parts:
            assert (site / notebook.relative_to(ROOT)).with_suffix(".html").is_file(), notebook
    page = (site / "reference/dmlstudy.miners.html").read_text()
    assert 'id="make_miner"' in page and "40_miners.html" in page and "hyperparameters" in page
    assert (site / "outputs/tables/roth_table2.html").is_file() and "40_miners" in (site / "index.html").read_text()


@pytest.mark.slow
def test_pages_need_no_network(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        tags = re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", text)
        fetched = [tag for tag in tags if re.search(r'(src|href)="(https?:)?//', tag) and 'rel="canonical"' not in tag]
        assert not fetched, (page, fetched)
    for name in ("50_losses.tuples", "60_regularizers", "experiments/sec_theory"):
        text = re.search(r"<article.*?</article>", (site / f"nbs/{name}.html").read_text(), re.S)[0]
        prose = re.sub(r"<(pre|code|table|style|script)\b.*?</\1>", "", text, flags=re.S)
        assert "<math" in prose and not re.search(r"\$\S", prose), name


@pytest.mark.slow
def test_links_between_pages_lead_somewhere(site):
    for page in [site / "index.html", *(site / "nbs").rglob("*.html"), *(site / "reference").glob("*.html")]:
        article = re.search(r"<article.*?</article>", page.read_text(), re.S)[0]
        for link in re.findall(r'(?:href|src)="([^"#?]+)', article):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / link).exists(), (page, link)

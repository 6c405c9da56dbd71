"""The site: every notebook and module has a page, links lead somewhere, and nothing is fetched from a network."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import names
import pytest
from browser import CHROMIUM, Browser

ROOT = Path(__file__).resolve().parents[2]


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


CELL = "```python\nx = 1\n\ny = 2\n```\n\n"


def test_code_is_folded():
    """Cells that follow on each other behind one title; printed text, which is indented, is not taken for code."""
    begin, end = "<details data-search-exclude markdown><summary>Code</summary>\n\n", "</details>\n\n"
    printed = "".join(f"    {line}\n" for line in CELL.splitlines())
    assert tool().folded(f"a\n\n{CELL}{CELL}{printed}") == f"a\n\n{begin}{CELL}{CELL}{end}{printed}"


def test_a_name_has_its_section_and_its_example():
    found = tool().explained(ROOT / "nbs/10_miners.ipynb")
    assert found["valid_triplets"][0] == "all-triplets-without-listing-them"
    assert "valid_triplets(" in found["valid_triplets"][1] and "valid_triplets" not in found["uniforms"][1]


def test_every_loss_has_a_paper_a_formula_and_its_cost():
    for name, kind in names.LOSSES.items():
        assert names.paper(kind) and names.formula(kind) and names.cost(name), name
        assert tool().meanings(kind).keys() >= names.loss_hyperparameters(name).keys() - {"scale"}, name


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("mkdocs")
    subprocess.run([sys.executable, str(ROOT / "tools/docs.py")], check=True, capture_output=True)
    return ROOT / "_docs/site"


@pytest.fixture(scope="module")
def tab(site, tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("no chromium here")
    browser = Browser(tmp_path_factory.mktemp("browser"))
    browser.size(1200)
    yield browser
    browser.close()


@pytest.mark.slow
def test_search_takes_words_that_begin_with_a_digit(site, tab):
    """Words of many digits, mixed up, made it fail for each word with the same first digit."""
    for digit in "0123456789":
        tab.open(f"file://{site}/index.html?q={digit}", "document.querySelector('.md-search-result__item a')")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, page, first",
    [
        ("which loss", "nbs/tutorials/which_loss.html", 1),
        ("table 2", "nbs/experiments/roth/roth_table2.html", 2),
        ("Table 2: all objectives", "nbs/experiments/roth/roth_table2.html", 1),
        ("table 5", "outputs/tables/roth_table5.html", 3),
        ("SEC", "nbs/experiments/sec/sec_main.html", 5),
        ("does SEC help", "nbs/experiments/sec/sec_sign.html", 5),
        ("Proxy-Anchor", "nbs/25_losses.proxy.html", 2),
        ("ProxyAnchor", "nbs/25_losses.proxy.html", 3),
        ("margin", "nbs/21_losses.triplet.html", 3),
        ("own images", "nbs/tutorials/own_images.html", 1),
        ("four GPUs", "nbs/tutorials/cluster.html", 3),
        ("make_miner", "reference/dmlstudy.miners.html", 3),
        ("NTXent", "reference/losses/ntxent.html", 2),
        ("TripletMarginLoss", "reference/losses/triplet.html", 4),
        ("AccuracyCalculator", "nbs/tutorials/from_pml.html", 1),
    ],
)
def test_search_finds(site, tab, words, page, first):
    """The site's own search, in a browser, names the page that a reader looks for among the first."""
    result = ".md-search-result__item > a, .md-search-result__item .md-search-result__link"
    tab.open(f"file://{site}/index.html?q={quote(words)}", f"document.querySelector('{result}')")
    items = json.loads(
        tab.run(
            "JSON.stringify([...document.querySelectorAll('.md-search-result__item')]"
            ".map(item => item.querySelector('a').href))"
        )
    )
    found = [item.split("/_docs/site/")[1].split("?")[0].split("#")[0] for item in items]
    assert page in found[:first], found[:8]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200, 1600])
def test_pages_at_every_width(site, tab, width):
    """No page is wider than the screen: its tables scroll; navigation is there, and leads to explorer and figures."""
    tab.size(width)
    for page in (
        "index",
        "outputs/tables/roth_table2",
        "outputs/tables/tuned",
        "outputs/figures/index",
        "nbs/experiments/sec/sec_main",
        "nbs/tutorials/which_loss",
        "reference/dmlstudy.miners",
    ):
        tab.complaints.clear()
        tab.open(f"file://{site}/{page}.html", "document.readyState == 'complete'")
        assert tab.run("document.documentElement.scrollWidth") <= width, page
        assert not tab.complaints, (page, tab.complaints)
        tabs = tab.run(
            "[...document.querySelectorAll('.md-tabs__link')].map(a => a.checkVisibility() && a.href).join()"
        )
        assert "false" not in tabs and "outputs/explorer.html" in tabs and "outputs/figures/index.html" in tabs, page
    tab.size(1200)


@pytest.mark.slow
def test_code_of_questions_waits_until_it_is_asked_for(site, tab):
    tab.open(f"file://{site}/nbs/experiments/roth/roth_table2.html", "document.readyState == 'complete'")
    shown = "[...document.querySelectorAll('article .highlight')].filter(e => e.checkVisibility()).length"
    assert tab.run(shown) == 0
    tab.run("document.querySelector('details > summary').click()")
    assert tab.run(shown) > 0


@pytest.mark.slow
def test_every_notebook_and_module_has_a_page(site):
    for notebook in (ROOT / "nbs").rglob("*.ipynb"):
        other = ("index", "article")  # the start, and a page of outputs/
        if ".ipynb_checkpoints" not in notebook.parts and notebook.stem not in other:
            assert (site / notebook.relative_to(ROOT)).with_suffix(".html").is_file(), notebook
    assert "glossary.html" in (site / "outputs/article.html").read_text()
    page = (site / "reference/dmlstudy.miners.html").read_text()
    assert 'id="make_miner"' in page and "10_miners.html" in page and "hyperparameters" in page
    assert (site / "outputs/tables/roth_table2.html").is_file() and "10_miners" in (site / "index.html").read_text()


@pytest.mark.slow
def test_pages_need_no_network(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        tags = re.findall(r"<(?:script|img|link|iframe)\b[^>]*>", text)
        fetched = [tag for tag in tags if re.search(r'(src|href)="(https?:)?//', tag) and 'rel="canonical"' not in tag]
        assert not fetched, (page, fetched)
    for name in ("21_losses.triplet", "29_regularizers", "experiments/sec/sec_theory"):
        text = re.search(r"<article.*?</article>", (site / f"nbs/{name}.html").read_text(), re.S)[0]
        prose = re.sub(r"<(pre|code|table|style|script)\b.*?</\1>", "", text, flags=re.S)
        assert "<math" in prose and not re.search(r"\$\S", prose), name


@pytest.mark.slow
def test_links_between_pages_lead_somewhere(site):
    """Addresses and places within pages, also those that are not Markdown; mkdocs refuses dead ones in Markdown."""
    places = {}
    for page in site.rglob("*.html"):
        text = page.read_text()
        places[page.resolve()] = {*re.findall(r'\bid="([^"]+)"', text)}
    whole = ("article.html", "report.html")  # of outputs/, not of Markdown
    for page in [page for page in places if page.name in whole or "<article" in page.read_text()]:
        for link, place in re.findall(r'(?:href|src)="([^"#?]*)(?:\?[^"#]*)?(?:#([^"]*))?"', page.read_text()):
            target = (page.parent / link).resolve() if link else page
            if not re.match(r"[a-z]+:|//", link):
                assert target.exists() or page.name == "404.html", (page, link)
                if place and target in places and target.name != "explorer.html":
                    assert place in places[target] or place == "__codelineno", (page, link, place)

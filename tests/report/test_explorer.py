"""The explorer in a real browser: every view draws, says what the tables say, and is found again by its address."""

import json
import re
import shutil
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from urllib.parse import quote_plus

import numpy as np
import pandas as pd
import pytest
from browser import CHROMIUM, Browser
from scipy import stats

from dmlstudy.core.paths import asset
from dmlstudy.evidence import paper_claims as claims
from dmlstudy.evidence import preregistered as ledger
from dmlstudy.report import explorer, tables
from dmlstudy.report import files as report_files
from dmlstudy.stats import decisions as verdicts
from dmlstudy.study import records, selection
from dmlstudy.study.config import run_of

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("Softmax", "Triplet (D)", "R-Triplet (D)", "Margin (D, beta=1.2)", "NPair", "SHT + SEC", "ImageNet")
HEADS = "id,paper,source,statement,dataset,verdict,effect,low,high,n,counted,pairs,direction,threshold,unit"
CLAIMS = (
    "R3a,roth2020,Table 2,Distance-weighted mining beats random,glyphs_fine,not asked,,,,,,,+,0.005,points",
    "R9b,roth2020,Table 2,<b>on average</b>,glyphs_fine,inconclusive,.01,-.01,.03,5,draws,1 of 5,+,.005,points",
    "S7a,sec2020,Prop. 2,The gradient is orthogonal,all,reproduced,1e-7,1e-7,1e-7,1,draws,,0,1e-5,none",
)
VIEWS = ("methods", "trials", "pair", "curves", "replicates", "claims")


def record(
    method: str,
    seed: int | None,
    level: float,
    rng: np.random.Generator,
    profile="smoke",
    dataset="glyphs_fine",
    **more,
) -> dict:
    """A run whose test recall@1 rises to a level; on validation classes the second evaluation is the best."""
    run = run_of(profile, dataset, method, seed, **more)
    top = level + rng.normal(0, 0.004)
    test = {"step": [0, 10, 20], "recall@1": [0.3, top, top + 0.01], "nmi": [0.2, 0.4, 0.5]}
    held = {"step": [0, 10, 20], "recall@1": [0.4, 0.8, 0.7], "map@r": [0.2, 0.5 + top / 10, 0.4]}
    train = {"step": [0, 10, 20], "recall@1": [0.3, 0.9, 0.95], "rho": [0.5, 0.2, 0.1]}
    train["norm_var"] = [1.0, (seed or 0) * rng.uniform(1e-4, 1e-2), 90.0]
    hits = {step: rng.binomial(30, top, 96).tolist() for step in ("10", "20")}
    kinds = {"test": test, "validation": held, "train": train}
    return {
        "key": run.key(),
        "run": asdict(run),
        "curves": kinds,
        "classes": {"n": [30] * 96, "hits": hits},
        "made": {},
    }


def fill(folder: Path, seeds: int = 5, more: bool = True) -> None:
    """Records of some methods and a sweep; with `more` also a search and claims."""
    rng = np.random.default_rng(0)
    levels = dict(zip(METHODS, np.linspace(0.6, 0.66, len(METHODS)), strict=True))
    runs = [record(m, s, v, rng) for m, v in levels.items() for s in range(seeds)]
    records.write_batch("smoke", [*runs, record("Softmax", 0, 0.5, rng, batch_size=28)])
    if more:
        trials = [
            record(m, 9, v, rng, lr=lr) for m, v in levels.items() if m != "ImageNet" for lr in (1e-4, 2e-4, 3e-4)
        ]
        records.write_batch("smoke_search", [records.lean(r) for r in trials])
        (folder / "smoke").mkdir()
        (folder / "smoke/claims.csv").write_text("\n".join([HEADS, *CLAIMS]) + "\n")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLSTUDY_OUTPUTS", str(folder := tmp_path_factory.mktemp("outputs")))
        fill(folder)
        file, results = explorer.write_explorer("smoke"), tables.study_records("smoke")[1]
    return file, results


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("no chromium here")
    tab = Browser(tmp_path_factory.mktemp("browser"))
    tab.size(1200)
    yield tab
    tab.close()


@pytest.fixture
def tab(browser):
    """The browser, which has to end without a complaint and without having asked for anything but the page."""
    browser.complaints.clear(), browser.requests.clear()
    browser.size(1200)
    yield browser
    assert browser.complaints == []
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "blob", "about"}


def show(tab, page, address: str) -> None:
    tab.open(f"file://{page[0]}{address}")


def text(tab, what: str) -> str:
    return tab.run(f"document.querySelector({json.dumps(what)})?.textContent ?? ''")


def all_texts(tab, what: str) -> list[str]:
    return tab.run(f"[...document.querySelectorAll({json.dumps(what)})].map(e => e.textContent)")


def rows(tab) -> list[list[str]]:
    """The first table of the page, without its head."""
    return tab.run(
        "[...document.querySelector('table').tBodies[0].rows].map(r => [...r.cells].map(c => c.textContent))"
    )


def choose(tab, name: str, value: str) -> None:
    """Choose in a list as a reader does, and wait until the page has followed."""
    before = tab.run("location.hash")
    change = "e.dispatchEvent(new Event('change'))"
    tab.run(
        f"(e => {{ e.focus(); e.value = {json.dumps(value)}; {change} }})(document.getElementById('choose-{name}'))"
    )
    wait(tab, f"location.hash != {json.dumps(before)}")


def wait(tab, condition: str) -> None:
    """Until something is true, and the page drawn after it."""
    look = f"const look = () => {condition} ? setTimeout(done, 20) : setTimeout(look, 5)"
    late = f"setTimeout(() => no(Error({json.dumps('not after 300 s: ' + condition)})), 300000)"
    tab.run(f"new Promise((done, no) => {{ {look}; {late}; look() }})")


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("width", [390, 1200, 1600])
def test_every_view_draws(page, tab, view, width):
    tab.size(width, dark=width == 1600)
    show(tab, page, f"#{view}")
    assert text(tab, "nav a[aria-current]").lower().replace(" ", "").startswith(view[:4].replace("pair", "two"))
    assert text(tab, "#about").endswith(".")
    marks = tab.run("document.querySelectorAll('#figure svg .mark path, #figure .verdict').length")
    assert marks >= 3 and text(tab, "h1") and text(tab, "#lead")
    assert tab.run("document.documentElement.scrollWidth") <= width
    outside = "e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth + 1 }"
    assert (
        tab.run(f"[...document.querySelectorAll('#figure svg text')].filter({outside}).map(e => e.textContent)") == []
    )
    small = "e => parseFloat(getComputedStyle(e).fontSize) < 12"
    assert tab.run(f"[...document.querySelectorAll('svg text, p, td, option, a')].filter({small}).length") == 0
    dark = tab.run("getComputedStyle(document.documentElement).backgroundColor") == "rgb(21, 24, 28)"
    assert dark == (width == 1600)


@pytest.mark.parametrize("rule", ["validation", "last"])
def test_methods_say_what_the_tables_say(page, tab, rule):
    """Means, intervals and ties, computed in the page, are those of `tables`."""
    results = page[1][(page[1]["metric"] == "recall@1") & (page[1]["selection"] == rule)]
    wanted = tables.intervals(results).merge(tables.ties(results), on=["dataset", "method", "metric", "selection"])
    wanted = wanted.sort_values("mean", ascending=False)
    show(tab, page, f"#methods?metric=recall%401&rule={rule}")
    found = pd.DataFrame(rows(tab), columns=["method", "mean", "low", "high", "n", "tied"])
    assert found["method"].tolist() == wanted["method"].tolist()
    for name in ("mean", "low", "high"):
        assert np.allclose(found[name].astype(float), 100 * wanted[name], atol=0.011)
    assert (found["tied"] == "yes").tolist() == wanted["tied"].tolist()
    assert 0 < wanted["tied"].sum() < len(wanted)
    bold = all_texts(tab, "#figure svg text.label.bold")
    assert bold == wanted.loc[wanted["tied"], "method"].tolist()


@pytest.mark.slow
def test_statistics(page, tab):
    """Quantiles of Student's t and of the range, ties, the expected best of k and the interval at every look."""
    show(tab, page, "")
    for t, df in ((0.0, 1), (2.5, 1), (2.776, 4), (0.3, 39), (40.0, 4)):
        assert np.isclose(tab.run(f"twoSided({t}, {df})"), 2 * stats.t.sf(t, df), rtol=1e-7)
    for df in (1, 2, 4, 39):
        assert np.isclose(tab.run(f"quantile({df})"), stats.t.isf(0.025, df), rtol=1e-6)
    for k, df in ((2, 1), (2, 4), (3, 8), (8, 28), (20, 76), (45, 176)):
        wanted = stats.studentized_range.isf(0.05, k, df)
        assert np.isclose(tab.run(f"rangeQuantile({k}, {df})"), wanted, rtol=2e-3), (k, df)
    rng, counts = np.random.default_rng(1), set()
    for spread in (0.1, 0.3, 0.5, 1.0) * 5:
        table = np.round(rng.normal(0, 1, (8, 5)) * spread + rng.normal(0, 1, (8, 1)), 6)
        found = tab.run(f"tied({json.dumps(table.tolist())})")
        assert found == tables.tied_with_best(table).tolist()
        counts.add(sum(found))
    assert len(counts) > 3  # the tables differ
    scores = [0.3, 0.9, 0.5, 0.5, 0.1]
    naive = [[k, np.mean([max(c) for c in combinations(scores, k)])] for k in range(1, 6)]
    assert np.allclose(tab.run(f"expectedBest({scores})"), naive)
    x, tau = rng.normal(1, 1, 8), 2.0
    half = tab.run(f"anytime({x.tolist()})")
    n, g = len(x), 1 + len(x) * tau**2
    t = np.sqrt(n) * half / x.std(ddof=1)  # at its ends the evidence against the mean is 1 / 0.05
    assert np.isclose(g**-0.5 * ((1 + t**2 / (n - 1)) / (1 + t**2 / (g * (n - 1)))) ** (n / 2), 20)
    assert tab.run(f"Number.isNaN(anytime({x[:2].tolist()}))")


def test_values_arrive(page, tab):
    """What the page unpacks is what the records hold, under every rule."""
    show(tab, page, "")
    assert text(tab, "#foot").startswith("A few short runs of every kind: does it work? ")  # and no stop after it
    results = page[1][page[1]["setting"] == ""]
    for metric in ("recall@1", "nmi", "validation/recall@1", "train/rho"):
        for rule in selection.SELECTIONS:
            own = results[(results["metric"] == metric) & (results["selection"] == rule)]
            code = (
                "runsWhere('glyphs_fine', i => settingOf(i) == '').map(i => [methodOf(i).name, replicateOf(i), VALUE])"
            )
            code = code.replace("VALUE", f"values('{metric}', '{rule}')[i]")
            found = {(m, s): v for m, s, v in tab.run(code)}
            wanted = {(m, f"seed {s}"): v for m, s, v in zip(own["method"], own["seed"], own["value"], strict=True)}
            assert found.keys() == wanted.keys()
            assert np.allclose(
                [found[k] for k in wanted], [*wanted.values()], rtol=0, atol=6e-5 + 5e-4 * (metric == "train/rho")
            )


def test_filters_are_kept_in_the_address_and_back_goes_back(page, tab):
    show(tab, page, "#methods?data=glyphs_fine")
    titles = [text(tab, "h1")]
    choose(tab, "rule", "last")
    assert "rule=last" in tab.run("location.hash")
    choose(tab, "metric", "nmi")
    assert "NMI, %, glyphs_fine" in all_texts(tab, "#figure svg text")
    assert tab.run("document.activeElement.id") == "choose-metric"  # drawn anew, still in the same list
    tab.run("history.back()")
    wait(tab, "!location.hash.includes('nmi')")
    assert tab.run("document.getElementById('choose-rule').value") == "last"
    tab.run("history.back()")
    wait(tab, "!location.hash.includes('last')")
    assert text(tab, "h1") == titles[0]
    tab.run("document.getElementById('box-Softmax').click()")
    wait(tab, "location.hash.includes('Softmax')")
    tab.run("document.getElementById('box-Triplet (D)').click()")
    wait(tab, "location.hash.includes('Triplet')")
    assert {row[0] for row in rows(tab)} == {"Softmax", "Triplet (D)"}


STATES = (
    ("methods", {"data": "glyphs_fine", "rule": "last", "metric": "nmi", "rows": "Roth et al. 2020"}),
    ("methods", {"setting": "batch_size=28"}),
    ("trials", {"method": ["Softmax", "Triplet (D)"]}),
    ("pair", {"method": ["Margin (D, beta=1.2)", "Softmax"]}),
    ("curves", {"method": "Triplet (D)", "metric": "rho", "replicate": "seed 3"}),
    ("curves", {"method": "Softmax", "part": "validation"}),
    ("replicates", {"method": ["R-Triplet (D)", "Triplet (D)"], "rule": "last"}),
    ("claims", {"claim": "R9b"}),
)


@pytest.mark.parametrize("view,state", STATES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_a_link_restores_its_view(page, tab, view, state):
    show(tab, page, report_files.view_link(view, **state).removeprefix("explorer.html"))
    assert text(tab, "#notice") == ""
    chosen = tab.run("Object.fromEntries([...document.querySelectorAll('select')].map(e => [e.id.slice(7), e.value]))")
    for name, value in state.items():
        if name == "method" and view == "pair":
            assert [chosen["method-a"], chosen["method-b"]] == value
        elif name == "method" and view == "replicates":
            assert [chosen["method"], chosen["other"]] == value
        elif name == "method" and view == "trials":
            assert {t for t in all_texts(tab, "#figure svg > text") if t in METHODS} == {*value}
        else:
            assert chosen[name] == value
    seen = text(tab, "h1"), text(tab, "#figure")
    tab.run("location.hash = 'trials'" if view != "trials" else "location.hash = 'claims'")
    wait(tab, f"document.title.indexOf({json.dumps(seen[0])}) < 0")
    tab.run("history.back()")
    wait(tab, f"document.title.indexOf({json.dumps(seen[0])}) == 0")
    assert (text(tab, "h1"), text(tab, "#figure")) == seen


def test_what_is_not_there_is_said(page, tab):
    show(tab, page, "#methods?data=omniglot&metric=nonsense&rule=first")
    assert "“omniglot”" in text(tab, "#notice") and "“nonsense”" in text(tab, "#notice")
    assert len(rows(tab)) == len(METHODS)
    for view in ("pair", "curves", "replicates"):
        show(tab, page, f"#{view}?method=NoSuchLoss")
        assert "“NoSuchLoss”" in text(tab, "#notice") and tab.run("document.querySelectorAll('#figure svg').length")
    show(tab, page, "#claims?claim=R3a")
    assert "not tested" in text(tab, "h1") and "no replicates yet" in text(tab, "#lead")
    show(tab, page, "#nowhere?%")
    assert text(tab, "nav a[aria-current]") == "Methods"


def test_methods_are_compared_on_shared_replicates(tmp_path, monkeypatch, tab):
    """More replicates of one method, all of them bad, move neither its mean nor its place."""
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    rng, levels = np.random.default_rng(0), {"Softmax": 0.7, "Triplet (D)": 0.66, "NPair": 0.64}
    runs = [record(m, s, v, rng) for m, v in levels.items() for s in range(4)]
    runs += [record("Softmax", s, 0.3, rng) for s in range(4, 12)]
    records.write_batch("smoke", [*runs, record("ArcFace", 1, 0.9, rng)])  # which has one of the four alone
    show(tab, (explorer.write_explorer("smoke"),), "#methods?rule=last")
    values = tables.study_records("smoke")[1]
    values = values[(values["metric"] == "recall@1") & (values["selection"] == "last") & (values["seed"] < 4)]
    means = 100 * values.groupby("method", observed=True)["value"].mean()
    found = rows(tab)
    assert [row[0] for row in found] == ["Softmax", "Triplet (D)", "NPair", "ArcFace"]  # 90 %, and yet last: apart
    assert np.allclose([float(row[1]) for row in found], means[[row[0] for row in found]], atol=0.011)
    assert [row[4] for row in found] == ["4", "4", "4", "1"]
    assert "4 replicates that most methods share" in text(tab, "#lead") and "* 1 method" in text(tab, "#lead")
    assert text(tab, "h1") == "Softmax is ahead of the other 2 methods"  # of those that were tested


def test_one_method_is_ahead_of_nobody(page, tab):
    """It was called ahead of the other method, in bold, where it was shown alone; unticked it keeps the focus."""
    show(tab, page, "#methods?data=glyphs_fine&method=Softmax")
    assert text(tab, "h1") == "1 method with its interval"
    assert all_texts(tab, "#figure .label.bold") == [] and [row[-1] for row in rows(tab)] == [""]
    tab.run("(e => { e.focus(); e.click() })(document.getElementById('box-Softmax'))")
    wait(tab, "!location.hash.includes('Softmax')")
    assert tab.run("document.activeElement.id") == "box-Softmax" and len(rows(tab)) == len(METHODS)


@pytest.mark.parametrize("view,reached", [("methods", True), ("curves", True), ("replicates", True), ("pair", False)])
def test_marks_are_reached_with_the_tab_key_where_the_hint_says_so(page, tab, view, reached):
    show(tab, page, f"#{view}")
    assert ("tab key" in text(tab, "#said")) == reached
    marks = "[...document.querySelectorAll('#figure svg a, #figure svg [tabindex]')].filter(e => e.tabIndex >= 0)"
    assert bool(tab.run(f"{marks}.length")) == reached and all(tab.run(f"{marks}.map(e => e.ariaLabel)"))


PLACES = """[...document.querySelectorAll('#figure svg .mark path')].map(m => m.getAttribute('transform'))
    .map(t => t.match(/translate.([-0-9.]+),([-0-9.]+)/).slice(1).map(Number))"""


def test_no_value_is_moved_to_the_edge_of_its_axis(page, tab):
    """Two low values stand apart: named lines are drawn whole, and in rows an arrow says that one goes on outside."""
    show(tab, page, "")
    values = [78.2, 80.2, *np.linspace(88, 89, 20)]
    named = [
        {"name": f"a{i}", "mark": 0, "strong": i < 2, "points": [[1, v - 1], [2, v]]} for i, v in enumerate(values)
    ]
    plain = [{"label": "a", "text": "", "mark": 0, "mean": v, "low": v, "high": v} for v in values]
    axes = "{ xLabel: '', yLabel: '', label: '', metric: {}, percent: false }"
    shown = "document.getElementById('figure').replaceChildren"
    tab.run(f"{shown}(lines({json.dumps(named)}, {axes}))")
    heights = [y for _, y in tab.run(PLACES)]
    assert len(heights) == len({*heights}) == 4  # two named lines of two points
    tab.run(f"{shown}(dots({json.dumps(plain)}, {axes}))")
    marks = tab.run(PLACES)
    assert len(marks) == 22 and len({y for _, y in marks}) == 22
    assert tab.run("document.querySelectorAll('#figure path[d=\"M0,-6L4,1H-4Z\"]').length") == 2


def test_pairs_of_methods_by_class(page, tab):
    """All classes, sorted by the difference, and the sums are right."""
    show(tab, page, "#pair?data=glyphs_fine&method=R-Triplet+%28D%29&method=Softmax")
    found = rows(tab)
    assert len(found) == 96 == tab.run("document.querySelectorAll('#figure svg .ink path').length")
    differences = [float(row[3].replace("−", "-")) for row in found]
    assert differences == sorted(differences, reverse=True)
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    assert text(tab, "h1").startswith(f"R-Triplet (D) is better on {better} classes, Softmax on {worse}")
    assert found[0][0].startswith("Latin ")
    plain = page[1].drop_duplicates("key").query("method == 'Softmax' and setting == ''")["key"]
    lines = (page[0].parents[1] / "records/smoke.jsonl").read_text().splitlines()
    hits = [selection.class_hits(r)[0] / 30 for r in map(json.loads, lines) if r["key"] in {*plain}]
    shares = {name: share for name, _, share, _ in found}
    wanted = np.rint(100 * np.mean(hits, 0))
    assert sorted(map(float, shares.values())) == sorted(wanted)


def test_a_claim_of_the_first_set(page, tab):
    show(tab, page, "#claims?claim=R9b")
    assert "<b>on average</b>" in text(tab, "h1") and "inconclusive" in text(tab, "h1")  # shown, not obeyed
    assert "+1.00 [−1.00, +3.00] points, 5 replicates" in text(tab, "#lead")
    assert [row[0] for row in rows(tab)] == ["R-Triplet (D) minus Triplet (D)"] or len(rows(tab)) > 1
    tab.run("document.querySelector('details').open = true; document.querySelector('td a').click()")
    wait(tab, "location.hash.startsWith('#replicates')")
    show(tab, page, "#claims?claim=S7a")
    assert "reproduced" in text(tab, "h1")


def test_an_effect_of_a_later_ledger(tmp_path, monkeypatch, tab):
    """What each replicate says, the written verdict, and the way to the runs, for a mean and for one loss."""
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    rng, pairs = np.random.default_rng(0), ledger.read_ledger()["pairs"]["switch"]
    found = [
        record(m, None, 0.5 + 0.02 * side, rng, "omniglot_confirm", dataset="omniglot_few", replicate=r)
        | {"classes": {}}
        for pair in pairs
        for side, m in enumerate(reversed(pair))
        for r in range(10, 15)
    ]
    records.write_batch("omniglot_confirm", found)
    best = {(r["run"]["method"], r["run"]["replicate"]): max(r["curves"]["test"]["recall@1"]) for r in found}
    gains = 100 * np.array([[best[a, r] - best[b, r] for a, b in pairs] for r in range(10, 15)])
    heads = "id,of,look,effect,low,high,verdict,printed,beside,new_low,new_high\n"
    effects = {"mean": gains.mean(), "Contrastive (D)": gains[:5, 0].mean()}
    lines = [f"W1,{of},5,{effect},{effect - 0.3},{effect + 0.3},above delta,,,,\n" for of, effect in effects.items()]
    (tmp_path / "omniglot_confirm/tables").mkdir(parents=True)
    (tmp_path / "omniglot_confirm/tables/ledger.csv").write_text("".join([heads, *lines]))
    page = (explorer.write_explorer("omniglot_confirm"),)
    for of, wanted in (("mean", gains.mean(1)), ("Contrastive (D)", gains[:, 0])):
        show(tab, page, report_files.view_link("claims", claim="W1", of=of).removeprefix("explorer.html"))
        assert text(tab, "#notice") == "" and "larger than δ" in text(tab, "h1")
        assert f"{effects[of]:+.2f} [{effects[of] - 0.3:+.2f}" in text(tab, "#lead")
        last = "[...[...document.querySelectorAll('table')].at(-1).tBodies[0].rows]"
        said = tab.run(f"{last}.map(r => [...r.cells].map(c => c.textContent))")
        assert [row[0] for row in said] == [f"replicate {r}" for r in range(10, 15)]
        assert np.allclose([float(row[1].replace("−", "-")) for row in said], wanted, atol=0.006)
    tab.run("document.querySelector('#more details').open = true; document.querySelector('td a').click()")
    wait(tab, "location.hash.startsWith('#replicates')")
    assert "R-Contrastive (D) minus Contrastive (D)" in text(tab, "h1") and text(tab, "#notice") == ""
    assert float(re.search(r"[+]([0-9.]+)", text(tab, "h1"))[1]) == pytest.approx(gains[:, 0].mean(), abs=0.06)


def test_a_claim_about_every_loss_before_its_first_look(tmp_path, monkeypatch, tab):
    """Two of its five replicates are there: they are drawn, and no verdict is given."""
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    rng, name = np.random.default_rng(0), "omniglot_confirm"
    question = next(q for q in ledger.asked(ledger.read_ledger()) if q["over"] == "every")
    asked = [(method, r) for method in {m for pair in question["rows"] for m in pair} for r in (10, 11)]
    records.write_batch(name, [record(m, None, 0.5, rng, name, "omniglot_few", replicate=r) for m, r in asked])
    heads = "id,of,look,effect,low,high,verdict,printed,beside,new_low,new_high"
    (tmp_path / "omniglot_confirm/tables").mkdir(parents=True)
    line = f"{question['id']},every,0,,,,open,,,,"
    (tmp_path / "omniglot_confirm/tables/ledger.csv").write_text(f"{heads}\n{line}\n")
    show(tab, (explorer.write_explorer(name),), f"#claims?claim={question['id']}&of=every")
    assert "not tested yet" in text(tab, "h1") and "It has no replicates yet" in text(tab, "#lead")
    assert len(rows(tab)) == len(question["rows"]) and "NaN" not in text(tab, "main")


def test_with_the_keyboard(page, tab):
    """Tab reaches tabs, lists and marks; enter follows a mark; its numbers are read out."""
    show(tab, page, "#methods")
    reached = []
    for _ in range(30):
        tab.key("Tab", 9)
        reached.append(tab.run("document.activeElement.id || document.activeElement.getAttribute('aria-label') || ''"))
        if "Open its replicates" in reached[-1]:
            break
    assert reached[0] == "skip" and "tab-pair" in reached and "choose-metric" in reached
    assert text(tab, "#said") == reached[-1]
    name = reached[-1].split(":")[0]
    tab.key("Enter", 13)
    wait(tab, "location.hash.startsWith('#replicates')")
    assert text(tab, "h1").startswith(name) and tab.run("document.activeElement.id") == "title"
    tab.run("document.getElementById('choose-data').focus()")
    tab.run("document.getElementById('choose-rule').focus()")
    tab.key("ArrowDown", 40)
    wait(tab, "location.hash.includes('rule=')")
    assert tab.run("document.activeElement.id") == "choose-rule"  # drawn anew, still there


def test_nothing_can_be_fetched(page, tab):
    source = page[0].read_text()
    assert "default-src 'none'" in source and not re.search(r"""(src|href)=["']?(https?:)?//""", source)
    assert "@@" not in source.split('id="data"')[0]
    show(tab, page, "")
    assert tab.run("fetch('data:,x').then(() => 'fetched', () => 'refused')") == "refused"
    assert (
        tab.run(
            "new Promise(d => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            "document.body.append(s); setTimeout(() => d(window.ran ?? 0), 50) })"
        )
        == 0
    )
    assert len(tab.complaints) >= 2  # the browser tells of both
    tab.complaints.clear()


@pytest.mark.parametrize("seeds,more", [(1, False), (2, True)])
def test_few_records(tmp_path, monkeypatch, tab, seeds, more):
    """One seed: no interval, nothing called better; no search and no claims: what to do."""
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    fill(tmp_path, seeds, more)
    file = (explorer.write_explorer("smoke"),)
    for view in VIEWS:
        show(tab, file, f"#{view}")
        assert text(tab, "h1") and "NaN" not in text(tab, "main") and "undefined" not in text(tab, "main")
        if not more and view in ("trials", "claims"):
            assert "dmlstudy" in text(tab, "#lead") and text(tab, "#figure") == ""
    show(tab, file, "#methods")
    assert ("needs a second replicate" in text(tab, "#lead")) == (seeds == 1)
    assert bool(all_texts(tab, "#figure .label.bold")) == (seeds > 1)


def test_one_record_alone(tmp_path, monkeypatch, tab):
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    alone = record("ImageNet", 0, 0.5, np.random.default_rng(0))
    alone["curves"] = {part: {k: v[:1] for k, v in curve.items()} for part, curve in alone["curves"].items()}
    records.write_batch("smoke", [alone | {"classes": {}}])
    file = (explorer.write_explorer("smoke"),)
    for view in VIEWS:
        show(tab, file, f"#{view}")
        assert text(tab, "h1") and "NaN" not in text(tab, "main")
    records.write_batch("smoke", [])
    file = (explorer.write_explorer("smoke"),)
    show(tab, file, "#methods")
    assert "no runs yet" in text(tab, "h1") and "dmlstudy run --profile smoke" in text(tab, "#lead")


def test_the_script_is_short():
    assert len(asset("explorer.js").read_text().splitlines()) <= 1000


def test_no_records(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_OUTPUTS", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="dmlstudy run --profile smoke"):
        explorer.write_explorer("smoke")


def test_without_colour(page, tab):
    """Each kind of method has a shape of its own, and every kind of the study has one."""
    show(tab, page, "")
    shapes = tab.run("SHAPES")
    assert len({*shapes}) == len(shapes) >= tab.run("meta.marks.length") == len(explorer.COLOURS)
    assert {*explorer.COLOURS} == explorer._WORDS["marks"].keys()
    assert {*verdicts.VERDICTS, *claims.CLAIM_VERDICTS} == explorer._WORDS["verdicts"].keys()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The page of the committed records, and its outputs."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "records").symlink_to(ROOT / "outputs/records")
    (folder / "tables").symlink_to(ROOT / "outputs/tables")
    shutil.copy(ROOT / "outputs/claims.csv", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMLSTUDY_OUTPUTS", str(folder))
        yield explorer.write_explorer("glyphs"), folder


@pytest.mark.slow
def test_the_whole_study_opens_at_once(study, tab):
    assert study[0].stat().st_size < 1_080_000
    opened = []
    for view in (*VIEWS, *VIEWS):
        show(tab, study, f"#{view}")
        opened.append(float(tab.run("document.documentElement.dataset.ready")))
        assert tab.run("document.querySelectorAll('#figure svg, #figure .verdict').length")
    assert sorted(opened)[len(opened) // 2] < 1000, opened
    assert tab.run("meta.sets.map(one => one.version)") == [*range(2, 25), 1]
    later = tab.run("meta.sets.slice(0, -1).flatMap(l => l.effects).map(e => [e.id, e.of, e.look, e.effect, e.found])")
    assert len(later) == sum(1 for v in range(2, 25) for _ in ledger.asked(ledger.read_ledger(v)))
    for name, of, look, effect, found in later:  # what is drawn gives what was written
        means = np.array(found[: int(look)]).reshape(int(look), -1)
        means = means[:, means.mean(0).argmin()] if of == "every" else means.mean(1)
        assert np.isclose(means.mean(), effect, atol=2e-3), (name, of)
    ids = tab.run("meta.sets.flatMap(one => [...new Set(one.effects.map(e => e.id))])")
    assert len({*ids}) == len(ids) and {"V1", "V1, set 22", "Q1", "Q1, set 20"} < {*ids}  # sets name their claims alike
    for number, entry in enumerate(ids):
        asked = f"#claims?claim={quote_plus(entry)}"
        show(tab, study, asked) if not number else tab.run(f"location.hash = '{asked}'")
        wait(tab, f"document.getElementById('choose-claim')?.value == '{entry}'")
        assert "NaN" not in text(tab, "main") and "undefined" not in text(tab, "main"), entry


@pytest.mark.slow
def test_each_table_has_its_view(study, tab):
    """What tables and figures link to is there, and the drawings come first."""
    show(tab, study, "#methods")
    assert tab.run("document.getElementById('choose-data').value") == "omniglot_objectives"
    drawn = [stem for stem in report_files._WORDS["views"] if any((ROOT / "outputs").glob(f"*/{stem}.*"))]
    for view in {report_files._WORDS["views"][stem] for stem in ("roth", "sec", *drawn)} - {""}:
        show(tab, study, f"#{view}")
        assert text(tab, "#notice") == "" and text(tab, "#figure"), view

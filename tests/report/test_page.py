"""The page of a profile: complete, self-contained, safe, the same for the same records, and right in a real browser."""

import base64
import html
import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from html.parser import HTMLParser

import fresh
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import psutil
import pytest
from PIL import Image
from waiting import wait_until

from dmlstudy.report import files as report_files
from dmlstudy.report import page as report
from dmlstudy.report.page import draw, notebooks, question_files
from dmlstudy.report.style import dots
from dmlstudy.study import records
from dmlstudy.study.config import run_of
from dmlstudy.study.run import make_run

STEMS = ("roth_table2", "roth_table10", "roth_fig1", "roth_fig12", "sec_main", "sec_table1", "sec_fig1", "claims")
WIDE = pd.DataFrame([{f"a rather long heading {i}": 51.25 + i for i in range(14)}])
SETS = {"glyphs_fine": "CUB200-2011", "glyphs_cross": "CARS196", "glyphs_many": "SOP"}
HEADS = [h for o, p in SETS.items() for m in ("R@1", "NMI") for h in (f"{o} {m}", f"{p} {m} (reported)")]
TABLE2 = {h: "64.5 ± 0.3" if "reported" in h else "†64.5 ± 1.3" for h in HEADS}
TABLE2 = pd.DataFrame([{"method": "R-Margin (D, beta=1.2)", **TABLE2}])


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A profile with some tables and figures, and its page."""
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    made = {"seconds": 30.0, "device": "cpu", "git": "0123abc", "versions": {"torch": "2.14.1", "numpy": "2.4"}}
    runs = [make_run(seed=seed) for seed in range(3)]
    records.write_batch("smoke", [{"key": r.key(), "run": asdict(r), "curves": {}, "made": made} for r in runs])
    for stem in STEMS:
        if "fig" in stem:
            fig, ax = plt.subplots(figsize=(8, 3))
            ax.plot([1, 2])
            report_files.write_figure(stem, fig, profile="smoke")
            plt.close(fig)
        else:
            text = {"caption": f"Caption of {stem}: <script>alert(1)</script>", "notes": "From 3 runs."}
            table = TABLE2 if stem == "roth_table2" else WIDE
            file = report_files.write_table(stem, table, **text, profile="smoke")
            file.write_text(file.read_text() + "\n## Rule `last`: after the last step\n\n| a |\n| --- |\n| 77.7 |\n")
        records.write_atomically(
            tmp_path / f"outputs/smoke/answers/{stem}.md", f"{stem} says $\\pi_\\text{{intra}}$ 0.5."
        )
    (tmp_path / "outputs/smoke/claims.md").write_text("# Claims\n\n| claim | holds |\n| --- | --- |\n| one | yes |\n")
    return report.write_report("smoke")


ENDS = {"td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr")}  # what begins -> what it ends, in HTML


class Found(HTMLParser):
    """Tags with their attributes, and whether all are closed in order."""

    def __init__(self, text: str):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)

    def end(self, tags):
        while self.open and self.open[-1] in tags:
            self.open.pop()

    def handle_starttag(self, tag, attributes):
        self.end(ENDS.get(tag, ()))
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "hr", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.end(ENDS["tr"] if tag in ("thead", "tbody", "table") else ())
        assert self.open.pop() == tag


def test_every_stem_once_and_in_order(page):
    found = Found(page.read_text())
    assert not found.open
    sections = [attributes["id"] for tag, attributes in found.tags if tag == "section"]
    assert sections == ["methods", *report.stems("smoke"), "first", "made"]
    assert sorted(report.stems("smoke")) == sorted(STEMS)
    order = report.stems("smoke")
    assert order.index("roth_table2") < order.index("roth_fig1") < order.index("roth_fig12")
    assert order[-1] == "roth_table10"  # which the study does not have
    assert order.index("sec_table1") < order.index("sec_main") < order.index("sec_fig1")
    targets = [a["href"][1:] for tag, a in found.tags if tag == "a" and a["href"].startswith("#")]
    assert set(targets) <= {a["id"] for _, a in found.tags if "id" in a}


def test_self_contained_and_safe(page):
    found = Found(page.read_text())
    sources = [a["src"] for tag, a in found.tags if tag == "img"]
    assert len(sources) == 3 and all(source.startswith("data:image/webp;base64,") for source in sources)
    assert all(a["alt"] for tag, a in found.tags if tag == "img")
    assert not [tag for tag, _ in found.tags if tag in ("script", "link", "iframe")]
    assert "http" not in re.sub(r"base64,[\w+/=]+", "", page.read_text())
    links = [a["href"] for tag, a in found.tags if tag == "a" and not a["href"].startswith("#")]
    links = [link for link in links if not link.startswith("explorer.html#")]  # which is another page, not made here
    assert links and all((page.parent / link).is_file() for link in links)


def test_answers_and_full_files(page):
    """Under each table and figure stands what it says; a figure opens as a file."""
    text = page.read_text()
    assert text.count("<strong>Answer:</strong> roth_") == 4 and "roth_table2 says π_intra 0.5." in text
    assert "textintra" not in text
    full = [a["href"] for tag, a in Found(text).tags if tag == "a" and a.get("title") == "open the file"]
    assert full == [f"figures/{stem}.png" for stem in report.stems("smoke") if "fig" in stem]


@pytest.mark.slow
def test_the_page_of_the_study_can_be_sent():
    """Two megabytes at most; the article first; and one count of runs, each once."""
    text = (records.outputs() / "report.html").read_text()
    assert len(text.encode()) <= 2_000_000
    assert text.index('href="article.html"') < text.index('id="findings"') < text.index('id="methods"')
    table = re.search(r'<table class="wide runs">.*?</table>', text, re.S)[0]
    rows = re.findall(r"<tr><td>([^<]+)<td>(\d+)", table)
    *parts, (last, total) = rows
    keys = [record["key"] for name, _ in parts for record in records.each_record(name, ["run"])]
    assert sum(int(n) for _, n in parts) == len(keys) and (last, int(total)) == ("together", len({*keys}))
    assert f"from {total} runs." in text


@pytest.mark.slow
def test_the_report_of_the_study_says_what_its_pages_say(monkeypatch):
    """All but the pictures, which are drawn again by the slow tests: a page, a table or an answer may have changed."""
    made, plain = [], lambda text: re.sub(r'src="data:[^"]*"', "", text)
    monkeypatch.setattr(report, "_small", lambda file: "it")
    monkeypatch.setattr(report, "write_output", lambda file, text: made.append((file, text)))
    report.write_report()
    report.write_gallery()
    for file, text in made:
        assert plain(text) == plain(file.read_text(encoding="utf-8")), f"{file} is old: run dmlstudy tables"
    links = {href for href in re.findall(r'href="([^"#]+)', made[0][1]) if not href.startswith("http")}
    assert len(links) > 100 and [href for href in links if not (records.outputs() / href).exists()] == []


def test_same_records_same_bytes(page):
    before = page.read_bytes()
    assert report.write_report("smoke").read_bytes() == before


def test_how_it_was_made(page):
    text = html.unescape(re.sub(r"<[^>]+>", " ", page.read_text()))
    for part in (
        "1:30 min",
        "cpu (3 runs)",
        "0123abc (3 runs)",
        "2.14.1 (3 runs)",
        "made by nbs/experiments/roth/roth_table2.ipynb",
    ):
        assert part in " ".join(text.split()), part


def test_every_table_and_figure_is_listed():
    """With the notebook that writes it, and that notebook's title where it writes one thing."""
    listed, made = report._listed(), Counter(known["notebook"] for known in report._listed().values())
    assert {*report.stems("glyphs")} <= {*listed}
    for stem, known in listed.items():
        cells = json.loads(question_files()[known["notebook"]].read_text())["cells"]
        code = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert f'"{stem}"' in code, stem
        if made[known["notebook"]] == 1 and known["part"] == "What the study finds":
            assert known["title"] in cells[0]["source"][0], stem


def test_pages_that_show_runs_are_older_than_a_new_record(tmp_path, monkeypatch):
    """`tools/fresh.py` called the report fresh where no table had changed."""
    (record := tmp_path / "new.jsonl").write_text("{}\n")
    before = fresh.made_from()
    monkeypatch.setitem(fresh.RECORDS, "new", record)
    changed = {of for of, parts in fresh.made_from().items() if parts != before[of]}
    assert changed & fresh.PAGES.keys() == {"report.html", "explorer.html"}


def test_no_records(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="dmlstudy run --profile smoke"):
        report.write_report("smoke")
    with pytest.raises(ValueError, match="Did you mean 'smoke'"):
        report.write_report("smok")


@pytest.mark.slow
def test_nothing_to_draw_is_said(tmp_path, monkeypatch):
    """Figure 1 leaves the pre-trained network out; with that alone there are no bars."""
    run, curve = run_of("smoke", "glyphs_fine", "ImageNet"), {"step": [0], "recall@1": [0.4]}
    imagenet = {"key": run.key(), "run": asdict(run), "curves": {"test": curve, "train": curve}, "made": {}}
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    records.write_batch("smoke", [imagenet])
    source = notebooks() / "experiments/roth/roth_fig1.ipynb"
    assert draw([(source, tmp_path / "fig1.ipynb", {"profile": "smoke", "train": False})], 1) == []
    assert "nothing to draw: profile smoke has no records" in (tmp_path / "fig1.ipynb").read_text()
    fig, ax = plt.subplots()
    dots(ax, pd.DataFrame({"mean": [], "low": [], "high": []}))
    assert [text.get_text() for text in ax.texts] == ["no values"]
    plt.close(fig)


PROBE = """<iframe id="page" src="PAGE" width="WIDTH" height="900"></iframe><pre id="found"></pre>
<script>
onload = () => {
  const inner = document.getElementById("page").contentDocument
  const all = what => [...inner.querySelectorAll(what)]
  document.getElementById("found").textContent = JSON.stringify({
    stems: all("section").map(s => s.id),
    images: all("img").length,
    broken: all("img").filter(i => !i.complete || !i.naturalWidth).length,
    cut: all("img").filter(i => i.closest(".scroll").getBoundingClientRect().right > WIDTH).length,
    thumbnails: all("img").filter(i => i.getBoundingClientRect().width < Math.min(600, i.naturalWidth)).length,
    left: all("td + td").filter(e => /^†?\\d/.test(e.textContent) && getComputedStyle(e).textAlign != "right").length,
    wide: inner.documentElement.scrollWidth,
    hidden: all("#roth_table2 > .scroll").filter(e => e.scrollWidth > e.clientWidth).length,
    small: all("p, td, a").filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
    unfolded: all("details td").filter(e => e.checkVisibility()).length,
  })
}
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser(page, width, tmp_path):
    """Every stem is there, every image loads, and the page is not wider than the screen."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not browser:
        pytest.skip("no chromium here")
    around = page.with_name("around.html")
    around.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page.name))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    flags += ["--virtual-time-budget=20000", f"--user-data-dir={tmp_path / 'browser'}"]
    call = [browser, *flags, "--dump-dom", f"file://{around}"]
    dom = subprocess.run(call, capture_output=True, text=True, timeout=900).stdout
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', dom, re.S)[1]))
    assert set(STEMS) <= set(found["stems"])
    assert (found["images"], found["broken"], found["cut"]) == (3, 0, 0)
    assert (found["thumbnails"], found["left"]) == (0, 0)
    assert found["hidden"] == (width < 1200)  # the last column of Table 2 is seen on a desktop
    assert found["wide"] <= width and found["small"] == 0 and found["unfolded"] == 0


DRAW = """
import sys
from pathlib import Path
from dmlstudy.report.page import draw
if __name__ == "__main__":
    draw([(Path(sys.argv[1]), Path(sys.argv[2]), {})], 1)
"""


@pytest.mark.slow
def test_killed_while_it_draws(tmp_path, monkeypatch):
    """Nothing is left in the temporary folder, and what is left beside the outputs goes with the next batch."""
    import nbformat

    cells = [nbformat.v4.new_code_cell("", metadata={"tags": ["parameters"]})]
    code = "import os, time\nfrom pathlib import Path\nPath('drawing').write_text(str(os.getpid()))\ntime.sleep(9999)"
    kind = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    book = nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_code_cell(code)], metadata=kind)
    nbformat.write(book, tmp_path / "slow.ipynb")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(notebooks().parent))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    drawing = tmp_path / "drawing"
    process = subprocess.Popen([sys.executable, "-c", DRAW, tmp_path / "slow.ipynb", tmp_path / "copy.ipynb"])
    worker = int(wait_until(lambda: drawing.exists() and drawing.read_text()))
    process.kill()
    process.wait()
    wait_until(lambda: not psutil.pid_exists(worker))  # it ends with the process that started it
    assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.slow
def test_each_copy_that_a_process_executes_holds_its_pictures(tmp_path, monkeypatch):
    """Shown by name or at the end of a cell, in the first notebook of a process and in those after it."""
    import nbformat

    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    kind = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    codes = ["import matplotlib.pyplot as plt\nplt.plot([1, 2])", "plt.plot([2, 1])\nplt.show()"]
    codes += ["from dmlstudy.report.files import write_figure\nwrite_figure('it', plt.figure())\nplt.show()"]
    cells = [*map(nbformat.v4.new_code_cell, codes)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kind), tmp_path / "plots.ipynb")
    tasks = [(tmp_path / "plots.ipynb", tmp_path / f"out/{name}.ipynb", {}) for name in ("one", "two", "three")]
    assert draw(tasks, 1) == []
    for _, target, _ in tasks:
        cells = json.loads(target.read_text())["cells"]
        assert ["image/png" in str(c["outputs"]) for c in cells] == [True] * 3
        (picture,) = (data["image/png"] for out in cells[2]["outputs"] if "image/png" in (data := out.get("data", {})))
        assert base64.b64decode(picture) == (tmp_path / "outputs/figures/it.png").read_bytes()  # as it was written


def test_a_small_picture_keeps_its_colours(tmp_path):
    """Lines have few; those of a heat map and of a photograph are all that it says."""
    rows, columns = np.indices((80, 120))
    shades = (255 * plt.cm.cividis((rows + columns) / 200)[..., :3]).round()
    lines = np.where(((rows % 20 == 0) | (columns == rows))[..., None], (0, 114, 178), 255)
    for name, pixels in (("shades", shades), ("lines", lines)):
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{name}.png")
        with Image.open(io.BytesIO(base64.b64decode(report._small(tmp_path / f"{name}.png")))) as small:
            assert abs(np.asarray(small.convert("RGB"), float) - pixels).mean() < 6, name


@pytest.mark.slow
def test_a_notebook_that_takes_its_process_along_is_named_and_the_others_are_drawn(tmp_path, monkeypatch):
    import nbformat

    monkeypatch.setenv("DMLSTUDY_ROOT", str(tmp_path))
    kind = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    for name, code in (("dies", "import os\nos._exit(3)"), ("fails", "print('a')\n{}['b']"), ("works", "6 * 7")):
        cells = [nbformat.v4.new_code_cell("x = 1", metadata={"tags": ["parameters"]}), nbformat.v4.new_code_cell(code)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kind), tmp_path / f"{name}.ipynb")
    tasks = [
        (tmp_path / f"{name}.ipynb", tmp_path / f"out/{name}.ipynb", {"x": 2}) for name in ("dies", "fails", "works")
    ]
    dead, failed = draw(tasks, 1)
    assert "dies.ipynb" in dead.what and "BrokenProcessPool" in dead.why
    assert failed.why == "KeyError: 'b'" and failed.cell == 3
    done = nbformat.read(tmp_path / "out/works.ipynb", 4)
    assert done.cells[-1].outputs[0]["data"]["text/plain"] == "42" and "x = 2" in done.cells[1].source
    kinds = [output.output_type for output in nbformat.read(tmp_path / "out/fails.ipynb", 4).cells[-1].outputs]
    assert kinds == ["stream", "error"]

"""Say whether the files of outputs/ are of what they were made from, or draw those that are not.

python tools/fresh.py: names what is older than the records, notebooks, ledgers or pages that it shows, within seconds.
python tools/fresh.py draw: draws that again, and writes what everything is made from to outputs/made_from.json.
python tools/fresh.py note: writes outputs/made_from.json alone, after `dmlstudy tables` has drawn everything.

The library's other code is not compared: `make test-slow` draws everything again, and finds whether it gives the same.
"""

import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from dmlstudy.evidence.preregistered import read_ledger
from dmlstudy.report.files import view_of
from dmlstudy.study.config import PROFILES, QUESTIONS

ROOT = Path(__file__).resolve().parents[1]
OUTPUTS, ASSETS, NOTED = ROOT / "outputs", ROOT / "dmlstudy/assets", ROOT / "outputs/made_from.json"
RECORDS = {  # the committed ones
    file.stem: file
    for file in (OUTPUTS / "records").glob("*.json*")
    if not file.stem.startswith(("drill", "smoke", "paper")) and file.suffix in (".json", ".jsonl")
}
TEXT, ALL = "text of nbs/experiments", "outputs/records"
PAGES = {  # page -> what it is made from
    "report.html": [TEXT, "outputs/tables/*.md", "outputs/answers/*.md", "outputs/figures/*.png", "outputs/claims.md"],
    "article.html": [
        "nbs/article.ipynb",
        "outputs/tables/*.csv",
        "dmlstudy/assets/*.toml",
        "dmlstudy/assets/article.html",
    ],
    "figures/README.md": [TEXT, "dmlstudy/assets/outputs.csv", "outputs/answers/*.md", "outputs/figures/*.png"],
    "explorer.html": [ALL, "outputs/claims.csv", "dmlstudy/assets/*.toml", "dmlstudy/assets/explorer.*"],
}
PAGES["report.html"] += [ALL, "dmlstudy/assets/report.html", "dmlstudy/assets/outputs.csv"]


@cache
def digest(content: bytes | Path) -> str:
    """Twelve letters of the SHA-256 of a file or text."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.read_bytes()).hexdigest()[:12]


def together(files: Iterable[Path]) -> str:
    """Digest of several files, by their names and contents; a lock that a batch leaves is none of them."""
    shown = sorted(file for file in files if not file.name.startswith("."))
    return digest("\n".join(f"{file.name} {digest(file)}" for file in shown).encode())


@cache
def written(notebook: Path, code_only: bool) -> str:
    """What stands in the cells of a notebook, without what they printed."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code" or not code_only)


def notebooks() -> list[Path]:
    """Those that draw tables and figures."""
    files = sorted((ROOT / "nbs/experiments").rglob("*.ipynb"), key=lambda file: file.stem)
    return [file for file in files if file.stem in QUESTIONS]


def links_of(question: str) -> list[str]:
    """The addresses under the tables and figures of a notebook."""
    with open(ASSETS / "outputs.csv", encoding="utf-8", newline="") as file:
        return [view_of(row["stem"], "glyphs") for row in csv.DictReader(file) if row["notebook"] == question]


def of_question(notebook: Path) -> dict[str, str]:
    """What the tables and figures of a notebook are made from -> digest."""
    source, asked = re.sub(r"#.*", "", written(notebook, True)), QUESTIONS[notebook.stem]
    ledgers = {int(number) for number in re.findall(r"read_ledger\((\d+)", source)}
    names = {word for word in re.findall(r"\w+", source) if word in RECORDS} | {"glyphs"}
    names |= {ask["profile"] for ask in asked if isinstance(ask, dict) and "profile" in ask}
    names |= {read_ledger(number)["profile"] for number in ledgers}
    if re.search(r"\bin PROFILES\b", source) or re.search(r"read_ledger\([a-z]", source):  # of all of them
        names, ledgers = {*RECORDS}, {int(file.stem.rpartition("_")[2]) for file in ASSETS.glob("ledger_*.toml")}
    claims = [f"ledger_{number}" for number in ledgers] + ["claims"] * ("read_claims" in source)
    names |= {beside for name in names & PROFILES.keys() if (beside := PROFILES[name].beside)}
    kept = sorted(name for name in RECORDS if name.removesuffix("_search") in names or name.startswith("glyphs_"))
    return {
        "its code": digest(source.encode()),
        "its entry in profiles.toml": digest(json.dumps(asked).encode()),
        "its records": together(RECORDS[name] for name in kept),
        "its ledgers": together(ASSETS / f"{name}.toml" for name in claims),
        "the papers' numbers": together(ASSETS.glob("*2020*.csv")),
        "the look of figures": together([ROOT / "dmlstudy/report/style.py", ROOT / "dmlstudy/report/figures.py"]),
        "its links into the explorer": digest(json.dumps(links_of(notebook.stem)).encode()),
    }


def made_from() -> dict[str, dict[str, str]]:
    """Notebook or page -> what its files are made from -> digest, as that is today."""
    text = digest("\n\n".join(written(notebook, False) for notebook in notebooks()).encode())
    article = ROOT / "nbs/article.ipynb"
    known = {TEXT: text, ALL: together(RECORDS.values()), "nbs/article.ipynb": digest(written(article, False).encode())}
    parts = lambda names: {name: known.get(name) or together(ROOT.glob(name)) for name in names}
    return {file.stem: of_question(file) for file in notebooks()} | {page: parts(of) for page, of in PAGES.items()}


def stale() -> dict[str, list[str]]:
    """Notebook or page -> what has changed since it was drawn."""
    noted, today = json.loads(NOTED.read_text()) if NOTED.exists() else {}, made_from()
    apart = lambda a, b: sorted(part for part in a.keys() | b.keys() if a.get(part) != b.get(part))
    return {of: changed for of, parts in today.items() if (changed := apart(parts, noted.get(of, {})))}


def draw(old: Iterable[str]) -> None:
    """Draw the files of some notebooks, and the pages of all."""
    from dmlstudy.report.explorer import write_explorer
    from dmlstudy.report.page import show, write_article, write_gallery, write_report

    if questions := [of for of in old if of not in PAGES]:
        if failures := show("glyphs", questions):
            sys.exit(f"{len(failures)} notebooks failed: {failures}")
    else:
        write_report()
        write_gallery()
    if failures := write_article():
        sys.exit(f"the article failed: {failures}")
    write_explorer()


def main(word: str = "") -> int:
    """Exit status: 0 where everything is fresh."""
    old = stale()
    if word == "draw" and old:
        draw(old)
    if word in ("draw", "note"):
        lines = [f" {json.dumps(of)}: {json.dumps(parts)}" for of, parts in made_from().items()]
        NOTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    for of, changed in old.items():
        print(f"{of} is older than {', '.join(changed)}")
    if old:
        print(f"{len(old)} are to be drawn again: python tools/fresh.py draw")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

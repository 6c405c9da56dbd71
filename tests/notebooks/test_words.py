"""Texts use the terms of the glossary: phrases that have no other meaning, and lengths of sentences.

`python tests/notebooks/test_words.py` writes counts that may only fall to `tests/cases/words.json` and `lengths.json`.
"""

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNTS = ROOT / "tests/cases/words.json"  # text -> phrases that it may still hold
LENGTHS = ROOT / "tests/cases/lengths.json"  # answer or first cell -> words that it may still be too long
ORDINALS = "second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth"
ORDINALS = f"{ORDINALS} sixteenth seventeenth eighteenth nineteenth first later".replace(" ", "|")
PHRASES = {  # say instead -> what not to say
    "larger than δ": r"above (?:delta|its size|their sizes?)\b",
    "size uncertain": r"\bsize open\b|\bopen size\b",
    "decrease": r"\bitalic: reversed",
    "reported": r"\bin print\b|\(print\)|\bprint: |\bprinted (?:effect|gain|value|number)s?\b",
    "pre-registered claims (set N)": rf"\b(?:{ORDINALS}) (?:pre-registered )?ledgers?\b|\bledgers? \d",
    "method; with or without SEC": r"\b(?:each|one|an|both|two|three|the other) arms?\b|\barms\b",
    "replicate": r"\b(?:an?|another|ten|five|eight|twenty|new|other|per|\d+) draws?\b|\bdraws of\b",
    "early stopping or window": r"tuned(?: and|,) stopped|\bStopped, |, stopped[;:., ]|\*[Ss]topped\*|runs are stopped",
    "proxy data set": r"\bstand-ins?\b|\bstands in for\b",
    "ρ-regularisation": r"\b[Ss]witched (?:negatives|rows|row)\b|\bthe switch\b",
    "one learning rate": r"\bone rate\b",
    "message, text, saved": r"(?m)^parameter (?:told|said|kept)$",
    "Omniglot": r"\b[Rr]eal drawings\b|\b[Oo]n drawings\b|\bof drawings\b",
}
CODES = re.compile(r"above delta|positive, size open|one rate(?: for all)?|switched negatives add|ledger \d+")
MENDED = "README CONTRIBUTING CHANGELOG index glossary 00_index".split()


@cache
def notebook(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code(text: str) -> ast.Module:
    return ast.parse(re.sub(r"^\s*[%!].*$", "", text, flags=re.M))


def written(tree: ast.Module) -> list[str]:
    """Pieces of text of a question's cells that are no codes of CSV files, which pages map to the glossary's words."""
    parts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [part for part in parts if " " in part.strip() and not CODES.fullmatch(part)]


def documented(tree: ast.Module) -> list[str]:
    """Docstrings of a module's functions and classes, and names of parameters."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.append(ast.get_docstring(node) or "")
        if isinstance(node, ast.FunctionDef):
            found += [f"parameter {a.arg}" for a in (*node.args.args, *node.args.kwonlyargs)]
    return found


def texts() -> dict[str, str]:
    """Name of a page, a document or an output -> what a user reads there."""
    found = {name: (ROOT / f"{name}.md").read_text(encoding="utf-8") for name in MENDED[:3]}
    for path in sorted((ROOT / "nbs").rglob("*.ipynb")):
        name, library = path.stem, re.match(r"\d\d_(?!index)", path.stem)
        shown = documented if library else written if name != "index" else lambda tree: []  # README has its output
        marked = [("".join(cell["source"]), cell["cell_type"] == "markdown") for cell in notebook(path)]
        marked = [m for m in marked if m[1] or not library or re.search(r"(?m)^(?:def|class) ", m[0])]
        cut = lambda text: re.sub(r"(?m)^(\|.*)\|[^|\n]*\|$", r"\1", text) if name == "glossary" else text  # noqa: B023
        parts = [cut(source) if prose else "\n".join(shown(code(source))) for source, prose in marked]
        if path.parent.parent.name == "experiments":  # what its cells print is read, too
            shown_by = [out for cell in notebook(path) for out in cell.get("outputs", [])]
            parts += ["".join(out.get("text", out.get("data", {}).get("text/plain", ""))) for out in shown_by]
        found["library" if library else name] = "\n".join([found.get("library" if library else name, ""), *parts])
    for path in [
        *sorted((ROOT / "outputs").glob("[at]*s/*.md")),
        ROOT / "outputs/claims.md",
        ROOT / "outputs/errata.md",
    ]:
        found[f"{path.parent.name}/{path.name}"] = path.read_text(encoding="utf-8")
    return found


def offenders() -> dict[str, list[str]]:
    """Name of a text -> its phrases, each with what to say instead."""
    found = {}
    for name, text in texts().items():
        text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", text)  # names in code and places of links stay
        hits = [f"{hit[0]!r}: {say}" for say, phrase in PHRASES.items() for hit in re.finditer(phrase, text)]
        if hits:
            found[name] = hits
    return found


def test_texts_use_the_terms_of_the_glossary():
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    assert not {*allowed} & {*MENDED}
    over = {name: hits for name, hits in offenders().items() if len(hits) > allowed.get(name, 0)}
    lines = [
        f"{name}: {len(hits)}, allowed {allowed.get(name, 0)}: {dict(Counter(hits))}" for name, hits in over.items()
    ]
    assert not over, "\n".join(lines)


def prose(text: str) -> str:
    """README without code, tables, badges and places of links."""
    text = re.sub(r"(?ms)^```.*?^```|^\|.*?$|^<!--.*?-->|^#.*?$|^>.*?$", "\n\n", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph, without a formula's or a number's points."""
    return [s for s in re.split(r"(?<=[.:?!;])\**\s+(?=[A-Z*$`(\[ρδ])", " ".join(text.split())) if s]


def too_long() -> dict[str, int]:
    """Answer or first cell of a question -> words over its limit: 35, 80, and 40 for each sentence."""
    found = {}
    for path in sorted((ROOT / "outputs/answers").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        found[f"answer {path.stem}"] = max(len(text.split()) - 35, 0)
    for path in sorted((ROOT / "nbs/experiments").glob("*/*.ipynb")):
        text = prose("".join(notebook(path)[0]["source"]).partition("\n")[2].replace("> ", ""))
        parts = [s for part in re.split(r"\n\s*\n", text) for s in sentences(part)]
        longest = max((len(s.split()) for s in parts), default=0)
        found[f"first cell {path.stem}"] = max(len(text.split()) - 80, longest - 40, 0)
    return {name: over for name, over in found.items() if over}


def test_answers_and_first_cells_are_short():
    allowed = json.loads(LENGTHS.read_text(encoding="utf-8"))
    over = {name: words for name, words in too_long().items() if words > allowed.get(name, 0)}
    assert not over, "words too many: " + str(over)


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1400
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n|^\* ", prose(text), flags=re.M)]
    sentences = [s for part in parts for s in re.split(r"(?<=[.:?!])\**\s+(?=[A-Z*$‡`])", part)]
    long = [s for s in sentences if len(s.split()) > 25]
    assert not long, long
    _, result = text.split("## The main result")
    bullets = [" ".join(prose(b).split()) for b in re.findall(r"(?ms)^\* .*?(?=^\* |^$)", result.split("\n## ")[0])]
    assert len(bullets) == 5 and max(len(b[2:].split()) for b in bullets) <= 30, bullets
    first = text.split("## Two commands")[0]  # three readers, their commands and a picture before any result
    for link in ("which_loss", "own_loop", "own_images", "glossary", "article.html", "explorer.html", "errata.md"):
        assert link in first, link


if __name__ == "__main__":
    counts = {name: len(hits) for name, hits in offenders().items()}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
    LENGTHS.write_text(json.dumps(too_long(), indent=1) + "\n", encoding="utf-8")

"""Write the site: notebooks, reference and tables as static pages in _docs/site. Nothing of it needs a network."""

import ast
import html
import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from markdown.extensions.toc import slugify, unique
from names import REGISTRIES, called, cost, elsewhere, formula, hyperparameters, paper, sections
from nbconvert import MarkdownExporter

import dmlstudy
from dmlstudy.metrics import METRICS
from dmlstudy.report.files import view_of
from dmlstudy.report.page import catalogue

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "_docs/source", ROOT / "_docs/site"
MATH = re.compile(r"(```.*?```|`[^`\n]+`)|\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.S)
BADGE = re.compile(r"!\[[^\]]*\]\(https:[^)]*\) *")
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)
CODE = re.compile(r"(?:^```python\n.*?^```\n+)+", re.M | re.S)
# what pandas writes about the look of a table
FRAME = re.compile(r'<style scoped>.*?</style>\s*| border="1" class="dataframe"| style="text-align: right;"', re.S)
# pages that most readers look for
FIRST = ("which_loss", "from_scratch", "own_images", "own_loss")
FIRST += ("tuned", "reality", "sec_sign", "roth_table2", "sec_main")
# what a word is for the search: methods are written Proxy-Anchor and ProxyAnchor; "which" is a word, and none is cut
SEARCH = {"separator": r"[\s\u200b\-,:!?=\[\]()\"'/.]+|(?!\b)(?=[A-Z][a-z])", "pipeline": ["trimmer"]}
# of five digits, or with a point: no word that a reader looks for
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d[\d.,]*|\d{4,})(?!\w)")
EXPORTER = MarkdownExporter(exclude_input_prompt=True, exclude_output_prompt=True)
WEIGHT = {
    "tutorials": 3,
    "experiments": 2,
    "nbs": 2.2,
    "tables": 0.5,
    "bench": 0.5,
    "reference": 0.5,
    "losses": 1.5,
}  # in the search

PUBLISHED = ("article.html", "explorer.html", "report.html", "claims.md", "claims.csv", "errata.md")
PUBLISHED += ("tables/*.md", "tables/*.csv", "figures/*.p[nd][gf]", "bench/*")

SHIM = """// A page that is opened from a disk may start no worker: a hidden frame runs its script in place of one.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}))
      const script = this.inside.document.createElement("script")
      script.src = url
      this.ready = new Promise(done => (script.onload = done))
      this.inside.document.body.append(script)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", {data})))
    }
  }
}
"""


def with_math(text: str) -> str:
    """Formulas as MathML, which browsers draw by themselves; code stays as it is."""

    def drawn(found: re.Match) -> str:
        code, display, inline = found.groups()
        how = "block" if display else "inline"
        if code:
            return code
        drawing = convert(display or inline, display=how).replace("|", "&#124;").replace("&#x0007C;", "&#124;")
        return drawing if display else f"&#8203;{drawing}"  # a line that begins with a tag would be a paragraph

    return MATH.sub(drawn, text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def weighted(text: str, kind: str, stem: str = "") -> str:
    """A page that weighs in the search what its kind does; a key of WEIGHT."""
    return f"---\nsearch:\n  boost: {WEIGHT[kind] * (1.6 if stem in FIRST else 1)}\n---\n\n{text}"


def even(text: str) -> str:
    """Tables in one style: without marks of pandas or numbers of rows, and a value with its interval on one line."""

    def plain(found: re.Match) -> str:
        numbers = re.findall(r"<tr>\s*<th>(.*?)</th>\s*<td>", found[0])
        if numbers != [str(n) for n in range(len(numbers))]:
            return found[0]
        return re.sub(r"(<tr>\s*)<th>.*?</th>(?=\s*<t[dh]>)", r"\1", found[0])

    text = re.sub(r"<table>.*?</table>", plain, FRAME.sub("", text), flags=re.S)
    space = re.compile(r"(?<=\d) (?=±|\[)|(?<=±) |(?<=\d,) (?=[+-]?[\d.]+\])")
    return re.sub(r"^\|.*|<td>.*?</td>", lambda cells: space.sub("\u00a0", cells[0]), text, flags=re.M)


def quiet(text: str, tag: str = "div", head: str = "") -> str:
    """A part of a page that the search passes over: code, and the cells of tables."""
    return f"<{tag} data-search-exclude markdown>{head}\n\n{text.strip()}\n\n</{tag}>\n\n"


def folded(text: str, title: str = "Code") -> str:
    """Code of a page behind a title, one for all cells that follow on each other."""
    return CODE.sub(lambda found: quiet(found[0], "details", f"<summary>{title}</summary>"), text)


def page_of(path: Path, below: str = "") -> Path:
    """A notebook as a page at the same place, with links to other notebooks as links to their pages.

    Args:
        below: a line under its title
    """
    notebook, target = nbformat.read(path, 4), (SOURCE / path.relative_to(ROOT)).with_suffix(".md")
    notebook.cells = [c for c in notebook.cells if not re.match(r"#\s*\|\s*(hide|default_exp)\b", c.source)]
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = DIRECTIVE.sub("", cell.source)
        else:
            text = re.sub(r"\.ipynb(?=[)#])", ".md", with_math(BADGE.sub("", cell.source)))
            cell.source = re.sub(r"(?<=\]\()[\w./]*#[\w-]+(?=\))", lambda link: link[0].lower(), text)
    text, found = EXPORTER.from_notebook_node(notebook, resources={"output_files_dir": f"{path.stem}_files"})
    if (kind := "experiments" if "experiments" in path.relative_to(ROOT).parts else path.parent.name) == "experiments":
        text = folded(text)
    head, _, rest = even(text).strip().partition("\n\n")
    if kind == "nbs":  # such as losses.triplet: it is looked for by what is in it
        head = re.sub(r"\n> (.+)", r" <small>\1</small>", head)
    write(target, weighted(f"{head}\n\n{below}\n\n{rest}", kind, path.stem))
    for name, data in found["outputs"].items():
        (target.parent / name).parent.mkdir(exist_ok=True)
        (target.parent / name).write_bytes(data)
    return target


def harmless(text: str) -> str:
    """A table or an answer as text: no markup of its own, no link that runs something, no picture from elsewhere."""

    def link(found: re.Match) -> str:
        picture, words, address = found.groups()
        scheme = re.match(r"([a-z][\w+.-]*:|//)", re.sub(r"[\s\x00-\x20]", "", html.unescape(address)).lower())
        return words if scheme and (picture or scheme[1] not in ("http:", "https:")) else found[0]

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)]*)\)", link, text.replace("<", "&lt;"), flags=re.S)


def publish(outputs: Path, target: Path) -> None:
    """Copy what the site shows of the outputs; whatever is not named in PUBLISHED, such as a user's own, stays here."""
    for path in (path for pattern in PUBLISHED for path in outputs.glob(pattern)):
        (target / path.relative_to(outputs)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / path.relative_to(outputs))
        if path.suffix == ".md":
            write(target / path.relative_to(outputs), harmless(path.read_text(encoding="utf-8")))
        elif path.suffix == ".html":  # notebooks and tables are pages here
            page = re.sub(r'(href="(?!\w+:)[^"#]*)\.(?:ipynb|md)(?=["#])', r"\1.html", path.read_text(encoding="utf-8"))
            write(target / path.relative_to(outputs), page)


def explained(notebook: Path) -> dict[str, tuple[str, str]]:  # name -> section of the page, example
    """Where a notebook explains what it exports, and the check that stands below it."""
    found, names, section, taken = {}, [], "", set()
    for cell in nbformat.read(notebook, 4).cells:
        if cell.cell_type == "markdown":
            for head in re.findall(r"^#{2,6} (.+)", re.sub(r"```.*?```", "", cell.source, flags=re.S), re.M):
                section = unique(slugify(re.sub(r"[`*\\]|\]\(.*?\)", "", head), "-"), taken)
        elif re.match(r"#\s*\|\s*export", cell.source):
            own = [n.name for n in ast.parse(cell.source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
            found |= {name: (section, "") for name in own}
            names += own
        elif not re.match(r"#\s*\|\s*(hide|default_exp)\b", cell.source):
            shown = DIRECTIVE.sub("", cell.source).strip()
            for name in [name for name in names if re.search(rf"\b{name}\b", shown)]:
                found[name] = (found[name][0], shown)
                names.remove(name)
    return found


def signature(node: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> str:
    """How a function or class is called, with the meaning of each argument."""
    first = next((n for n in getattr(node, "body", []) if getattr(n, "name", "") == "__init__"), node)
    if first is not node:
        return "\n".join([f"class {node.name}:", *lines[first.lineno - 1 : first.body[0].lineno - 1]])
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    head = lines[node.lineno - 1 : node.body[0].lineno - 1]
    return "\n".join(head + [line for field in fields for line in lines[field.lineno - 1 : field.end_lineno]])


def reference(module: Path) -> Path:
    """The public names of a module: signature with shapes, section of the notebook, example, and source."""
    text = module.read_text(encoding="utf-8")
    lines, name = text.split("\n"), ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    notebook = re.search(r"File to edit: (?:\.\./)*(\S+)\.ipynb", text)
    more = explained(ROOT / f"{notebook[1]}.ipynb") if notebook else {}
    parts = [f"# {name}", f"Written in [the notebook](../{notebook[1]}.md)." if notebook else ""]
    block = lambda code: f"```python\n{code}\n```\n"
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            said = (ast.get_docstring(node) or "").split("\n\nArgs:")[0]
            section, example = more.get(node.name, ("", ""))
            place = f"[Formula, source and checks](../{notebook[1]}.md#{section})" if section else ""
            parts += [
                f"## {node.name}",
                said,
                f'<div class="signature" markdown>\n\n{block(signature(node, lines))}\n</div>',
            ]
            parts += [place, folded(block(example), "Example") if example else ""]
            parts += [folded(block("\n".join(lines[node.lineno - 1 : node.end_lineno])), "Source code")]
    target = SOURCE / "reference" / f"{name}.md"
    write(target, weighted("\n\n".join(filter(None, parts)) + "\n", "reference"))
    return target


def meanings(kind: type) -> dict[str, str]:
    """What the docstring of a class says of each argument."""
    return dict(re.findall(r"^ {4}(\w+): (.+)", (inspect.getdoc(kind) or "").partition("Args:\n")[2], re.M))


def place(kind: type) -> str:
    """The address of a class on the page of its module, from the folder of the reference."""
    return f"{kind.__module__}.md#{kind.__name__.lower()}"


def loss_page(name: str) -> Path:
    """A loss: how it is made, paper, formula, inputs with shapes, hyperparameters, cost, and its name elsewhere."""
    kind, known = REGISTRIES["loss"][name], meanings(REGISTRIES["loss"][name])
    notebook, title, _ = sections()[kind.__name__]
    there = [(old, note) for old, (ours, note) in elsewhere().items() if ours == name]
    sizes = "".join(f", {size}=..." for size in kind.needs)
    text = [
        f"# {name}: {kind.__name__}",
        f'`make_loss("{name}"{sizes})` makes a [`{kind.__name__}`](../{place(kind)}).',
    ]
    text += [f"Paper: {paper(kind)}." if paper(kind) else ""]
    text += [f"In pytorch-metric-learning: `{old}`{f', {note}' if note else ''}." for old, note in there]
    text += ["## Formula", with_math(formula(kind)) or "It is in words."]
    text += [f"[Symbols, source, differences and checks](../../nbs/{notebook}.md#{slugify(title, '-')})"]
    rows = ["| input | shape | |\n|---|---|---|", "| `f` | (B, D), floating point | raw embeddings |"]
    rows += ["| `labels` | (B,), integers | classes of the embeddings |"]
    if kind.uses == "triplets":
        how = "required" if kind.needs_triplets else "of a miner; None: all of the batch"
        rows += [f"| `triplets` | three of (T,), integers | anchors, positives, negatives, {how} |"]
    if kind.takes_positives:
        rows += ["| `positives` | (B, B), boolean or weights | in place of labels |"]
    rows += ["| value | scalar, 32 bits or more | with a graph |"]
    text += ["## Inputs", "\n".join(rows)]
    lines = [f"| `{k}` | `{v!r}` | {known.get(k, '')} |" for k, v in hyperparameters("loss", name).items()]
    lines = [f"| `{size}` | required | {known.get(size, '')} |" for size in kind.needs] + lines
    text += [
        "## Hyperparameters",
        "\n".join(["| name | default | meaning |\n|---|---|---|", *lines]) if lines else "None.",
    ]
    blocks = "A large batch goes through in blocks of rows. " if kind.in_blocks else ""
    said = "Forward and backward, batch × dimension, on one thread of a CPU: "
    text += ["## Cost", f"{blocks}{said}{cost(name)}." if cost(name) else f"{blocks}Not measured."]
    write(target := SOURCE / f"reference/losses/{name}.md", weighted("\n\n".join(filter(None, text)) + "\n", "losses"))
    return target


def names_page() -> Path:
    """The first page of the reference: every public name and what it can be given, a line each."""
    text = ["# Names", "`import dmlstudy` gives these names. Each is loaded when it is asked for."]
    rows = [
        f"| [`{n}`](dmlstudy.{m}.md#{n.lower()}) | {with_math(said)} |" for n, (m, _, said) in dmlstudy._NAMES.items()
    ]
    text += ["\n".join(["| name | for |\n|---|---|", *rows])]
    for what, registry in REGISTRIES.items():
        plural = {"loss": "Losses"}.get(what, f"{what.capitalize()}s")
        text += [f"## {plural}", f'`make_{what}("name")`, with hyperparameters and their defaults.']
        page = {name: f"losses/{name}.md" if what == "loss" else place(kind) for name, kind in registry.items()}
        line = lambda name, kind: f"| [`{name}`]({page[name]}) | `{called(what, name)}` | {paper(kind)} |"  # noqa: B023
        rows = [line(name, kind) for name, kind in registry.items()]
        text += ["\n".join(["| name | call | paper |\n|---|---|---|", *rows])]
    said = lambda made: (made.__doc__ or "").split("\n")[0].replace("|", "&#124;")
    rows = [f"| `{name}` | {said(made)} |" for name, made in METRICS.items()]
    text += ["## Metrics", "Of `evaluate`.", "\n".join(["| name | what |\n|---|---|", *rows])]
    write(target := SOURCE / "reference/index.md", weighted("\n\n".join(text) + "\n", "losses"))
    return target


def table_page(entry: dict) -> Path:  # an entry of `catalogue`
    """A table under the title that people look for, with its answer and the way to its question."""
    path = SOURCE / f"outputs/tables/{entry['stem']}.md"
    kind = "tables" if Path(entry["notebook"]).stem == entry["stem"] else "experiments"  # a table alone is looked for
    links = f"[The question]({up(entry['notebook'])}) · [CSV]({entry['stem']}.csv)"
    _, _, table = path.read_text(encoding="utf-8").replace(".ipynb)", ".md)").partition("\n")
    text = "\n\n".join([f"# {entry['title']}", harmless(entry["said"]), links, quiet(even(table))])
    write(path, weighted(text + "\n", kind))
    return path


def up(notebook: str) -> str:
    """The address of a notebook's page from a folder of outputs."""
    return f"../../{notebook}".replace(".ipynb", ".md")


def gallery(entries: list[dict]) -> Iterator[str]:
    """All figures as pictures with their sentence."""
    for part, some in groupby(entries, lambda entry: entry["part"]):
        yield f'## {part}\n\n<div class="gallery">'
        for entry in some:
            said, page = html.escape(entry["said"]), up(entry["notebook"]).replace(".md", ".html")
            picture = f'<img loading="lazy" src="{entry["stem"]}.png" alt="{html.escape(entry["title"])}">'
            head = f'<a href="{page}"><strong>{html.escape(entry["title"])}</strong></a>'
            view = view_of(entry["stem"], "glyphs")
            runs = f'<br><a href="{html.escape(view)}">The runs in the explorer</a>' if view else ""
            yield f'<div><a href="{entry["stem"]}.png">{picture}</a><p>{head}<br>{said}{runs}</p></div>'
        yield "</div>\n"


def tutorials() -> list[str]:
    """The pages of the tutorials, those that most people look for first."""
    files = sorted((ROOT / "nbs/tutorials").glob("*.ipynb"))
    files.sort(key=lambda file: FIRST.index(file.stem) if file.stem in FIRST else len(FIRST))
    return [str(page_of(file).relative_to(SOURCE)) for file in files]


def questions(entries: list[dict], tables: list[dict]) -> list[dict]:  # sections of the navigation
    """The pages of the questions, in the order of what they make, each with its tables."""
    made = {}
    for entry in entries:
        made.setdefault(entry["notebook"], entry["part"])
    others = [str(file.relative_to(ROOT)) for file in sorted((ROOT / "nbs/experiments").rglob("*.ipynb"))]
    made |= {notebook: "More" for notebook in others if notebook not in made}
    parts = {part: [] for part in dict.fromkeys(made.values())}
    for notebook, part in made.items():
        up = "../" * notebook.count("/")
        own = [f"[{e['stem']}]({up}outputs/tables/{e['stem']}.md)" for e in tables if e["notebook"] == notebook]
        below = f"*Tables: {', '.join(own)}*" if own else ""
        parts[part].append(str(page_of(ROOT / notebook, below).relative_to(SOURCE)))
    return [{part: pages} for part, pages in parts.items()]


def results(tables: list[dict]) -> list:  # pages and sections of the navigation
    """A page that names all tables, and theirs."""
    parts, lines = {}, ["# Tables", ""]
    for part, some in groupby(tables, lambda entry: entry["part"]):
        parts[part] = [(entry, table_page(entry)) for entry in some]
        lines += [f"## {part}", ""]
        lines += [f"* [{e['title']}]({e['stem']}.md)<br>{harmless(e['said'])}" for e, _ in parts[part]] + [""]
    write(SOURCE / "outputs/tables/index.md", "\n".join(lines))
    claims = SOURCE / "outputs/claims.md"
    _, _, text = claims.read_text(encoding="utf-8").partition("\n")
    write(claims, weighted(f"# Claims of both papers (set 1)\n\n{quiet(even(text))}", "tables"))
    sections = [{part: [str(page.relative_to(SOURCE)) for _, page in some]} for part, some in parts.items()]
    return ["outputs/tables/index.md", *sections, "outputs/claims.md", "outputs/errata.md"]


def without_numbers() -> None:
    """Take long numbers out of the search: its tree of words (lunr's) mixes some of them up, and then finds nothing."""
    for file in (SITE / "search").glob("search_index.js*"):
        _, before, index = file.read_text(encoding="utf-8").rpartition("var __index = ")
        index = json.loads(index)
        for part in index["docs"]:
            part["text"] = NUMBER.sub(" ", part["text"])
        write(file, before + json.dumps(index, ensure_ascii=False, separators=(",", ":")))


def main() -> None:
    shutil.rmtree(ROOT / "_docs", ignore_errors=True)
    start = with_math(BADGE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))).replace(".ipynb)", ".md)")
    start = start.replace("](outputs/answers)", "](outputs/tables)")  # whose page has all answers, too
    write(SOURCE / "index.md", re.sub(r"\]\((outputs/(?:tables|figures))\)", r"](\1/index.md)", start))
    publish(ROOT / "outputs", SOURCE / "outputs")
    write(SOURCE / "assets/iframe-worker.js", SHIM)
    for file, target in {"CITATION.cff": "", "tools/site.css": "assets"}.items():
        shutil.copy(ROOT / file, SOURCE / target)
    at = lambda path: str(path.relative_to(SOURCE))
    entries = catalogue("glyphs")
    tables = [entry for entry in entries if (SOURCE / f"outputs/tables/{entry['stem']}.md").is_file()]
    pictures = [entry for entry in entries if (SOURCE / f"outputs/figures/{entry['stem']}.png").is_file()]
    write(SOURCE / "outputs/figures/index.md", "# Figures\n\n" + "\n".join(gallery(pictures)))
    nav = [
        {"Start": "index.md"},
        {"Article": "outputs/article.html"},
        {"Tutorials": tutorials()},
        {"Questions": questions(entries, tables)},
    ]
    nav += [{"Figures": "outputs/figures/index.md"}, {"Tables": results(tables)}, {"Explorer": "outputs/explorer.html"}]
    rooms = sorted((ROOT / "nbs").glob("[0-9]*.ipynb"))
    nav += [{"Library": [{room.stem.partition("_")[2]: at(page_of(room))} for room in rooms]}]
    modules = [p for p in sorted((ROOT / "dmlstudy").rglob("*.py")) if p.name != "_modidx.py"]
    losses = [{name: at(loss_page(name))} for name in REGISTRIES["loss"]]
    nav += [{"Reference": [at(names_page()), {"Losses": losses}, *(at(reference(p)) for p in modules)]}]
    nav += [{"Speed": [at(page_of(p)) for p in sorted((ROOT / "nbs/bench").glob("*.ipynb"))]}]
    features = ["navigation.tabs", "navigation.indexes", "navigation.footer", "navigation.top", "toc.follow"]
    settings = {
        "site_name": "dmlstudy",
        "docs_dir": str(SOURCE),
        "site_dir": str(SITE),
        "use_directory_urls": False,  # pages open from a disk
        "theme": {"name": "material", "font": False, "features": features},
        "plugins": [{"search": SEARCH}, "offline"],
        "markdown_extensions": [
            *("attr_list", "md_in_html", "tables", "toc"),
            *("pymdownx.highlight", "pymdownx.superfences"),
        ],
        "extra_css": ["assets/site.css"],
        "extra": {"generator": False, "polyfills": ["assets/iframe-worker.js"]},
        "strict": True,  # no link is dead
        "validation": {
            "links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"},
            "nav": {"omitted_files": "ignore"},
        },
        "nav": nav,
    }
    write(ROOT / "_docs/mkdocs.yml", json.dumps(settings, indent=1))  # JSON is YAML
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(ROOT / "_docs/mkdocs.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit("\n".join(line for line in done.stderr.splitlines() if not line.startswith("INFO")))
    without_numbers()
    print(f"{len([*SITE.rglob('*.html')])} pages: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()

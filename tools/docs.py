"""Write the site: notebooks, reference and tables as static pages in _docs/site. Nothing of it needs a network."""

import ast
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[1]
SOURCE, SITE = ROOT / "_docs/source", ROOT / "_docs/site"
MATH = re.compile(r"(```.*?```|`[^`\n]+`)|\$\$(.+?)\$\$|\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\d)", re.S)
BADGE = re.compile(r"!\[[^\]]*\]\(https:[^)]*\) *")
DIRECTIVE = re.compile(r"^#\s*\|.*\n?", re.M)

PUBLISHED = (
    "explorer.html",
    "claims.md",
    "claims.csv",
    "tables/*.md",
    "tables/*.csv",
    "figures/*.png",
    "answers/*.md",
    "bench/*",
)

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


def page_of(path: Path) -> Path:
    """A notebook as a page at the same place, with links to other notebooks as links to their pages."""
    notebook, target = nbformat.read(path, 4), (SOURCE / path.relative_to(ROOT)).with_suffix(".md")
    notebook.cells = [c for c in notebook.cells if not re.match(r"#\s*\|\s*(hide|default_exp)\b", c.source)]
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = DIRECTIVE.sub("", cell.source)
        else:
            cell.source = re.sub(r"\.ipynb\)", ".md)", with_math(BADGE.sub("", cell.source)))
    exporter = MarkdownExporter(exclude_input_prompt=True, exclude_output_prompt=True)
    text, found = exporter.from_notebook_node(notebook, resources={"output_files_dir": f"{path.stem}_files"})
    write(target, text)
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


def reference(module: Path) -> Path:
    """The public names of a module: signatures with the meaning of each argument, and where the source is explained."""
    text = module.read_text(encoding="utf-8")
    lines, tree = text.split("\n"), ast.parse(text)
    name = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    notebook = re.search(r"File to edit: (?:\.\./)*(\S+)\.ipynb", text)
    parts = [f"# {name}", f"Source: [the notebook](../{notebook[1]}.md)" if notebook else ""]
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            first = next((n for n in getattr(node, "body", []) if getattr(n, "name", "") == "__init__"), node)
            head = lines[node.lineno - 1 : node.body[0].lineno - 1] if first is node else [f"class {node.name}:"]
            head += lines[first.lineno - 1 : first.body[0].lineno - 1] if first is not node else []
            fields = [] if first is not node else [n for n in node.body if isinstance(n, ast.AnnAssign)]
            head += [line for field in fields for line in lines[field.lineno - 1 : field.end_lineno]]
            said = (ast.get_docstring(node) or "").split("\n\nArgs:")[0]
            parts += [f"## {node.name}", said, "```python\n" + "\n".join(head) + "\n```"]
    target = SOURCE / "reference" / f"{name}.md"
    write(target, "\n\n".join(parts) + "\n")
    return target


def main() -> None:
    shutil.rmtree(ROOT / "_docs", ignore_errors=True)
    start = with_math(BADGE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))).replace(".ipynb)", ".md)")
    write(SOURCE / "index.md", re.sub(r"\]\((outputs/(?:tables|figures))\)", r"](\1/index.md)", start))
    publish(ROOT / "outputs", SOURCE / "outputs")
    write(SOURCE / "assets/iframe-worker.js", SHIM)
    shutil.copy(ROOT / "CITATION.cff", SOURCE)
    folders = {"Tutorials": "tutorials", "Tables and figures": "experiments", "Speed": "bench"}
    at = lambda path: str(path.relative_to(SOURCE))
    pages = lambda folder: [at(page_of(p)) for p in sorted((ROOT / "nbs" / folder).glob("*.ipynb"))]
    nav = [{"Start": "index.md"}, *({title: pages(folder)} for title, folder in folders.items())]
    modules = [p for p in sorted((ROOT / "dmlstudy").rglob("*.py")) if p.name != "_modidx.py"]
    tables = sorted((SOURCE / "outputs/tables").glob("*.md"))
    for folder, found in {"tables": tables, "figures": sorted((SOURCE / "outputs/figures").glob("*.png"))}.items():
        lines = [f"# {folder.capitalize()}", "", *(f"* [{path.stem}]({path.name})" for path in found)]
        write(SOURCE / f"outputs/{folder}/index.md", "\n".join(lines) + "\n")
    nav += [{"Library": pages("")}, {"Reference": [at(reference(p)) for p in modules]}]
    nav += [{"Results": [at(p) for p in [SOURCE / "outputs/claims.md", *tables] if p.is_file()]}]
    settings = {
        "site_name": "dmlstudy",
        "docs_dir": str(SOURCE),
        "site_dir": str(SITE),
        "use_directory_urls": False,  # pages open from a disk
        "theme": {"name": "material", "font": False, "features": ["navigation.tabs", "navigation.top", "toc.follow"]},
        "plugins": ["search", "offline"],
        "markdown_extensions": ["tables", "toc", "pymdownx.highlight", "pymdownx.superfences"],
        "extra": {"generator": False, "polyfills": ["assets/iframe-worker.js"]},
        "validation": {
            "links": {"not_found": "info", "unrecognized_links": "ignore"},
            "nav": {"omitted_files": "ignore"},
        },
        "nav": nav,
    }
    write(ROOT / "_docs/mkdocs.yml", json.dumps(settings, indent=1))  # JSON is YAML
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(ROOT / "_docs/mkdocs.yml")]
    subprocess.run(command, check=True)
    print(f"{len([*SITE.rglob('*.html')])} pages: {SITE / 'index.html'}")


if __name__ == "__main__":
    main()

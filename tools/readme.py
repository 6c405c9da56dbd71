"""Write README.md from nbs/index.ipynb (nbdev_readme would need the quarto program)."""

import re
import shutil
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter
from nbconvert.preprocessors import TagRemovePreprocessor

ROOT = Path(__file__).resolve().parents[1]
DIRECTIVE = re.compile(r"^#\s*\|\s*([\w-]+):?[ \t]*(.*)\n?", flags=re.M)
NOTE = "<!-- Written by tools/readme.py from nbs/index.ipynb: edit the notebook. -->\n\n"

notebook = nbformat.read(ROOT / "nbs/index.ipynb", 4)
kept = []
for cell in notebook.cells:
    directives = dict(DIRECTIVE.findall(cell.source)) if cell.cell_type == "code" else {}
    if "hide" in directives:
        continue
    if directives.get("echo") == "false":
        cell.metadata["tags"] = ["remove-input"]
    cell.source = DIRECTIVE.sub("", cell.source) if directives else cell.source
    kept.append(cell)
notebook.cells, notebook.metadata["language_info"] = kept, {"name": "python"}  # the fences name the language

exporter = MarkdownExporter(exclude_input_prompt=True, exclude_output_prompt=True)
exporter.register_preprocessor(TagRemovePreprocessor(remove_input_tags={"remove-input"}), enabled=True)
body, found = exporter.from_notebook_node(notebook, resources={"output_files_dir": "index_files"})
shutil.rmtree(ROOT / "index_files", ignore_errors=True)
for name, data in found["outputs"].items():
    (ROOT / name).parent.mkdir(exist_ok=True)
    (ROOT / name).write_bytes(data)
# links start one folder down
body = re.sub(r"\]\((?=tutorials[/)]|experiments/|[0-9]{2}_)", "](nbs/", body.replace("](../", "]("))
(ROOT / "README.md").write_text(re.sub(r"\n{3,}", "\n\n", NOTE + body.strip() + "\n"), encoding="utf-8")

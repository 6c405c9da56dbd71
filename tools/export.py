"""Export the library from nothing: no module of a renamed notebook stays behind, and `help` sees the docments."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import nbdev

LIBRARY = Path(__file__).resolve().parents[1] / "dmlstudy"
# the contract's names; a block for every public function would add some 900 lines
SHOWN = re.compile(
    r"\w+(Loss|Miner|Sampler)|SEC|L2Norm|Ring|Run|Own|make_\w+|fit|evaluate|embed|compare|class_intervals"
    r"|with_memory|matryoshka|s2sd|gather|shared_labels"
)


def argument_lines(function: ast.FunctionDef, comments: dict[int, str]) -> list[str]:
    """One line for each argument that has a docment; it stands on one of the argument's own lines."""
    args, lines = function.args, []
    variadic = [arg for arg in (args.vararg, args.kwarg) if arg]
    for arg in [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]:
        span = range(arg.lineno, arg.end_lineno + 3) if arg else ()
        others = {a.lineno for a in [*args.args, *args.kwonlyargs, *variadic] if a is not arg}
        for line in span:
            if line in others or line >= function.body[0].lineno:
                break
            if line in comments:
                lines.append(f"    {arg.arg}: {comments[line]}")
                break
    return lines


def field_lines(kind: ast.ClassDef, classes: dict[str, ast.ClassDef], comments: dict[int, str]) -> list[str]:
    """One line for each field of a dataclass, those of its parents in the same module first."""
    parents = [classes[base.id] for base in kind.bases if isinstance(base, ast.Name) and base.id in classes]
    fields = [n for n in kind.body if isinstance(n, ast.AnnAssign) and n.lineno in comments]
    own = [f"    {n.target.id}: {comments[n.lineno]}" for n in fields]
    return [line for parent in parents for line in field_lines(parent, classes, comments)] + own


def with_arguments(source: str) -> str:
    """The module with an "Args:" block at the end of the docstrings of the contract's functions and classes."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    lines = source.split("\n")
    body = ast.parse(source).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in reversed(body):
        if not (isinstance(node, ast.FunctionDef | ast.ClassDef) and SHOWN.fullmatch(node.name)):
            continue
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        found = argument_lines((inits or [node])[0], comments) if inits or isinstance(node, ast.FunctionDef) else []
        if any(ast.unparse(mark).startswith("dataclass") for mark in node.decorator_list):
            found = field_lines(node, classes, comments)
        if (text := ast.get_docstring(node)) and found and "Args:" not in text:
            first, last = node.body[0].lineno - 1, node.body[0].end_lineno
            block = [f'"""{text}', "", "Args:", *found, '"""']
            lines[first:last] = [f"    {line}" if line else "" for line in block]
    return "\n".join(lines)


for module in LIBRARY.rglob("*.py"):
    module.unlink()
nbdev.nbdev_export()
for module in LIBRARY.rglob("*.py"):
    if (shown := with_arguments(old := module.read_text(encoding="utf-8"))) != old:
        module.write_text(shown, encoding="utf-8")
subprocess.run([sys.executable, "-m", "tools.stubs"], check=True, cwd=LIBRARY.parent)

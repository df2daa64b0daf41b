"""Measure the code: sizes, import cycles, names, comments, duplicated code, call path of a job, wheel size.

    python -m tools.house                      this tree
    python -m tools.house --rev 13a842a        any revision; several are shown side by side
    python -m tools.house --json --list pairs  everything, or the list behind a figure

A revision is unpacked into a temporary folder, so that the same script measures all revisions. The call path
of a job is measured by running one, in a separate process, with the code of that revision; a Valkey server is
started for it if one is installed. The figures are not compared with any target.

Tests: ``tests/unit/test_house.py``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tokenize
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Files and classes above these sizes are listed, and duplicates from this number of lines on.
LONG_FILE, LONG_CLASS, STRETCH = 500, 300, 6
#: Left out of the figures about names and duplicates: test code and pages that are part of the package.
_NOT_CODE = re.compile(r"/(testing|static)/|_conformance/")
#: Generated from the OpenAPI document: its classes have the names of the server's, because they are the same.
_GENERATED = "windlass.client.operations"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (ast.Module, ast.ClassDef, *_FUNCTIONS)


@dataclass
class Module:
    """One file: its name, its lines, its tree."""

    name: str
    path: str
    text: str
    tree: ast.Module
    lines: list[str] = field(default_factory=list)

    @property
    def ships_as_code(self) -> bool:
        return _NOT_CODE.search(self.path) is None


def read_modules(root: Path) -> list[Module]:
    """Every module below ``src``."""
    found = []
    for path in sorted((root / "src").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(root / "src")
        name = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        found.append(Module(name, str(path.relative_to(root)), text, ast.parse(text), text.splitlines()))
    return found


# --- sizes ----------------------------------------------------------------------------------------------


def span(node: ast.stmt) -> int:
    """The number of lines of a statement, without decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def sizes(modules: list[Module]) -> dict[str, Any]:
    functions, classes = [], []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, _FUNCTIONS):
                functions.append((span(node), f"{module.path}:{node.lineno} {node.name}"))
            elif isinstance(node, ast.ClassDef) and span(node) > LONG_CLASS:
                classes.append((span(node), f"{module.path}:{node.lineno} {node.name}"))
    lengths = sorted(length for length, _ in functions) or [0]
    files = [(len(module.lines), module.path) for module in modules if len(module.lines) > LONG_FILE]
    return {
        "files": len(modules),
        "lines": sum(len(module.lines) for module in modules),
        "functions": len(functions),
        "function_median": lengths[len(lengths) // 2],
        "function_p95": lengths[int(len(lengths) * 0.95)],
        "function_max": lengths[-1],
        "longest_functions": _ranked(functions)[:10],
        "files_over_500": len(files),
        "long_files": _ranked(files),
        "classes_over_300": len(classes),
        "long_classes": _ranked(classes),
    }


def _ranked(rows: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{count} {where}" for count, where in sorted(rows, reverse=True)]


# --- imports --------------------------------------------------------------------------------------------


def imports(modules: list[Module]) -> dict[str, set[str]]:
    """The modules of this tree that each module imports: at the top, in functions, and for type checkers."""
    known = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        graph[module.name] = {name for name in _imported(module, known) if name != module.name}
    return graph


def _imported(module: Module, known: set[str]) -> Iterator[str]:
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                if whole in known or base in known:
                    yield whole if whole in known else base


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or not (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        while work:
            node, ahead = work[-1]
            for other in ahead:
                if other not in graph:
                    continue
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group: list[str] = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                    if len(group) > 1:
                        found.append(sorted(group))
    return sorted(found)


# --- names ----------------------------------------------------------------------------------------------


def names(modules: list[Module]) -> dict[str, Any]:
    """Public names, and names of classes and modules that are used more than once."""
    code = [module for module in modules if module.ships_as_code and module.name != _GENERATED]
    classes: dict[str, list[str]] = defaultdict(list)
    files: dict[str, list[str]] = defaultdict(list)
    for module in code:
        files[module.name.rpartition(".")[2]].append(module.name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(module.name)
    twice = {name: where for name, where in classes.items() if len(where) > 1}
    files_twice = {
        name: where
        for name, where in files.items()
        if len(where) > 1 and not any(path.endswith("__init__.py") for path in _paths(code, where))
    }
    return {
        "public_names": len(_public(modules)),
        "class_names_used_twice": len(twice),
        "classes_twice": [f"{name}: {', '.join(where)}" for name, where in sorted(twice.items())],
        "module_names_used_twice": len(files_twice),
        "modules_twice": [f"{name}: {', '.join(where)}" for name, where in sorted(files_twice.items())],
    }


def _paths(modules: list[Module], names: list[str]) -> list[str]:
    return [module.path for module in modules if module.name in names]


def _public(modules: list[Module]) -> list[str]:
    for module in modules:
        if module.name == "windlass":
            for node in module.tree.body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                    return list(ast.literal_eval(node.value))
    return []


def prose(modules: list[Module]) -> dict[str, Any]:
    """The share of docstrings and comments in all lines that are not blank."""
    prose_lines = filled = 0
    for module in modules:
        rows: set[int] = set()
        for node in ast.walk(module.tree):
            if isinstance(node, _SCOPES) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                    rows.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        for token in _tokens(module.text):
            if token.type == tokenize.COMMENT and module.lines[token.start[0] - 1].lstrip().startswith("#"):
                rows.add(token.start[0])
        prose_lines += sum(1 for row in rows if module.lines[row - 1].strip())
        filled += sum(1 for line in module.lines if line.strip())
    return {"prose_percent": round(100 * prose_lines / max(filled, 1), 1)}


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


# --- duplicated code ------------------------------------------------------------------------------------

#: A line of code: its number, its text without spaces, its shape (names and values replaced).
Line = tuple[int, str, str]
_SKIPPED = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENDMARKER,
)
_KEPT_WORDS = frozenset(
    "and as assert async await break class continue def del elif else except finally for from global if "
    "import in is lambda nonlocal not or pass raise return try while with yield None True False self".split()
)


def code_lines(module: Module) -> list[Line]:
    """Lines of code without imports, docstrings, comments, blank lines and closing brackets."""
    left_out: set[int] = set()
    for node in ast.walk(module.tree):
        is_text = isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
        if isinstance(node, ast.stmt) and (is_text or isinstance(node, (ast.Import, ast.ImportFrom))):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    words: dict[int, list[str]] = defaultdict(list)
    shapes: dict[int, list[str]] = defaultdict(list)
    for token in _tokens(module.text):
        row = token.start[0]
        if token.type in _SKIPPED or row in left_out:
            continue
        words[row].append(token.string)
        shapes[row].append(_shape(token))
    return [
        (row, " ".join(words[row]), " ".join(shapes[row]))
        for row in sorted(words)
        if any(word.isidentifier() for word in words[row])
    ]


def _shape(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME and token.string not in _KEPT_WORDS:
        return "n"
    return "v" if token.type in (tokenize.NUMBER, tokenize.STRING) else token.string


def pairs(modules: list[Module], shape: bool) -> list[tuple[int, str, str]]:
    """Duplicates of ``STRETCH`` lines or more, by text or by shape: length and both places.

    By shape, lists and tables (lines that all look alike) do not count, nor do pairs that are equal by text.
    """
    rows = {module.path: code_lines(module) for module in modules if module.ships_as_code}
    part = 2 if shape else 1
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for path, lines in rows.items():
        for at in range(len(lines) - STRETCH + 1):
            window = tuple(str(line[part]) for line in lines[at : at + STRETCH])
            if not shape or len(set(window)) > STRETCH // 2:
                places[window].append((path, at))
    found = []
    for group in places.values():
        for (one, first), (other, second) in itertools.combinations(group, 2):
            before = first and second and rows[one][first - 1][part] == rows[other][second - 1][part]
            if before or (one == other and second - first < STRETCH):
                continue  # a longer stretch begins earlier, or it overlaps itself
            length = _common(rows[one][first:], rows[other][second:], part)
            if shape and _common(rows[one][first:], rows[other][second:], 1) == length:
                continue
            found.append((length, f"{one}:{rows[one][first][0]}", f"{other}:{rows[other][second][0]}"))
    return sorted(found, key=lambda row: (-row[0], row[1:]))


def _common(one: list[Line], other: list[Line], part: int) -> int:
    count = 0
    for first, second in zip(one, other, strict=False):
        if first[part] != second[part]:
            break
        count += 1
    return count


def duplicates(modules: list[Module]) -> dict[str, Any]:
    by_text, by_shape = pairs(modules, shape=False), pairs(modules, shape=True)
    return {
        "pairs_by_text": len(by_text),
        "pairs_by_shape": len(by_shape),
        "pairs": [f"{length} lines, text: {a} {b}" for length, a, b in by_text]
        + [f"{length} lines, shape: {a} {b}" for length, a, b in by_shape],
    }


# --- the call path of a job -----------------------------------------------------------------------------


def way(root: Path, url: str) -> dict[str, Any]:
    """How many functions and files an enqueue and a whole job execute, with the code of ``root``."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(ROOT / "tools" / "house_trace.py"), url]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ended without a word"
        }
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ways(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="windlass-house-") as folder:
        found["sqlite"] = way(root, f"sqlite:///{folder}/jobs.db")
        with _valkey(Path(folder)) as url:
            found["valkey"] = way(root, url) if url else {"error": "no server found"}
    rows = {}
    for store, answer in found.items():
        for step in ("enqueue", "job"):
            counts = answer.get(step)
            rows[f"{store}_{step}"] = (
                f"{counts[0]} functions in {counts[1]} files" if counts else answer.get("error")
            )
    return rows


@contextlib.contextmanager
def _valkey(folder: Path) -> Iterator[str | None]:
    from tools.services.valkey import Server, valkey_binary

    binary = valkey_binary()
    if binary is None:
        yield None
        return
    server = Server(binary, folder / "valkey")
    server.start()
    try:
        yield f"valkey://127.0.0.1:{server.port}"
    finally:
        server.stop()


# --- the wheel ------------------------------------------------------------------------------------------


def wheel(root: Path) -> dict[str, Any]:
    """The compressed size of the wheel without the dashboard's pages, and its lines of Python."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    packed, lines = io.BytesIO(), Counter[str]()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(_files(root, packages)):
            archive.write(path, path.relative_to(root / "src"))
            if path.suffix == ".py":
                lines["all"] += path.read_text(encoding="utf-8").count("\n")
                lines["testing"] += "testing" in path.parts and path.read_text(encoding="utf-8").count("\n")
    return {
        "wheel_kb": round(len(packed.getvalue()) / 1024),
        "wheel_python_lines": lines["all"],
        "wheel_testing_lines": lines["testing"],
    }


def _files(root: Path, packages: list[str]) -> Iterator[Path]:
    for package in packages:
        place = root / package
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and "static" not in path.parts:
                yield path


# --- all of it ------------------------------------------------------------------------------------------


def measure(root: Path, *, run: bool = True) -> dict[str, Any]:
    """Every figure of a tree. Without ``run``, only figures that do not execute its code."""
    modules = read_modules(root)
    groups = cycles(imports(modules))
    found = {
        **sizes(modules),
        "cycles": len(groups),
        "modules_in_cycles": sum(len(group) for group in groups),
        "rings": [" ".join(group) for group in groups],
        **names(modules),
        **prose(modules),
        **duplicates(modules),
        **wheel(root),
    }
    return {**found, **ways(root)} if run else found


@contextlib.contextmanager
def tree_of(revision: str | None) -> Iterator[Path]:
    """This tree, or a revision of it in a temporary folder."""
    if revision is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="windlass-house-") as folder:
        packed = subprocess.run(
            ["git", "archive", revision], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def table(figures: dict[str, dict[str, Any]]) -> list[str]:
    """The figures side by side; lists are left out."""
    heads = list(figures)
    keys = [key for key, value in next(iter(figures.values())).items() if not isinstance(value, list)]
    rows = [["", *heads], *[[key, *[str(figures[head].get(key, "")) for head in heads]] for key in keys]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.house", description=__doc__.splitlines()[0])
    parser.add_argument("--rev", action="append", default=[], help="a revision; may be given again")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument(
        "--list", metavar="NAME", help="print a list: pairs, rings, classes_twice, long_files, ..."
    )
    parser.add_argument("--no-run", action="store_true", help="do not measure the call path of a job")
    asked = parser.parse_args(words)
    figures: dict[str, dict[str, Any]] = {}
    for revision in asked.rev or [None]:
        with tree_of(revision) as root:
            figures[revision or "this tree"] = measure(root, run=not asked.no_run)
    if asked.json:
        print(json.dumps(figures, indent=1))
    elif asked.list:
        for found in figures.values():
            print(*found[asked.list], sep="\n")
    else:
        print(*table(figures), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The pages that lead through the code name files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "windlass"
#: Each page, and below what its paths are.
PAGES = {
    path.stem: PACKAGE / "backends" / "sqlite" if path.stem == "sqlite" else PACKAGE
    for path in sorted((ROOT / "docs" / "internals").glob("*.md"))
    if path.stem not in ("glossary", "speedups", "README")
}
#: Files of the suite and Lua files, by their name alone.
_SHORT = (ROOT / "src" / "windlass_conformance", PACKAGE / "backends" / "valkey" / "lua" / "includes")
#: `file.py` and the names behind it, with commas between them.
_NAMED = re.compile(r"`([\w/]+\.(?:py|lua|sql|toml|pml|json))`((?:,? `(?!\w+\.py`)[\w.]+`)*)")


def _names(path: Path) -> set[str]:
    """Functions, methods (Class.method), classes and constants of a module."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = [
                item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            found |= {node.name, *(f"{node.name}.{name}" for name in inner)}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_function_that_a_page_about_the_code_names_is_there(page: str) -> None:
    text = (ROOT / "docs" / "internals" / f"{page}.md").read_text(encoding="utf-8")
    found = _NAMED.findall(text)
    assert found
    for file, names in found:
        path = _find(file, PAGES[page])
        if path is None:
            assert "NAME" in file, file  # a file to be
        elif path.suffix == ".py":
            missing = set(re.findall(r"[\w.]+", names)) - _names(path)
            assert not missing, (file, missing)


def _find(file: str, base: Path) -> Path | None:
    """The file that a page names: below the page's package, in the repository, or a short name."""
    places = [base / file, ROOT / file, base / "sql" / file, PACKAGE / "engine" / file]
    places += [PACKAGE / "backends" / "sqlite" / "sql" / file, *(folder / file for folder in _SHORT)]
    return next((place for place in places if place.is_file()), None)


def test_every_page_of_the_internals_is_in_the_navigation_and_reached_from_the_first() -> None:
    folder = ROOT / "docs" / "internals"
    pages = {path.name for path in folder.glob("*.md")}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert {name for name in pages if f"internals/{name}" not in navigation} == set()
    first = (folder / "README.md").read_text(encoding="utf-8")
    assert {name for name in pages - {"README.md"} if f"]({name}" not in first} == set()

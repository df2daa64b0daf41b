"""The pages that lead through the code name files and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"sqlite": ROOT / "src" / "windlass" / "backends" / "sqlite"}
#: `file.py` and the names behind it, with commas between them.
_NAMED = re.compile(r"`([\w/]+\.py)`((?:,? `(?!\w+\.py`)[\w.]+`)*)")


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
    assert len(found) > 10
    for file, names in found:
        path = ROOT / file if file.startswith("src/") else PAGES[page] / file
        assert path.is_file(), file
        missing = set(re.findall(r"[\w.]+", names)) - _names(path)
        assert not missing, (file, missing)

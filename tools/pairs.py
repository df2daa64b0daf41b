"""Find duplicated code. ``tools/pairs.toml`` lists the duplicates that stay, with the reason.

``python -m tools.pairs`` compares the list with the duplicates that ``tools.house`` finds in
``src/windlass``: six lines or more, equal by text, or by shape (the same lines with other names). It fails on
a pair that is not listed (share the code, or list the pair with its reason), and on a listed pair that is
gone. ``--toml`` prints new entries.

A place is a file and the function or class in it, so that moving lines does not affect the list. Pairs of the
same two places are one entry. ``*`` matches any text: ``src/windlass/errors.py *`` is every class of that
file.

Tests: ``tests/unit/test_pairs.py``.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from tools.house import Module, pairs, read_modules

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "pairs.toml"


class Pair(NamedTuple):
    """Two places, in order."""

    one: str
    other: str


class Listed(NamedTuple):
    """An entry of the list: two patterns of places."""

    pair: Pair
    why: str

    def fits(self, pair: Pair) -> bool:
        """Whether ``pair`` matches the two patterns, in either order."""
        one, other = self.pair
        return (_fits(pair.one, one) and _fits(pair.other, other)) or (
            _fits(pair.one, other) and _fits(pair.other, one)
        )


def _fits(place: str, pattern: str) -> bool:
    return fnmatchcase(place, pattern.replace("[", "[[]"))


def find(modules: list[Module]) -> list[Pair]:
    """All pairs, by text and by shape, without repetitions of the same two places."""
    trees = {module.path: module.tree for module in modules}
    found = [*pairs(modules, shape=False), *pairs(modules, shape=True)]
    places = [sorted((place(trees, one), place(trees, other))) for _, one, other in found]
    return sorted({Pair(one, other) for one, other in places})


def place(trees: dict[str, ast.Module], where: str) -> str:
    """``path:line`` as a file and the innermost function or class of the line ("-" outside of any)."""
    path, _, line = where.rpartition(":")
    names: list[str] = []
    body: Iterable[ast.AST] = trees[path].body
    while True:
        inner = next((node for node in body if _is_named(node) and _has(node, int(line))), None)
        if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            return f"{path} {'.'.join(names) or '-'}"
        names.append(inner.name)
        body = inner.body


def _is_named(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


def _has(node: ast.AST, line: int) -> bool:
    first: int = min(
        [one.lineno for one in getattr(node, "decorator_list", [])] + [getattr(node, "lineno", 0)]
    )
    last: int = getattr(node, "end_lineno", 0)
    return first <= line <= last


def load(path: Path = LIST) -> list[Listed]:
    """Read the list. Raises ``ValueError`` for an entry without a reason."""
    found = []
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("group", []):
        why = str(entry.get("why", "")).strip()
        if len(why.split()) < 4:
            raise ValueError(f"say why these pairs stay: {entry.get('pairs')}")
        found += [Listed(Pair(*both), why) for both in entry["pairs"]]
    return found


def compare(found: list[Pair], listed: list[Listed]) -> tuple[list[Pair], list[Listed]]:
    """Pairs that are not listed, and entries that match no pair."""
    new = [pair for pair in found if not any(entry.fits(pair) for entry in listed)]
    gone = [entry for entry in listed if not any(entry.fits(pair) for pair in found)]
    return new, gone


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.pairs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--toml", action="store_true", help="print what is not listed as entries of the list")
    asked = parser.parse_args(words)
    new, gone = compare(find(read_modules(ROOT)), load())
    for pair in new:
        print(
            f'    ["{pair.one}", "{pair.other}"],'
            if asked.toml
            else f"stands twice: {pair.one} and {pair.other}"
        )
    for entry in gone:
        print(f"listed, but gone: {entry.pair.one} and {entry.pair.other}")
    if new:
        print("share the code, or list the pair with its reason in tools/pairs.toml", file=sys.stderr)
    return 1 if new or gone else 0


if __name__ == "__main__":
    sys.exit(main())

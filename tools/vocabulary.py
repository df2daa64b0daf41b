"""Search for banned words in comments, docstrings, messages, help texts and pages.

    python -m tools.vocabulary             print every place; exits with 1 if there are any

``tools/vocabulary.toml`` lists the banned words and what to say instead; ``docs/internals/glossary.md`` has
the terms that we use. Run by ``scripts/check``.

Tests: ``tests/unit/test_vocabulary.py``.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: The files to search: the packages, the documentation, the examples, and the pages for contributors.
PLACES = (
    "src/**/*.py",
    "src/**/*.lua",
    "src/**/*.sql",
    "docs/**/*.md",
    "docs/features.json",
    "examples/**/*.py",
    "examples/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
#: Generated from ``docs/features.json``, which is searched instead.
GENERATED = "docs/capabilities.md"


class Word(NamedTuple):
    """A banned word: its name, its pattern, and what to say instead."""

    name: str
    pattern: re.Pattern[str]
    say: str


class Found(NamedTuple):
    """One place of a banned word."""

    path: str
    line: int
    word: Word
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r} ({self.word.name}); say: {self.word.say}"


def read_words(path: Path = ROOT / "tools" / "vocabulary.toml") -> list[Word]:
    """The list of banned words."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["banned"]
    return [Word(row["name"], re.compile(row["pattern"], re.IGNORECASE), row["say"]) for row in rows]


def prose_of(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file without its code, each part with the number of its first line."""
    if path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string
    elif path.suffix == ".md":
        inside = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.lstrip().startswith("```"):
                inside = not inside
            elif not inside:
                yield number, re.sub(r"`[^`]*`", "", line)
    elif path.suffix == ".json":
        yield from enumerate(text.splitlines(), 1)
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if "--" in line:
                yield number, line.partition("--")[2]


def search(root: Path, words: list[Word]) -> Iterator[Found]:
    """Yield every place of every banned word."""
    for place in PLACES:
        for path in sorted(root.glob(place)):
            name = str(path.relative_to(root))
            if name == GENERATED:
                continue
            for line, text in prose_of(path, path.read_text(encoding="utf-8")):
                for word in words:
                    for match in word.pattern.finditer(text):
                        yield Found(name, line + text.count("\n", 0, match.start()), word, match.group())


def main(root: Path = ROOT) -> int:
    found = list(search(root, read_words()))
    for one in found:
        print(one)
    print(f"{len(found)} places of words that we do not use")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Look for words that this project does not use, in comments, docstrings, messages, help texts and pages.

    python -m tools.vocabulary             compare with the baseline; exits with 1 when a count has grown
    python -m tools.vocabulary --all       show every place
    python -m tools.vocabulary --update    write lower counts into the baseline

``tools/vocabulary.toml`` lists the words and what to say instead; ``docs/internals/glossary.md`` has those
that we use. What was there when the check began is in ``tools/vocabulary-baseline.json``: counts by file and
word: they may only shrink, and ``--update`` never raises one. Run by ``scripts/check``.

Tests: ``tests/unit/test_vocabulary.py``.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BASELINE = Path("tools/vocabulary-baseline.json")
#: Where readers look: code that ships, its pages, and what people read who work on it.
PLACES = (
    "src/**/*.py",
    "src/**/*.lua",
    "src/**/*.sql",
    "docs/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)


class Word(NamedTuple):
    """A banned word: its name in the baseline, how it is found, what to say instead."""

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
    """What people read in a file, with the number of its first line: code is left out."""
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
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if "--" in line:
                yield number, line.partition("--")[2]


def look(root: Path, words: list[Word]) -> Iterator[Found]:
    """Every place of every banned word."""
    for place in PLACES:
        for path in sorted(root.glob(place)):
            name = str(path.relative_to(root))
            for line, text in prose_of(path, path.read_text(encoding="utf-8")):
                for word in words:
                    for match in word.pattern.finditer(text):
                        yield Found(name, line + text.count("\n", 0, match.start()), word, match.group())


Counts = dict[str, dict[str, int]]


def count(found: list[Found]) -> Counts:
    """How often each word stands in each file."""
    counts: Counter[tuple[str, str]] = Counter((one.path, one.word.name) for one in found)
    table: Counts = {}
    for (path, name), number in sorted(counts.items()):
        table.setdefault(path, {})[name] = number
    return table


def grown(now: Counts, before: Counts) -> list[tuple[str, str]]:
    """Files and words whose count is higher than the baseline allows."""
    return [
        (path, name)
        for path, words in now.items()
        for name, number in words.items()
        if number > before.get(path, {}).get(name, 0)
    ]


def lowered(now: Counts, before: Counts) -> Counts:
    """The baseline with lower counts where there are fewer now."""
    table = {
        path: {name: min(number, now.get(path, {}).get(name, 0)) for name, number in words.items()}
        for path, words in before.items()
    }
    kept = {path: {name: number for name, number in words.items() if number} for path, words in table.items()}
    return {path: words for path, words in kept.items() if words}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.vocabulary")
    parser.add_argument("--all", action="store_true", help="show every place")
    parser.add_argument("--update", action="store_true", help="write lower counts into the baseline")
    parser.add_argument(
        "--begin", action="store_true", help="write the baseline anew, after a word was added"
    )
    asked = parser.parse_args(arguments)
    found = list(look(root, read_words()))
    file = root / BASELINE
    before: Counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    now = count(found)
    if asked.begin:
        before = now
    worse = set(grown(now, before))
    for one in found:
        if asked.all or (one.path, one.word.name) in worse:
            print(one)
    if asked.update or asked.begin:
        file.write_text(json.dumps(lowered(now, before), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif lowered(now, before) != before:
        print("fewer than the baseline allows: python -m tools.vocabulary --update")
    print(f"{len(found)} places of words that we do not use, {len(worse)} more than before")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())

"""Commands, options and variables that pages and help texts name exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import all_commands, check_command, is_known_variable

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SPAN = re.compile(r"(?<!`)`((?:[A-Z_]+=\S+ )*windlass\s[^`]+)`(?!`)")
_LINE = re.compile(r"^((?:[A-Z_]+=\S+ )*windlass .*)$", re.MULTILINE)
_TYPED = re.compile(r"^\$ ((?:[A-Z_]+=\S+ )*windlass .*)$", re.MULTILINE)
_FENCE = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Where the command ends, and its output or the next command begins.
_END = re.compile(r"\s(?:\||>|&&|\|\||;|<)\s|\s{3,}\S")


def lines_of(text: str) -> Iterator[str]:
    """The ``windlass`` command lines of a page: in code spans, and in blocks for shells and transcripts."""
    for kind, block in _FENCE.findall(text):
        lines = _LINE if kind == "sh" else _TYPED
        yield from lines.findall(block.replace("\\\n", " "))
    for span in _SPAN.findall(re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)):
        yield re.sub(r"\s+", " ", span)


def words_of(line: str) -> list[str]:
    """The words of a command line, from ``windlass`` on."""
    words = shlex.split(_END.split(line.replace("|| true", ""))[0], comments=True)
    return words[next(number for number, word in enumerate(words) if word == "windlass") :]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    for line in lines_of(page.read_text()):
        words = words_of(line)
        if len(words) > 1 and words[1] not in ("--help", "--version", "COMMAND", "..."):
            check_command([word.strip("[]") for word in words if word != "..."], whole=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_variables_that_are_read(page: Path) -> None:
    named = set(re.findall(r"\bWINDLASS_[A-Z_]+", page.read_text()))
    assert sorted(name for name in named if not is_known_variable(name)) == []


def test_the_examples_of_every_help_text_would_be_accepted() -> None:
    seen = 0
    for command in all_commands():
        for line in _LINE.findall(re.sub(r"^  ", "", command.epilog or "", flags=re.MULTILINE)):
            check_command(words_of(line), whole=False)
            seen += 1
    assert seen > 50


def test_a_wrong_option_and_a_wrong_command_are_noticed() -> None:
    for line in ("windlass worker mail:app --health-prot 8081", "windlass wroker mail:app"):
        with pytest.raises(AssertionError, match=r"prot|wroker"):
            check_command(line.split(), whole=False)
    with pytest.raises(AssertionError, match="concurrency"):
        check_command("windlass worker mail:app --concurrency many".split())
    assert not is_known_variable("_".join(("WINDLASS", "OPERATER", "TOKEN")))

"""The look for words that this project does not use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.vocabulary import ROOT, main, read_words, search

# Written in pieces, so that this file does not use them either.
_WORD = "no" + "body"


def _write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("src/a.py", f"x = 1  # {_WORD} knows\n", [1]),
        ("src/a.py", f'def f() -> None:\n    """One.\n\n    {_WORD.title()} else.\n    """\n', [4]),
        ("src/a.py", f"raise ValueError('{_WORD} is there')\n", [1]),
        ("src/a.py", f"{_WORD} = 1\n", []),
        ("src/a.lua", f"-- {_WORD}\nlocal {_WORD} = 1\n", [1]),
        ("docs/a.md", f"{_WORD.title()} waits.\n\n```python\n{_WORD} = 1\n```\n`{_WORD}`\n", [1]),
        ("docs/features.json", f'{{"title": "{_WORD} waits"}}\n', [1]),
        ("CHANGELOG.md", f"{_WORD}\n", []),
    ],
    ids=["comment", "docstring", "message", "a name in code", "lua", "page", "features", "history"],
)
def test_prose_is_looked_at_and_code_is_not(tmp_path: Path, name: str, text: str, lines: list[int]) -> None:
    _write(tmp_path, name, text)
    assert [one.line for one in search(tmp_path, read_words())] == lines


def test_the_check_fails_until_the_word_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write(tmp_path, "README.md", f"{_WORD}\n")
    assert main(tmp_path) == 1
    assert "README.md:1:" in capsys.readouterr().out
    _write(tmp_path, "README.md", "No worker.\n")
    assert main(tmp_path) == 0


def test_the_generated_page_is_checked_where_its_words_are_written(tmp_path: Path) -> None:
    _write(tmp_path, "docs/capabilities.md", f"{_WORD}\n")
    assert main(tmp_path) == 0
    _write(tmp_path, "docs/features.json", f'[{{"title": "{_WORD}"}}]\n')
    assert main(tmp_path) == 1


def test_every_word_of_the_list_says_what_to_write_instead() -> None:
    words = read_words()
    assert len({word.name for word in words}) == len(words)
    assert all(word.say for word in words)


def test_the_glossary_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "internals" / "glossary.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) > 50
    gone = {
        name for name in named if not name.startswith("src/") and not (ROOT / "src/windlass" / name).exists()
    }
    assert gone == set()

"""The list of special paths: what is listed is announced in the code, and the other way round."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import windlass
from windlass.core.paths import PATHS, counts, took

ROOT = Path(windlass.__file__).parent
STORES = {"memory", "file", "sqlite", "valkey", "amqp"}


def test_every_listed_path_is_announced_somewhere_and_no_other() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(ROOT.rglob("*.py")))
    assert set(re.findall(r'\btook\("([^"]+)"\)', text)) == set(PATHS)


def test_every_listed_path_says_its_stores_and_what_it_does() -> None:
    assert list(PATHS) == sorted(PATHS)
    for name, path in PATHS.items():
        assert path.stores, name
        assert set(path.stores) <= STORES, name
        assert path.what, name


def test_a_path_that_is_taken_is_counted() -> None:
    name = next(iter(PATHS))
    before = counts[name]
    took(name)
    assert counts[name] == before + 1


def test_a_path_that_is_not_listed_is_refused() -> None:
    with pytest.raises(KeyError):
        took("no such path")

"""Every trap has a test that carries its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: How many traps of each kind the founding designs hold, and where their tests stand.
TRAPS = {"000": 27, "003": 11, "004": 18, "py": 8}
FOLDERS = {"000": "backends/valkey"}


@pytest.mark.parametrize("kind", TRAPS)
def test_every_trap_has_a_test(kind: str) -> None:
    files = (TESTS / FOLDERS.get(kind, "traps")).glob("test_*.py")
    text = "".join(path.read_text() for path in files)
    found = {int(number) for number in re.findall(rf"def test_b_{kind}_(\d+)_", text)}
    assert found == set(range(1, TRAPS[kind] + 1))

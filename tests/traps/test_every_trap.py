"""Every trap has a test that carries its number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

#: How many traps of each kind the founding designs hold.
TRAPS = {"003": 11, "004": 18, "py": 8}


@pytest.mark.parametrize("kind", TRAPS)
def test_every_trap_has_a_test(kind: str) -> None:
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_traps.py"))
    found = {int(number) for number in re.findall(rf"def test_b_{kind}_(\d+)_", text)}
    assert found == set(range(1, TRAPS[kind] + 1))

"""Old names work, and say what to write instead."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import windlass
from windlass import _renamed

NAMES = [(module, old, new) for module, table in _renamed.NAMES.items() for old, new in table.items()]


@pytest.mark.parametrize(("module", "old", "new"), NAMES)
def test_an_old_name_is_the_new_one_with_a_warning(module: str, old: str, new: str) -> None:
    home, _, name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is called {new} now"):
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize(("old", "new"), sorted(_renamed.MODULES.items()))
def test_an_old_module_is_the_new_one_with_a_warning(old: str, new: str) -> None:
    parent, _, name = old.rpartition(".")
    sys.modules.pop(old, None)  # it may have been imported by then
    vars(importlib.import_module(parent)).pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"{old} is called {new} now"):
        found = importlib.import_module(old)
    assert found is importlib.import_module(new)


def test_what_never_was_is_still_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Quue'"):
        windlass.Quue  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("windlass.quue")


def test_no_old_name_hides_one_that_is_there() -> None:
    assert not [old for module, old, _ in NAMES if old in vars(importlib.import_module(module))]
    assert len(windlass.__all__) <= 50


def test_the_upgrade_notes_say_every_old_name_and_its_new_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "upgrading.md").read_text(encoding="utf-8")
    lines = page.splitlines()
    moved = [f"| `{old}` | `{new}` |" for old, new in _renamed.MODULES.items()]
    renamed = [f"| `{module}.{old}` | `{new}` |" for module, old, new in NAMES if module != "windlass"]
    assert [row for row in moved + renamed if not any(line.startswith(row) for line in lines)] == []
    for module, old, new in NAMES:
        if module == "windlass":
            home, _, name = new.rpartition(".")
            (row,) = [line for line in lines if line.startswith(f"| `{home}` |")]
            assert f"`{old}`" in row and f"`{name}`" in row, (old, new)

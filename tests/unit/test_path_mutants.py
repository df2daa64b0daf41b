"""Every special path has a deliberate defect, and the page that tells of them names them all."""

from __future__ import annotations

from pathlib import Path

from tests.backends.path_mutants import MUTANTS, missing

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_every_special_path_has_a_deliberate_defect() -> None:
    assert missing() == []


def test_the_page_names_every_defect() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name, mutant in MUTANTS.items() if f"| `{name}` | {mutant.what}" not in text] == []

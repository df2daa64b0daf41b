"""``scripts/test`` runs every test in one of its parts."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_only_test_files_name_the_mark_of_serial_tests() -> None:
    """The serial part collects the test files that name it; the other parts leave out what has it."""
    folders = (ROOT / "tests", ROOT / "src")
    files = [file for folder in folders for file in folder.rglob("*.py") if "mark.serial" in file.read_text()]
    assert files
    assert [file for file in files if not file.name.startswith("test_")] == []
    assert [file for file in files if "pipeline" in file.parts] == []  # its part runs all of its tests

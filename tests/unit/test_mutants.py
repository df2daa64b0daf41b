"""The list of defects that proofs must notice fits the code, and the tool tells who survived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Mutant, load, stale, verdict

ROOT = Path(__file__).resolve().parents[2]


def test_every_defect_still_has_its_place_in_the_code_and_its_row() -> None:
    found = load()
    rows = {row["id"] for row in json.loads((ROOT / "docs" / "features.json").read_text())["rows"]}
    assert stale(found) == []
    assert [mutant.row for mutant in found if mutant.row not in rows] == []
    assert len({mutant.row for mutant in found}) >= 15
    assert [mutant.tests for mutant in found if not (ROOT / mutant.tests).exists()] == []


def _mutant(**fields: str) -> Mutant:
    usual = {"row": "A1", "what": "adds one less", "file": "code.py", "old": "+ 1", "new": "- 1"}
    return Mutant(**{**usual, "tests": "tests", "select": "", **fields})


def test_a_defect_without_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = b + 1\nc = d + 1\n")
    assert stale([_mutant(old="b + 1")], tmp_path) == []
    assert stale([_mutant()], tmp_path) == ["A1, adds one less: 2 places in code.py"]
    assert stale([_mutant(old="e + 1")], tmp_path) == ["A1, adds one less: 0 places in code.py"]


@pytest.mark.parametrize(
    ("without", "broken", "told"),
    [
        (0, 1, "caught"),
        (0, 0, "SURVIVED"),
        (1, 1, "the tests fail without the defect, or there are none"),
        (5, 5, "the tests fail without the defect, or there are none"),
        (0, 2, "pytest ended with 2"),
    ],
)
def test_a_defect_is_caught_when_tests_pass_without_it_and_fail_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int, broken: int, told: str
) -> None:
    file = tmp_path / "code.py"
    file.write_text("a = b + 1\n")

    def run(mutant: Mutant, source: Path) -> int:
        return broken if "- 1" in file.read_text() else without

    monkeypatch.setattr(mutants, "run", run)
    assert verdict(_mutant(), tmp_path, check=True) == told
    assert file.read_text() == "a = b + 1\n"

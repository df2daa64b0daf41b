"""The table of special paths that a whole run of the suite leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner

from tools.paths import add_to_report, load_report, main, never_taken, table
from windlass.core.paths import PATHS

if TYPE_CHECKING:
    from pathlib import Path

ALL = {store: dict.fromkeys(PATHS, 1) for path in PATHS.values() for store in path.stores}


def test_the_parts_of_a_run_add_up(tmp_path: Path) -> None:
    report = tmp_path / "reports" / "paths.json"
    for part in ({"sqlite": {"sqlite.add_rows": 2}}, {"sqlite": {"sqlite.add_rows": 3}, "amqp": {}}):
        add_to_report(report, part)
    taken = load_report(report)
    assert taken["sqlite"] == {"sqlite.add_rows": 5}
    assert ("sqlite.add_rows", "sqlite", 5, PATHS["sqlite.add_rows"].what) in table(taken)


def test_a_path_that_was_never_taken_fails_the_check(tmp_path: Path) -> None:
    report = tmp_path / "paths.json"
    add_to_report(report, ALL | {"sqlite": {name: 1 for name in PATHS if name != "sqlite.add_rows"}})
    assert never_taken(load_report(report)) == ["sqlite.add_rows on sqlite"]
    result = CliRunner().invoke(main, ["--check", "--report", str(report)])
    assert result.exit_code == 1
    assert "never took sqlite.add_rows on sqlite" in result.output


def test_a_run_that_took_every_path_passes_the_check(tmp_path: Path) -> None:
    report = tmp_path / "paths.json"
    add_to_report(report, ALL)
    assert CliRunner().invoke(main, ["--check", "--report", str(report)]).exit_code == 0


def test_without_a_run_every_path_is_missing(tmp_path: Path) -> None:
    assert len(never_taken(load_report(tmp_path / "none.json"))) == sum(len(p.stores) for p in PATHS.values())

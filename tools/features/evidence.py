"""The evidence of a run: one entry for each finished test that names rows of the ledger."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

#: The backend of a test that does not depend on a backend. Such a test proves only store-free rows.
ANY_BACKEND = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The result of one test for the rows that it names."""

    test: str
    backend: str
    #: Rows the test proves when it passes.
    rows: tuple[str, ...] = ()
    #: Rows whose refusal the test asserts: the backend declares that it lacks them.
    missing: tuple[str, ...] = ()
    passed: bool


@dataclass(slots=True)
class RunReport:
    """The evidence of one run of the suite."""

    tests: int = 0
    entries: dict[str, Evidence] = field(default_factory=dict)

    def add(self, entry: Evidence) -> None:
        """Add the result of one test. A later result of the same test replaces the earlier one."""
        self.entries[entry.test] = entry

    def merge(self, other: RunReport) -> None:
        """Add another part of the same run."""
        self.tests += other.tests
        self.entries.update(other.entries)

    def to_json(self) -> dict[str, Any]:
        """The stored form, in a stable order: equal runs give equal files."""
        entries = sorted(self.entries.values(), key=lambda entry: entry.test)
        return {"tests": self.tests, "entries": [asdict(entry) for entry in entries]}


def load_report(path: Path) -> RunReport:
    """Read a report. A missing file counts as an empty run."""
    if not path.exists():
        return RunReport()
    raw = json.loads(path.read_text(encoding="utf-8"))
    report = RunReport(tests=raw["tests"])
    for entry in raw["entries"]:
        rows, missing = tuple(entry.pop("rows")), tuple(entry.pop("missing"))
        report.add(Evidence(**entry, rows=rows, missing=missing))
    return report


def save_report(path: Path, report: RunReport) -> None:
    """Write a report. Creates its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")

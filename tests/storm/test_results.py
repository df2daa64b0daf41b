"""The table of storms in the docs is the one that the kept reports make, and it hides nothing."""

from __future__ import annotations

import msgspec

from tools.storm import Report
from tools.storm.invariants import Violation
from tools.storm.results import DOCS, merged, read, tables, written


def test_the_docs_show_the_reports_that_are_kept() -> None:
    page = (DOCS / "reliability.md").read_text()
    assert written(page, read(DOCS / "storms.json")) == page


def test_a_broken_invariant_and_a_backend_without_a_storm_are_told() -> None:
    report = _report()
    broken = msgspec.structs.replace(report, violations=[Violation("one-end-per-token", "twice")])
    assert "| `one-end-per-token` |" in tables([broken])
    assert "No long storm was run on:" in tables([broken])


def test_a_later_report_takes_the_place_of_an_earlier_one() -> None:
    report = _report()
    later = msgspec.structs.replace(report, acknowledged=report.acknowledged + 1)
    assert merged([report], [later]) == [later]


def _report() -> Report:
    return read(DOCS / "storms.json")[0]

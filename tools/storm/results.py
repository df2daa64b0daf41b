"""The table of long storms in the docs, from their reports.

``python -m tools.storm.results .reports/storm-*.json`` adds reports (``scripts/storm --json``) to
``docs/storms.json``, where a new report replaces the old one of its backend. Then it updates the tables of
``docs/reliability.md``. Without reports it only updates the tables.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

from tools.storm import FAULTS, Report
from tools.storm.servers import STORES

DOCS = Path(__file__).resolve().parents[2] / "docs"
_HEADS = (
    "backend",
    "seed, minutes",
    "jobs acknowledged",
    "attempts",
    "faults",
    "leases taken back",
    "replies lost",
    "lost in the replication lag",
    "rows of history gone",
    "invariants asked",
    "violations",
)
_BEGIN, _END = "<!-- storms: begin -->", "<!-- storms: end -->"


def read(path: Path) -> list[Report]:
    """The reports of a file: one, or a list of them."""
    found = json.loads(path.read_text())
    return msgspec.convert(found if isinstance(found, list) else [found], list[Report])


def merged(known: list[Report], new: list[Report]) -> list[Report]:
    """The newest report of each backend, ordered by name."""
    by_name = {report.backend: report for report in [*known, *new]}
    return [by_name[name] for name in sorted(by_name)]


def tables(reports: list[Report]) -> str:
    """The tables of storms and of faults. Backends without a report are listed below them."""
    lines = [f"| {' | '.join(_HEADS)} |", f"|{'---|' * len(_HEADS)}"]
    lines += [_row(report) for report in reports]
    kinds = [kind for kind in FAULTS if any(report.faults.get(kind) for report in reports)]
    lines += ["", "Faults that were carried out, by kind (-: the store cannot suffer it):", ""]
    lines += [f"| backend | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for report in reports:
        counts = [str(report.faults.get(kind, "-")) for kind in kinds]
        lines.append(f"| {report.backend} | {' | '.join(counts)} |")
    missing = sorted(set(STORES) - {report.backend for report in reports})
    if missing:
        lines += ["", f"No long storm was run on: {', '.join(missing)}."]
    return "\n".join(lines)


def _row(report: Report) -> str:
    broken = sorted({violation.invariant for violation in report.violations})
    cells = [
        report.backend,
        f"{report.settings.seed}, {report.settings.seconds / 60:g}",
        f"{report.acknowledged:,}",
        f"{report.attempts:,}",
        f"{sum(report.faults.values()):,}",
        f"{report.recovered:,}",
        f"{report.lost_replies:,}",
        f"{report.lost_in_lag:,}",
        f"{report.history_gone:,}",
        str(report.invariants),
        ", ".join(f"`{name}`" for name in broken) or "none",
    ]
    return f"| {' | '.join(cells)} |"


def written(page: str, reports: list[Report]) -> str:
    """The page with new tables."""
    before, rest = page.split(_BEGIN, 1)
    _, after = rest.split(_END, 1)
    return f"{before}{_BEGIN}\n\n{tables(reports)}\n\n{_END}{after}"


def main(paths: list[str]) -> int:
    kept, page = DOCS / "storms.json", DOCS / "reliability.md"
    known = read(kept) if kept.exists() else []
    reports = merged(known, [report for path in paths for report in read(Path(path))])
    kept.write_text(json.dumps(msgspec.to_builtins(reports), indent=1) + "\n")
    page.write_text(written(page.read_text(), reports))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

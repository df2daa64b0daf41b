"""Join ledger and evidence: one status for each row on each backend.

Rules
    * a failed test takes away what another test proved for the same row and backend;
    * evidence without a backend counts for every backend that the row concerns;
    * proof beats a declared lack, since a declared lack is one backend's word about itself and
      a row may have parts of which only one is refused.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tools.features.evidence import ANY_BACKEND, RunReport

if TYPE_CHECKING:
    from pathlib import Path

    from tools.features.ledger import Ledger, Row


class Status(StrEnum):
    """How a row stands on a backend."""

    PROVED = "proved"
    DECLARED_MISSING = "declared missing"
    SUPERSEDED = "superseded"
    ABSENT = "absent"
    #: The row is about other backends only.
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The status of every row on every backend."""

    ledger: Ledger
    backends: tuple[str, ...]
    cells: dict[str, dict[str, Status]]

    def counts(self, group: str, backend: str) -> Counter[Status]:
        """How many rows of a group have each status on a backend."""
        return Counter(self.cells[row.id][backend] for row in self.ledger.in_group(group))

    def absent(self, *, demanded: bool) -> list[tuple[Row, list[str]]]:
        """The demanded (or the beyond) rows that some backend neither proves nor refuses, and which."""
        found = (
            (row, [backend for backend, status in self.cells[row.id].items() if status is Status.ABSENT])
            for row in self.ledger.rows.values()
            if row.demanded is demanded
        )
        return [(row, backends) for row, backends in found if backends]

    def proved(self) -> dict[str, list[str]]:
        """The proved rows with their backends: what ``features-proved.json`` keeps."""
        found = {
            row_id: [backend for backend, status in cells.items() if status is Status.PROVED]
            for row_id, cells in self.cells.items()
        }
        return {row_id: backends for row_id, backends in found.items() if backends}


def build_matrix(ledger: Ledger, report: RunReport) -> Matrix:
    """Give every row a status on every backend of the ledger."""
    proofs = _Proofs(report)
    cells = {
        row.id: {backend: _status(row, backend, proofs) for backend in ledger.backends}
        for row in ledger.rows.values()
    }
    return Matrix(ledger, ledger.backends, cells)


def load_proved(path: Path) -> dict[str, list[str]]:
    """The rows that were proved when the file was last committed; none without a file."""
    if not path.exists():
        return {}
    stored: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))
    return stored


def lost_proofs(before: dict[str, list[str]], matrix: Matrix) -> list[tuple[str, str]]:
    """The (row, backend) pairs that were proved before and are not any more."""
    now = matrix.proved()
    return [(row, name) for row, names in before.items() for name in names if name not in now.get(row, ())]


def new_proofs(before: dict[str, list[str]], matrix: Matrix) -> list[tuple[str, str]]:
    """The (row, backend) pairs that are proved now and were not before."""
    now = matrix.proved()
    return [(row, name) for row, names in now.items() for name in names if name not in before.get(row, ())]


class _Proofs:
    """The evidence of a report, as sets of (row, backend)."""

    def __init__(self, report: RunReport) -> None:
        entries = report.entries.values()
        self.passed = {(row, e.backend) for e in entries if e.passed for row in e.rows}
        self.failed = {(row, e.backend) for e in entries if not e.passed for row in (*e.rows, *e.missing)}
        self.missing = {(row, e.backend) for e in entries if e.passed for row in e.missing}


def _status(row: Row, backend: str, proofs: _Proofs) -> Status:
    pairs = {(row.id, backend)}
    if row.concerns(backend):
        pairs.add((row.id, ANY_BACKEND))
    if row.superseded is not None:
        return Status.SUPERSEDED
    if pairs & proofs.failed:
        return Status.ABSENT
    if pairs & proofs.passed:
        return Status.PROVED
    if pairs & proofs.missing:
        return Status.DECLARED_MISSING
    return Status.ABSENT if row.concerns(backend) else Status.ELSEWHERE

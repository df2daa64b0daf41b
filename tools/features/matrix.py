"""Combine ledger and evidence: one status for each row on each backend.

Rules
    * if a test of a row fails on a backend, the row is not proved there, even if other tests pass;
    * a test counts for the store that it ran on; a test without a store proves only store-free rows;
    * if tests show that a store both refuses and proves a row, that is an error.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tools.features.evidence import RunReport
    from tools.features.ledger import Ledger, Row


#: The name for all stores, for rows that do not depend on a store.
ANY_STORE = "any"


class Status(StrEnum):
    """The status of a row on a backend."""

    PROVED = "proved"
    DECLARED_MISSING = "declared missing"
    SUPERSEDED = "superseded"
    ABSENT = "absent"
    #: The row applies only to other backends.
    ELSEWHERE = "elsewhere"


class Contradiction(NamedTuple):
    """A row that a backend proves and refuses, with one test of each kind."""

    row: str
    backend: str
    proof: str
    refusal: str


@dataclass(frozen=True, slots=True)
class Matrix:
    """The status of every row on every backend."""

    ledger: Ledger
    backends: tuple[str, ...]
    #: Rows that depend on the store: status by row and backend.
    cells: dict[str, dict[str, Status]]
    #: Store-free rows: status by row.
    free: dict[str, Status]
    #: Rows that one test proves and another refuses on the same backend.
    contradictions: list[Contradiction]

    def counts(self, group: str, backend: str) -> Counter[Status]:
        """The number of rows of a group in each status on a backend, without store-free rows."""
        rows = self.ledger.in_group(group)
        return Counter(self.cells[row.id][backend] for row in rows if not row.store_free)

    def statuses(self, row: Row) -> dict[str, Status]:
        """The statuses of one row by backend. A store-free row has one status, for ``any``."""
        return {ANY_STORE: self.free[row.id]} if row.store_free else self.cells[row.id]

    def absent(self, *, demanded: bool) -> list[tuple[Row, list[str]]]:
        """The demanded (or other) rows that are absent on some backends, with these backends."""
        found = (
            (row, [backend for backend, status in self.statuses(row).items() if status is Status.ABSENT])
            for row in self.ledger.rows.values()
            if row.demanded is demanded
        )
        return [(row, backends) for row, backends in found if backends]

    def proved(self) -> dict[str, list[str]]:
        """The proved rows with their backends, as in ``features-proved.json``."""
        found = {
            row.id: [backend for backend, status in self.statuses(row).items() if status is Status.PROVED]
            for row in self.ledger.rows.values()
        }
        return {row_id: backends for row_id, backends in found.items() if backends}


def build_matrix(ledger: Ledger, report: RunReport) -> Matrix:
    """Give every row a status on every backend of the ledger."""
    proofs = _Proofs(report)
    rows = ledger.rows.values()
    return Matrix(
        ledger,
        ledger.backends,
        cells={
            row.id: {backend: _status(row, backend, proofs) for backend in ledger.backends}
            for row in rows
            if not row.store_free
        },
        free={row.id: _free_status(row, proofs) for row in rows if row.store_free},
        contradictions=proofs.contradictions(ledger),
    )


def load_proved(path: Path) -> dict[str, list[str]]:
    """The rows that were proved when the file was last committed. Empty without a file."""
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
    """The evidence of a report by (row, backend), with one test for each kind of result."""

    def __init__(self, report: RunReport) -> None:
        self.passed: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.missing: dict[tuple[str, str], str] = {}
        for entry in report.entries.values():
            for row in entry.rows:
                (self.passed if entry.passed else self.failed).setdefault((row, entry.backend), entry.test)
            for row in entry.missing:
                (self.missing if entry.passed else self.failed).setdefault((row, entry.backend), entry.test)

    def contradictions(self, ledger: Ledger) -> list[Contradiction]:
        """Rows that are both proved and refused, in the order of the ledger."""
        order = list(ledger.rows)
        both = sorted(self.passed.keys() & self.missing.keys(), key=lambda pair: (order.index(pair[0]), pair))
        return [Contradiction(*pair, self.passed[pair], self.missing[pair]) for pair in both]


def _status(row: Row, backend: str, proofs: _Proofs) -> Status:
    pair = (row.id, backend)
    if row.superseded is not None:
        return Status.SUPERSEDED
    if pair in proofs.failed:
        return Status.ABSENT
    if pair in proofs.missing:
        return Status.DECLARED_MISSING
    if pair in proofs.passed:
        return Status.PROVED
    return Status.ABSENT if row.concerns(backend) else Status.ELSEWHERE


def _free_status(row: Row, proofs: _Proofs) -> Status:
    """The status of a store-free row. A test on any store can prove it."""
    if row.superseded is not None:
        return Status.SUPERSEDED
    if any(row_id == row.id for row_id, _ in (*proofs.failed, *proofs.missing)):
        return Status.ABSENT
    return Status.PROVED if any(row_id == row.id for row_id, _ in proofs.passed) else Status.ABSENT

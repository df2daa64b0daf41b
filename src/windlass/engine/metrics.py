"""Roll-ups of the history (``core.rollups`` says what a row is)."""

from __future__ import annotations

from copy import deepcopy

from windlass.backend import metric_requests as mq
from windlass.core.rollups import Mark, MetricsRow, Step, merged
from windlass.engine.effects import Cursor, Entry, Table
from windlass.engine.reads import MoreReads, Reads, Verb
from windlass.engine.unit_of_work import UnitOfWork

STEPS: tuple[Step, ...] = ("minute", "hour")


def add(work: UnitOfWork, request: mq.AddMetrics) -> Verb[bool]:
    """Add rows to a queue's roll-ups and move its cursor. False if that is not at ``after``. Reads: 1."""
    queue = request.queue
    cursor: Entry = (Table.CURSOR, (queue,))
    rows: dict[Entry, MetricsRow] = {
        (Table.ROLLUP, (queue, step, row.start_ms, row.task)): row
        for step in STEPS
        for row in merged(request.rows, step)
    }
    yield Reads(rows=[cursor, *rows])
    known: Cursor | None = work.rows[cursor]
    if (0 if known is None else known.at) != request.after:
        return False
    work.put_row(*cursor, Cursor(request.upto, work.now_ms))
    for entry, row in rows.items():
        stored: MetricsRow | None = work.rows[entry]
        total = row if stored is None else deepcopy(stored)
        if stored is not None:
            total.merge(row)
        work.put_row(*entry, total)
    return True


def add_mark(work: UnitOfWork, request: mq.AddMark) -> Verb[Mark]:
    """Add a mark, or return the one that has this id already. Reads: 1."""
    yield MoreReads(mark=request.id)
    if work.mark is not None:
        return work.mark
    mark = Mark(id=request.id, at_ms=work.now_ms, label=request.label)
    work.effects.marks.append(mark)
    return mark

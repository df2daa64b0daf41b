"""Roll-ups of the reference store."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

from windlass.backend import metrics as mq
from windlass.backends.memory.journal import Journal, Table
from windlass.core.job import ARCHIVER_KEPT_MS
from windlass.core.metrics import KEPT_MS, MARKS_KEPT, Mark, MetricsCursor, MetricsRow, Step, merged
from windlass.core.transitions import Scribe

#: Number of the newest and of the oldest record of a queue's history (oldest > newest: it is empty).
Ranges = Callable[[], dict[str, tuple[int, int]]]


class Cursor(NamedTuple):
    at: int
    seen_ms: int


class MemoryMetrics:
    """All roll-ups of one namespace."""

    def __init__(self, journal: Journal, ranges: Ranges) -> None:
        self._journal = journal
        self._ranges = ranges
        self.cursors: dict[str, Cursor] = {}
        self.rows: dict[tuple[str, Step], dict[tuple[int, str], MetricsRow]] = {}
        self.marks: list[tuple[int, str, Mark]] = []

    def verbs(self) -> dict[type[Any], Callable[[Any, Scribe], Any]]:
        return {
            mq.MetricsProgress: self._progress,
            mq.AddMetrics: self._add,
            mq.ReadMetrics: self._read,
            mq.AddMark: self._add_mark,
            mq.ListMarks: self._list_marks,
        }

    def holds_from(self, queue: str, now_ms: int) -> int | None:
        """The record after which a queue's history is held; None when nobody rolls it up any more."""
        cursor = self.cursors.get(queue)
        if cursor is None or cursor.seen_ms <= now_ms - ARCHIVER_KEPT_MS:
            return None
        return cursor.at

    def prune(self, now_ms: int, limit: int) -> int:
        """Remove roll-ups that are past their time; returns how many."""
        count = 0
        for (queue, step), rows in self.rows.items():
            old = [key for key in rows if key[0] < now_ms - KEPT_MS[step]][: limit - count]
            for key in old:
                del rows[key]
                self._journal.row(Table.ROLLUP, queue, step, *key)
            count += len(old)
        return count

    def _progress(self, request: mq.MetricsProgress, scribe: Scribe) -> list[MetricsCursor]:
        return [
            MetricsCursor(queue=queue, at=self._at(queue), newest=newest, oldest=oldest)
            for queue, (newest, oldest) in sorted(self._ranges().items())
            if newest and request.queue in (None, queue)
        ]

    def _at(self, queue: str) -> int:
        cursor = self.cursors.get(queue)
        return 0 if cursor is None else cursor.at

    def _add(self, request: mq.AddMetrics, scribe: Scribe) -> bool:
        queue = request.queue
        if self._at(queue) != request.after:
            return False
        self.cursors[queue] = Cursor(request.upto, scribe.now_ms)
        self._journal.row(Table.CURSOR, queue)
        steps: tuple[Step, ...] = ("minute", "hour")
        for step in steps:
            rows = self.rows_of(queue, step)
            for row in merged(request.rows, step):
                key = (row.start_ms, row.task)
                self._journal.row(Table.ROLLUP, queue, step, *key)
                if key in rows:
                    rows[key].merge(row)
                else:
                    rows[key] = row
        return True

    def _read(self, request: mq.ReadMetrics, scribe: Scribe) -> mq.MetricsPage:
        rows = self.rows.get((request.queue, request.step), {})
        after = None if request.cursor is None else mq.place_of(request.cursor)
        keys = sorted(
            key
            for key in rows
            if request.since_ms <= key[0] < request.until_ms
            and request.task in (None, key[1])
            and (after is None or key > after)
        )
        page = [deepcopy(rows[key]) for key in keys[: request.limit]]
        more = len(keys) > len(page)
        return mq.MetricsPage(page, f"{page[-1].start_ms} {page[-1].task}" if more else None)

    def _add_mark(self, request: mq.AddMark, scribe: Scribe) -> Mark:
        for _, mark_id, mark in self.marks:
            if mark_id == request.id:
                return mark
        mark = Mark(id=request.id, at_ms=scribe.now_ms, label=request.label)
        self._journal.marked(mark)
        self.keep_mark(mark)
        return mark

    def rows_of(self, queue: str, step: Step) -> dict[tuple[int, str], MetricsRow]:
        """The rows of one queue and step, to be changed."""
        return self.rows.setdefault((queue, step), {})

    def keep_mark(self, mark: Mark) -> None:
        """Enter a mark, and let the oldest go over the bound."""
        insort(self.marks, (mark.at_ms, mark.id, mark))
        del self.marks[:-MARKS_KEPT]

    def _list_marks(self, request: mq.ListMarks, scribe: Scribe) -> list[Mark]:
        return [mark for at_ms, _, mark in self.marks if at_ms >= request.since_ms]

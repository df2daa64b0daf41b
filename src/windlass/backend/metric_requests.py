"""Requests about roll-ups of the history and about marks. ``core.rollups`` defines the rows.

Any process may roll up: it reads the history after a queue's cursor, makes rows, and adds them with the
cursor that they start from. If several processes do this at once, only one of them changes the store, so each
record counts exactly once.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.order import bad_cursor
from windlass.core.rollups import Mark, MetricsCursor, MetricsRow, Step

#: Enough digits for milliseconds since 1970.
_DIGITS = 14


class MetricsProgress(Request[list[MetricsCursor]], kw_only=True):
    """How far each queue is rolled up, ordered by name. Queues without history are left out.

    ``queue`` asks for one queue only.
    """

    needs: ClassVar[str] = "metrics"

    queue: str | None = None


class AddMetrics(Request[bool], kw_only=True):
    """Add minute rows to the roll-ups of minutes and hours, and move the cursor from ``after`` to ``upto``.

    If the cursor is not at ``after``, nothing changes and the answer is False. The store then keeps history
    that was not rolled up, as it does for an archiver (``Archive``), if a process has rolled up this queue in
    the last 7 days.
    """

    needs: ClassVar[str] = "metrics"

    queue: str
    after: int
    upto: int
    rows: list[MetricsRow]


class MetricsPage(msgspec.Struct):
    """Rows by time and task. ``cursor`` continues the list; None if this is the last page."""

    rows: list[MetricsRow]
    cursor: str | None = None


class ReadMetrics(Request[MetricsPage], kw_only=True):
    """Roll-ups of one queue whose window begins from ``since_ms`` (inclusive) to ``until_ms`` (exclusive).

    Ordered by time, then task. ``cursor`` is opaque and comes from the page before. ``Prune`` removes minutes
    after 90 days and hours after 5 years.
    """

    needs: ClassVar[str] = "metrics"

    queue: str
    step: Step = "minute"
    task: str | None = None
    since_ms: int = 0
    until_ms: int = 2**53
    cursor: str | None = None
    limit: int = 1_000


class AddMark(Request[Mark], kw_only=True):
    """Add a mark at the current time of the store. If the ``id`` exists, the answer is the existing mark.

    The store keeps the newest 1,000 marks.
    """

    needs: ClassVar[str] = "metrics"

    id: str
    label: str


class ListMarks(Request[list[Mark]], kw_only=True):
    """Marks from ``since_ms`` on, oldest first."""

    needs: ClassVar[str] = "metrics"

    since_ms: int = 0


def place_of(cursor: str) -> tuple[int, str]:
    """The window and the task in a cursor of ``ReadMetrics``. Raises ``ConfigError`` for any other text."""
    start, separator, task = cursor.partition(" ")
    if not separator or not (start.isascii() and start.isdecimal() and len(start) <= _DIGITS):
        raise bad_cursor(cursor)
    return int(start), task

"""Verbs of the roll-ups that a store keeps of its own history. What a row means is in ``core.rollups``.

Any process may roll up: read the history after a queue's cursor, make rows of it, and hand them in with the
cursor that they start from. One of many wins; nothing is counted twice, nothing is left out.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import Request
from windlass.core.rollups import Mark, MetricsCursor, MetricsRow, Step
from windlass.errors import ConfigError

#: Milliseconds since 1970 have no more digits than this for some thousand years.
_DIGITS = 14


class MetricsProgress(Request[list[MetricsCursor]], kw_only=True):
    """How far each queue (or the one named) is rolled up, by name. Queues without history are left out."""

    needs: ClassVar[str] = "metrics"

    queue: str | None = None


class AddMetrics(Request[bool], kw_only=True):
    """Add minute rows to the roll-ups of minutes and hours, and move the cursor from ``after`` to ``upto``.

    Nothing happens, and False is answered, unless the cursor is at ``after``. From then on the history is
    held for the roll-up as it is for an archiver: what was not rolled up stays, as long as a process rolled
    up this queue in the last 7 days, up to the hard bound.
    """

    needs: ClassVar[str] = "metrics"

    queue: str
    after: int
    upto: int
    rows: list[MetricsRow]


class MetricsPage(msgspec.Struct):
    """Rows by time and task, and where to go on (None: that was all)."""

    rows: list[MetricsRow]
    cursor: str | None = None


class ReadMetrics(Request[MetricsPage], kw_only=True):
    """Roll-ups of one queue whose window begins from ``since_ms`` (inclusive) to ``until_ms`` (exclusive).

    By time, then task. ``cursor`` is opaque and comes from the page before. ``Prune`` removes minutes after
    90 days and hours after 5 years.
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
    """Put a mark at the store's time; the same ``id`` again answers with the mark that is there.

    The newest 1,000 marks are kept.
    """

    needs: ClassVar[str] = "metrics"

    id: str
    label: str


class ListMarks(Request[list[Mark]], kw_only=True):
    """Marks from ``since_ms`` on, oldest first."""

    needs: ClassVar[str] = "metrics"

    since_ms: int = 0


def place_of(cursor: str) -> tuple[int, str]:
    """The window and the task that a cursor of ``ReadMetrics`` names; ``ConfigError`` when it names none."""
    start, separator, task = cursor.partition(" ")
    if not separator or not (start.isascii() and start.isdecimal() and len(start) <= _DIGITS):
        raise ConfigError("cursor", "one that came with a page", cursor)
    return int(start), task

"""Converts rows of limits and groups: limits, holds, start times and buckets."""

from __future__ import annotations

import msgspec

from windlass.backends.sqlite.rows import Row, encode_json
from windlass.core import bad_records
from windlass.core.limit_rules import GroupLimits, QueueLimits, Usage
from windlass.engine.effects import GroupRow, QueueRow

#: Bits of a queue's ``special``: it has had groups; it has a row of limits.
GROUPED, LIMITED = 1, 2

_NO_QUEUE_LIMITS, _NO_GROUP_LIMITS = QueueLimits(), GroupLimits()
_queue_limits = msgspec.json.Decoder(QueueLimits).decode
_group_limits = msgspec.json.Decoder(GroupLimits).decode
_starts = msgspec.msgpack.Decoder(list[int]).decode


def read_limits(row: QueueRow, starts: list[int], stored: Row | None, name: str) -> None:
    """Add the limits and start times of a queue (``stored``, None: it has none) to ``row`` and ``starts``."""
    if stored is None:
        return
    own, every, row.hold_until_ms, row.refit, times = stored
    what = f"the limits of queue {name}"
    row.limits = bad_records.read_or_none(own, _queue_limits, what) or _NO_QUEUE_LIMITS
    row.every_group = bad_records.read_or_none(every, _group_limits, what) or _NO_GROUP_LIMITS
    starts += read_starts(times, what)


def read_starts(times: bytes | None, what: str) -> list[int]:
    return [] if times is None else bad_records.read_or_none(times, _starts, what) or []


def is_limited(row: QueueRow) -> bool:
    """Whether a queue needs a row of limits."""
    return (
        row.limits != _NO_QUEUE_LIMITS
        or row.every_group != _NO_GROUP_LIMITS
        or row.hold_until_ms > 0
        or row.refit is not None
    )


def limits_row(row: QueueRow) -> Row:
    """Return the columns of a queue's row of limits, without its start times."""
    return encode_json(row.limits), encode_json(row.every_group), row.hold_until_ms, row.refit


def group_of(stored: Row | None, name: str) -> tuple[GroupRow, Usage]:
    """Return the settings and the usage of a group from its row of ``grp`` (None: it has no row)."""
    if stored is None:
        return GroupRow(), Usage()
    own, paused, hold_ms, times, level, level_ms, next_ms = stored
    what = f"the limits of group {name}"
    limits = None if own is None else bad_records.read_or_none(own, _group_limits, what)
    row = GroupRow(limits, bool(paused), hold_ms, level, level_ms, next_ms)
    usage = Usage(
        paused=row.paused,
        hold_until_ms=hold_ms,
        starts=read_starts(times, what),
        level=level,
        level_ms=level_ms,
    )
    return row, usage


def group_row(row: GroupRow) -> Row:
    """Return the columns of ``grp`` for ``row``, without the start times."""
    own = None if row.own is None else encode_json(row.own)
    return own, row.paused, row.hold_until_ms, row.level, row.level_ms, row.next_ms

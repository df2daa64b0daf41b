"""Roll-ups of the history, and marks.

Rows are merged here, by the rules of ``core.rollups``; the server compares the cursor and writes. Rows only
change together with the cursor, so rows that were read are current as long as the cursor is the same.
"""

from __future__ import annotations

from functools import partial

import msgspec

from windlass.backend import metric_requests as mq
from windlass.backends.valkey import records
from windlass.backends.valkey.session import ValkeySession, together
from windlass.core import bad_records
from windlass.core.rollups import MARKS_KEPT, Mark, Measure, MetricsCursor, MetricsRow, merged

#: Keys hold the start of a window in six bytes.
_LAST_MS = 2**48 - 1
_STEPS = {"minute": 1, "hour": 2}


class _Measure(msgspec.Struct, array_like=True):
    count: int
    sum_ms: int
    max_ms: int
    buckets: dict[int, int]


class _Row(msgspec.Struct, array_like=True):
    """A row without start and task, which are in its key."""

    outcomes: dict[str, int]
    wait: _Measure
    duration: _Measure
    #: Rows of earlier releases end before this field.
    depth: _Measure = msgspec.field(default_factory=lambda: _Measure(0, 0, 0, {}))
    age: _Measure = msgspec.field(default_factory=lambda: _Measure(0, 0, 0, {}))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Row).decode


def _key(row: MetricsRow) -> bytes:
    return row.start_ms.to_bytes(6, "big") + row.task.encode()


def _measured(measure: Measure) -> _Measure:
    return _Measure(measure.count, measure.sum_ms, measure.max_ms, measure.buckets)


def _stored(row: MetricsRow) -> bytes:
    measures = (row.wait, row.duration, row.depth, row.age)
    return _encode(_Row(row.outcomes, *map(_measured, measures)))


def _measure(stored: _Measure) -> Measure:
    return Measure(count=stored.count, sum_ms=stored.sum_ms, max_ms=stored.max_ms, buckets=stored.buckets)


@records.wrap_unreadable
def _read(key: bytes, stored: bytes) -> MetricsRow:
    row = _decode(stored)
    return MetricsRow(
        start_ms=int.from_bytes(key[:6], "big"),
        task=key[6:].decode(),
        outcomes=row.outcomes,
        wait=_measure(row.wait),
        duration=_measure(row.duration),
        depth=_measure(row.depth),
        age=_measure(row.age),
    )


async def progress(session: ValkeySession, request: mq.MetricsProgress, now: str) -> list[MetricsCursor]:
    names = await session.queue_names() if request.queue is None else [request.queue]
    groups = session.bounded_groups(names)
    answers = await together(*(session.functions.metrics_progress(group.roots) for group in groups))
    found: list[MetricsCursor] = []
    for group, answer in zip(groups, answers, strict=True):
        assert isinstance(answer, list)
        for name, at, newest, oldest in zip(
            group.names, answer[::3], answer[1::3], answer[2::3], strict=True
        ):
            if newest:
                found.append(MetricsCursor(queue=name, at=at, newest=newest, oldest=oldest))
    return sorted(found, key=lambda cursor: cursor.queue)


async def add(session: ValkeySession, request: mq.AddMetrics, now: str) -> bool:
    root = session.keys.queue(request.queue)
    minutes, hours = merged(request.rows, "minute"), merged(request.rows, "hour")
    rows = [*minutes, *hours]
    keys = [_key(row) for row in rows]
    cursor, *known = await session.functions.metrics_get(root, len(minutes), keys)
    if cursor != request.after:
        return False
    for row, key, stored in zip(rows, keys, known, strict=True):
        if stored is not None:
            old = bad_records.read_or_none(stored, partial(_read, key), f"a roll-up of task {row.task}")
            if old is not None:
                row.merge(old)
    await session.list_queues([request.queue])  # or no duty would prune them
    written = [part for row, key in zip(rows, keys, strict=True) for part in (key, _stored(row))]
    return await session.functions.metrics_add(root, now, request.after, request.upto, len(minutes), written)


async def read(session: ValkeySession, request: mq.ReadMetrics, now: str) -> mq.MetricsPage:
    first = b"[" + _start(request.since_ms) if request.cursor is None else b"(" + _place(request.cursor)
    last, *found = await session.functions.metrics_read(
        session.keys.queue(request.queue),
        _STEPS[request.step],
        first,
        b"(" + _start(request.until_ms),
        request.limit,
        request.task,
    )
    pairs = zip(found[::2], found[1::2], strict=True)
    rows = bad_records.readable(pairs, lambda pair: _read(*pair), lambda pair: f"the roll-up {pair[0]!r}")
    return mq.MetricsPage(
        list(rows), f"{int.from_bytes(last[:6], 'big')} {last[6:].decode()}" if last else None
    )


def _start(at_ms: int) -> bytes:
    return min(max(at_ms, 0), _LAST_MS).to_bytes(6, "big")


def _place(cursor: str) -> bytes:
    """The key after which a page starts."""
    start_ms, task = mq.place_of(cursor)
    return _start(start_ms) + task.encode()


async def add_mark(session: ValkeySession, request: mq.AddMark, now: str) -> Mark:
    at_ms, label = await session.functions.mark_add(
        session.keys.root, now, request.id, request.label, MARKS_KEPT
    )
    return Mark(id=request.id, at_ms=at_ms, label=label.decode())


async def list_marks(session: ValkeySession, request: mq.ListMarks, now: str) -> list[Mark]:
    found = await session.functions.marks(session.keys.root, request.since_ms)
    return [
        Mark(id=mark.decode(), at_ms=int(at_ms), label=label.decode())
        for mark, at_ms, label in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]

"""Reads and writes entries of tables (``engine.effects.Table``), except queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from windlass.backends.sqlite.limits import group_row
from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import Row, decode_cursors, encode_json, pack, unpack_worker
from windlass.core import bad_records
from windlass.core.job import ArchiverInfo
from windlass.core.rollups import STEP_MS, MetricsRow
from windlass.core.schedule_rules import ScheduleRecord
from windlass.core.stubs import STUBS_KEPT
from windlass.core.unique_rules import KeyEntry
from windlass.engine.effects import Cursor, Entry, Table
from windlass.engine.unit_of_work import UnitOfWork

unpack_schedule = msgspec.msgpack.Decoder(ScheduleRecord).decode
unpack_metrics = msgspec.msgpack.Decoder(MetricsRow).decode

_STEPS = {ms: name for name, ms in STEP_MS.items()}


class _Rows(NamedTuple):
    """How the entries of one table are stored, by its statements ``find``, ``save`` and ``drop`` (see
    ``entries`` in ``statements``).

    The queue, with which most keys begin, is handled separately.
    """

    table: str
    #: Convert a value to stored columns, and a row (the rest of the key, then these columns) to a value.
    #: The rows of groups and stubs are not read here.
    row: Callable[[Any], Row]
    read: Callable[..., Any] = lambda *row: row
    of_queue: bool = True
    #: Convert the rest of a key (after the queue) to its columns, and back. ``width`` is their number.
    columns: Callable[[Row], Row] = lambda rest: rest
    key: Callable[[Row], Row] = lambda columns: columns
    width: int = 1


def _key_of(key: str, job_id: str, until_ms: int | None, request_id: str, left: str) -> KeyEntry:
    return KeyEntry(job_id, until_ms, request_id, tuple(left.split(",")) if left else ())


def read_archiver(name: str, seen_ms: int, cursors: str) -> ArchiverInfo:
    return ArchiverInfo(name=name, cursors=decode_cursors(cursors), seen_ms=seen_ms)


_TABLES: dict[Table, _Rows] = {
    Table.GROUP: _Rows("grp", group_row),
    Table.KEY: _Rows(
        "unique_key",
        lambda entry: (entry.job_id, entry.until_ms, entry.request_id, ",".join(entry.not_taken)),
        _key_of,
    ),
    Table.KEPT_ID: _Rows("kept_id", lambda until_ms: (until_ms,), lambda job_id, until_ms: until_ms),
    Table.WORKER: _Rows(
        "worker",
        lambda worker: (worker.started_ms, worker.beat_ms, pack(worker)),
        lambda *row: unpack_worker(row[-1]),
        of_queue=False,
    ),
    Table.ARCHIVER: _Rows(
        "archiver",
        lambda info: (info.seen_ms, encode_json(info.cursors)),
        read_archiver,
        of_queue=False,
    ),
    Table.LEADER: _Rows("leader", tuple, lambda role, *term: term, of_queue=False),
    Table.SCHEDULE: _Rows(
        "schedule",
        lambda record: (record.source, None if record.paused else record.next_ms, pack(record)),
        lambda *row: unpack_schedule(row[-1]),
    ),
    Table.CURSOR: _Rows("metrics_cursor", tuple, Cursor, width=0),
    Table.ROLLUP: _Rows(
        "metrics",
        lambda row: (pack(row),),
        lambda *row: unpack_metrics(row[-1]),
        columns=lambda rest: (STEP_MS[rest[0]], *rest[1:]),
        key=lambda columns: (_STEPS[columns[0]], *columns[1:]),
        width=3,
    ),
    Table.STUB: _Rows("stub", lambda stub: (stub.finished_ms, pack(stub))),
}


def load(step: RequestState, entries: Iterable[Entry], work: UnitOfWork) -> None:
    """Load entries into ``work.rows``: None if an entry does not exist or cannot be read."""
    wanted: dict[tuple[Table, str], list[Row]] = {}
    for table, key in entries:
        if (table, key) not in work.rows:
            work.rows[table, key] = None
            how = _TABLES[table]
            queue, rest = (key[0], key[1:]) if how.of_queue else ("", key)
            wanted.setdefault((table, queue), []).append(rest)
    for (table, queue), keys in wanted.items():
        how = _TABLES[table]
        num = step.queues.num(queue) if how.of_queue else None
        if how.of_queue and num is None:
            continue
        columns = [how.columns(key) for key in keys]
        items = [key[0] if len(key) == 1 else key for key in columns if key]
        where = () if num is None else (num,)
        find = f"{how.table}_find"
        rows = step.listed_texts(find, items, *where) if how.width else step.all(find, *where)
        put(work, table, queue, rows)


def put(work: UnitOfWork, table: Table, queue: str, rows: Iterable[Row]) -> None:
    """Put rows of a table into ``work.rows``. Each row begins with its key, without the queue."""
    how = _TABLES[table]
    for row in rows:
        key = how.key(row[: how.width])
        whole = (queue, *key) if how.of_queue else key
        what = f"entry {whole} of table {table.name.lower()}"
        value = bad_records.read_or_none(row, lambda found: how.read(*found), what)
        if value is not None:
            work.rows[table, whole] = value


def write(step: RequestState, entries: dict[Entry, Any]) -> None:
    """Save entries; None deletes an entry."""
    saved: dict[Table, list[Row]] = {}
    dropped: dict[Table, list[Row]] = {}
    for (table, key), value in entries.items():
        how = _TABLES.get(table)
        if how is None:
            continue
        columns = (step.queue(key[0]), *how.columns(key[1:])) if how.of_queue else key
        if value is None:
            dropped.setdefault(table, []).append(columns)
        else:
            saved.setdefault(table, []).append((*columns, *how.row(value)))
    for table, rows in dropped.items():
        step.many(f"{_TABLES[table].table}_drop", rows)
    for table, rows in saved.items():
        step.many(f"{_TABLES[table].table}_save", rows)
    if Table.STUB in saved:
        step.run("stub_trim", STUBS_KEPT)
    _remember(step, {*saved}, {*dropped})


def _remember(step: RequestState, saved: set[Table], dropped: set[Table]) -> None:
    """Update the cached knowledge of whether the tables of stubs and tombstones are empty."""
    if Table.STUB in saved:
        step.queues.no_stubs = False
    elif Table.STUB in dropped:
        step.queues.no_stubs = None
    if Table.KEPT_ID in saved:
        step.queues.no_kept_ids = False
    elif Table.KEPT_ID in dropped:
        step.queues.no_kept_ids = None

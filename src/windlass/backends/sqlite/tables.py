"""Reads and writes entries of tables (``engine.effects.Table``). For queues and groups see ``limits``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

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
    """How the entries of one table are stored. The queue, with which most keys begin, is handled separately.

    The statement ``find`` takes the queue's number, if the table has one, and a list of keys. It returns the
    key columns and the stored columns.
    """

    find: str
    save: str
    drop: str
    #: Convert stored columns to a value, and a value to stored columns.
    read: Callable[..., Any]
    row: Callable[[Any], Row]
    of_queue: bool = True
    #: Convert the rest of a key (after the queue) to its columns, and back. ``width`` is their number.
    columns: Callable[[Row], Row] = lambda rest: rest
    key: Callable[[Row], Row] = lambda columns: columns
    width: int = 1


def _key_of(job_id: str, until_ms: int | None, request_id: str, left: str) -> KeyEntry:
    return KeyEntry(job_id, until_ms, request_id, tuple(left.split(",")) if left else ())


_TABLES: dict[Table, _Rows] = {
    Table.KEY: _Rows(
        *("unique_keys", "unique_key_save", "unique_key_free"),
        read=_key_of,
        row=lambda entry: (entry.job_id, entry.until_ms, entry.request_id, ",".join(entry.not_taken)),
    ),
    Table.KEPT_ID: _Rows(
        *("kept_ids", "kept_id_save", "kept_id_delete"),
        read=lambda until_ms: until_ms,
        row=lambda until_ms: (until_ms,),
    ),
    Table.WORKER: _Rows(
        *("workers", "worker_save", "worker_delete"),
        read=unpack_worker,
        row=lambda worker: (worker.started_ms, worker.beat_ms, pack(worker)),
        of_queue=False,
    ),
    Table.ARCHIVER: _Rows(
        *("archivers", "archiver_save", "archiver_delete"),
        read=lambda name, seen_ms, cursors: ArchiverInfo(
            name=name, cursors=decode_cursors(cursors), seen_ms=seen_ms
        ),
        row=lambda info: (info.seen_ms, encode_json(info.cursors)),
        of_queue=False,
    ),
    Table.LEADER: _Rows(
        *("leaders", "leader_save", "leader_delete"),
        read=lambda holder, until_ms: (holder, until_ms),
        row=tuple,
        of_queue=False,
    ),
    Table.SCHEDULE: _Rows(
        *("schedules", "schedule_save", "schedule_delete"),
        read=unpack_schedule,
        row=lambda record: (record.source, None if record.paused else record.next_ms, pack(record)),
    ),
    Table.CURSOR: _Rows(
        *("metrics_cursors", "metrics_cursor_save", "metrics_cursor_delete"),
        read=Cursor,
        row=tuple,
        width=0,
    ),
    Table.ROLLUP: _Rows(
        *("metrics_rows", "metrics_save", "metrics_delete"),
        read=unpack_metrics,
        row=lambda row: (pack(row),),
        columns=lambda rest: (STEP_MS[rest[0]], *rest[1:]),
        key=lambda columns: (_STEPS[columns[0]], *columns[1:]),
        width=3,
    ),
    Table.STUB: _Rows(
        *("stubs", "stub_save", "stub_delete"),
        read=lambda packed: packed,
        row=lambda stub: (stub.finished_ms, pack(stub)),
    ),
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
        rows = step.listed_texts(how.find, items, *where) if how.width else step.all(how.find, *where)
        put(work, table, queue, rows)


def put(work: UnitOfWork, table: Table, queue: str, rows: Iterable[Row]) -> None:
    """Put rows of a table into ``work.rows``. Each row begins with its key, without the queue."""
    how = _TABLES[table]
    for row in rows:
        key, stored = how.key(row[: how.width]), row[how.width :]
        whole = (queue, *key) if how.of_queue else key
        what = f"entry {whole} of table {table.name.lower()}"
        value = bad_records.read_or_none(stored, lambda found: how.read(*found), what)
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
        step.many(_TABLES[table].drop, rows)
    for table, rows in saved.items():
        step.many(_TABLES[table].save, rows)
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

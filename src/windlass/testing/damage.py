"""Damage one stored record, as a disk, another program or a bug could: for tests of what then happens.

``damage(url, queue, job_id, kind)`` changes what the store itself holds, behind the back of every process
that uses it; ``kinds(url)`` lists what can be done there. A store without stored bytes (memory) has none.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import msgspec

from windlass.backend.local.locks import FairLock
from windlass.backend.urls import BackendUrl, parse_url
from windlass.backends.file.effects import moving_of, whole_of
from windlass.backends.memory.journal import Table
from windlass.core.job import JobRecord, JobRef
from windlass.errors import UnsupportedByBackendError


class Damaged(NamedTuple):
    """Where the damaged record is to be found afterwards, and whether the job itself is lost with it.

    ``ref`` is None where nothing tells which job it was about.
    """

    ref: JobRef | None
    job_is_lost: bool = True


Damage = Callable[[BackendUrl, str, str, str], Damaged]


def kinds(url: str) -> tuple[str, ...]:
    """What ``damage`` can do to a record of this store."""
    found = _STORES.get(_scheme(url))
    return () if found is None else found[0]


def damage(url: str, queue: str, job_id: str, kind: str) -> Damaged:
    """Damage the record of a job. The URL names the namespace, too."""
    found = _STORES.get(_scheme(url))
    if found is None:
        raise UnsupportedByBackendError(_scheme(url), "damage", "it stores no bytes that could be damaged")
    return found[1](parse_url(url), queue, job_id, kind)


def _scheme(url: str) -> str:
    scheme = parse_url(url).scheme.partition("+")[0]
    return {"redis": "valkey", "rediss": "valkey", "valkeys": "valkey", "amqps": "amqp"}.get(scheme, scheme)


# --- sqlite -------------------------------------------------------------------------------------------

#: By name: an expression for a column of the job's row. CAST makes a text of bytes that are no UTF-8.
_SQLITE = {
    "options of bytes": "options = x'c167'",
    "options of broken JSON": "options = '{\"tags\":'",
    "options of another shape": "options = '{\"tags\": 5}'",
    "a text as priority": "priority = 'abc'",
    "bytes as priority": "priority = x'00'",
    "a number as class of an error": "errors = '[{\"error_class\": 5}]'",
    "errors of bytes": "errors = x'c1'",
    "a text as place": "place = 'last'",
    "a text as time": "ready_ms = 'soon', enqueued_ms = 'late'",
    "no payload": "payload = NULL",
    "a text as payload": "payload = 'text'",
    "a fraction as count": "deliveries = 0.5",
    "a text that is no UTF-8": "task = CAST(x'ff' AS TEXT)",
    "bytes as task": "task = x'ff'",
    "bytes as codec": "codec = x'ff'",
    "signals that do not unpack": "signals = x'c1'",
    "a text as result": "result = 'text'",
}


def _damage_sqlite(url: BackendUrl, queue: str, job_id: str, kind: str) -> Damaged:
    from windlass.backends.sqlite.settings import parse
    from windlass.backends.sqlite.statements import in_namespace

    settings = parse(url)
    text = (
        f"UPDATE [job] SET {_SQLITE[kind]} WHERE id = ? AND queue = (SELECT num FROM [queue] WHERE name = ?)"
    )
    with closing(sqlite3.connect(settings.path, timeout=10)) as conn, conn:
        changed = conn.execute(in_namespace(text, settings.namespace), (job_id, queue)).rowcount
    assert changed == 1, f"there is no job {job_id} in queue {queue}"
    return Damaged(JobRef(queue, job_id))


# --- file ---------------------------------------------------------------------------------------------

#: By name: what is appended to the log as a step whose checksum is right.
_FILE: dict[str, Callable[[JobRecord], object]] = {
    "a moving part of another shape": lambda job: [[2, job.queue, job.id, job.seq, ["waiting", "abc"]]],
    "a moving part with a text as priority": lambda job: [
        [2, job.queue, job.id, job.seq, ["waiting", "abc", *moving_of(job)[2:]]]
    ],
    "a record that is cut short": lambda job: [[1, [job.queue, job.id, 5]]],
    "a record with bytes as options": lambda job: [[1, [*whole_of(job)[:9], b"\xc1g"]]],
    "an effect of no kind": lambda job: [[99, job.queue]],
    "a schedule that does not unpack": lambda job: [[4, Table.SCHEDULE, [job.queue, "daily"], 5]],
    "events of another shape": lambda job: [[14, job.queue, [5]]],
    "noise": lambda job: 5,
}
_NAMES_NO_JOB = {
    "an effect of no kind",
    "a schedule that does not unpack",
    "events of another shape",
    "noise",
}


def _damage_file(url: BackendUrl, queue: str, job_id: str, kind: str) -> Damaged:
    from windlass.backends.file.log import Log
    from windlass.backends.file.settings import parse
    from windlass.backends.file.store import FileStore

    directory = parse(url).directory
    lock = FairLock(os.path.join(directory, "store"), 0o600)
    lock.acquire()
    try:
        log, store = Log(directory), FileStore()
        log.load(store)
        job = store._queues[queue].jobs[job_id]
        body = msgspec.msgpack.encode([store.now_ms, store.take_place(), _FILE[kind](job)])
        log.append(b"\xc1" if kind == "noise" else body)
        log.close()
    finally:
        lock.release()
        lock.close()
    named = kind not in _NAMES_NO_JOB
    return Damaged(JobRef(queue, job_id) if named else None, job_is_lost=named)


_STORES: dict[str, tuple[tuple[str, ...], Damage]] = {
    "sqlite": (tuple(_SQLITE), _damage_sqlite),
    "file": (tuple(_FILE), _damage_file),
}

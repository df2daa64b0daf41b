"""Damage one stored record, as a disk, another program or a bug could.

``damage(url, queue, job_id, kind)`` changes the stored bytes directly, unnoticed by processes that use the
store; ``kinds(url)`` lists the kinds of damage there. A store without stored bytes (memory) has none.
"""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import msgspec

from windlass.backend.local.locks import FairLock
from windlass.backend.urls import BackendUrl, parse_url
from windlass.backends.file.effects import moving_of, whole_of
from windlass.core.job import JobRecord, JobRef
from windlass.engine.effects import Table
from windlass.errors import UnsupportedByBackendError


class Damaged(NamedTuple):
    """Where the damaged record is to be found afterwards, and whether the job itself is lost with it.

    ``ref`` is None where nothing says which job it was about.
    """

    ref: JobRef | None
    job_is_lost: bool = True


Damage = Callable[[BackendUrl, str, str, str], Damaged]


def kinds(url: str) -> tuple[str, ...]:
    """The kinds of damage for this store."""
    found = _STORES.get(_scheme(url))
    return () if found is None else found[0]


def damage(url: str, queue: str, job_id: str, kind: str) -> Damaged:
    """Damage the record of a job. The URL includes the namespace."""
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


@contextmanager
def loose(path: str | os.PathLike[str], namespace: str, *tables: str) -> Iterator[sqlite3.Connection]:
    """A transaction in which some tables, which are strict otherwise, accept values of any type."""
    from windlass.backends.sqlite.statements import table

    names = [table(namespace, name).strip('"') for name in tables]
    with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        texts = {name: _definition(conn, name) for name in names}
        for name, text in texts.items():
            _define(conn, name, re.sub(r",? STRICT$", "", text))
        yield conn
        for name, text in texts.items():
            _define(conn, name, text)
        conn.execute("COMMIT")


def _definition(conn: sqlite3.Connection, name: str) -> str:
    (text,) = conn.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    return str(text)


def _define(conn: sqlite3.Connection, name: str, text: str) -> None:
    conn.execute("PRAGMA writable_schema = ON")
    conn.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))
    conn.execute("PRAGMA writable_schema = RESET")


def _damage_sqlite(url: BackendUrl, queue: str, job_id: str, kind: str) -> Damaged:
    from windlass.backends.sqlite.settings import parse
    from windlass.backends.sqlite.statements import in_namespace

    settings = parse(url)
    text = (
        f"UPDATE [job] SET {_SQLITE[kind]} WHERE id = ? AND queue = (SELECT num FROM [queue] WHERE name = ?)"
    )
    with loose(settings.path, settings.namespace, "job") as conn:
        changed = conn.execute(in_namespace(text, settings.namespace), (job_id, queue)).rowcount
    assert changed == 1, f"there is no job {job_id} in queue {queue}"
    return Damaged(JobRef(queue, job_id))


# --- file ---------------------------------------------------------------------------------------------

#: By name: what is appended to the log as a step with a correct checksum.
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
        job = store.queues[queue].jobs[job_id]
        body = msgspec.msgpack.encode([store.now_ms, store.last_place, _FILE[kind](job)])
        log.append(b"\xc1" if kind == "noise" else body)
        log.close()
    finally:
        lock.release()
        lock.close()
    named = kind not in _NAMES_NO_JOB
    return Damaged(JobRef(queue, job_id) if named else None, job_is_lost=named)


# --- valkey -------------------------------------------------------------------------------------------

#: By name: the change to the record as added, and whether the head, if there is one, is damaged instead.
_VALKEY: dict[str, Callable[[bytes], bytes]] = {
    "cut to 20 bytes": lambda stored: stored[:20],
    "cut to 5 bytes": lambda stored: stored[:5],
    "cut to 25 bytes": lambda stored: stored[:25],
    "empty": lambda _: b"",
    "noise": lambda _: b"\xc1\xc1 noise",
    "noise that looks plain": lambda _: b"\xff\xff\xff\xff\xff\xff",
    "options that do not unpack": lambda stored: stored.replace(b"\xa4json", b"\xc1\xc1\xc1\xc1\xc1", 1),
}


def _damage_valkey(url: BackendUrl, queue: str, job_id: str, kind: str) -> Damaged:
    """Damage the record, and also the head of the job if it has one: the server reads that instead."""
    import redis

    from windlass.backends.valkey.keys import Keys

    root = Keys(url.namespace).queue(queue)
    scheme, _, mode = url.scheme.partition("+")
    address = f"redis{'s' if scheme.endswith('s') and scheme != 'redis' else ''}://{url.host.split(',')[0]}"
    make: Any = redis.RedisCluster if mode == "cluster" else redis.Redis
    with closing(make.from_url(address)) as client:
        for key in (f"{root}:j", f"{root}:m"):
            stored = client.hget(key, job_id)
            if stored is not None and (key.endswith(":j") or kind != "options that do not unpack"):
                client.hset(key, job_id, _VALKEY[kind](stored))
    return Damaged(JobRef(queue, job_id))


# --- amqp ---------------------------------------------------------------------------------------------

#: Entries that cannot be read, by name.
_BODIES: dict[str, Callable[[str], bytes]] = {
    "junk": lambda mark: b"junk " + mark.encode(),
    "nothing": lambda _: b"",
    "another shape": lambda mark: msgspec.json.encode({"jid": 5, "class": [mark], "job": {"queue": 7}}),
}
#: What is put where: attributes of ``names.Names``.
_AMQP = (
    *("junk in kept", "nothing in kept", "another shape in kept"),
    *("junk in scheduled_jobs", "nothing in scheduled_jobs", "another shape in scheduled_jobs"),
    *("junk in retries", "another shape in retries", "junk in dead_jobs"),
    *("junk in log", "nothing in log", "junk in mark", "another shape in job_metrics", "junk in heartbeats"),
    *("junk in queue", "nothing in queue", "another shape in queue"),
)
_FIGURES = {"mark", "job_metrics", "heartbeats"}  # nothing that a person could look after


def _damage_amqp(url: BackendUrl, queue: str, job_id: str, kind: str) -> Damaged:
    """Add an entry that cannot be read to the intact ones, which only the coordinator can reach."""
    import pika
    import pika.exceptions

    from windlass.backends.amqp.names import Names

    body_name, _, place = kind.rpartition(" in ")
    body, names = _BODIES[body_name](job_id), Names(url.namespace)
    with closing(pika.BlockingConnection(pika.URLParameters(url.text.partition("?")[0]))) as connection:
        key = names.queue(queue) if place == "queue" else getattr(names, place)
        channel = connection.channel()
        try:
            channel.queue_declare(key, passive=True)
        except pika.exceptions.ChannelClosedByBroker:  # it has no message yet that could be damaged
            return Damaged(None, job_is_lost=False)
        channel.basic_publish("", key, body, pika.BasicProperties(delivery_mode=2))
    if place in _FIGURES:
        return Damaged(None, job_is_lost=False)
    found = f"bad-{hashlib.sha256(body).hexdigest()[:32]}"
    return Damaged(JobRef(queue if place == "queue" else "default", found), job_is_lost=False)


_STORES: dict[str, tuple[tuple[str, ...], Damage]] = {
    "sqlite": (tuple(_SQLITE), _damage_sqlite),
    "file": (tuple(_FILE), _damage_file),
    "valkey": (tuple(_VALKEY), _damage_valkey),
    "amqp": (_AMQP, _damage_amqp),
}

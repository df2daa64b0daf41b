"""What other processes say: children, other clients of a store or broker, other job systems, browsers."""

from __future__ import annotations

import base64
import pickle
import random
import zlib
from typing import Any

import msgspec

from tools.fuzz.engine import Target, damaged, damaged_text, each_damaged
from windlass.backend import requests as rq
from windlass.backends.amqp import verbs, wire
from windlass.backends.valkey import flows, metrics, records, schedules
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome
from windlass.core.rollups import MetricsRow
from windlass.core.schedule_rules import Rule, ScheduleRecord
from windlass.dashboard.paging import Position, decode_cursor, encode_cursor
from windlass.dashboard.problems import ApiError
from windlass.dashboard.sessions import COOKIE, Sessions
from windlass.dashboard.users import Identity
from windlass.errors import StorageError, WindlassError, WorkerCrashError
from windlass.importing import bullmq, celery
from windlass.importing import rq as foreign_rq
from windlass.importing.model import Entry, Shelf
from windlass.sandbox import protocol

_pack = msgspec.msgpack.encode
_JOB = JobRecord(queue="q", id="job1", task="t", payload=b"{}", codec="json")
# --- children ---------------------------------------------------------------------------------------


def _from_parent() -> Target:
    said = [
        protocol.Boot(argv=["a"], main_path="m.py"),
        protocol.RunJob(1, "m:f", _JOB, True),
        protocol.VerbAnswer(3, protocol.ErrorReport(error_class="E", module="m", message="no"), b"1"),
        protocol.StopJob("timeout"),
        protocol.Shutdown(),
    ]
    return Target(
        "sandbox-parent", each_damaged(list(map(_pack, said))), protocol.read_from_parent, (WorkerCrashError,)
    )


def _from_child() -> Target:
    said = [
        protocol.Ready(7),
        protocol.VerbRequest(1, 2, "log", b"[]"),
        protocol.JobDone(1, b"null"),
        protocol.Failed(1, protocol.ErrorReport(error_class="E", module="m", message="no")),
        protocol.Signalled(1, "snooze", 5, "later"),
    ]
    return Target(
        "sandbox-child", each_damaged(list(map(_pack, said))), protocol.read_from_child, (WorkerCrashError,)
    )


# --- other clients ----------------------------------------------------------------------------------


def _amqp_log() -> Target:
    """Entries of the log, and records that are kept; the coordinator passes over what these refuse."""
    add = rq.Add(jobs=[NewJob(queue="q", id="job1", task="t", payload=b"{}")])
    claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("q", 1, 1)], limit=1, claim_id="c")
    entries = [_pack(wire.LogEntry(5, type(it).__name__, verbs.encode(it))) for it in (add, claim)]
    kept = _pack(wire.KeptRecord(3, _JOB))

    def read(data: bytes) -> None:
        try:
            wire.read_kept(data)
        except ValueError:
            entry = wire.read_entry(data)
            verbs.decode_request(entry.name, entry.request)

    return Target("amqp-log", each_damaged([*entries, kept]), read, (ValueError, KeyError, RecursionError))


def _amqp_replies() -> Target:
    replies = [
        _pack(wire.Reply(verbs.encode([rq.Added(AddOutcome.QUEUED, None)]))),
        _pack(wire.Reply(None, "ConfigError", ["option", "want"])),
        _pack(wire.Reply(None, "HistoryTrimmedError", ["history", "q", 5, 9])),
    ]
    return Target(
        "amqp-replies", each_damaged(replies), lambda data: wire.open_reply("Add", data), (WindlassError,)
    )


def _valkey_news() -> Target:
    """Hints are not to be trusted: what does not read tells nothing."""
    head = bytes([1]) + bytes(6) + b"\x05" * 13 + bytes(40)
    news = [bytes([byte]) + b"\x00\x04job1" + len(head).to_bytes(4, "big") + head for byte in range(3)]
    return Target("valkey-news", each_damaged(news), records.completed, ())


def _valkey_rows() -> Target:
    """Schedules, edges of flows and roll-ups as the server holds them."""
    state, new = (
        _pack([0, 5, -1, "", 0, 0, -1, -1, -1, "", ""]),
        NewJob(queue="q", id="", task="t", payload=b""),
    )
    schedule = _pack(ScheduleRecord(queue="q", name="s", template=new, rule=Rule(every_ms=5)))
    edge = _pack([1, 2, 0, 0, "json", "", None, True])
    row = metrics._stored(MetricsRow(start_ms=5, task="t"))
    stored = [
        len(state).to_bytes(4, "big") + state + schedule,
        len(edge).to_bytes(2, "big") + edge + b"1",
        row,
    ]

    def read(pair: tuple[int, bytes]) -> None:
        match pair[0]:
            case 0:
                schedules._read(pair[1])
            case 1:
                flows._edge(JobRef("q", "a"), JobRef("q", "b"), pair[1], True)
            case _:
                metrics._read(b"\0\0\0\0\0\5t", pair[1])

    def make(rng: random.Random) -> tuple[int, bytes]:
        kind = rng.randrange(3)
        return kind, damaged(rng, [stored[kind]])

    return Target("valkey-rows", make, read, (StorageError,))


# --- other job systems ------------------------------------------------------------------------------


def _celery() -> Target:
    def message(body: bytes, **more: Any) -> bytes:
        headers = {"task": "t", "id": "a1", "eta": "2026-01-01T00:00:00+00:00", "timelimit": [None, 5]}
        properties = {"body_encoding": "base64", "priority": 3}
        kind = more.pop("kind", "application/json")
        text = base64.b64encode(body).decode()
        return msgspec.json.encode(
            {"body": text, "headers": {**headers, **more}, "properties": properties, "content-type": kind}
        )

    call = [[1, {"__type__": "date", "__value__": "2026-01-01"}], {"k": 2}, {"chain": None}]
    examples = [
        message(msgspec.json.encode(call)),
        message(zlib.compress(msgspec.json.encode(call)), compression="application/x-gzip"),
        message(pickle.dumps(call), kind="application/x-python-serialize"),
        message(_pack(call), kind="application/x-msgpack"),
    ]
    return Target(
        "import-celery", each_damaged(examples), lambda data: celery._read(Entry(""), "q", data), ()
    )


def _records(name: str, reader: Any, records: list[dict[bytes, bytes]]) -> Target:
    """Hashes whose fields were damaged; what is not a job becomes a refusal."""

    def make(rng: random.Random) -> dict[bytes, bytes]:
        record = dict(rng.choice(records))
        for field in rng.sample(sorted(record), rng.randrange(3)):
            record[field] = damaged(rng, [record[field]])
        return record

    shelf = Shelf("q", b"key", "zset", later=True)
    return Target(name, make, lambda record: reader(Entry("7"), shelf, 1.7e12, "key", record), ())


def _rq() -> Target:
    call = ["m.f", None, [1], {"k": 2}]
    fields = {b"retries_left": b"3", b"retry_intervals": b"[5, 10]", b"timeout": b"180"}
    datas = (zlib.compress(msgspec.json.encode(call)), zlib.compress(pickle.dumps(tuple(call))))
    return _records("import-rq", foreign_rq._read, [{b"data": data, **fields} for data in datas])


def _bullmq() -> Target:
    options = b'{"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}'
    record = {b"name": b"t", b"data": b'{"a": 1}', b"opts": options, b"atm": b"1", b"priority": b"4"}
    return _records("import-bullmq", bullmq._read, [record, {**record, b"opts": b'{"backoff": 500}'}])


# --- browsers ---------------------------------------------------------------------------------------


def _page_cursors() -> Target:
    known = [encode_cursor(Position()), encode_cursor(Position(seen={"a": "5", "b": str(2**40)}))]
    return Target("page-cursors", lambda rng: damaged_text(rng, known), decode_cursor, (ApiError,))


def _cookies() -> Target:
    """A session that was changed is none."""
    sessions, who = Sessions(), Identity("ann", "operator")
    good = f"{COOKIE}={sessions.begin(who, 1_000)}"
    value = good.partition("=")[2]

    def read(header: str) -> None:
        if sessions.find(header, 2_000) is not None and value not in header:
            raise AssertionError("a session that was changed was taken")

    return Target("cookies", lambda rng: damaged_text(rng, [good, f"a=b; {good}; c=d"]), read, ())


def wire_targets() -> list[Target]:
    """All of them."""
    return [
        _from_parent(),
        _from_child(),
        _amqp_log(),
        _amqp_replies(),
        _valkey_news(),
        _valkey_rows(),
        _celery(),
        _rq(),
        _bullmq(),
        _page_cursors(),
        _cookies(),
    ]

"""Everything that reads input without a server: codecs, stored bytes, URLs, options, rules, cursors."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import click
import msgspec

from tools.fuzz.engine import Target, damaged, damaged_text, each_damaged, odd_value
from tools.fuzz.wire import wire_targets
from windlass.api.queue_reading import _cursor
from windlass.backend import Backend, open_backend
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backends.amqp import messages
from windlass.backends.file import effects, frames
from windlass.backends.file.store import FileStore
from windlass.backends.sqlite import logs, rows
from windlass.backends.valkey import layouts, logrows, records, sent_records
from windlass.cli.values import parse_duration, parse_json, parse_pairs
from windlass.core.edges import to_dependency
from windlass.core.ids import check_job_id, check_queue_name, check_task_name
from windlass.core.job import AlikeAttempts, AttemptOutcome, AttemptRecord, EventType, JobRef, NewJob
from windlass.core.limit_rules import to_group_limits, to_rate
from windlass.core.option_values import instant_to_ms
from windlass.core.options import DEFAULT_OPTIONS, OPTION_NAMES, JobOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.patterns import matches
from windlass.core.queue_time import QueueTime
from windlass.core.schedule_rules import to_schedule
from windlass.errors import ConfigError, StorageError, UnsupportedByBackendError
from windlass.jobs.payload import unpack
from windlass.serde import encode_payload, get_codec
from windlass.serde.encrypted import EncryptedCodec, new_key
from windlass.serde.signed import SignedCodec
from windlass.testing.faults import parse_probes
from windlass.worker.options import QueueSpec, WorkerOptions, to_specs

_VALUES: list[Any] = [
    {"args": [1, 2.5, "drei", None, True], "kwargs": {"a": {"b": [1, [2, [3]]]}}, "form": "call"},
    {"args": ["x" * 3_000], "form": "value"},
    {"kwargs": {"ü": "€", "n": 2**60, "f": -1e-300}, "form": "object"},
    {"form": "none"},
]


def _texts(*examples: str) -> Callable[[random.Random], str]:
    return lambda rng: damaged_text(rng, examples)


# --- payloads -------------------------------------------------------------------------------------


def _codec(name: str) -> Target:
    codec = get_codec(name)
    examples = [codec.encode(value) for value in _VALUES]
    return Target(
        f"codec-{name}", each_damaged(examples), lambda data: unpack(codec.decode(data)), (ValueError,)
    )


def _sealed(name: str, codec: Any) -> Target:
    """A codec with a seal: nothing that was changed may be taken."""
    examples = [codec.encode(value) for value in _VALUES]
    known = set(examples)

    def read(data: bytes) -> None:
        codec.decode(data)
        if data not in known:
            raise AssertionError("changed data was taken")

    return Target(name, each_damaged(examples), read, (ValueError,))


def _round_trip(name: str) -> Target:
    """What can be encoded comes back as it was, or is refused; nothing is changed in silence."""
    codec = get_codec(name)

    def read(value: Any) -> None:
        back = codec.decode(encode_payload(codec, value))
        if not _same(value, back):
            raise AssertionError(f"came back as {back!r}")

    return Target(f"roundtrip-{name}", _data, read, (ConfigError,))


def _data(rng: random.Random, depth: int = 0) -> Any:
    """Plain data, with numbers that JSON does not have."""
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind == 0:
        return rng.choice((None, True, False, "", "null", "\u2028", "€", "NaN"))
    if kind == 1:
        return rng.choice((0, -1, 2**53 + 1, 2**64, -(2**64), 10**40, rng.randrange(-1_000, 1_000)))
    if kind == 2:
        return rng.choice((0.5, 1e308, 5e-324, -0.0, float("nan"), float("inf"), float("-inf")))
    if kind in (3, 4, 5):
        return "".join(map(chr, rng.choices(range(1, 0xD7FF), k=rng.randrange(6))))
    if kind == 6:
        return [_data(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {f"k{n}": _data(rng, depth + 1) for n in range(rng.randrange(4))}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and one != one:
        return isinstance(other, float) and other != other
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
    return bool(type(one) is type(other) and one == other)


# --- what stores hold -------------------------------------------------------------------------------


def _history() -> list[AttemptRecord]:
    return [
        AttemptRecord(
            f"token.{n}", f"job{n}", 1, 1, "q", "task", None, ("a", "b"), "worker", 1, 2, 3, 4, 1, 1,
            AttemptOutcome.COMPLETED, None, None, queue_time=QueueTime(3, n, 0, 0, 1),
        )
        for n in range(3)
    ]  # fmt: skip


def _sqlite_history() -> Target:
    ended = [AlikeAttempts(record, []) for record in _history()]
    chunks = [chunk for _, chunk in logs.history_chunks(ended)]
    return Target("sqlite-history", each_damaged(chunks), logs.unpack_history, (ValueError,))


def _sqlite_events() -> Target:
    runs: Any = [
        (5, EventType.ENQUEUED, "job1", "task", {}),
        (6, EventType.FAILED, ["a", "b"], "t", {"reason": "x"}),
    ]
    chunks = [rows.pack(runs), rows.pack(runs[:1])]
    return Target(
        "sqlite-events", each_damaged(chunks), lambda data: logs.unpack_events(1, data), (ValueError,)
    )


def _stored_options() -> Target:
    texts = ["{}", rows.encode_options(JobOptions(max_attempts=5, timeout=3, tags=["a"], group="g").stored())]
    return Target(
        "sqlite-options", _texts(*texts), rows.decode_options.__wrapped__, (ValueError, RecursionError)
    )


def _valkey_record() -> Target:
    """The bytes of a stored job, plain and not, with a head or without."""
    job = NewJob(queue="q", id="job1", task="task", payload=b'{"form":"none"}', request_id="job1")
    plain = sent_records.plain_job(job)
    assert plain is not None
    stored = bytes([255]) + (7).to_bytes(7, "big") + (9).to_bytes(6, "big") + plain
    head = msgspec.msgpack.encode(layouts.Head(6, 7, 7, 0, 9, 9, 0, 0, "task", 0, token="t", worker="w"))
    packed = len(head).to_bytes(2, "big") + head + sent_records.tail(job)
    examples = [stored, packed, head]

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        return damaged(rng, examples), rng.choice((b"", damaged(rng, [head])))

    return Target("valkey-record", make, lambda pair: records.job_record("q", "job1", *pair), (StorageError,))


def _valkey_leased() -> Target:
    job = NewJob(queue="q", id="job1", task="task", payload=b"{}", request_id="job1")
    plain = sent_records.plain_job(job)
    assert plain is not None
    stored = bytes([255]) + (7).to_bytes(7, "big") + (9).to_bytes(6, "big") + plain
    leased = records.wrap_unreadable(records.leased)
    lease = records.Lease(5, "worker", 9)
    return Target(
        "valkey-leased",
        each_damaged([stored]),
        lambda data: leased("q", [b"j"], [data], ["token"], lease),
        (StorageError,),
    )


def _valkey_events() -> Target:
    pack = msgspec.msgpack.encode
    chunk = pack(
        (5, [(1, "job1", "task", ""), (-7, "a b c", "task"), (8, "j", "t", "reason", "E", "message")])
    )
    return Target(
        "valkey-events", each_damaged([chunk]), lambda data: logrows.events(9, [b"e", data]), (StorageError,)
    )


def _valkey_attempts() -> Target:
    pack = msgspec.msgpack.encode
    row = ["token", "job", 1, 1, "task", 0, "worker", 1, 2, 3, 4, 1]
    chunk = pack((5, [row, [*row, "ValueError", "abc"]]))
    lean = (9).to_bytes(6, "big") + (3).to_bytes(2, "big") + b"job" + bytes(6) + b"\x01" + bytes(19)
    lean += b"\x01t\x01w\x01k"

    def make(rng: random.Random) -> tuple[bytes, bytes]:
        kind = rng.choice((b"p", b"r"))
        return kind, damaged(rng, [lean if kind == b"p" else chunk])

    return Target("valkey-history", make, lambda pair: logrows.attempts("q", 9, list(pair)), (StorageError,))


def _file_frames() -> Target:
    """Frames of the file log: what was changed is never taken for a whole frame."""
    known = {
        frames.make(kind, n, body) for kind in frames.FrameKind for n, body in ((0, b""), (7, b"x" * 40))
    }

    def read(data: bytes) -> None:
        view, at = memoryview(data), 0
        while (frame := frames.read(view, at)) is not None:
            if data[frame.start : frame.end] not in known:
                raise AssertionError("changed bytes were taken for a whole frame")
            at = frame.end
        frames.wanted(view, at)
        list(frames.search(view, at))

    return Target("file-frames", each_damaged(sorted(known)), read, (frames.Newer,))


def _file_steps() -> Target:
    """Steps as a store writes them: jobs made, moved, dropped, and what goes with them."""
    store = FileStore()
    steps: list[bytes] = []

    def step(request: rq.Request[Any]) -> Any:
        store.now_ms = 1_700_000_000_000 + len(steps)
        answer, _ = store.apply(request, store.now_ms)
        steps.append(effects.encode(store.take_step()))
        return answer

    jobs = [NewJob(queue="q", id=f"job{n}", task="t", payload=b"{}", delay_ms=n * 10) for n in range(3)]
    step(rq.Add(jobs=jobs))
    (job,) = step(rq.Claim(worker="w", queues=[rq.ClaimQueue("q", 1, 1)], limit=1, claim_id="c")).jobs
    step(
        rq.Settle(
            items=[Settlement(queue="q", id=job.id, token=job.token, outcome=Outcome.COMPLETE, result=b"1")]
        )
    )
    step(rq.PauseQueue(queue="q", paused=True))
    step(rq.RemoveJobs(refs=[JobRef("q", "job2")]))
    return Target("file-steps", each_damaged(steps), effects.decode, (ValueError, RecursionError))


def _amqp_messages() -> Target:
    """Messages of other clients, in whatever language."""
    fields = {
        "jid": "0123456789abcdef01234567", "class": "HardWorker", "args": [1, "two"], "queue": "q",
        "retry": 25,
        "created_at": 1_700_000_000.5, "enqueued_at": 1_700_000_001, "tags": ["a"], "kwargs": {"b": 1},
    }  # fmt: skip
    bodies = [msgspec.json.encode(fields), msgspec.json.encode({**fields, "retry": False, "at": 1e12})]
    kinds = ("scheduled_job", "retry", "dead_job")
    times = dict.fromkeys(("at", "run_at", "retry_at", "scheduled_at", "died_at", "failed_at"), 1_700_000_000)
    entries = [
        msgspec.json.encode({"type": kind, "job": fields, "jid": "x", "retry_count": 2, **times})
        for kind in kinds
    ]

    def read(data: bytes) -> None:
        with contextlib.suppress(messages.MessageError):
            messages.read_message("q", data, None, 3, 5)
        for kind in kinds:
            with contextlib.suppress(messages.MessageError):
                messages.read_entry(data, kind, 5)

    return Target("amqp-messages", each_damaged([*bodies, *entries]), read, ())


# --- what people write ------------------------------------------------------------------------------


def _url() -> Target:
    make = _texts(
        "sqlite:///jobs.db?timeout=3&namespace=a",
        "memory://name",
        "valkey://user:secret@host:6379/0?timeout=1&connections=4",
        "valkeys://[::1]:6380/1?verify=ca",
        "redis+cluster://a:1,b:2,c",
        "valkey+sentinel://a,b:26379/main/0?sentinel_password=x",
    )
    return Target("url", make, open_backend, (ConfigError,))


def _options() -> Target:
    names = sorted(OPTION_NAMES)

    def make(rng: random.Random) -> dict[str, Any]:
        return {rng.choice(names): odd_value(rng) for _ in range(rng.randrange(1, 4))}

    def read(given: dict[str, Any]) -> bytes:
        options = DEFAULT_OPTIONS.merged(given)
        options.check()
        return msgspec.msgpack.encode(options.stored())  # what is taken can be stored

    return Target("options", make, read, (ConfigError,))


def _worker_options() -> Target:
    names = [name for name in WorkerOptions.__struct_fields__ if name not in ("duties", "burst", "tag", "id")]

    def make(rng: random.Random) -> dict[str, Any]:
        return {rng.choice(names): odd_value(rng) for _ in range(rng.randrange(1, 3))}

    return Target("worker-options", make, lambda given: WorkerOptions(**given), (ConfigError,))


def _queue_specs() -> Target:
    def make(rng: random.Random) -> Any:
        spec = {name: odd_value(rng) for name in ("weight", "cap", "reserve") if rng.random() < 0.5}
        return rng.choice((spec, odd_value(rng)))

    def read(given: Any) -> None:
        if isinstance(given, dict) and set(given) <= {"weight", "cap", "reserve"}:
            QueueSpec(**given)
        else:
            to_specs(given, 16)

    return Target("queue-specs", make, read, (ConfigError,))


def _limits() -> Target:
    def make(rng: random.Random) -> dict[str, Any]:
        names = ("concurrency", "rate", "bucket", "ordered", "max_size")
        return {rng.choice(names): odd_value(rng) for _ in range(rng.randrange(1, 3))}

    def read(given: dict[str, Any]) -> None:
        to_rate(given.get("rate"), "rate")
        to_group_limits(**given)

    return Target("limits", make, read, (ConfigError,))


def _schedule() -> Target:
    crons = [
        "*/5 * * * *",
        "0 3 1,15 * 1-5",
        "@daily",
        "0 0 30 2 *",
        "59 23 31 12 7",
        "0 0 L * *",
        "0 9 * * 1#2",
    ]

    def make(rng: random.Random) -> dict[str, Any]:
        given: dict[str, Any] = {"cron": damaged_text(rng, crons)} if rng.random() < 0.8 else {}
        for name in ("every", "start", "end", "limit", "timezone", "missed", "overlap"):
            if rng.random() < 0.1:
                given[name] = odd_value(rng)
        return given

    return Target("schedule", make, to_schedule, (ConfigError,))


def _names() -> Target:
    def read(value: Any) -> None:
        kind, given = value
        (check_job_id, check_queue_name, check_task_name)[kind](given)
        if kind == 0 and not set("/\\:{}\x00\n ").isdisjoint(given):
            raise AssertionError("a sign that may mean something else was taken")

    def make(rng: random.Random) -> tuple[int, Any]:
        text = damaged_text(rng, ["job-1", "a.b_c-d", "0" * 256, "../../etc/passwd", "{x}:y"])
        return rng.randrange(3), rng.choice((text, odd_value(rng)))

    return Target("names", make, read, (ConfigError,))


def _instants() -> Target:
    return Target("instants", odd_value, lambda value: instant_to_ms(value, "run_at"), (ConfigError,))


def _dependencies() -> Target:
    def read(value: Any) -> None:
        to_dependency(value[0], value[1], "q", "depends_on")

    def make(rng: random.Random) -> tuple[Any, Any]:
        return odd_value(rng), rng.choice(("fail", "ignore", odd_value(rng)))

    return Target("dependencies", make, read, (ConfigError,))


def _patterns() -> Target:
    def make(rng: random.Random) -> tuple[str, str]:
        return "a" * rng.randrange(40) + "b", damaged_text(rng, ["a*a*a*b", "*" * 12 + "c", "[a-", "a?b[!x]"])

    return Target("patterns", make, lambda pair: matches(*pair), ())


def _command_line() -> Target:
    def read(text: str) -> None:
        for parse in (parse_duration, lambda t: parse_json(t, "--data"), lambda t: parse_pairs([t], "--arg")):
            try:
                parse(text)
            except (ValueError, click.BadParameter):
                continue

    make = _texts("1h30m", "250ms", "10", '{"a": [1, null]}', "key=[1,2]", "key=text", "9" * 400)
    return Target("command-line", make, read, ())


def _probes() -> Target:
    make = _texts(
        "worker.claimed=kill@3,sqlite.committed=stop", "a=touch:/tmp/x", "a=lose", "a=block:/tmp/y@2"
    )
    return Target("probes", make, parse_probes, (ConfigError,))


# --- cursors --------------------------------------------------------------------------------------


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


@cache
def _store(kind: str) -> Backend:
    if kind == "memory":
        store = open_backend("memory://fuzz")
    else:
        folder = tempfile.mkdtemp(prefix="windlass-fuzz-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        store = open_backend(f"sqlite:///{folder}/jobs.db?synchronous=normal")
    jobs = [NewJob(queue="q", id=f"j{n}", task="t", payload=b"{}", request_id=f"j{n}") for n in range(5)]
    _loop().run_until_complete(store.open())
    _loop().run_until_complete(store.execute(rq.Add(jobs=jobs)))
    atexit.register(lambda: _loop().run_until_complete(store.close()))
    return store


def _cursors(kind: str) -> Target:
    """A cursor that somebody made up gets an error, or a page; never a crash."""

    def make(rng: random.Random) -> tuple[int, str]:
        text = damaged_text(rng, ["3", "123456 task", "q\nname", "9" * 19, "-1", "0" * 30, "group"])
        return rng.randrange(5), text

    def read(pair: tuple[int, str]) -> None:
        number, cursor = pair
        request: rq.Request[Any]
        match number:
            case 0:
                request = rq.ListJobs(queue="q", cursor=_cursor(cursor))
            case 1:
                request = sq.ListSchedules(cursor=cursor)
            case 2:
                request = mq.ReadMetrics(queue="q", cursor=cursor)
            case 3:
                request = lrq.ListGroups(queue="q", cursor=cursor)
            case _:
                request = lrq.ListUniqueKeys(queue="q", cursor=cursor)
        _loop().run_until_complete(_store(kind).execute(request))

    return Target(f"cursors-{kind}", make, read, (ConfigError, UnsupportedByBackendError))


@cache
def pure_targets() -> dict[str, Target]:
    """Every target that needs no server, by name."""
    found = [
        *(_codec(name) for name in ("json", "msgpack", "json+zlib", "msgpack+zlib")),
        _sealed("codec-signed", SignedCodec({"k1": b"secret" * 6})),
        _sealed("codec-encrypted", EncryptedCodec({"k1": new_key()})),
        *(_round_trip(name) for name in ("json", "msgpack", "json+zlib")),
        _sqlite_history(),
        _sqlite_events(),
        _stored_options(),
        _valkey_record(),
        _valkey_leased(),
        _valkey_events(),
        _valkey_attempts(),
        _file_frames(),
        _file_steps(),
        _amqp_messages(),
        *wire_targets(),
        _url(),
        _options(),
        _worker_options(),
        _queue_specs(),
        _limits(),
        _schedule(),
        _names(),
        _instants(),
        _dependencies(),
        _patterns(),
        _command_line(),
        _probes(),
        _cursors("memory"),
        _cursors("sqlite"),
    ]
    return {target.name: target for target in found}

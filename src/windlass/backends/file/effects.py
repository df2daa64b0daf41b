"""Effects: the changes of one step as stored in the log. Applying them needs no decision.

An effect contains the new value of something, or adds numbered items to a list. An effect may be applied
twice, or to a newer state: the effects that follow it correct the result. So a snapshot may be taken while
the store keeps working, if the log is then replayed from the point where the snapshot began.

Each effect is an array: its number, then its fields. Numbers and the meaning of fields never change. A new
kind of effect needs a new format (``frames.FORMAT``), which older versions refuse to read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from windlass.core import bad_records
from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AttemptRecord, Event, JobRecord, JobRef, LogLine
from windlass.core.rollups import Mark
from windlass.core.stream_rules import Chunk, StreamHead
from windlass.speedups.recast import recast_to


class JobRow(JobRecord, array_like=True, kw_only=True):
    """A whole job as an array."""


#: Fields that change while a job is processed. The others are written once, or when its data is replaced.
MOVING = (
    *("state", "priority", "place", "turn", "ready_ms", "due_ms", "expires_ms", "started_ms", "finished_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "misses", "token", "settled_token"),
    *("lease_until_ms", "worker", "cancel_reason", "progress", "result", "result_until_ms", "reason"),
    *("errors", "linked", "awaits", "signals", "queue_time"),
)
whole_of = attrgetter(*JobRecord.__struct_fields__)
moving_of = attrgetter(*MOVING)

_fields = {field.name: field for field in msgspec.structs.fields(JobRecord)}
#: The values of ``MOVING`` as an array.
Moving: Any = msgspec.defstruct(
    "Moving",
    [
        # Earlier releases did not write ``queue_time``.
        (name, _fields[name].type, None) if name == "queue_time" else (name, _fields[name].type)
        for name in MOVING
    ],
    array_like=True,
)


class _Effect(msgspec.Struct, array_like=True):
    """Base of all effects."""


class PutJob(_Effect, tag=1):
    """A job was added, or its data was replaced."""

    row: JobRow


class MoveJob(_Effect, tag=2):
    """The ``MOVING`` fields of a job changed. ``seq`` distinguishes the job from others with the same id."""

    queue: str
    id: str
    seq: int
    moving: Moving


class DropJob(_Effect, tag=3):
    """The record was removed, with its edges, log lines and output."""

    queue: str
    id: str
    seq: int


class PutRow(_Effect, tag=4):
    """A row of a table has this value now."""

    table: int
    key: tuple[str | int, ...]
    value: msgspec.Raw


class DropRow(_Effect, tag=5):
    """A row of a table was removed."""

    table: int
    key: tuple[str | int, ...]


class AddStarts(_Effect, tag=6):
    """New start times of a group, or of a queue (group None), from the ``number``-th on.

    ``kept`` is how many start times are kept after this.
    """

    queue: str
    group: str | None
    number: int
    times: list[int]
    kept: int


class SetStarts(_Effect, tag=7):
    """All start times that count. ``number`` is the total number of starts so far."""

    queue: str
    group: str | None
    number: int
    times: list[int]


class AddLogs(_Effect, tag=8):
    """Log lines of a job, from the ``number``-th on."""

    queue: str
    id: str
    seq: int
    number: int
    #: Earlier releases wrote texts.
    lines: list[LogLine | str]


class AddChunks(_Effect, tag=9):
    """Live output of a job, and the head of its stream."""

    queue: str
    id: str
    seq: int
    head: StreamHead
    chunks: list[Chunk]


class PutEdge(_Effect, tag=10):
    """An edge has this value now."""

    edge: Edge


class OrderEdges(_Effect, tag=11):
    """The order in which a job got its dependents (snapshots only)."""

    child: JobRef
    dependents: list[JobRef]


class AddEnds(_Effect, tag=12):
    """New ended jobs in the outbox, from the ``number``-th on."""

    number: int
    ends: list[ChildEnd]


class DropEnds(_Effect, tag=13):
    """The total number of ended jobs that were relayed and removed from the outbox."""

    relayed: int


class AddEvents(_Effect, tag=14):
    """The event log grew."""

    queue: str
    events: list[Event]


class ForgetEvents(_Effect, tag=15):
    """All events up to id ``upto`` were deleted."""

    queue: str
    upto: int


class AddHistory(_Effect, tag=16):
    """The history grew, from record ``number`` on."""

    queue: str
    number: int
    records: list[AttemptRecord]


class TrimHistory(_Effect, tag=17):
    """The history begins with record ``oldest`` now."""

    queue: str
    oldest: int


class SetNumbers(_Effect, tag=18):
    """The ids of the last event and the last history record of a queue (snapshots only)."""

    queue: str
    last_event: int
    last_history: int


class PutMark(_Effect, tag=19):
    """A mark was added."""

    mark: Mark


Effect = (
    PutJob
    | MoveJob
    | DropJob
    | PutRow
    | DropRow
    | AddStarts
    | SetStarts
    | AddLogs
    | AddChunks
    | PutEdge
    | OrderEdges
    | AddEnds
    | DropEnds
    | AddEvents
    | ForgetEvents
    | AddHistory
    | TrimHistory
    | SetNumbers
    | PutMark
)


class Unread(NamedTuple):
    """An effect, or a whole step, that cannot be read."""

    raw: bytes
    why: str

    def names(self) -> tuple[str, str, int | None] | None:
        """Queue, id and ``seq`` of the job of the effect; None if they cannot be read."""
        try:
            kind, *fields = _decode_any(self.raw)
            at = 2
            if kind == 1:
                fields, at = fields[0], _SEQ
            names = (fields[0], fields[1], fields[at] if at < len(fields) else None)
        except bad_records.UNREADABLE:
            return None
        if kind not in (1, 2) or not isinstance(names[0], str) or not isinstance(names[1], str):
            return None
        return names[0], names[1], names[2] if isinstance(names[2], int) else None


E = TypeVar("E")


class LogStep(msgspec.Struct, Generic[E], array_like=True):
    """All effects of one step, the store's time, and the last place that was assigned.

    In a step that is to be encoded, the effects are plain tuples.
    """

    now_ms: int
    last_place: int
    effects: list[E]


_encoder = msgspec.msgpack.Encoder()
_decode = msgspec.msgpack.Decoder(LogStep[Effect]).decode
_decode_parts = msgspec.msgpack.Decoder(LogStep[msgspec.Raw]).decode
_decode_effect = msgspec.msgpack.Decoder(Effect).decode
_decode_any = msgspec.msgpack.Decoder().decode
_SEQ = JobRecord.__struct_fields__.index("seq")


def encode(step: LogStep[Any]) -> bytes:
    return _encoder.encode(step)


def decode(data: bytes | memoryview) -> LogStep[Any]:
    """Decode a step. Effects that cannot be read are ``Unread``. Does not raise."""
    try:
        return _decode(data)
    except bad_records.UNREADABLE as exc:
        why = str(exc)
    try:
        parts = _decode_parts(data)
    except bad_records.UNREADABLE:
        return LogStep(0, 0, [Unread(bytes(data), why)])
    return LogStep(parts.now_ms, parts.last_place, [_effect(bytes(part)) for part in parts.effects])


def unread(step: LogStep[Any]) -> list[Unread]:
    """The effects of a step that could not be read."""
    return [effect for effect in step.effects if isinstance(effect, Unread)]


def _effect(data: bytes) -> Any:
    try:
        return _decode_effect(data)
    except bad_records.UNREADABLE as exc:
        return Unread(data, str(exc))


#: Convert a ``JobRow`` to a ``JobRecord``. They have the same fields and differ in their encoding.
to_record = recast_to(JobRecord, JobRow)


def move(job: JobRecord, moving: Any) -> None:
    """Set the ``MOVING`` fields of a job. Not a loop, because this is half the cost of reading the log."""
    job.state = moving.state
    job.priority = moving.priority
    job.place = moving.place
    job.turn = moving.turn
    job.ready_ms = moving.ready_ms
    job.due_ms = moving.due_ms
    job.expires_ms = moving.expires_ms
    job.started_ms = moving.started_ms
    job.finished_ms = moving.finished_ms
    job.attempts = moving.attempts
    job.deliveries = moving.deliveries
    job.stalls = moving.stalls
    job.manual_retries = moving.manual_retries
    job.misses = moving.misses
    job.token = moving.token
    job.settled_token = moving.settled_token
    job.lease_until_ms = moving.lease_until_ms
    job.worker = moving.worker
    job.cancel_reason = moving.cancel_reason
    job.progress = moving.progress
    job.result = moving.result
    job.result_until_ms = moving.result_until_ms
    job.reason = moving.reason
    job.errors = moving.errors
    job.linked = moving.linked
    job.awaits = moving.awaits
    job.signals = moving.signals
    job.queue_time = moving.queue_time

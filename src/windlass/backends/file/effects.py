"""Effects: what one step changed, as entries of a log that any version can apply without deciding anything.

An effect says how something *is* from now on, or adds numbered items to a list. Applying one that was applied
before, or one that is older than what is there, changes nothing that the following effects do not put right
again: so a snapshot may be taken while the store keeps working, with the log replayed from where it began.

Each effect is an array: its number, then its fields. Numbers and the meaning of fields never change; a new
kind of effect means a new format (``frames.FORMAT``), which older versions refuse to follow.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from windlass.core import bad_records
from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AttemptRecord, Event, JobRecord, JobRef, LogLine
from windlass.core.rollups import Mark
from windlass.core.stream_rules import Chunk, StreamHead
from windlass.speedups.recast import recast_to


class JobRow(JobRecord, array_like=True, kw_only=True):
    """A whole job as an array."""


#: What the life of a job changes; the rest is written once (or when its data is replaced).
MOVING = (
    *("state", "priority", "place", "turn", "ready_ms", "due_ms", "expires_ms", "started_ms", "finished_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "misses", "token", "settled_token"),
    *("lease_until_ms", "worker", "cancel_reason", "progress", "result", "result_until_ms", "reason"),
    *("errors", "linked", "awaits", "signals", "queue_time"),
)
whole_of = attrgetter(*JobRecord.__struct_fields__)
moving_of = attrgetter(*MOVING)

_fields = {field.name: field for field in msgspec.structs.fields(JobRecord)}
#: The moving part of a job as an array.
Moving: Any = msgspec.defstruct(
    "Moving",
    [
        # Earlier releases did not write the last one.
        (name, _fields[name].type, None) if name == "queue_time" else (name, _fields[name].type)
        for name in MOVING
    ],
    array_like=True,
)


class _Effect(msgspec.Struct, array_like=True):
    """Base of all effects."""


class PutJob(_Effect, tag=1):
    """A job was made, or its data replaced."""

    row: JobRow


class MoveJob(_Effect, tag=2):
    """The moving part of a job changed. ``seq`` distinguishes the job from others that had its id."""

    queue: str
    id: str
    seq: int
    moving: Moving


class DropJob(_Effect, tag=3):
    """The record went, with its edges, log lines and output."""

    queue: str
    id: str
    seq: int


class PutRow(_Effect, tag=4):
    """An entry of a table is like this now."""

    table: int
    key: tuple[str | int, ...]
    value: msgspec.Raw


class DropRow(_Effect, tag=5):
    """An entry of a table went."""

    table: int
    key: tuple[str | int, ...]


class AddStarts(_Effect, tag=6):
    """Start times of a group, or of a queue (group None): the ``number``-th and following; ``kept`` stay."""

    queue: str
    group: str | None
    number: int
    times: list[int]
    kept: int


class SetStarts(_Effect, tag=7):
    """All start times that count, ``number`` having been made so far."""

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
    """Output of a job, and where its stream stands."""

    queue: str
    id: str
    seq: int
    head: StreamHead
    chunks: list[Chunk]


class PutEdge(_Effect, tag=10):
    """An edge is like this now."""

    edge: Edge


class OrderEdges(_Effect, tag=11):
    """In which order a job got its dependents (snapshots only)."""

    child: JobRef
    dependents: list[JobRef]


class AddEnds(_Effect, tag=12):
    """Ends that dependents are yet to be notified of, from the ``number``-th on."""

    number: int
    ends: list[ChildEnd]


class DropEnds(_Effect, tag=13):
    """Dependents were notified of this many ends in all."""

    relayed: int


class AddEvents(_Effect, tag=14):
    """The event log grew."""

    queue: str
    events: list[Event]


class ForgetEvents(_Effect, tag=15):
    """All events up to this one were forgotten."""

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
    """How many events and attempts a queue has seen (snapshots only)."""

    queue: str
    last_event: int
    last_history: int


class PutMark(_Effect, tag=19):
    """A mark beside the metrics."""

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
    """An effect that cannot be read: a part of a step, or a whole one."""

    raw: bytes
    why: str

    def names(self) -> tuple[str, str, int | None] | None:
        """Queue, id and number of the job that it was about, if that much can be read."""
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


class LogStep(msgspec.Struct, array_like=True):
    """All effects of one step, the store's time, and the last place in line that was given away."""

    now_ms: int
    last_place: int
    effects: list[Effect]


class _Parts(msgspec.Struct, array_like=True):
    """A step whose effects are yet to be read, each by itself."""

    now_ms: int
    last_place: int
    effects: list[msgspec.Raw]


class Written(NamedTuple):
    """A ``Step`` as it is written: effects are plain tuples."""

    now_ms: int
    last_place: int
    effects: list[Any]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogStep)
_decode_parts = msgspec.msgpack.Decoder(_Parts).decode
_decode_effect = msgspec.msgpack.Decoder(Effect).decode
_decode_any = msgspec.msgpack.Decoder().decode
_SEQ = JobRecord.__struct_fields__.index("seq")


def encode(step: Written) -> bytes:
    return _encoder.encode(step)


def decode(data: bytes | memoryview) -> LogStep:
    """The step that was written; what cannot be read of it is ``Unread``."""
    try:
        return _decoder.decode(data)
    except bad_records.UNREADABLE as exc:
        why = str(exc)
    try:
        parts = _decode_parts(data)
    except bad_records.UNREADABLE:
        return LogStep(0, 0, [Unread(bytes(data), why)])  # type: ignore[list-item] # only ever made here
    return LogStep(parts.now_ms, parts.last_place, [_effect(bytes(part)) for part in parts.effects])


def unread(step: LogStep) -> list[Unread]:
    """What could not be read of a step."""
    effects: list[Any] = step.effects
    return [effect for effect in effects if isinstance(effect, Unread)]


def _effect(data: bytes) -> Any:
    try:
        return _decode_effect(data)
    except bad_records.UNREADABLE as exc:
        return Unread(data, str(exc))


#: A row as what the rest of the package calls a job: the two differ in how they are written.
to_record = recast_to(JobRecord, JobRow)


def move(job: JobRecord, moving: Any) -> None:
    """Give a job its moving part. (Written out: it is half the cost of following another process.)"""
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

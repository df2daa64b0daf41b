"""Records of jobs, built from the bytes that the server stores.

``layouts.py`` has the fields of a head, ``lua/includes/70_add.lua`` the layout of a record, ``15_plain.lua``
the layout of both for plain jobs. ``sent_records.py`` makes the bytes of new jobs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from windlass.backends.valkey.codes import LEAN, NEWS, PLAIN, STATE_NUMBERS, STATES
from windlass.backends.valkey.layouts import Head
from windlass.backends.valkey.packed_options import read_options
from windlass.core import bad_records
from windlass.core.job import Completed, ErrorInfo, JobRecord, SignalValue
from windlass.core.option_values import DEFAULT_RESULT_TTL_MS
from windlass.core.options import StoredOptions
from windlass.core.paths import took
from windlass.core.queue_time import QueueTime
from windlass.core.states import JobState
from windlass.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")

_WAITING, _ACTIVE, _COMPLETED = (
    STATE_NUMBERS[state] for state in (JobState.WAITING, JobState.ACTIVE, JobState.COMPLETED)
)
#: The reason of a job whose record cannot be read; the second is from earlier versions.
_BAD_RECORD = frozenset({bad_records.BAD_RECORD, "damaged record"})


class RecordMeta(msgspec.Struct, array_like=True):
    """The second part of a record. A request id of 1 stands for the id of the job."""

    request_id: int | str
    codec: str
    options: StoredOptions


_UNREADABLE = RecordMeta(1, bad_records.RAW_CODEC, StoredOptions())
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_meta = msgspec.msgpack.Decoder(RecordMeta).decode
decode = msgspec.msgpack.Decoder().decode

_metas: dict[bytes, RecordMeta] = {}
_CACHED = 512
#: The start of a plain record: first byte and sequence as one number, the time of the add as two.
_numbers = struct.Struct(">QHI").unpack_from
_SEQ = (1 << 56) - 1


class _Common(NamedTuple):
    """The part that plain records with the same task and options share: its bytes, and what it contains."""

    text: bytes
    request_id: int | str
    #: A template: the record of such a job on its first lease, without fields of the job or of the lease.
    model: Any


_commons: dict[bytes, _Common] = {}


def _read_meta(packed: bytes) -> RecordMeta:
    found = _metas.get(packed)
    if found is None:
        found = _decode_meta(packed)
        if found.request_id == 1 and len(packed) < 1_000:  # shared by many jobs
            if len(_metas) >= _CACHED:
                _metas.clear()
            _metas[packed] = found
    return found


def wrap_unreadable(read: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that decodes stored bytes: what it cannot read becomes a ``StorageError``."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except bad_records.UNREADABLE as exc:
            raise StorageError(f"what the server holds is damaged, or no record of ours: {exc}") from exc

    return reading


def job_record(
    queue: str, job_id: str, stored: bytes, packed_head: bytes, errors: bytes | None = None
) -> JobRecord:
    """The record of a job from its stored bytes, its head (empty: as added) and its errors.

    Raises ``StorageError`` if a part that only clients read is damaged. A head that the
    server could not read has the reason ``bad_record``.
    """
    known = bad_records.read_or_none(errors, _read_errors, f"the errors of job {job_id}") if errors else None
    return _job_record(queue, job_id, stored, packed_head, known or [])


def _read_errors(packed: bytes) -> list[ErrorInfo]:
    return [ErrorInfo(*row) for row in decode(packed)]


@wrap_unreadable
def _job_record(
    queue: str, job_id: str, stored: bytes, packed_head: bytes, errors: list[ErrorInfo]
) -> JobRecord:
    head = _read_head(packed_head) if packed_head else None
    if head is not None and head.reason in _BAD_RECORD:
        meta, payload = _UNREADABLE, stored  # users see the stored bytes
    else:
        if stored[0] == PLAIN:
            at = 15 + stored[14]
        else:
            at = int.from_bytes(stored[:2], "big") + 2
        head = head or _fresh_head(stored)
        start = at + 4
        end = start + int.from_bytes(stored[at:start], "big")
        meta, payload = _read_meta(stored[start:end]), stored[end:]
    options = meta.options
    if type(head.options) is list:
        options = read_options(options, head.options)
    return JobRecord(
        queue=queue,
        id=job_id,
        task=head.task,
        payload=payload,
        codec=meta.codec,
        state=STATES[head.state],
        priority=head.priority,
        seq=head.seq,
        place=head.place or head.seq,
        turn=head.turn,
        options=options,
        request_id=job_id if meta.request_id == 1 else str(meta.request_id),
        enqueued_ms=head.enqueued_ms,
        ready_ms=head.ready_ms or head.enqueued_ms,
        due_ms=head.due_ms or None,
        expires_ms=head.expires_ms or None,
        started_ms=head.started_ms or None,
        finished_ms=head.finished_ms or None,
        attempts=head.attempts,
        deliveries=head.deliveries,
        stalls=head.stalls,
        manual_retries=head.manual_retries,
        misses=head.misses,
        token=head.token or None,
        settled_token=head.settled_token or None,
        worker=head.worker or None,
        cancel_reason=head.cancel[1:] if head.cancel else None,
        result_until_ms=head.result_until_ms or None,
        reason=bad_records.BAD_RECORD if head.reason in _BAD_RECORD else head.reason,
        linked=bool(head.linked),
        awaits=head.awaits or None,
        errors=errors,
        queue_time=read_queue_time(head.queue_time),
    )


def read_queue_time(fields: list[int] | int) -> QueueTime | None:
    """The queue time from a head or from a row of history."""
    return QueueTime(*fields) if isinstance(fields, list) else None


def _plain_head(stored: bytes) -> Head:
    seq, enqueued_ms = int.from_bytes(stored[1:8], "big"), int.from_bytes(stored[8:14], "big")
    task = stored[15 : 15 + stored[14]].decode()
    return Head(_WAITING, seq, seq, 0, enqueued_ms, enqueued_ms, 0, 0, task, 0)


def _read_head(packed: bytes) -> Head:
    if packed[0] != LEAN:
        return _decode_head(packed)
    seq, enqueued_ms, started_ms, token, worker, task, end = lean(packed, 1)
    head = Head(_ACTIVE, seq, seq, 0, enqueued_ms, enqueued_ms, 0, 0, task, 0, deliveries=1)
    head.worker, head.started_ms = worker, started_ms
    if end < len(packed):
        head.state, head.settled_token = _COMPLETED, token
        head.finished_ms = int.from_bytes(packed[end : end + 6], "big")
        head.result_until_ms = head.finished_ms + DEFAULT_RESULT_TTL_MS
    else:
        head.token = token
    return head


def token(packed_head: bytes) -> str:
    """The token in the head of a leased job. It raises what decoding raises."""
    return _read_head(packed_head).token


def lean(packed: bytes, at: int) -> tuple[int, int, int, str, str, str, int]:
    """Sequence, enqueued, started, token, worker and task of the head of a plain job, and where they end."""
    seq = int.from_bytes(packed[at : at + 7], "big")
    enqueued_ms = int.from_bytes(packed[at + 7 : at + 13], "big")
    started_ms = int.from_bytes(packed[at + 13 : at + 19], "big")
    token_end = at + 20 + packed[at + 19]
    worker_end = token_end + 1 + packed[token_end]
    end = worker_end + 1 + packed[worker_end]
    token = packed[at + 20 : token_end].decode()
    worker = packed[token_end + 1 : worker_end].decode()
    return seq, enqueued_ms, started_ms, token, worker, packed[worker_end + 1 : end].decode(), end


class Lease(NamedTuple):
    """Start, worker and deadline that the jobs of one claim share."""

    now_ms: int
    worker: str
    until_ms: int


def leased(
    queue: str, ids: Iterable[bytes], stored: Iterable[bytes], tokens: Iterable[str], lease: Lease
) -> list[JobRecord]:
    """The records of plain jobs that were leased just now, for the first time.

    It raises what decoding raises; callers use ``wrap_unreadable``.
    """
    found: list[JobRecord] = []
    common = None
    for job_id, text, token in zip(ids, stored, tokens, strict=True):
        # The common part contains its own length, so no other record starts with it.
        if common is None or not text.startswith(common.text, 14):
            common = _common_of(text)
            model = common.model.__copy__()
            model.queue, model.worker = queue, lease.worker
            model.started_ms, model.lease_until_ms = lease.now_ms, lease.until_ms
            model.errors, model.signals = [], {}  # shared by the jobs of this claim
            body = 14 + len(common.text)
        record: JobRecord = model.__copy__()  # takes a third of the time of a new record
        record.id = record.request_id = job_id.decode()
        if common.request_id != 1:
            record.request_id = str(common.request_id)
        number, enqueued_1, enqueued_2 = _numbers(text)
        record.seq = record.place = number & _SEQ
        record.enqueued_ms = record.ready_ms = enqueued_1 << 32 | enqueued_2
        record.payload, record.token = text[body:], token
        found.append(record)
    return found


def _leased_model(task: str, meta: RecordMeta) -> JobRecord:
    return JobRecord(
        queue="",
        id="",
        task=task,
        payload=b"",
        codec=meta.codec,
        state=JobState.ACTIVE,
        options=meta.options,
        deliveries=1,
    )


def _common_of(stored: bytes) -> _Common:
    """The part that the record shares with others of the same task and options, from a cache."""
    at = 15 + stored[14]
    end = at + 4 + int.from_bytes(stored[at : at + 4], "big")
    text = stored[14:end]
    found = _commons.get(text)
    if found is None:
        meta = _read_meta(stored[at + 4 : end])
        model = _leased_model(stored[15:at].decode(), meta)
        found = _Common(text, meta.request_id, model)
        if meta.request_id == 1 and len(text) < 1_000:
            if len(_commons) >= _CACHED:
                _commons.clear()
            _commons[text] = found
    return found


@wrap_unreadable
def _completed(news: bytes) -> list[Completed]:
    found, at, size = [], 1, len(news)
    while at < size:
        id_end = at + 2 + int.from_bytes(news[at : at + 2], "big")
        start = id_end + 4
        end = start + int.from_bytes(news[id_end:start], "big")
        head = news[start:end]
        _, _, started_ms, _, worker, _, done = lean(head, 1)
        result = head[done + 7 :] if head[done + 6] else None
        finished_ms = int.from_bytes(head[done : done + 6], "big")
        found.append(Completed(news[at + 2 : id_end].decode(), result, started_ms, finished_ms, worker))
        at = end
    return found


def completed(news: bytes) -> list[Completed]:
    """The completed jobs in a hint, see ``lua/includes/30_notes.lua``. If empty, read the store instead."""
    if not news or news[0] != NEWS:
        return []
    took("valkey.news")
    try:
        return _completed(news)
    except StorageError:  # a hint is optional: the caller reads the store
        return []


def _shown(queue: str, job_id: str, stored: bytes, packed: bytes, errors: bytes | None) -> JobRecord:
    """As ``job_record``, with a stand-in for a record that cannot be read."""
    try:
        return job_record(queue, job_id, stored, packed, errors)
    except StorageError as exc:
        head = bad_records.read_or_none(packed, _read_head, f"the head of job {job_id}") if packed else None
        head = head or bad_records.read_or_none(stored, _fresh_head, f"the record of job {job_id}")
        if head is None or head.state not in STATES:
            return bad_records.stand_in(queue, job_id, stored, exc, state=JobState.FAILED)
        return bad_records.stand_in(
            queue,
            job_id,
            stored,
            exc,
            state=STATES[head.state],
            task=head.task,
            seq=head.seq,
            place=head.place,
            priority=head.priority,
            enqueued_ms=head.enqueued_ms,
            due_ms=head.due_ms or None,
            started_ms=head.started_ms or None,
            finished_ms=head.finished_ms or None,
        )


def _fresh_head(stored: bytes) -> Head:
    if stored[0] == PLAIN:
        return _plain_head(stored)
    return _read_head(stored[2 : int.from_bytes(stored[:2], "big") + 2])


@wrap_unreadable
def viewed(queue: str, view: list[Any] | None) -> JobRecord | None:
    """The record in a view (see ``lua/functions/get.lua``); None if there is no such job."""
    if view is None:
        return None
    job_id, stored, head, result, progress, errors, lease, signals = view
    record = _shown(queue, job_id.decode("utf-8", "backslashreplace"), stored, head, errors)
    record.result = result
    record.progress = progress
    if signals:
        record.signals = read_signals(signals)
    record.lease_until_ms = None if lease is None else int(lease)
    return record


@wrap_unreadable
def read_signals(fields: list[bytes]) -> dict[str, SignalValue]:
    """The signals of a job by name, see ``lua/includes/12_flows.lua``."""
    found = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        at = 7 + value[6]
        found[name.decode()] = SignalValue(value[at:], value[7:at].decode(), int.from_bytes(value[:6], "big"))
    return found

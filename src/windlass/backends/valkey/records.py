"""Jobs as bytes: what ``add`` sends, and records built from what the server stores.

See ``lua/includes/00_words.lua`` for the fields of a head and ``70_add.lua`` for the layout of a record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from windlass.backends.valkey.codes import ATTEMPT_OUTCOMES, EVENTS, STATES
from windlass.core.job import AttemptRecord, ErrorInfo, Event, JobRecord, NewJob
from windlass.core.options import StoredOptions
from windlass.core.outcome import Settlement

_encode = msgspec.msgpack.Encoder().encode
pack = _encode


class Head(msgspec.Struct, array_like=True):
    """What the server knows of a job; 0 and '' stand for "none"."""

    state: int
    seq: int
    place: int
    priority: int
    enqueued_ms: int
    ready_ms: int
    due_ms: int
    expires_ms: int
    task: str
    options: int | list[Any]
    attempts: int = 0
    deliveries: int = 0
    stalls: int = 0
    manual_retries: int = 0
    misses: int = 0
    token: str = ""
    settled_token: str = ""
    worker: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    cancel: str = ""
    result_until_ms: int = 0
    reason: str = ""


class Meta(msgspec.Struct, array_like=True):
    """The rest of a job, of which the server only reads the request id (1: the same as the id)."""

    request_id: int | str
    codec: str
    options: StoredOptions


_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_meta = msgspec.msgpack.Decoder(Meta).decode
_decode_any = msgspec.msgpack.Decoder().decode

#: Options that jobs share are encoded once: by the identity of the (frozen, kept) object.
_shared: dict[tuple[int, str], _Shared] = {}
_metas: dict[bytes, Meta] = {}
_CACHED = 512


class _Shared(NamedTuple):
    options: StoredOptions
    for_server: int | tuple[Any, ...]
    encoded: bytes
    plain_meta: bytes


def text(value: str) -> str:
    """``value`` as it can be stored: text that is not proper Unicode is escaped."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def new_job(index: int, new: NewJob) -> tuple[Any, ...]:
    """The part of a new job that the server reads."""
    return (
        index,
        new.id,
        new.task,
        new.priority,
        new.delay_ms,
        -1 if new.run_at_ms is None else max(new.run_at_ms, 0),
        -1 if new.expires_in_ms is None else new.expires_in_ms,
        _share(new).for_server,
    )


def tail(new: NewJob) -> bytes:
    """The part of a new job that the server only stores."""
    shared = _share(new)
    if new.request_id == new.id:
        return shared.plain_meta + new.payload
    meta = b"\x93" + _encode(new.request_id) + shared.encoded
    return len(meta).to_bytes(4, "big") + meta + new.payload


def _share(new: NewJob) -> _Shared:
    key = (id(new.options), new.codec)
    found = _shared.get(key)
    if found is None:
        encoded = _encode(new.codec) + _encode(new.options)
        meta = b"\x93\x01" + encoded
        plain_meta = len(meta).to_bytes(4, "big") + meta
        found = _Shared(new.options, _server_options(new.options, new.codec), encoded, plain_meta)
        if len(_shared) >= _CACHED:
            _shared.clear()
        _shared[key] = found
    return found


def _read_meta(packed: bytes) -> Meta:
    found = _metas.get(packed)
    if found is None:
        found = _decode_meta(packed)
        if found.request_id == 1 and len(packed) < 1_000:  # shared by many jobs
            if len(_metas) >= _CACHED:
                _metas.clear()
            _metas[packed] = found
    return found


def _server_options(options: StoredOptions, codec: str) -> int | tuple[Any, ...]:
    """The options that the server must know; 0 when all of them are the usual ones."""
    found = (
        _or_none(options.lease_ms),
        options.max_stalls,
        _or_none(options.result_ttl_ms),
        _or_none(options.keep_completed.age_ms),
        _or_none(options.keep_completed.count),
        _or_none(options.keep_failed.age_ms),
        _or_none(options.keep_failed.count),
        _or_none(options.keep_id_ms),
        options.tags or 0,
        0 if codec == "json" else codec,
    )
    return 0 if found == _USUAL else found


def _or_none(value: int | None) -> int:
    return -1 if value is None else value


_USUAL = (-1, 2, -1, 86_400_000, 10_000, 15_552_000_000, 10_000, -1, 0, 0)


def job_record(
    queue: str, job_id: str, stored: bytes, packed_head: bytes, errors: bytes | None = None
) -> JobRecord:
    """The record of a job from its stored bytes, its head (empty: as added) and its errors."""
    size = int.from_bytes(stored[:2], "big")
    head = _decode_head(packed_head or stored[2 : size + 2])
    start = size + 6
    end = start + int.from_bytes(stored[size + 2 : start], "big")
    meta = _read_meta(stored[start:end])
    options = meta.options
    if type(head.options) is list and head.options[2] != _or_none(options.result_ttl_ms):
        options = msgspec.structs.replace(options, result_ttl_ms=head.options[2])
    return JobRecord(
        queue=queue,
        id=job_id,
        task=head.task,
        payload=stored[end:],
        codec=meta.codec,
        state=STATES[head.state],
        priority=head.priority,
        seq=head.seq,
        place=head.place or head.seq,
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
        reason=head.reason,
        errors=[ErrorInfo(*row) for row in _decode_any(errors)] if errors else [],
    )


def viewed(queue: str, view: list[Any] | None) -> JobRecord | None:
    """The record in a view, see ``lua/functions/get.lua``."""
    if view is None:
        return None
    job_id, stored, head, result, progress, errors, lease = view
    record = job_record(queue, job_id.decode(), stored, head, errors)
    record.result = result
    record.progress = progress
    record.lease_until_ms = None if lease is None else int(lease)
    return record


def settlement(index: int, end: Settlement, outcome: int, result: int) -> tuple[Any, ...]:
    """An end as the server reads it; ``result`` is the position of its bytes (0: none)."""
    duration = -1 if end.duration_ms is None else end.duration_ms
    if outcome == 1:
        return (index, end.id, end.token, outcome, duration, result)
    error = end.error
    failure = error and (
        text(error.error_class),
        text(error.message),
        text(error.traceback),
        text(error.fingerprint),
        text(error.message[:500]),
    )
    uses, miss = int(end.uses_attempt), int(end.miss)
    return (
        index,
        end.id,
        end.token,
        outcome,
        duration,
        result,
        end.delay_ms,
        text(end.reason),
        uses,
        miss,
        failure,
    )


def events(last: int, packed: bytes) -> list[Event]:
    """The events of one entry of the log, whose last one has the number ``last``."""
    at_ms, rows = _decode_any(packed)
    first = last - len(rows) + 1
    return [_event(first + offset, at_ms, row) for offset, row in enumerate(rows)]


def _event(number: int, at_ms: int, row: list[Any]) -> Event:
    kind, names = EVENTS[row[0]]
    data = dict(zip(names, row[3:], strict=False))
    if "run_at_ms" in data:
        data["run_at_ms"] = data["run_at_ms"] or None
    if "state" in data:
        data["state"] = STATES[data["state"]].value
    return Event(number, at_ms, kind, row[1], row[2], data)


def attempts(queue: str, last: int, packed: bytes) -> list[tuple[int, AttemptRecord]]:
    """Position and content of the rows of one entry of the history log."""
    finished_ms, rows = _decode_any(packed)
    first = last - len(rows) + 1
    return [(first + offset, _attempt(queue, finished_ms, row)) for offset, row in enumerate(rows)]


def _attempt(queue: str, finished_ms: int, row: list[Any]) -> AttemptRecord:
    run_id, job_id, attempt, delivery, task, tags, worker, enqueued, ready, started, duration, outcome = row[
        :12
    ]
    error_class, fingerprint = row[12:14] if len(row) > 12 else (None, None)
    return AttemptRecord(
        run_id,
        job_id,
        attempt,
        delivery,
        queue,
        task,
        None,
        tuple(tags or ()),
        worker or None,
        enqueued,
        ready,
        started or None,
        finished_ms,
        started - ready if started else None,
        None if duration < 0 else duration,
        ATTEMPT_OUTCOMES[outcome],
        error_class,
        fingerprint,
    )

"""Jobs as bytes that are sent to the server: new jobs and restored ones.

``layouts.py`` has the fields of a head, ``lua/includes/70_add.lua`` the layout of a record, ``15_plain.lua``
the layout of both for plain jobs. ``records.py`` reads stored records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from windlass.backends.valkey.codes import STATE_NUMBERS
from windlass.backends.valkey.layouts import Head, Restored, Wanted
from windlass.backends.valkey.packed_options import server_options
from windlass.core.job import ErrorInfo, JobRecord, NewJob, SignalValue
from windlass.core.options import StoredOptions

pack = msgspec.msgpack.Encoder().encode

_NULL = msgspec.Raw(b"\xa4null")
#: The most pairs of options and codec whose encoding is cached.
_CACHED = 512
#: Encoded options by the identity of the options object, which is frozen and which the entry keeps alive.
_shared: dict[tuple[int, str], _EncodedOptions] = {}


class _EncodedOptions(NamedTuple):
    options: StoredOptions
    for_server: int | tuple[Any, ...]
    #: Whether a job with these options may be plain.
    plain: bool
    encoded: bytes
    plain_meta: bytes


def text(value: str) -> str:
    """``value`` with characters escaped that UTF-8 cannot encode (lone surrogates)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def new_job(index: int, new: NewJob) -> Wanted:
    """The part of a new job that the server reads."""
    return Wanted(
        index,
        new.id,
        new.task,
        new.priority,
        new.delay_ms,
        -1 if new.run_at_ms is None else max(new.run_at_ms, 0),
        -1 if new.expires_in_ms is None else new.expires_in_ms,
        _share(new).for_server,
        int(new.options.lifo),
    )


def restored(index: int, job: JobRecord) -> Restored:
    """A restored job: everything that the server keeps of it."""
    head = Head(
        state=STATE_NUMBERS[job.state],
        seq=0,
        place=0,
        priority=job.priority,
        enqueued_ms=job.enqueued_ms,
        ready_ms=job.ready_ms,
        due_ms=job.due_ms or 0,
        expires_ms=job.expires_ms or 0,
        task=job.task,
        options=_share(job).for_server,  # type: ignore[arg-type] # a tuple travels as a list
        attempts=job.attempts,
        deliveries=job.deliveries,
        stalls=job.stalls,
        manual_retries=job.manual_retries,
        misses=job.misses,
        worker=job.worker or "",
        started_ms=job.started_ms or 0,
        finished_ms=job.finished_ms or 0,
        cancel="" if job.cancel_reason is None else f"={job.cancel_reason}",
        result_until_ms=job.result_until_ms or 0,
        reason=job.reason,
        awaits=job.awaits or "",
        signals=len(job.signals),
    )
    return Restored(
        index,
        job.id,
        head,
        job.request_id,
        packed_result(job.result),
        packed_result(job.progress),
        as_text(pack([_error_row(error) for error in job.errors])) if job.errors else 0,
        tuple(part for name, value in job.signals.items() for part in (name, _signal_text(value))),
    )


def _error_row(error: ErrorInfo) -> tuple[Any, ...]:
    return (
        error.at_ms,
        error.attempt,
        error.error_class,
        error.message,
        error.traceback,
        error.fingerprint,
    )


def _signal_text(value: SignalValue) -> msgspec.Raw:
    codec = value.codec.encode()
    return as_text(value.at_ms.to_bytes(6, "big") + bytes([len(codec)]) + codec + value.data)


def tail(new: NewJob | JobRecord) -> bytes:
    """The part of a new job that the server only stores."""
    shared = _share(new)
    if new.request_id == new.id:
        return shared.plain_meta + new.payload
    meta = b"\x93" + pack(new.request_id) + shared.encoded
    return len(meta).to_bytes(4, "big") + meta + new.payload


def plain_job(new: NewJob) -> bytes | None:
    """The encoded job, or None if it is not plain: it has a priority, a delay or options of its own."""
    if new.priority or new.delay_ms or new.run_at_ms is not None or new.expires_in_ms is not None:
        return None
    shared = _share(new)
    if not shared.plain:
        return None
    task = new.task.encode()
    if len(task) > 255:
        return None
    if new.request_id == new.id:
        return b"%c%b%b%b" % (len(task), task, shared.plain_meta, new.payload)
    return b"%c%b%b" % (len(task), task, tail(new))


def plain_jobs(jobs: list[NewJob]) -> list[str | bytes] | None:
    """Ids and encoded jobs if all of them are plain, else None. Parts that jobs share are encoded once."""
    first = jobs[0]
    if len(jobs) == 1:
        alone = plain_job(first)
        return None if alone is None else [first.id, alone]
    found: list[str | bytes] = []
    task, options, codec, front = first.task, first.options, first.codec, b""
    for new in jobs:
        if (
            front
            and new.options is options
            and new.task == task
            and new.request_id == new.id
            and new.codec == codec
            and not new.priority
            and not new.delay_ms
            and new.run_at_ms is None
            and new.expires_in_ms is None
        ):
            found += (new.id, front + new.payload)
            continue
        text = plain_job(new)
        if text is None:
            return None
        found += (new.id, text)
        if new.request_id == new.id:
            task, options, codec = new.task, new.options, new.codec
            front = text[: len(text) - len(new.payload)]
    return found


def _share(new: NewJob | JobRecord) -> _EncodedOptions:
    key = (id(new.options), new.codec)
    found = _shared.get(key)
    if found is None:
        encoded = pack(new.codec) + pack(new.options)
        meta = b"\x93\x01" + encoded
        plain_meta = len(meta).to_bytes(4, "big") + meta
        for_server = server_options(new.options, new.codec)
        found = _EncodedOptions(new.options, for_server, for_server == 0, encoded, plain_meta)
        if len(_shared) >= _CACHED:
            _shared.clear()
        _shared[key] = found
    return found


def as_text(data: bytes) -> msgspec.Raw:
    """Bytes packed as a MessagePack string: the decoder of the server knows no binary type."""
    if data == b"null":
        return _NULL
    size = len(data)
    if size < 32:
        return msgspec.Raw(b"%c%b" % (0xA0 | size, data))
    if size < 0x10000:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


def packed_result(result: bytes | None) -> Any:
    """A result as the server reads it; 0 if there is none."""
    return 0 if result is None else as_text(result)

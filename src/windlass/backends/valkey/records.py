"""Jobs as bytes: what ``add`` sends, and records built from what the server stores.

See ``layouts.py`` for the fields of a head, ``lua/includes/70_add.lua`` for the layout of a record and
``15_plain.lua`` for both of plain jobs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache, wraps
from operator import attrgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from windlass.backends.valkey.codes import (
    COMPLETE_AND_HOLD,
    LEAN,
    NEWS,
    OUTCOME_NUMBERS,
    PLAIN,
    STATE_NUMBERS,
    STATES,
    UNIQUE_MODES,
    UNIQUE_NUMBERS,
)
from windlass.backends.valkey.layouts import (
    OPTIONS_LEFT_OUT,
    OPTIONS_SIZE,
    End,
    Failure,
    Head,
    Options,
    Restored,
    Unique,
    Wanted,
)
from windlass.core import bad_records
from windlass.core.job import (
    BRIEF_CHARS,
    Completed,
    ErrorInfo,
    JobRecord,
    NewJob,
    SignalValue,
    WorkerFacts,
)
from windlass.core.option_values import DEFAULT_RESULT_TTL_MS, Keep, StoredUnique
from windlass.core.options import StoredOptions
from windlass.core.outcome import Filled, Outcome, Settlement
from windlass.core.paths import took
from windlass.core.states import JobState
from windlass.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")

_WAITING, _ACTIVE, _COMPLETED = (
    STATE_NUMBERS[state] for state in (JobState.WAITING, JobState.ACTIVE, JobState.COMPLETED)
)
#: Why a job failed whose record cannot be read; the second is what earlier versions called it.
_BAD_RECORD = frozenset({bad_records.BAD_RECORD, "damaged record"})

_encode = msgspec.msgpack.Encoder().encode
pack = _encode


class Meta(msgspec.Struct, array_like=True):
    """The rest of a job. The server reads the request id (1: the job's), and whether its key extends."""

    request_id: int | str
    codec: str
    options: StoredOptions


_UNREADABLE = Meta(1, bad_records.RAW_CODEC, StoredOptions())
_decode_head = msgspec.msgpack.Decoder(Head).decode
_decode_meta = msgspec.msgpack.Decoder(Meta).decode
decode = msgspec.msgpack.Decoder().decode

#: Options that jobs share are encoded once: by the identity of the (frozen, kept) object.
_shared: dict[tuple[int, str], _Shared] = {}
_metas: dict[bytes, Meta] = {}
_CACHED = 512
#: Of a plain record: its mark and its sequence in one, the time of its adding in two.
_numbers = struct.Struct(">QHI").unpack_from
_SEQ = (1 << 56) - 1


class _Common(NamedTuple):
    """The part of plain records that many of them share: its bytes, and what they say."""

    text: bytes
    request_id: int | str
    #: A record of such a job that is leased for the first time, except for what is its own and its lease's.
    model: Any


_commons: dict[bytes, _Common] = {}
#: The one that was met last. Its bytes are those of no record to begin with.
_last_common = _Common(b"\xff" * 300, 1, None)


class _Shared(NamedTuple):
    options: StoredOptions
    for_server: int | tuple[Any, ...]
    #: Whether nothing about them keeps a job from being plain.
    plain: bool
    encoded: bytes
    plain_meta: bytes


def text(value: str) -> str:
    """``value`` as it can be stored: text that is not proper Unicode is escaped."""
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
    """A job that is put back: all that the server keeps of it."""
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
        _result(job.result),
        _result(job.progress),
        _as_text(_encode([_error_row(error) for error in job.errors])) if job.errors else 0,
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
    return _as_text(value.at_ms.to_bytes(6, "big") + bytes([len(codec)]) + codec + value.data)


def tail(new: NewJob | JobRecord) -> bytes:
    """The part of a new job that the server only stores."""
    shared = _share(new)
    if new.request_id == new.id:
        return shared.plain_meta + new.payload
    meta = b"\x93" + _encode(new.request_id) + shared.encoded
    return len(meta).to_bytes(4, "big") + meta + new.payload


def plain_job(new: NewJob) -> bytes | None:
    """The text of a plain job; None when there is anything special about it."""
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
    """Id and text of every job when all of them are plain; what they share is put together once."""
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


def _share(new: NewJob | JobRecord) -> _Shared:
    key = (id(new.options), new.codec)
    found = _shared.get(key)
    if found is None:
        encoded = _encode(new.codec) + _encode(new.options)
        meta = b"\x93\x01" + encoded
        plain_meta = len(meta).to_bytes(4, "big") + meta
        for_server = _server_options(new.options, new.codec)
        found = _Shared(new.options, for_server, for_server == 0, encoded, plain_meta)
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
    found = _packed_options(options, codec)
    if found[OPTIONS_SIZE:] != OPTIONS_LEFT_OUT:
        return found
    first = found[:OPTIONS_SIZE]
    return 0 if first == USUAL else first


def _packed_options(options: StoredOptions, codec: str) -> Options:
    numbers = {name: _or_none(value) for name, value in zip(_NUMBERS, _numbers_of(options), strict=True)}
    return Options(
        **numbers,
        keep_completed_ms=_or_none(options.keep_completed.age_ms),
        keep_completed_count=_or_none(options.keep_completed.count),
        keep_failed_ms=_or_none(options.keep_failed.age_ms),
        keep_failed_count=_or_none(options.keep_failed.count),
        tags=options.tags or 0,
        codec=0 if (options.result_codec or codec) == "json" else options.result_codec or codec,
        group=0 if options.group is None else options.group,
        unique=0 if options.unique is None else server_unique(options.unique),
        lifo=int(options.lifo),
        schedule=options.schedule or 0,
        parent=options.parent or 0,
        root=options.root or 0,
    )


def server_unique(unique: StoredUnique) -> Unique:
    """A unique key as the server reads it."""
    return Unique(unique.key, UNIQUE_NUMBERS[unique.mode], _or_none(unique.ttl_ms))


def _read_options(options: StoredOptions, kept: list[Any]) -> StoredOptions:
    """``options`` as they were sent, overruled by what the server keeps."""
    known, said = Options(*kept[: len(Options._fields)]), _packed_options(options, "")  # a later one has more
    if known.result_ttl_ms != said.result_ttl_ms:
        options = msgspec.structs.replace(options, result_ttl_ms=known.result_ttl_ms)
    if known[_KEEPS] != said[_KEEPS]:
        options = msgspec.structs.replace(
            options,
            keep_completed=_keep(known.keep_completed_ms, known.keep_completed_count),
            keep_failed=_keep(known.keep_failed_ms, known.keep_failed_count),
        )
    if len(kept) == OPTIONS_SIZE:
        return options
    if (known.unique and tuple(known.unique)) != said.unique:
        options = msgspec.structs.replace(options, unique=_unique(known.unique))
    if (known.group, known.cost) != (said.group, said.cost):
        options = msgspec.structs.replace(options, group=known.group or None, cost=known.cost)
    return options


def _filled(filled: Filled) -> tuple[int, ...]:
    """What a settlement says of options, as the server reads it; -2: nothing."""
    kept: list[int] = []
    for keep in (filled.keep_completed, filled.keep_failed):
        kept += (-2, -2) if keep is None else (_or_none(keep.age_ms), _or_none(keep.count))
    return (-2 if filled.result_ttl_ms is None else filled.result_ttl_ms, *kept)


def _keep(age_ms: int, count: int) -> Keep:
    return Keep(None if age_ms < 0 else age_ms, None if count < 0 else count)


def _unique(kept: Any) -> StoredUnique | None:
    if not kept:
        return None
    key, mode, ttl_ms = kept
    return StoredUnique(key=key, mode=UNIQUE_MODES[mode], ttl_ms=None if ttl_ms < 0 else ttl_ms)


def _or_none(value: int | None) -> int:
    return -1 if value is None else value


#: Options that the server receives as they are, by the name that ``StoredOptions`` has for them.
_NUMBERS = tuple(
    field.name
    for field in msgspec.structs.fields(StoredOptions)
    if field.name in Options._fields and field.type in (int, int | None)
)
_numbers_of = attrgetter(*_NUMBERS)
#: Where ``Options`` says how long records stay.
_KEEPS = slice(Options._fields.index("keep_completed_ms"), Options._fields.index("keep_failed_count") + 1)
#: The options of a job that says nothing; nearly all have these, and the server keeps a 0 for them.
USUAL = _packed_options(StoredOptions(), "json")[:OPTIONS_SIZE]


def whole(read: Callable[P, T]) -> Callable[P, T]:
    """Bytes that cannot be read are an error of the store, whatever is wrong with them."""

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

    ``StorageError`` when a part that only clients read cannot be read. What the server could not read has a
    head that says so.
    """
    known = bad_records.read_or_none(errors, _read_errors, f"the errors of job {job_id}") if errors else None
    return _job_record(queue, job_id, stored, packed_head, known or [])


def _read_errors(packed: bytes) -> list[ErrorInfo]:
    return [ErrorInfo(*row) for row in decode(packed)]


@whole
def _job_record(
    queue: str, job_id: str, stored: bytes, packed_head: bytes, errors: list[ErrorInfo]
) -> JobRecord:
    head = _read_head(packed_head) if packed_head else None
    if head is not None and head.reason in _BAD_RECORD:
        meta, payload = _UNREADABLE, stored  # people see its bytes as they are
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
        options = _read_options(options, head.options)
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
    )


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


def lean(packed: bytes, at: int) -> tuple[int, int, int, str, str, str, int]:
    """Sequence, enqueued, started, token, worker and task of a plain job, and where they end."""
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
    """What the jobs of one claim have in common."""

    now_ms: int
    worker: str
    until_ms: int


def leased(
    queue: str, ids: Iterable[bytes], stored: Iterable[bytes], tokens: Iterable[str], lease: Lease
) -> list[JobRecord]:
    """The records of plain jobs that were leased just now, for the first time.

    To be called from what is ``whole``.
    """
    found: list[JobRecord] = []
    common = _last_common
    now_ms, worker, until_ms = lease
    for job_id, text, token in zip(ids, stored, tokens, strict=True):
        # The common text implies its length: nothing else begins like it.
        if not text.startswith(common.text, 14):
            common = _read_common(text)
        record: JobRecord = common.model.__copy__()  # in a third of the time that a new one takes
        record.queue, record.worker, record.started_ms, record.lease_until_ms = (
            queue,
            worker,
            now_ms,
            until_ms,
        )
        record.id = record.request_id = job_id.decode()
        if common.request_id != 1:
            record.request_id = str(common.request_id)
        number, enqueued_1, enqueued_2 = _numbers(text)
        record.seq = record.place = number & _SEQ
        record.enqueued_ms = record.ready_ms = enqueued_1 << 32 | enqueued_2
        record.payload, record.token = text[14 + len(common.text) :], token
        record.errors, record.signals = [], {}
        found.append(record)
    return found


def _leased_model(task: str, meta: Meta) -> JobRecord:
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


def _read_common(stored: bytes) -> _Common:
    """What the record of a plain job has in common with those of the same task and options."""
    global _last_common
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
    if found.request_id == 1:
        _last_common = found
    return found


@whole
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
    """What a hint says about completed jobs, see ``lua/includes/30_notes.lua``; none: one has to look."""
    if not news or news[0] != NEWS:
        return []
    took("valkey.news")
    try:
        return _completed(news)
    except StorageError:  # hints are not to be trusted
        return []


def _shown(queue: str, job_id: str, stored: bytes, packed: bytes, errors: bytes | None) -> JobRecord:
    """As ``job_record``; what replaces a job whose record cannot be read."""
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


@whole
def viewed(queue: str, view: list[Any] | None) -> JobRecord | None:
    """The record in a view, see ``lua/functions/get.lua``."""
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


@whole
def read_signals(fields: list[bytes]) -> dict[str, SignalValue]:
    """Signals by name, see ``lua/includes/12_flows.lua``."""
    found = {}
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        at = 7 + value[6]
        found[name.decode()] = SignalValue(value[at:], value[7:at].decode(), int.from_bytes(value[:6], "big"))
    return found


_NULL = msgspec.Raw(b"\xa4null")


def _as_text(data: bytes) -> msgspec.Raw:
    """Bytes packed as text: the server's library knows no other kind."""
    if data == b"null":
        return _NULL
    size = len(data)
    if size < 32:
        return msgspec.Raw(b"%c%b" % (0xA0 | size, data))
    if size < 0x10000:
        return msgspec.Raw(b"\xda" + size.to_bytes(2, "big") + data)
    return msgspec.Raw(b"\xdb" + size.to_bytes(4, "big") + data)


class Run(NamedTuple):
    """Completed jobs of the queue in place ``queue``, as the server reads them."""

    queue: int
    ids: list[str]
    tokens: list[str]
    #: Of each, or the one of all: what is equal need not be read again and again.
    durations: list[int] | int
    results: list[Any] | Any
    #: What the worker says of itself; 0: nothing.
    facts: str | int


def completions(queue: int, ends: list[Settlement]) -> Run:
    """Ends of one queue that completed and hold no group, with the same facts."""
    durations = [-1 if end.duration_ms is None else end.duration_ms for end in ends]
    results = [end.result for end in ends]
    return Run(
        queue,
        [end.id for end in ends],
        [end.token for end in ends],
        durations[0] if _are_equal(durations) else durations,
        _result(results[0]) if _are_equal(results) else [_result(result) for result in results],
        facts_text(ends[0].facts),
    )


@lru_cache(maxsize=128)
def facts_text(facts: WorkerFacts | None) -> str | int:
    """What a worker says of itself, as history keeps it: text, which the server only hands on."""
    return 0 if facts is None else msgspec.json.encode(facts).decode()


@lru_cache(maxsize=1024)
def read_facts(text: str | int) -> WorkerFacts | None:
    """The same, from a row of history."""
    return msgspec.json.decode(text, type=WorkerFacts) if isinstance(text, str) else None


def _are_equal(values: list[Any]) -> bool:
    return values.count(values[0]) == len(values)


def _result(result: bytes | None) -> Any:
    return 0 if result is None else _as_text(result)


def settlement(index: int, end: Settlement) -> End:
    """Another end as the server reads it."""
    outcome = COMPLETE_AND_HOLD if end.outcome is Outcome.COMPLETE else OUTCOME_NUMBERS[end.outcome]
    return End(
        index,
        end.id,
        end.token,
        outcome,
        -1 if end.duration_ms is None else end.duration_ms,
        _result(end.result),
        end.delay_ms,
        text(end.signal if end.outcome is Outcome.SUSPEND else end.reason),
        int(end.uses_attempt),
        int(end.miss),
        0 if end.error is None else _failure(end.error),
        end.hold_ms,
        0 if end.filled is None else _filled(end.filled),
        facts_text(end.facts),
    )


def _failure(error: ErrorInfo) -> Failure:
    return Failure(
        text(error.error_class),
        text(error.message),
        text(error.traceback),
        text(error.fingerprint),
        text(error.message[:BRIEF_CHARS]),
        0 if error.brief is None else text(error.brief),
    )

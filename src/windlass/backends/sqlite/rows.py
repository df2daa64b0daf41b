"""Converts rows of the job table to ``JobRecord`` and back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from windlass.core import bad_records
from windlass.core.job import ErrorInfo, JobRecord, SignalValue, WorkerInfo
from windlass.core.options import ALL_UNSAID, StoredOptions
from windlass.core.queue_time import QueueTime
from windlass.core.retention import keep_until, spare_until
from windlass.core.states import DUE_LATER, FINISHED, JobState

Row = tuple[Any, ...]

#: Columns that may change after the add and hold the value of the record's field.
_COPIED = (
    *("priority", "place", "ready_ms", "expires_ms", "started_ms", "finished_ms", "attempts", "deliveries"),
    *("stalls", "manual_retries", "misses", "token", "settled_token", "lease_until_ms", "worker"),
    *("cancel_reason", "progress", "result", "result_until_ms", "reason", "awaits", "turn"),
)
_copied = attrgetter(*_COPIED)
#: The columns that ``changed_row`` writes, in order, without the row's number.
JOB_CHANGED = (
    *_COPIED,
    *("state", "options", "due_ms", "errors", "keep_until_ms", "spare_until_ms", "linked", "held_ms"),
    *("signals", "idle", "grp", "queue_time"),
)
#: The columns that do not change after the add. Only ``whole_row`` writes them.
JOB_FIXED = ("queue", "id", "task", "payload", "codec", "request_id", "enqueued_ms")
#: The columns that ``edges.to_edge`` reads, in order. The dependent's queue and id come from its own row.
EDGE_COLUMNS = (
    "[job].queue, [job].id, [edge].queue, child, child_seq, child_run, on_failure, status, "
    "[edge].value, [edge].codec, [edge].reason, error"
)
#: Payloads with more bytes than this are in a separate table.
INLINE_PAYLOAD = 2_000
#: Chunks of a log are keyed by queue * LOG_KEY + id of their last record.
LOG_KEY = 2**40
#: The highest possible job number.
LAST_SEQ = 2**63 - 1

STATES = {state.value: state for state in JobState}
#: All states as an SQL list.
STATE_LIST = ", ".join(f"'{state}'" for state in STATES)
#: The column ``idle``, set for jobs that wait for something other than their turn or a time.
IDLE = {JobState.BLOCKED: 1, JobState.PARKED: 2, JobState.SUSPENDED: 3}


def index_of(state: JobState) -> tuple[str, tuple[str | int, ...]]:
    """The name of the index that has the jobs of a state, and its parameters after the queue.

    ``due`` has the jobs of both states that are due later.
    """
    if state in FINISHED:
        return "finished", (state,)
    if state is JobState.ACTIVE:
        return "active", ()
    if state is JobState.WAITING:
        return "waiting", ()
    return ("due", ()) if state in DUE_LATER else ("idle", (IDLE[state],))


def by_queue(refs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Group ids by queue."""
    found: dict[str, list[str]] = {}
    for queue, job_id in refs:
        found.setdefault(queue, []).append(job_id)
    return found


_json = msgspec.json.Encoder()
_options_decoder = msgspec.json.Decoder(StoredOptions)
decode_cursors = msgspec.json.Decoder(dict[str, int]).decode
decode_queue_time = msgspec.json.Decoder(QueueTime).decode
_errors_decoder = msgspec.json.Decoder(list[ErrorInfo])
_pack = msgspec.msgpack.Encoder().encode
_unpack_signals = msgspec.msgpack.Decoder(dict[str, SignalValue]).decode
unpack_worker = msgspec.msgpack.Decoder(WorkerInfo).decode

#: How a transaction changed job counts (state, by) and lifetime counters (task, outcome, by).
Deltas = tuple[list[tuple[JobState, int]], list[tuple[str, str, int]]]
unpack_deltas = msgspec.msgpack.Decoder(Deltas).decode

_PLAIN = StoredOptions()
_WAITING = JobState.WAITING  # members of an enum are slow to look up
#: Default options as text, and the text for a job that was added by name without any options.
PLAIN_OPTIONS = "{}"
UNSAID_OPTIONS = f'{{"unsaid":{ALL_UNSAID}}}'


@lru_cache(maxsize=1_024)
def decode_options(text: str) -> StoredOptions:
    return _options_decoder.decode(text)


def readable_options(text: str) -> StoredOptions:
    """Decode options. Returns the defaults if they cannot be read."""
    found = bad_records.read_or_none(text, decode_options, "the options of a job")
    return _PLAIN if found is None else found


#: Recently encoded options by identity, with their text. Many jobs share an options object.
_texts: dict[int, tuple[StoredOptions, str]] = {}


def encode_options(options: StoredOptions) -> str:
    """Encode options as JSON. Default options are ``{}``."""
    known = _texts.get(id(options))
    if known is not None and known[0] is options:
        return known[1]
    text = PLAIN_OPTIONS if options == _PLAIN else encode_json(options)
    if len(_texts) >= 1_024:
        _texts.clear()
    _texts[id(options)] = (options, text)
    return text


def too_old_from(options_text: str, state: str, finished_ms: int) -> int | None:
    """Return ``keep_until_ms`` of a finished job, or None if its age never removes it.

    It is also None for jobs with default options. All of them in one state are kept equally long, so
    ``expired`` finds them in the order in which they finished and they need no index by this column.
    """
    if options_text in (PLAIN_OPTIONS, UNSAID_OPTIONS):
        return None
    return keep_until(decode_options(options_text), state, finished_ms)


def encode_json(value: object) -> str:
    try:
        return _json.encode(value).decode()
    except UnicodeEncodeError:
        return _json.encode(storable(value)).decode()


def pack(value: object) -> bytes:
    """Encode a value as MessagePack. Invalid Unicode is replaced (see ``storable``)."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return _pack(storable(value))


def storable(value: Any) -> Any:
    """Return ``value`` with valid Unicode in every text.

    A lone surrogate becomes a question mark, so that a job is not lost because of one. They occur, for
    example, in errors that quote a file name.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, msgspec.Struct):
        return type(value)(*map(storable, msgspec.structs.astuple(value)))
    if isinstance(value, dict):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    return value


_TEXT, _NUMBER, _BYTES, _NONE = str, int, bytes, type(None)
#: The columns that ``record`` reads, in order, with their types. SQLite alone would accept others in most.
_COLUMNS: dict[str, tuple[type, ...]] = {
    "seq": (_NUMBER,),
    "queue": (_NUMBER,),
    **dict.fromkeys(("id", "task", "state"), (_TEXT,)),
    **dict.fromkeys(("priority", "place"), (_NUMBER,)),
    "payload": (_BYTES,),
    **dict.fromkeys(("codec", "options"), (_TEXT,)),
    "request_id": (_TEXT, _NONE),
    **dict.fromkeys(("enqueued_ms", "ready_ms"), (_NUMBER,)),
    **dict.fromkeys(("due_ms", "expires_ms", "started_ms", "finished_ms"), (_NUMBER, _NONE)),
    **dict.fromkeys(("attempts", "deliveries", "stalls", "manual_retries", "misses"), (_NUMBER,)),
    **dict.fromkeys(("token", "settled_token"), (_TEXT, _NONE)),
    "lease_until_ms": (_NUMBER, _NONE),
    **dict.fromkeys(("worker", "cancel_reason"), (_TEXT, _NONE)),
    **dict.fromkeys(("progress", "result"), (_BYTES, _NONE)),
    "result_until_ms": (_NUMBER, _NONE),
    "reason": (_TEXT,),
    "errors": (_TEXT, _NONE),
    **dict.fromkeys(("linked", "held_ms"), (_NUMBER, _NONE)),
    "awaits": (_TEXT, _NONE),
    "signals": (_BYTES, _NONE),
    "turn": (_NUMBER,),
    "queue_time": (_TEXT, _NONE),
}
#: The same as SQL. A large payload is in a separate table.
_PAYLOAD = "coalesce(payload, (SELECT data FROM [payload] WHERE [payload].seq = [job].seq))"
JOB_COLUMNS = ", ".join(_PAYLOAD if name == "payload" else name for name in _COLUMNS)
#: Fields that the replacement of a damaged row keeps, if their types are right.
_KEPT = (
    *("task", "priority", "place", "enqueued_ms", "ready_ms", "due_ms", "started_ms", "finished_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "misses", "token", "settled_token"),
    *("lease_until_ms", "worker", "turn"),
)
#: Combinations of column types that passed the check. There are few of them.
_right: set[tuple[type, ...]] = set()


def _check_types(row: Row) -> None:
    types = tuple(map(type, row))
    if types in _right:
        return
    for name, value, wanted in zip(_COLUMNS, row, _COLUMNS.values(), strict=True):
        if type(value) not in wanted:
            raise bad_records.BadRecordError(f"its column {name} holds a {type(value).__name__}")
    _right.add(types)


def record(row: Row, queue: str) -> JobRecord:
    """Return the job of ``row`` (columns as in ``JOB_COLUMNS``), or a replacement if it cannot be read."""
    try:
        return _record(row, queue)
    except bad_records.UNREADABLE as exc:
        return stand_in_for(row, queue, exc)


def stand_in_for(row: Row, queue: str, why: Exception) -> JobRecord:
    """Return the job that replaces ``row``, which cannot be read. It carries the row's bytes."""
    columns = dict(zip(_COLUMNS, row, strict=True))
    fields = {name: columns[name] for name in _KEPT if type(columns[name]) in _COLUMNS[name]}
    job_id = columns["id"]
    if type(job_id) is not str:
        job_id = job_id.decode("utf-8", "backslashreplace") if type(job_id) is bytes else str(job_id)
    job = bad_records.stand_in(
        queue,
        job_id,
        msgspec.msgpack.encode(columns),
        why,
        seq=columns["seq"],
        state=STATES.get(columns["state"]) or _last_state(columns),
        linked=columns["linked"] is not None,
        **fields,
    )
    if job.state not in FINISHED or columns["state"] not in STATES:
        job.finished_ms = None
    elif job.finished_ms is None and columns["finished_ms"] is not None:
        job.finished_ms = job.enqueued_ms  # a finished job must have a time; which one does not matter
    return job


def _last_state(columns: dict[str, Any]) -> JobState:
    """Guess the state of a job whose state column is invalid. The job is still counted in that state."""
    if columns["finished_ms"] is not None:
        if columns["errors"] is not None:
            return JobState.FAILED
        return JobState.COMPLETED if columns["cancel_reason"] is None else JobState.CANCELLED
    if columns["lease_until_ms"] is not None:
        return JobState.ACTIVE
    if columns["due_ms"] is not None:
        return JobState.RETRYING if columns["attempts"] else JobState.SCHEDULED
    return JobState.WAITING if columns["held_ms"] is None else JobState.BLOCKED


def _record(row: Row, queue: str) -> JobRecord:
    _check_types(row)
    return JobRecord(
        queue=queue,
        seq=row[0],
        id=row[2],
        task=row[3],
        state=STATES[row[4]],
        priority=row[5],
        place=row[6],
        payload=row[7],
        codec=row[8],
        options=decode_options(row[9]),
        request_id=row[2] if row[10] is None else row[10],
        enqueued_ms=row[11],
        ready_ms=row[12],
        due_ms=row[13] if row[33] is None else row[33],
        expires_ms=row[14],
        started_ms=row[15],
        finished_ms=row[16],
        attempts=row[17],
        deliveries=row[18],
        stalls=row[19],
        manual_retries=row[20],
        misses=row[21],
        token=row[22],
        settled_token=row[23],
        lease_until_ms=row[24],
        worker=row[25],
        cancel_reason=row[26],
        progress=row[27],
        result=row[28],
        result_until_ms=row[29],
        reason=row[30],
        errors=[] if row[31] is None else _errors_decoder.decode(row[31]),
        linked=row[32] is not None,
        awaits=row[34],
        signals={} if row[35] is None else _unpack_signals(row[35]),
        turn=row[36],
        queue_time=None if row[37] is None else decode_queue_time(row[37]),
    )


def whole_row(job: JobRecord, queue: int, *, grouped: bool) -> Row:
    """Return all columns of a job: ``JOB_FIXED``, ``JOB_CHANGED``, its number."""
    return (
        queue,
        job.id,
        job.task,
        job.payload if len(job.payload) <= INLINE_PAYLOAD else None,
        job.codec,
        None if job.request_id == job.id else job.request_id,
        job.enqueued_ms,
        *changed_row(job, grouped=grouped),
    )


def is_plain(job: JobRecord) -> bool:
    """Whether ``plain_row`` can store a new job. The caller knows that its queue has never had groups."""
    return (
        job.state is _WAITING
        and job.place == job.seq
        and job.request_id == job.id
        and job.ready_ms == job.enqueued_ms
        and job.expires_ms is None
        and job.queue_time is None
        and job.options.group is None
        and not job.linked
        and len(job.payload) <= INLINE_PAYLOAD
    )


def plain_row(job: JobRecord, queue: int, options_text: str) -> Row:
    """Return the parameters of ``job_insert_plain``.

    The payload is a bytearray because the sqlite3 module binds it directly. For bytes and None it first looks
    for adapters, which is slow.
    """
    return (
        job.seq,
        queue,
        job.id,
        job.task,
        job.priority,
        bytearray(job.payload),
        job.codec,
        options_text,
        job.enqueued_ms,
    )


def changed_row(job: JobRecord, *, grouped: bool) -> Row:
    """Return the parameters of ``job_save``: everything that may change after the add, except the payload.

    ``grouped`` says whether the queue has ever had groups.
    """
    finished_ms = job.finished_ms
    ended = finished_ms is not None and job.state in FINISHED
    held = job.state is JobState.BLOCKED  # keep its due time out of ``due_ms``, or it would be promoted
    options_text = encode_options(job.options)
    return (
        *_copied(job),
        job.state.value,
        options_text,
        None if held else job.due_ms,
        encode_json(job.errors) if job.errors else None,
        too_old_from(options_text, job.state, finished_ms or 0) if ended else None,
        spare_until(job.options, finished_ms or 0) if ended else None,
        1 if job.linked else None,
        job.due_ms if held else None,
        pack(job.signals) if job.signals else None,
        IDLE.get(job.state),
        job.options.group or ("" if grouped else None),
        None if job.queue_time is None else encode_json(job.queue_time),
        job.seq,
    )

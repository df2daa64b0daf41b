"""Between a row of the job table and a ``JobRecord``."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from windlass.core import bad_records
from windlass.core.job import ErrorInfo, JobRecord, SignalValue, WorkerInfo
from windlass.core.options import ALL_UNSAID, StoredOptions
from windlass.core.queue_time import QueueTime
from windlass.core.retention import keep_until, spare_until
from windlass.core.states import FINISHED, JobState

Row = tuple[Any, ...]

#: What ``record`` reads, in its order.
JOB_COLUMNS = (
    "seq, queue, id, task, state, priority, place, "
    "coalesce(payload, (SELECT data FROM [payload] WHERE [payload].seq = [job].seq)), "
    "codec, options, request_id, enqueued_ms, ready_ms, due_ms, expires_ms, started_ms, finished_ms, "
    "attempts, deliveries, stalls, manual_retries, misses, token, settled_token, lease_until_ms, worker, "
    "cancel_reason, progress, result, result_until_ms, reason, errors, linked, held_ms, awaits, signals, "
    "turn, queue_time"
)
#: What ``changed_row`` writes, in its order, except for the row's number.
JOB_CHANGED = (
    *("state", "priority", "place", "options", "ready_ms", "due_ms", "expires_ms", "started_ms"),
    *("finished_ms", "attempts", "deliveries", "stalls", "manual_retries", "misses", "token"),
    *("settled_token", "lease_until_ms", "worker", "cancel_reason", "progress", "result"),
    *("result_until_ms", "reason", "errors", "keep_until_ms", "spare_until_ms", "linked", "held_ms"),
    *("awaits", "signals", "idle", "grp", "turn", "queue_time"),
)
#: What stays as it was added, unless all of a job is written (``whole_row``).
JOB_FIXED = ("queue", "id", "task", "payload", "codec", "request_id", "enqueued_ms")
#: What ``edges.to_edge`` reads, in its order: the dependent's queue and id come from its own row.
EDGE_COLUMNS = (
    "[job].queue, [job].id, [edge].queue, child, child_seq, on_failure, status, [edge].value, [edge].codec, "
    "[edge].reason, error"
)
#: Payloads above this many bytes stand in their own table.
INLINE_PAYLOAD = 2_000
#: Chunks of a log are keyed by queue * LOG_KEY + id of their last record.
LOG_KEY = 2**40
#: No job has a greater number.
LAST_SEQ = 2**63 - 1

STATES = {state.value: state for state in JobState}
#: As a list for SQL.
STATE_LIST = ", ".join(f"'{state}'" for state in STATES)
#: The column ``idle`` of jobs that wait for something other than their turn or a time.
IDLE = {JobState.BLOCKED: 1, JobState.PARKED: 2, JobState.SUSPENDED: 3}

_json = msgspec.json.Encoder()
_options_decoder = msgspec.json.Decoder(StoredOptions)
decode_cursors = msgspec.json.Decoder(dict[str, int]).decode
decode_queue_time = msgspec.json.Decoder(QueueTime).decode
_errors_decoder = msgspec.json.Decoder(list[ErrorInfo])
_pack = msgspec.msgpack.Encoder().encode
_unpack_signals = msgspec.msgpack.Decoder(dict[str, SignalValue]).decode
unpack_worker = msgspec.msgpack.Decoder(WorkerInfo).decode

#: By how much a transaction changed job counts (state, by) and lifetime counters (task, outcome, by).
Deltas = tuple[list[tuple[JobState, int]], list[tuple[str, str, int]]]
unpack_deltas = msgspec.msgpack.Decoder(Deltas).decode

_PLAIN = StoredOptions()
_WAITING = JobState.WAITING  # members of an enum are slow to look up
#: How they are written; and those of a job that was added by name and says nothing.
PLAIN_OPTIONS = "{}"
UNSAID_OPTIONS = f'{{"unsaid":{ALL_UNSAID}}}'


@lru_cache(maxsize=1_024)
def decode_options(text: str) -> StoredOptions:
    return _options_decoder.decode(text)


def readable_options(text: str) -> StoredOptions:
    """As ``decode_options``; the usual ones where they cannot be read."""
    found = bad_records.read_or_none(text, decode_options, "the options of a job")
    return _PLAIN if found is None else found


#: Options that were written a moment ago, by their identity, with their text: many jobs share them.
_texts: dict[int, tuple[StoredOptions, str]] = {}


def encode_options(options: StoredOptions) -> str:
    """Options as JSON; a plain job's are ``{}``."""
    known = _texts.get(id(options))
    if known is not None and known[0] is options:
        return known[1]
    text = PLAIN_OPTIONS if options == _PLAIN else encode_json(options)
    if len(_texts) >= 1_024:
        _texts.clear()
    _texts[id(options)] = (options, text)
    return text


def too_old_from(options_text: str, state: str, finished_ms: int) -> int | None:
    """The column ``keep_until_ms`` of a job that finished: NULL when its age will not remove it.

    It is also NULL for plain jobs. Their age is the default of their state, so they grow too old in the order
    in which they finished and need no index of their own: ``past`` finds them in that order.
    """
    if options_text in (PLAIN_OPTIONS, UNSAID_OPTIONS):
        return None
    return keep_until(decode_options(options_text), state, finished_ms)


def encode_errors(errors: list[ErrorInfo]) -> str | None:
    return encode_json(errors) if errors else None


def encode_json(value: object) -> str:
    try:
        return _json.encode(value).decode()
    except UnicodeEncodeError:
        return _json.encode(storable(value)).decode()


def pack(value: object) -> bytes:
    """MessagePack."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return _pack(storable(value))


def storable(value: Any) -> Any:
    """``value`` with every text made valid Unicode.

    Half a surrogate pair (in the text of an error about a file name, say) is no reason to lose a job: it
    becomes a question mark.
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
#: The columns of ``JOB_COLUMNS`` by name, and the types that each may have: SQLite itself takes any in most.
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
#: Fields that may be taken from a row as they are, if their types are right, when others cannot be read.
_KEPT = (
    *("task", "priority", "place", "enqueued_ms", "ready_ms", "due_ms", "started_ms", "finished_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "misses", "token", "settled_token"),
    *("lease_until_ms", "worker", "turn"),
)
#: The types of rows that were found to be right. There are few such combinations.
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
    """The job that ``row`` (its columns as in ``JOB_COLUMNS``) describes, or what replaces it."""
    try:
        return _record(row, queue)
    except bad_records.UNREADABLE as exc:
        return stand_in_for(row, queue, exc)


def stand_in_for(row: Row, queue: str, why: Exception) -> JobRecord:
    """The job that is shown in place of ``row``, which cannot be read."""
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
        job.finished_ms = job.enqueued_ms  # some time, so that it counts as what it says it is
    return job


def _last_state(columns: dict[str, Any]) -> JobState:
    """What a job was before its state became none that there is: it is still counted as that."""
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
    """All of a job: ``JOB_FIXED``, ``JOB_CHANGED``, its number."""
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
    """Whether ``plain_row`` holds all about a new job of a queue that saw no groups."""
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
    """The parameters of ``job_insert_plain``.

    A bytearray is bound at once. For bytes and None the sqlite3 module first looks for adapters, which is
    slow.
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
    """The parameters of ``job_save``: everything that may change after the add, but the payload.

    ``grouped``: whether the queue saw groups.
    """
    finished_ms = job.finished_ms
    ended = finished_ms is not None and job.state in FINISHED
    held = job.state is JobState.BLOCKED  # its due time must not make it ready
    options_text = encode_options(job.options)
    return (
        job.state.value,
        job.priority,
        job.place,
        options_text,
        job.ready_ms,
        None if held else job.due_ms,
        job.expires_ms,
        job.started_ms,
        finished_ms,
        job.attempts,
        job.deliveries,
        job.stalls,
        job.manual_retries,
        job.misses,
        job.token,
        job.settled_token,
        job.lease_until_ms,
        job.worker,
        job.cancel_reason,
        job.progress,
        job.result,
        job.result_until_ms,
        job.reason,
        encode_errors(job.errors),
        too_old_from(options_text, job.state, finished_ms or 0) if ended else None,
        spare_until(job.options, finished_ms or 0) if ended else None,
        1 if job.linked else None,
        job.due_ms if held else None,
        job.awaits,
        pack(job.signals) if job.signals else None,
        IDLE.get(job.state),
        job.options.group or ("" if grouped else None),
        job.turn,
        None if job.queue_time is None else encode_json(job.queue_time),
        job.seq,
    )

"""Jobs as AMQP messages, in the standard format that every language reads and writes.

The body is one JSON object: ``jid``, ``class``, ``args``, ``queue``, ``retry``, ``retry_count``,
``enqueued_at``, ``tags``, and ``kwargs`` where a Python caller used them. The header ``x-windlass`` has what
only Windlass needs. A message without it comes from another program. Unknown fields of its body are kept with
the job (``extra`` of its payload) and are part of the message of each retry.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from windlass.core import bad_records
from windlass.core.backoff import Backoff
from windlass.core.ids import check_job_id, check_queue_name, check_task_name
from windlass.core.job import ErrorInfo, JobRecord, fingerprint, retries_of
from windlass.core.option_values import PRIORITY_MAX, PRIORITY_MIN
from windlass.core.options import ALL_UNSAID, MOST_LINES, StoredOptions, unsaid_bits
from windlass.core.queue_time import QueueTime
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.speedups.amqp_frames import Delivery, job_properties, properties

#: Retries after the first run, if a message does not give a number.
DEFAULT_RETRY = 25
#: The most bytes of a short string in AMQP.
_SHORT = 255
_KNOWN = {
    "jid",
    "class",
    "args",
    "kwargs",
    "queue",
    "retry",
    "retry_count",
    "enqueued_at",
    "tags",
    "priority",
    "backtrace",
}
_BODY_CODEC = "json"
#: Headers must fit into one frame (128 kB).
_MOST_HEADER = 50_000
#: The ``form`` of a payload that is in the body as base64.
_IN_BODY = "raw"
#: The name of ``bad_records.BAD_RECORD`` in earlier releases.
_BAD_MESSAGE = "bad_message"
#: Larger messages are not read. Windlass itself publishes smaller ones.
MOST_BODY = 4_000_000


class Carried(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The header ``x-windlass``, in MessagePack: the fields of the record that are not in the body."""

    gen: int = 0
    seq: int = 0
    place: int = 0
    codec: str = "json"
    priority: int = 0
    options: StoredOptions = StoredOptions()
    request_id: str = ""
    enqueued_ms: int = 0
    ready_ms: int = 0
    expires_ms: int | None = None
    attempts: int = 0
    deliveries: int = 0
    stalls: int = 0
    manual_retries: int = 0
    misses: int = 0
    settled_token: str | None = None
    errors: list[ErrorInfo] = []
    #: How the arguments were given (see ``windlass.jobs.payload``).
    form: str = ""
    #: The payload itself, if it cannot be restored from the body exactly.
    payload: bytes | None = None
    #: The inbox of the client that waits for the result, if there is one.
    reply: str = ""
    #: A coordinator that took over published it, and its predecessor may have done so too. Workers verify it
    #: before they start the job.
    again: bool = False
    #: Which message of its generation it is. 0 for the first; each coordinator that publishes messages again
    #: has its own number.
    copy: int = 0
    #: The queue time before it was published, if the job did not only wait in line.
    queue_time: QueueTime | None = None


class MessageError(ValueError):
    """A message is not a job."""


_encode = msgspec.msgpack.Encoder().encode
_decode_carried = msgspec.msgpack.Decoder(Carried).decode
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode
_read_payload = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_ARGS = msgspec.Raw(b"[]")
_NOTHING = msgspec.Raw(b"")


def band(priority: int) -> int:
    """The broker's priority, 0 to 10: 1 to 7 as they are, 8 from 8, 9 from 1,000, 10 from 1,000,000 on."""
    if priority <= 7:
        return max(priority, 0)
    return 8 if priority < 1_000 else 9 if priority < 1_000_000 else 10


def body_fields(job: JobRecord) -> dict[str, Any]:
    """The JSON object of a job. The arguments are copied without decoding them."""
    fields: dict[str, Any] = {
        "jid": job.id,
        "class": job.task,
        "args": _NO_ARGS,
        "queue": job.queue,
        "retry": max(job.options.max_attempts - 1, 0),
        "retry_count": retries_of(job),
        "enqueued_at": job.enqueued_ms / 1000,
        "backtrace": job.options.backtrace,
    }
    if job.options.tags:
        fields["tags"] = job.options.tags
    if job.priority:
        fields["priority"] = job.priority
    stored = _parts(job)
    if stored is None:
        fields["codec"] = job.codec
        return fields
    fields["args"] = stored.get("args", _NO_ARGS)
    if "kwargs" in stored:
        fields["kwargs"] = stored["kwargs"]
    if "extra" in stored:
        fields = {**_from_json(stored["extra"]), **fields}
    return fields


def _parts(job: JobRecord) -> dict[str, msgspec.Raw] | None:
    """The encoded parts of a JSON payload; None if other languages cannot read the payload."""
    if job.codec != _BODY_CODEC:
        return None
    try:
        return _read_payload(job.payload)
    except msgspec.DecodeError:
        return None


def _join(args: bytes | None, kwargs: bytes | None, extra: bytes | None, form: str) -> bytes:
    """Join the parts of a payload in the order in which ``windlass.jobs.payload`` writes them."""
    parts = []
    if args is not None and (args != b"[]" or form == "list"):
        parts.append(b'"args":' + args)
    if kwargs is not None:
        parts.append(b'"kwargs":' + kwargs)
    if extra is not None:
        parts.append(b'"extra":' + extra)
    if form:
        parts.append(b'"form":"' + form.encode() + b'"')
    return b"{" + b",".join(parts) + b"}"


def to_message(job: JobRecord, gen: int, reply: str = "", *, copy: int = 0) -> tuple[bytes, bytes]:
    """Body and properties of the message of a waiting job. ``reply`` and ``copy``: see ``Carried``."""
    fields = body_fields(job)
    form = _form(job.payload)
    kwargs = fields.get("kwargs")
    rejoined = _join(bytes(fields["args"]), None if kwargs is None else bytes(kwargs), None, form)
    carried = Carried(
        gen=gen,
        seq=job.seq,
        place=job.place,
        codec=job.codec,
        priority=job.priority,
        options=job.options,
        request_id=job.request_id,
        enqueued_ms=job.enqueued_ms,
        ready_ms=job.ready_ms,
        expires_ms=job.expires_ms,
        attempts=job.attempts,
        deliveries=job.deliveries,
        stalls=job.stalls,
        manual_retries=job.manual_retries,
        misses=job.misses,
        settled_token=job.settled_token,
        errors=job.errors,
        form=form,
        payload=None if rejoined == job.payload else job.payload,
        reply=reply,
        again=copy != 0,
        copy=copy,
        queue_time=job.queue_time,
    )
    if carried.payload is not None and len(carried.payload) > _MOST_HEADER:
        fields["payload"] = base64.b64encode(job.payload).decode()
        carried.payload, carried.form = None, _IN_BODY
    header = _encode(carried)
    if len(header) > _MOST_HEADER:  # shorten the errors: the coordinator has all of them
        carried.errors = [msgspec.structs.replace(error, traceback="") for error in job.errors[-3:]]
        header = _encode(carried)
    message_id = job.id if len(job.id) <= _SHORT else ""
    return _to_json(fields), job_properties(header, band(job.priority), message_id)


def to_ask_about(delivery: Delivery, message_id: str) -> bytes:
    """The properties of a message that is published again, so that a worker verifies it first."""
    if delivery.header is None:
        return properties(delivery_mode=2, priority=delivery.priority or None, message_id=message_id or None)
    carried = _decode_carried(delivery.header)
    carried.again = True
    return job_properties(_encode(carried), delivery.priority, message_id)


def _form(payload: bytes) -> str:
    """How the arguments were given, which ``windlass.jobs.payload.pack_data`` writes at the end."""
    at = payload.rfind(b'"form":"')
    return payload[at + 8 : -2].decode("ascii", "replace") if at >= 0 else ""


class Incoming(msgspec.Struct):
    """A decoded message: its job, and its generation (0: published when the job was created)."""

    job: JobRecord
    gen: int
    foreign: bool
    #: See ``Carried``.
    reply: str = ""
    again: bool = False
    copy: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """Identifies the message up to repeats: all copies of a message have the same key."""
        return self.job.queue, self.job.id, self.gen


class _Body(msgspec.Struct, rename={"task": "class"}):
    """The fields that we read from the body of a message with our header. Arguments are not decoded."""

    jid: str
    task: str
    args: msgspec.Raw = _NO_ARGS
    kwargs: msgspec.Raw = _NOTHING
    payload: str = ""


_read_body = msgspec.json.Decoder(_Body).decode


def read_message(queue: str, body: bytes, header: bytes | None, priority: int, now_ms: int) -> Incoming:
    """The job of a message, with our header if it has one. Raises ``MessageError`` if it is not a job."""
    _check_size(body)
    if header is not None:
        try:
            return _own(queue, _read_body(body), _decode_carried(header))
        except bad_records.UNREADABLE:
            pass  # another program uses our header: read only the body
    try:
        fields = _from_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MessageError(f"not JSON: {exc}") from exc
    try:
        return Incoming(read_job(queue, fields, now_ms, priority=priority), 0, True)
    except bad_records.UNREADABLE as exc:
        raise MessageError(str(exc)) from exc


def _check_size(body: bytes) -> None:
    if len(body) > MOST_BODY:
        raise MessageError(f"{len(body)} bytes are more than the {MOST_BODY} that a message may have")


def _own(queue: str, body: _Body, carried: Carried) -> Incoming:
    payload = carried.payload
    if carried.form == _IN_BODY:
        payload = base64.b64decode(body.payload)
    elif payload is None:
        kwargs = bytes(body.kwargs) or None
        payload = _join(bytes(body.args), kwargs, None, carried.form)
    job = JobRecord(
        queue=queue,
        id=body.jid,
        task=body.task,
        payload=payload,
        codec=carried.codec,
        priority=carried.priority,
        seq=carried.seq,
        place=carried.place,
        options=carried.options,
        request_id=carried.request_id,
        enqueued_ms=carried.enqueued_ms,
        ready_ms=carried.ready_ms,
        expires_ms=carried.expires_ms,
        attempts=carried.attempts,
        deliveries=carried.deliveries,
        stalls=carried.stalls,
        manual_retries=carried.manual_retries,
        misses=carried.misses,
        settled_token=carried.settled_token,
        errors=carried.errors,
        queue_time=carried.queue_time,
    )
    return Incoming(job, carried.gen, False, carried.reply, carried.again, carried.copy)


def _payload_of(fields: dict[str, Any]) -> bytes:
    stored: dict[str, Any] = {}
    if fields.get("args"):
        stored["args"] = fields["args"]
    if "kwargs" in fields:
        stored["kwargs"] = fields["kwargs"]
    extra = {name: value for name, value in fields.items() if name not in _KNOWN}
    if extra:
        stored["extra"] = extra
    return _to_json(stored)


def read_job(queue: str, fields: Any, now_ms: int, *, priority: int = 0, jid: str = "") -> JobRecord:
    """The job of a standard job object of any program. Raises ``MessageError`` if it is not one."""
    if not isinstance(fields, dict):
        raise MessageError("job must be an object")
    try:
        job_id = check_job_id(fields.get("jid") or jid)
        task = check_task_name(fields.get("class"))
        check_queue_name(queue)
    except ConfigError as exc:
        raise MessageError(str(exc)) from exc
    args, kwargs = fields.get("args", []), fields.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise MessageError("args must be a list and kwargs an object")
    enqueued_ms = to_ms(fields.get("enqueued_at"), now_ms, "enqueued_at")
    given = fields.get("priority", priority)
    return JobRecord(
        queue=queue,
        id=job_id,
        task=task,
        payload=_payload_of(fields),
        priority=given if _is_priority(given) else priority,
        options=StoredOptions(
            max_attempts=runs_of(fields.get("retry")),
            backoff=Backoff(type="sidekiq"),
            tags=_tags(fields),
            backtrace=_lines(fields.get("backtrace")),
            unsaid=ALL_UNSAID if fields.get("retry") is None else unsaid_bits(["max_attempts"]),
        ),
        enqueued_ms=enqueued_ms,
        ready_ms=min(enqueued_ms, now_ms),
        attempts=_count(fields.get("retry_count"), "retry_count"),
    )


def _is_priority(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and PRIORITY_MIN <= value <= PRIORITY_MAX


def runs_of(retry: Any) -> int:
    """``max_attempts`` for a value of ``retry``: a number, true for the default, or false for no retries."""
    if retry is None or retry is True:
        return DEFAULT_RETRY + 1
    if retry is False:
        return 1
    return _count(retry, "retry") + 1


def _lines(backtrace: Any) -> int:
    """How many lines of a traceback to keep; true means as many as possible, false none."""
    if backtrace is None:
        return StoredOptions().backtrace
    if isinstance(backtrace, bool):
        return MOST_LINES if backtrace else 0
    return min(_count(backtrace, "backtrace"), MOST_LINES)


def _count(value: Any, name: str) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise MessageError(f"{name} must be a whole number from 0 on")
    return value


def to_ms(value: Any, otherwise: int, name: str) -> int:
    if value is None:
        return otherwise
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 2**42:
        raise MessageError(f"{name} must be seconds since 1970")
    return round(value * 1000)


def _tags(fields: dict[str, Any]) -> tuple[str, ...]:
    tags = fields.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise MessageError("tags must be a list of texts")
    return tuple(tags[:32])


class StreamEntry(msgspec.Struct):
    """A message of ``scheduled_jobs``, ``retries`` or ``dead_jobs``."""

    job: JobRecord
    state: JobState
    at_ms: int
    error: ErrorInfo | None = None


_AT = {"scheduled_job": "scheduled_at", "retry": "retry_at", "dead_job": "died_at"}
_STATE = {
    "scheduled_job": JobState.SCHEDULED,
    "retry": JobState.RETRYING,
    "dead_job": JobState.FAILED,
}


def read_entry(body: bytes, kind: str, now_ms: int) -> StreamEntry:
    """Decode an entry of a public stream of type ``kind``. Raises ``MessageError`` if it is not one."""
    _check_size(body)
    try:
        fields = _from_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MessageError(f"not JSON: {exc}") from exc
    if not isinstance(fields, dict) or fields.get("type", kind) != kind:
        raise MessageError(f"it must be an object of type {kind!r}")
    fields = opened(fields)
    inner = fields.get("job")
    if not isinstance(inner, dict):
        raise MessageError("job must be an object")
    job = read_job(inner.get("queue") or "default", inner, now_ms, jid=fields.get("jid") or "")
    if kind != "dead_job" and fields.get(_AT[kind]) is None:
        raise MessageError(f"{_AT[kind]} is missing")
    entry = StreamEntry(job, _STATE[kind], to_ms(fields.get(_AT[kind]), now_ms, _AT[kind]))
    if kind != "scheduled_job":
        # ``retry_count`` of a retry includes its last failure. That of a dead job led to no retry.
        job.attempts = _count(fields.get("retry_count"), "retry_count") + (kind == "dead_job")
        name, message = str(fields.get("error_class") or ""), str(fields.get("error_message") or "")
        at_ms = to_ms(fields.get("failed_at"), min(entry.at_ms, now_ms), "failed_at")
        trace = str(fields.get("backtrace") or "")
        entry.error = ErrorInfo(at_ms, max(job.attempts, 1), name, message, trace, fingerprint(name, message))
    return entry


def envelope(kind: str, at_ms: int, fields: dict[str, Any]) -> bytes:
    """The body of a stream message: an envelope (``type``, ``timestamp``, ``data``) around its fields, which
    are also at the top level for programs that look for them there."""
    return _to_json({"type": kind, "timestamp": at_ms / 1000, **fields, "data": fields})


def opened(message: dict[str, Any]) -> dict[str, Any]:
    """The fields of a stream message, from its top level or from its ``data``."""
    data = message.get("data")
    return {**message, **data} if isinstance(data, dict) else message


def entry_message(job: JobRecord, now_ms: int) -> tuple[str, bytes] | None:
    """The type and body of the stream message of a scheduled, retrying or dead job, else None."""
    inner = body_fields(job)
    rest: dict[str, Any]
    error = job.errors[-1] if job.errors else ErrorInfo()
    failure = {"error_message": error.message, "error_class": error.error_class}
    if job.state is JobState.SCHEDULED:
        kind, rest = "scheduled_job", {"scheduled_at": (job.due_ms or 0) / 1000}
    elif job.state is JobState.RETRYING:
        failed_ms = error.at_ms or job.started_ms or 0  # a stalled job may have no error
        times: dict[str, Any] = {"retry_at": (job.due_ms or 0) / 1000, "failed_at": failed_ms / 1000}
        kind, rest = "retry", {**times, "retry_count": job.attempts, **failure}
    elif job.state is JobState.FAILED:
        kind = "dead_job"
        rest = {
            "died_at": (job.finished_ms or 0) / 1000,
            "retry_count": retries_of(job),
            **failure,
            "backtrace": error.traceback,
            "reason": job.reason,
        }
    else:
        return None
    if job.reason in (bad_records.BAD_RECORD, _BAD_MESSAGE):
        rest["raw"] = base64.b64encode(job.payload[:MOST_BODY]).decode()
    return kind, envelope(kind, now_ms, {"jid": job.id, **rest, "job": inner})

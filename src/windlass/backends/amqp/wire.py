"""How entries of the log, answers and kept records look on the wire. All MessagePack, never pickle."""

from __future__ import annotations

from typing import Any

import msgspec
from pika import BasicProperties

from windlass.backends.amqp import verbs
from windlass.backends.amqp.session import PERSISTENT
from windlass.core.job import JobRecord
from windlass.errors import (
    ConfigError,
    HistoryTrimmedError,
    StorageError,
    UnsupportedByBackendError,
    WindlassError,
)
from windlass.speedups import amqp_frames as frames
from windlass.speedups.amqp import Outgoing

#: Marks copies in the streams of what we keep elsewhere.
COPY = "x-windlass-copy"
COPIED = frames.properties(content_type="application/json", delivery_mode=PERSISTENT, headers={COPY: 1})


class LogEntry(msgspec.Struct, array_like=True):
    """One entry of ``windlass.log``. ``at_ms``: its writer's clock, used when the log is read again."""

    at_ms: int
    name: str
    request: bytes


class KeptRecord(msgspec.Struct, array_like=True):
    """One message of ``windlass.kept``."""

    gen: int
    job: JobRecord


class Reply(msgspec.Struct, array_like=True):
    """An answer, or the error that it was."""

    answer: bytes | None
    error: str = ""
    details: list[Any] = []


#: RabbitMQ closes the channel of a client that publishes more than 128 MiB.
_MOST_REPLY = 100_000_000
_encode = msgspec.msgpack.Encoder().encode
read_entry = msgspec.msgpack.Decoder(LogEntry).decode
read_kept = msgspec.msgpack.Decoder(KeptRecord).decode
_read_reply = msgspec.msgpack.Decoder(Reply).decode

#: Errors that cross the wire with their type, and the attributes that make them again.
_ERRORS: dict[str, tuple[type[WindlassError], tuple[str, ...]]] = {
    "ConfigError": (ConfigError, ("option", "want")),
    "HistoryTrimmedError": (HistoryTrimmedError, ("log", "queue", "after", "oldest")),
    "UnsupportedByBackendError": (UnsupportedByBackendError, ("backend", "capability")),
}


def log_entry(
    log: str, request: Any, at_ms: int, *, reply_to: str | None = None, correlation_id: str | None = None
) -> Outgoing:
    """The message that puts ``request`` into the log."""
    entry = LogEntry(at_ms, type(request).__name__, verbs.encode(request))
    if reply_to is None:
        return Outgoing("", log, _encode(entry))
    properties = frames.properties(delivery_mode=PERSISTENT, reply_to=reply_to, correlation_id=correlation_id)
    return Outgoing("", log, _encode(entry), properties)


def kept_record(queue: str, job: JobRecord, gen: int) -> Outgoing:
    """The message that keeps ``job``."""
    return Outgoing("", queue, _encode(KeptRecord(gen, job)))


def reply(properties: BasicProperties, answer: Any) -> Outgoing:
    """The answer to an entry of the log; an error where it cannot be sent, so that the next coordinator does
    not fail in the same way."""
    try:
        body = verbs.encode(answer)
    except Exception as exc:
        return error_reply(properties, exc)
    if len(body) > _MOST_REPLY:
        much = f"the answer has {len(body)} bytes, more than the broker may take; ask for less at once"
        return error_reply(properties, StorageError(much))
    return _reply(properties, Reply(body))


def error_reply(properties: BasicProperties, error: Exception) -> Outgoing:
    """The error that an entry of the log ended with."""
    name = type(error).__name__
    if name in _ERRORS:
        details = [_plain(getattr(error, field)) for field in _ERRORS[name][1]]
    else:
        name, details = "StorageError", [f"{type(error).__name__}: {error}"]
    return _reply(properties, Reply(None, name, details))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)


def _reply(properties: BasicProperties, content: Reply) -> Outgoing:
    back = frames.properties(correlation_id=properties.correlation_id)
    return Outgoing("", properties.reply_to or "", _encode(content), back, mandatory=False)


def open_reply(name: str, body: bytes) -> Any:
    """The answer to a request called ``name``, or its error raised."""
    try:
        content = _read_reply(body)
        if content.answer is not None:
            return verbs.decode_answer(name, content.answer)
        kind, _ = _ERRORS.get(content.error, (StorageError, ()))
        error = kind(*content.details)
    except (ValueError, TypeError, RecursionError) as exc:
        raise StorageError(f"the answer of the coordinator cannot be read: {exc}") from exc
    raise error

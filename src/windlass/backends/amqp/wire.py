"""The encoding of log entries, replies and kept records: always MessagePack, never pickle."""

from __future__ import annotations

from collections.abc import Callable
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

#: A header of messages that Windlass copies to the public streams. The coordinator skips them there.
COPY = "x-windlass-copy"
COPIED = frames.properties(content_type="application/json", delivery_mode=PERSISTENT, headers={COPY: 1})


class LogEntry(msgspec.Struct, array_like=True):
    """One entry of ``windlass.log``. ``at_ms`` is the writer's time, which also counts in a replay."""

    at_ms: int
    name: str
    request: bytes


class KeptRecord(msgspec.Struct, array_like=True):
    """One message of ``windlass.kept``."""

    gen: int
    job: JobRecord


class Reply(msgspec.Struct, array_like=True):
    """An answer, or the name and the details of an error."""

    answer: bytes | None
    error: str = ""
    details: list[Any] = []


#: RabbitMQ closes the channel of a client that publishes a message of more than 128 MiB.
_MOST_BYTES = 100_000_000
_encode = msgspec.msgpack.Encoder().encode
read_entry = msgspec.msgpack.Decoder(LogEntry).decode
read_kept = msgspec.msgpack.Decoder(KeptRecord).decode
_read_reply = msgspec.msgpack.Decoder(Reply).decode


def _config_error(option: str, want: str, message: str = "") -> ConfigError:
    return ConfigError(option, want, message=message)  # older coordinators send no message


#: Errors that keep their type on the wire, and the attributes to construct them from.
_ERRORS: dict[str, tuple[Callable[..., WindlassError], tuple[str, ...]]] = {
    "ConfigError": (_config_error, ("option", "want", "message")),
    "HistoryTrimmedError": (HistoryTrimmedError, ("log", "queue", "after", "oldest")),
    "UnsupportedByBackendError": (UnsupportedByBackendError, ("backend", "capability")),
}


def log_entry(
    log: str, request: Any, at_ms: int, *, reply_to: str | None = None, correlation_id: str | None = None
) -> Outgoing:
    """The message that appends ``request`` to the log. Raises ``StorageError`` if it is too large."""
    body = _encode(LogEntry(at_ms, type(request).__name__, verbs.encode(request)))
    check_size(body)
    if reply_to is None:
        return Outgoing("", log, body)
    properties = frames.properties(delivery_mode=PERSISTENT, reply_to=reply_to, correlation_id=correlation_id)
    return Outgoing("", log, body, properties)


def check_size(body: bytes) -> None:
    """Raise ``StorageError`` for a message that the broker may refuse.

    The broker would close the channel, and so end the connection with all jobs that run on it.
    """
    if len(body) > _MOST_BYTES:
        much = f"the request has {len(body)} bytes, more than the broker may take; send less at once"
        raise StorageError(much)


def kept_record(queue: str, job: JobRecord, gen: int) -> Outgoing:
    """The message that stores ``job`` in ``windlass.kept``."""
    return Outgoing("", queue, _encode(KeptRecord(gen, job)))


def reply(properties: BasicProperties, answer: Any) -> Outgoing:
    """The reply to a log entry.

    An answer that cannot be encoded or sent becomes an error reply. Otherwise this coordinator, and each one
    that takes over, would fail at the same entry.
    """
    try:
        body = verbs.encode(answer)
    except Exception as exc:
        return error_reply(properties, exc)
    if len(body) > _MOST_BYTES:
        much = f"the answer has {len(body)} bytes, more than the broker may take; ask for less at once"
        return error_reply(properties, StorageError(much))
    return _reply(properties, Reply(body))


def error_reply(properties: BasicProperties, error: Exception) -> Outgoing:
    """The reply to a log entry that failed with ``error``."""
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
    """The answer to a request called ``name``. Raises the error of an error reply."""
    try:
        content = _read_reply(body)
        if content.answer is not None:
            return verbs.decode_answer(name, content.answer)
        kind, _ = _ERRORS.get(content.error, (StorageError, ()))
        error = kind(*content.details)
    except (ValueError, TypeError, RecursionError) as exc:
        raise StorageError(f"the answer of the coordinator cannot be read: {exc}") from exc
    raise error

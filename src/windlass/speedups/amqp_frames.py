"""Encodes and decodes the most frequent frames without pika's objects. Part of the speed-up ``amqp``.

A published or delivered message is three frames: method, header, body. A delivered job becomes one
``Delivery``, a message to publish becomes bytes, and confirms and acknowledgements are numbers. Pika handles
all other frames.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from pika import BasicProperties

#: The name of our header in the properties of a message.
HEADER = "x-windlass"

METHOD = 1
_HEADER, _BODY = 2, 3
_END = b"\xce"
#: Class and method ids of the frames that we read and write.
DELIVER, ACK = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x50"
_PUBLISH = b"\x00\x3c\x00\x28"

_frame = Struct(">BHI")
#: Class, weight, size of the body.
_content = Struct(">HHQ")
_ack = Struct(">BHI4sQBB")
_numbers = Struct(">QB")
_short = Struct(">H")
_long = Struct(">I")

#: Flags of the properties that are present, in their order.
_CONTENT_TYPE, _ENCODING, _HEADERS, _MODE, _PRIORITY, _ID = 0x8000, 0x4000, 0x2000, 0x1000, 0x0800, 0x0080
_JSON = b"\x10application/json"
_PERSISTENT = b"\x02"
#: The beginning of a header table whose first entry is ours.
_OURS = bytes([len(HEADER)]) + HEADER.encode() + b"x"


class Delivery(NamedTuple):
    """A message from a queue that is not acknowledged yet. ``header`` is our own header, if it has one."""

    tag: int
    redelivered: bool
    header: bytes | None
    priority: int
    body: bytes


def properties(**given: Any) -> bytes:
    """Encode the properties of a message. The names are those of ``BasicProperties``."""
    return b"".join(BasicProperties(**given).encode())


def job_properties(header: bytes, priority: int, message_id: str) -> bytes:
    """Encode the properties of a job: persistent JSON with our header. A priority of 0 or an empty id is
    left out."""
    flags = _CONTENT_TYPE | _HEADERS | _MODE
    table = _OURS + _long.pack(len(header)) + header
    parts = [b"", _JSON, _long.pack(len(table)), table, _PERSISTENT]
    if priority:
        flags |= _PRIORITY
        parts.append(bytes([priority]))
    if message_id:
        flags |= _ID
        parts.append(_short_text(message_id))
    parts[0] = _short.pack(flags)
    return b"".join(parts)


def _short_text(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


@lru_cache(256)
def _publish(channel: int, exchange: str, key: str, mandatory: bool) -> bytes:
    names = _short_text(exchange) + _short_text(key)
    payload = _PUBLISH + b"\x00\x00" + names + bytes([mandatory])
    return _frame.pack(METHOD, channel, len(payload)) + payload + _END


def published(
    channel: int, exchange: str, key: str, mandatory: bool, properties: bytes, body: bytes, most: int
) -> list[bytes]:
    """The frames of a message to publish. A body frame has at most ``most`` bytes."""
    size = len(body)
    frames = [
        _publish(channel, exchange, key, mandatory),
        _frame.pack(_HEADER, channel, _content.size + len(properties)),
        _content.pack(60, 0, size),
        properties,
        _END,
    ]
    for at in range(0, size, most):
        part = body if size <= most else body[at : at + most]
        frames += (_frame.pack(_BODY, channel, len(part)), part, _END)
    return frames


def acknowledged(channel: int, tag: int, multiple: bool) -> bytes:
    """The frame that acknowledges a message, or all up to it."""
    return _ack.pack(METHOD, channel, 13, ACK, tag, multiple, _END[0])


def read_ack(data: bytes, at: int) -> tuple[int, bool]:
    """The publish tag that the frame at ``at`` confirms, and whether it confirms all up to it."""
    tag, multiple = _numbers.unpack_from(data, at + 11)
    return tag, bool(multiple & 1)


def read_consumer(data: bytes, at: int) -> bytes:
    """The consumer tag of the delivery at ``at``."""
    return data[at + 12 : at + 12 + data[at + 11]]


def read_delivery(data: bytes, at: int, end: int) -> tuple[Delivery, int] | None:
    """The message whose method frame is from ``at`` to ``end``, and the end of its frames.

    None when it is not complete, or its body is not in one frame.
    """
    places = _find_body(data, end)
    if places is None:
        return None
    body_at, over = places
    tag, redelivered = _numbers.unpack_from(data, at + 12 + data[at + 11])
    header, priority = _read_properties(data, end + _frame.size + _content.size, body_at - _frame.size - 1)
    message = Delivery(tag, bool(redelivered & 1), header, priority, data[body_at : over - 1])
    return message, over


def read_message(data: bytes, end: int) -> tuple[BasicProperties, bytes, int] | None:
    """Properties and body of the message whose method frame ends at ``end``, and the end of its frames.

    None when it is not complete, or its body is not in one frame.
    """
    places = _find_body(data, end)
    if places is None:
        return None
    body_at, over = places
    found = BasicProperties().decode(data[end + _frame.size + _content.size : body_at - _frame.size - 1])
    return found, data[body_at : over - 1], over


def _find_body(data: bytes, end: int) -> tuple[int, int] | None:
    """The start of the body of the message whose method frame ends at ``end``, and the end of its frames."""
    size = len(data)
    if size < end + _frame.size + _content.size:
        return None
    kind, _, length = _frame.unpack_from(data, end)
    body_at = end + _frame.size + length + 1
    if kind != _HEADER or size < body_at + _frame.size:
        return None
    _, _, body_size = _content.unpack_from(data, end + _frame.size)
    kind, _, length = _frame.unpack_from(data, body_at)
    body_at += _frame.size
    over = body_at + length + 1
    if kind != _BODY or length != body_size or size < over or data[over - 1] != _END[0]:
        return None
    return body_at, over


def _read_properties(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Decode our header and the priority."""
    (flags,) = _short.unpack_from(data, at)
    start, at, header = at, at + 2, None
    if flags & _CONTENT_TYPE:
        at += 1 + data[at]
    if flags & _ENCODING:
        at += 1 + data[at]
    if flags & _HEADERS:
        (length,) = _long.unpack_from(data, at)
        at += 4
        if length:
            if not data.startswith(_OURS, at) or flags & 1:
                return of_properties(BasicProperties().decode(data[start:end]))
            (size,) = _long.unpack_from(data, at + len(_OURS))
            begin = at + len(_OURS) + 4
            header = data[begin : begin + size]
            at += length
    if flags & _MODE:
        at += 1
    return header, data[at] if flags & _PRIORITY else 0


def of_properties(found: BasicProperties) -> tuple[bytes | None, int]:
    """Our header and the priority, from properties that pika decoded."""
    header = (found.headers or {}).get(HEADER)
    return bytes(header) if isinstance(header, (bytes, bytearray)) else None, found.priority or 0

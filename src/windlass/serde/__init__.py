"""Codecs: how arguments and results become bytes, with a limit on their size.

JSON is the default and the only codec that every language reads. MessagePack is smaller and keeps bytes.
``json+tagged`` keeps Python types. The suffix ``+zlib`` compresses. ``serde.signed`` and ``serde.encrypted``
sign and encrypt another codec. ``register_codec`` adds others (CBOR, Protocol Buffers, ...). ``serde.codecs``
decides which codecs an app reads. There is no pickle: write access to the store must not run code in a
worker.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import math
import uuid
import zlib
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from windlass.errors import ConfigError, PayloadTooLargeError

#: One megabyte. Store larger data elsewhere and pass a reference.
DEFAULT_MAX_BYTES = 1_000_000
#: The maximum size of a value after decompression.
_MAX_INFLATED = 64_000_000
_ZLIB = "+zlib"
#: The codecs that an app without keys reads.
PLAIN: Final = ("json", "msgpack", "json+tagged", "json+zlib", "msgpack+zlib", "json+tagged+zlib")


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back. ``name`` is stored with each job."""

    @property
    def name(self) -> str: ...

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises ``TypeError`` or ``ValueError`` when it cannot be stored."""
        ...

    def decode(self, data: bytes) -> Any:
        """Return the value of ``data``. Raises ``ValueError`` when the bytes are not of this codec."""
        ...


def plain_hook(value: Any) -> Any:
    """Convert objects that msgspec does not know: pydantic models to plain data, paths to text."""
    dump = getattr(type(value), "model_dump", None)
    if callable(dump):
        return dump(value, mode="json")
    if isinstance(value, PurePath):
        return str(value)
    name = type(value).__name__
    if hasattr(value, "pk") and hasattr(type(value), "_meta"):
        raise TypeError(
            f"the Django model {name} cannot be stored: pass its key (.pk) and load it in the task"
        )
    article = "an" if name[:1].lower() in "aeiou" else "a"
    raise TypeError(
        f"{article} {name} cannot be stored: pass plain data, a dataclass, a struct or a pydantic model, "
        "or the id of what is stored elsewhere"
    )


#: Types that msgspec encodes itself, in the way of each codec.
_NATIVE = (
    bytes,
    bytearray,
    memoryview,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    uuid.UUID,
)


def to_plain(value: Any) -> Any:
    """Return ``value`` with pydantic models and paths, at any depth, converted to plain data.

    Raises ``TypeError`` when a part of it cannot be stored.
    """
    return msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=plain_hook)


def encode_value(codec: Codec, value: Any) -> bytes:
    """Encode with ``codec``; converts pydantic models and paths only if the codec refuses the value."""
    try:
        data = codec.encode(value)
    except TypeError:
        data = codec.encode(to_plain(value))
    if type(data) is not bytes:
        raise TypeError(f"codec {codec.name!r} must return bytes, not {type(data).__name__}")
    return data


def _bounded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wrap ``decode`` so that data that is nested too deeply raises ``ValueError``."""

    def bounded(data: bytes) -> Any:
        try:
            return decode(data)
        except RecursionError:
            raise ValueError("lists or objects are nested too deeply") from None

    return bounded


class JsonCodec:
    """JSON by msgspec. Datetimes, UUIDs, Decimals, dataclasses and structs become JSON types.

    A value with NaN or infinity is refused, because JSON has neither.
    """

    name = "json"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self.decode: Callable[[bytes], Any] = _bounded(msgspec.json.Decoder().decode)

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises ``ValueError`` for NaN and infinity."""
        if value is None:  # the most common result
            return b"null"
        data = self._encode(value)
        if (
            b"null" in data and value is not None and _has_odd_number(to_plain(value))
        ):  # the encoder writes NaN and infinity as null
            raise ValueError("JSON has no NaN and no infinite numbers: pass None or a text instead")
        return data


def _has_odd_number(plain: Any) -> bool:
    """Whether plain data contains NaN or an infinity."""
    pending = [plain]
    while pending:
        value = pending.pop()
        if isinstance(value, float):
            if not math.isfinite(value):
                return True
        elif isinstance(value, dict):
            pending += value.keys()
            pending += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            pending += value
    return False


class MsgpackCodec:
    """MessagePack by msgspec: like JSON, but smaller, and bytes stay bytes."""

    name = "msgpack"

    def __init__(self) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = _bounded(msgspec.msgpack.Decoder().decode)


class ZlibCodec:
    """Another codec, with large values compressed. Small values stay uncompressed and readable in the store.

    Values of more than ``limit`` bytes stay uncompressed, too: no reader would decompress them.

    Compressed data begins with zlib's byte 0x78 and is longer than one byte. Data of the inner codec that
    begins the same way is always compressed, so that both can be distinguished.
    """

    def __init__(self, inner: Codec, threshold: int = 2_048, limit: int = _MAX_INFLATED) -> None:
        self.name: str = f"{inner.name}{_ZLIB}"
        self.inner = inner
        self._threshold = threshold
        self._limit = limit

    def bounded(self, limit: int) -> ZlibCodec:
        """The same codec, which refuses values of more than ``limit`` bytes once decompressed."""
        return ZlibCodec(self.inner, self._threshold, min(limit, self._limit))

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``, compressed if that is smaller."""
        return self.squeeze(self.inner.encode(value))

    def decode(self, data: bytes) -> Any:
        """Return the value of ``data``. Raises ``ValueError`` when it is damaged."""
        return self.inner.decode(self.unfold(data))

    def squeeze(self, data: bytes) -> bytes:
        """Compress bytes of the inner codec if that is worth it, and if a reader will decompress them."""
        marked = _looks_compressed(data)  # by chance: it must be compressed to be distinguished
        if marked and len(data) > self._limit:
            raise PayloadTooLargeError(len(data), self._limit)
        if not marked and not self._threshold <= len(data) <= self._limit:
            return data
        small = zlib.compress(data, 1)
        return small if marked or len(small) < len(data) else data

    def unfold(self, data: bytes) -> bytes:
        """Return the bytes of the inner codec. Raises ``ValueError`` when they are damaged or too many."""
        return inflate(data, self._limit) if _looks_compressed(data) else data


def _looks_compressed(data: bytes) -> bool:
    return len(data) > 1 and data[0] == 0x78


def inflate(data: bytes, limit: int = _MAX_INFLATED) -> bytes:
    """Decompress ``data``. Raises ``ValueError`` when it is damaged, incomplete or too large."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit)
    except zlib.error as exc:
        raise ValueError(f"damaged compressed data: {exc}") from exc
    if not stream.eof:
        raise ValueError(f"cut off, or more than {limit} bytes once decompressed")
    return plain


class TaggedJsonCodec:
    """JSON that keeps types: other types than JSON's are written as ``{"$type": name, "value": ...}``.

    Decimals, dates and times, UUIDs, bytes, tuples, sets and objects with other keys than texts are restored,
    also for parameters without an annotation. Classes of the application (dataclasses, structs, models)
    become plain objects, as in JSON: stored data never chooses code to run.
    """

    name = "json+tagged"

    def encode(self, value: Any) -> bytes:
        """Return the bytes of ``value``. Raises like ``JsonCodec.encode``."""
        return JSON.encode(tag_types(value))

    def decode(self, data: bytes) -> Any:
        """Return the value of ``data``. Raises ``ValueError`` also for unknown or invalid tags."""
        try:
            return untag_types(JSON.decode(data))
        except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
            raise ValueError(f"not tagged JSON: {exc!r}") from exc


_TAG: Final = "$type"
#: By exact type: the tag, and the functions that write and read the value.
_TAGS: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    datetime.datetime: ("datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", datetime.time.isoformat, datetime.time.fromisoformat),
    datetime.timedelta: (
        "timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    uuid.UUID: ("uuid", str, uuid.UUID),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    tuple: ("tuple", lambda value: [tag_types(item) for item in value], lambda items: tuple(_items(items))),
    set: ("set", lambda value: [tag_types(item) for item in value], lambda items: set(_items(items))),
    frozenset: (
        "frozenset",
        lambda value: [tag_types(item) for item in value],
        lambda items: frozenset(_items(items)),
    ),
    dict: (
        "dict",
        lambda value: [[tag_types(key), tag_types(one)] for key, one in value.items()],
        lambda pairs: {untag_types(key): untag_types(one) for key, one in pairs},
    ),
}
_READERS: Final = {tag: read for tag, _, read in _TAGS.values()}
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def tag_types(value: Any) -> Any:
    """Return ``value`` as JSON data, with a tag on each part that JSON would change."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list:
        return [tag_types(item) for item in value]
    if kind is dict and _TAG not in value and all(type(key) is str for key in value):
        return {key: tag_types(one) for key, one in value.items()}
    if kind in _TAGS:
        tag, write, _ = _TAGS[kind]
        return {_TAG: tag, "value": write(value)}
    return msgspec.to_builtins(value, enc_hook=plain_hook)


def untag_types(value: Any) -> Any:
    """Restore the value that was given to ``tag_types``."""
    if type(value) is list:
        return [untag_types(item) for item in value]
    if type(value) is not dict:
        return value
    if _TAG in value:
        return _READERS[value[_TAG]](value["value"])
    return {key: untag_types(one) for key, one in value.items()}


def _items(items: list[Any]) -> list[Any]:
    return [untag_types(item) for item in items]


JSON: Codec = JsonCodec()
_codecs: dict[str, Codec] = {"json": JSON, "msgpack": MsgpackCodec(), "json+tagged": TaggedJsonCodec()}


def register_codec(codec: Codec) -> None:
    """Register ``codec`` in this process, for ``Windlass(codec=...)`` and for workers."""
    if not isinstance(codec, Codec) or not isinstance(codec.name, str) or not 1 <= len(codec.name) <= 32:
        raise ConfigError("codec", "an object with name, encode and decode", codec)
    _codecs[codec.name] = codec


def get_codec(name: str) -> Codec:
    """Return the codec of that name. Raises ``ConfigError``. ``json+zlib`` is ``json``, compressed."""
    codec = _codecs.get(name) if type(name) is str else None
    return codec or _make_codec(name)


def _make_codec(name: str) -> Codec:
    if not isinstance(name, str):
        raise ConfigError("codec", "the name of a codec", name)
    if not name.endswith(_ZLIB):
        raise ConfigError("codec", f"one of {', '.join(sorted(_codecs))} (see register_codec)", name)
    codec = _codecs[name] = ZlibCodec(get_codec(name.removesuffix(_ZLIB)))
    return codec


def encode_payload(codec: Codec, value: Any, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Encode a value. Raises ``ConfigError`` if it cannot be stored, or ``PayloadTooLargeError``."""
    try:
        data = encode_value(codec, value)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ConfigError("arguments", message=f"arguments cannot be stored as {codec.name} ({exc})") from exc
    return check_size(data, max_bytes)


def check_size(data: bytes, max_bytes: int) -> bytes:
    """Return ``data``. Raises ``PayloadTooLargeError`` over the limit."""
    if len(data) > max_bytes:
        raise PayloadTooLargeError(len(data), max_bytes)
    return data

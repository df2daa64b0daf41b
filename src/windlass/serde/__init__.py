"""Codecs: how arguments and results become bytes, with a cap on their size.

JSON is the default and the only codec that every language reads. MessagePack is smaller and keeps bytes;
``json+tagged`` keeps Python's own types.
``+zlib`` behind a name compresses; ``serde.signed`` and ``serde.encrypted`` sign and encrypt another codec;
``register_codec`` adds others (CBOR, Protocol Buffers, ...). Which of them an app reads is decided in
``serde.codecs``. There is no pickle: write access to the store must not run code in a worker.
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

#: One megabyte. Larger data belongs in an object store, with its address in the job.
DEFAULT_MAX_BYTES = 1_000_000
#: No compressed value may unfold to more than this.
_MAX_INFLATED = 64_000_000
_ZLIB = "+zlib"
#: What an app without keys reads.
PLAIN: Final = ("json", "msgpack", "json+tagged", "json+zlib", "msgpack+zlib", "json+tagged+zlib")


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back. ``name`` is stored with each job."""

    @property
    def name(self) -> str: ...

    def encode(self, value: Any) -> bytes:
        """The bytes of ``value``; raises ``TypeError`` or ``ValueError`` when it cannot be stored."""
        ...

    def decode(self, data: bytes) -> Any:
        """The value of ``data``; raises ``ValueError`` when the bytes are not this codec's."""
        ...


def plain_hook(value: Any) -> Any:
    """Plain data for what msgspec does not know: pydantic models describe themselves, paths are text."""
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


#: What msgspec encodes by itself, in each codec's own way.
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
    """``value`` with pydantic models and paths, at any depth, turned into data that every codec stores.

    Raises ``TypeError`` when something in it cannot be stored.
    """
    return msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=plain_hook)


def encode_value(codec: Codec, value: Any) -> bytes:
    """``codec.encode`` that also takes pydantic models and paths, at no cost to everything else."""
    try:
        data = codec.encode(value)
    except TypeError:
        data = codec.encode(to_plain(value))
    if type(data) is not bytes:
        raise TypeError(f"codec {codec.name!r} must return bytes, not {type(data).__name__}")
    return data


def _bounded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``decode`` that refuses what is nested too deeply as it refuses anything else: by ``ValueError``."""

    def bounded(data: bytes) -> Any:
        try:
            return decode(data)
        except RecursionError:
            raise ValueError("lists or objects are nested too deeply") from None

    return bounded


class JsonCodec:
    """JSON by msgspec: datetimes, UUIDs, Decimals, dataclasses and structs become JSON's own types.

    JSON has no NaN and no infinity: a value with one of them is refused, not stored as something else.
    """

    name = "json"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self.decode: Callable[[bytes], Any] = _bounded(msgspec.json.Decoder().decode)

    def encode(self, value: Any) -> bytes:
        """The bytes of ``value``; ``ValueError`` when it holds a number that JSON does not have."""
        if value is None:  # the commonest result: nothing in it to look at
            return b"null"
        data = self._encode(value)
        if (
            b"null" in data and value is not None and _has_odd_number(to_plain(value))
        ):  # that is how the encoder writes them
            raise ValueError("JSON has no NaN and no infinite numbers: pass None or a text instead")
        return data


def _has_odd_number(plain: Any) -> bool:
    """Whether plain data holds NaN or an infinity."""
    ahead = [plain]
    while ahead:
        value = ahead.pop()
        if isinstance(value, float):
            if not math.isfinite(value):
                return True
        elif isinstance(value, dict):
            ahead += value.keys()
            ahead += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            ahead += value
    return False


class MsgpackCodec:
    """MessagePack by msgspec: like JSON, but smaller, and bytes stay bytes."""

    name = "msgpack"

    def __init__(self) -> None:
        self.encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes], Any] = _bounded(msgspec.msgpack.Decoder().decode)


class ZlibCodec:
    """Another codec, with large values compressed. Small ones stay as they are, readable in the store.

    Compressed data begins with zlib's mark 0x78 and is longer than a byte. Data of the other codec that
    looks the same is always compressed, so the two cannot be confused.
    """

    def __init__(self, inner: Codec, threshold: int = 2_048) -> None:
        self.name: str = f"{inner.name}{_ZLIB}"
        self.inner = inner
        self._threshold = threshold

    def encode(self, value: Any) -> bytes:
        return self.squeeze(self.inner.encode(value))

    def decode(self, data: bytes) -> Any:
        return self.inner.decode(self.unfold(data))

    def squeeze(self, data: bytes) -> bytes:
        """Bytes of the inner codec, compressed if that is worth it."""
        marked = _looks_compressed(data)  # by chance: then it must be compressed, to be distinct
        if len(data) < self._threshold and not marked:
            return data
        small = zlib.compress(data, 1)
        return small if marked or len(small) < len(data) else data

    def unfold(self, data: bytes) -> bytes:
        """The bytes of the inner codec; ``ValueError`` when they are damaged, or too many."""
        return inflate(data) if _looks_compressed(data) else data


def _looks_compressed(data: bytes) -> bool:
    return len(data) > 1 and data[0] == 0x78


def inflate(data: bytes) -> bytes:
    """What was compressed, if that is whole and not too large; ``ValueError`` if not."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, _MAX_INFLATED)
    except zlib.error as exc:
        raise ValueError(f"damaged compressed data: {exc}") from exc
    if not stream.eof:
        raise ValueError(f"cut off, or more than {_MAX_INFLATED} bytes once decompressed")
    return plain


class TaggedJsonCodec:
    """JSON that remembers types: what is not JSON's own is written as ``{"$type": name, "value": ...}``.

    Decimals, dates and times, UUIDs, bytes, tuples, sets and objects whose keys are no texts come back as
    they were, also for parameters without an annotation. Classes of the application (dataclasses, structs,
    models) are plain objects, as in JSON: nothing in a record chooses code to run.
    """

    name = "json+tagged"

    def encode(self, value: Any) -> bytes:
        """The bytes of ``value``; raises what JSON does."""
        return JSON.encode(tag_types(value))

    def decode(self, data: bytes) -> Any:
        """The value of ``data``; ``ValueError`` also for a tag that is not known or does not fit."""
        try:
            return untag_types(JSON.decode(data))
        except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as exc:
            raise ValueError(f"not tagged JSON: {exc!r}") from exc


_TAG: Final = "$type"
#: By exact type: the tag, how its value is written and how it is read again.
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
    """``value`` as JSON can hold it, with a tag on each part that JSON would change."""
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
    """What ``tag_types`` was given."""
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
    """Make ``codec`` known in this process, for ``Windlass(codec=...)`` and for workers."""
    if not isinstance(codec, Codec) or not isinstance(codec.name, str) or not 1 <= len(codec.name) <= 32:
        raise ConfigError("codec", "an object with name, encode and decode", codec)
    _codecs[codec.name] = codec


def get_codec(name: str) -> Codec:
    """The codec registered as ``name``, or ``ConfigError``. ``json+zlib`` is ``json``, compressed."""
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
    """Encode a value; ``ConfigError`` when it cannot be stored, ``PayloadTooLargeError`` over the cap."""
    try:
        data = encode_value(codec, value)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise ConfigError("arguments", f"values that {codec.name} can store ({exc})") from exc
    return check_size(data, max_bytes)


def check_size(data: bytes, max_bytes: int) -> bytes:
    """``data``, or ``PayloadTooLargeError`` over the cap."""
    if len(data) > max_bytes:
        raise PayloadTooLargeError(len(data), max_bytes)
    return data

"""The codecs of one app: the one that it writes with, and those that it reads.

A record names its codec, but the app decides: bytes of a codec that it does not accept are refused, so that
an unsigned job does not run in a worker that requires signatures. This module is also the only one that
combines values with the labels of ``windlass.serde.sealing``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from windlass.core.job import JobRef
from windlass.errors import ConfigError
from windlass.serde import (
    PLAIN,
    Codec,
    JsonCodec,
    MsgpackCodec,
    TaggedJsonCodec,
    ZlibCodec,
    check_size,
    encode_payload,
    encode_value,
    get_codec,
    sealing,
)
from windlass.serde import register_codec as _register
from windlass.serde.sealing import SealingCodec

if TYPE_CHECKING:
    from windlass.core.edges import Edge
    from windlass.core.job import JobRecord, NewJob, SignalValue

#: No limit here, because the size is checked after sealing.
_NO_CAP: Final = sys.maxsize


class Codecs:
    """The codecs that an app uses. ``accept`` lists codecs that it reads besides its own."""

    def __init__(
        self, own: Codec, *, results: Codec | None = None, accept: Iterable[str | Codec] = ()
    ) -> None:
        #: The codec that writes payloads.
        self.own = own
        self._bare = _bare(own)
        self._seals = self._bare is not own
        listed = [get_codec(name) for name in PLAIN] if own.name in PLAIN else []
        listed += [_as_codec(one) for one in _as_list(accept)]
        listed += _forms(own)
        self._payloads: dict[str, Codec] = {codec.name: codec for codec in listed}
        self._outputs = {**self._payloads, **{codec.name: codec for codec in _forms(results)}}

    def __repr__(self) -> str:
        return f"<Codecs {self.own.name}; reads {', '.join(self._payloads)}>"

    def bounded(self, limit: int) -> Codecs:
        """Return codecs that refuse a compressed value of more than ``limit`` bytes."""
        mine = copy.copy(self)
        mine._payloads = {name: _bounded(codec, limit) for name, codec in self._payloads.items()}
        mine._outputs = {name: _bounded(codec, limit) for name, codec in self._outputs.items()}
        return mine

    def payload(self, name: str) -> Codec:
        """Return the codec for payloads and signals. Raises ``ConfigError`` when it is not accepted."""
        return self._payloads.get(name) or _refuse(name, self._payloads)

    def output(self, name: str) -> Codec:
        """Return the codec for results, progress and live output. Raises ``ConfigError`` like ``payload``."""
        return self._outputs.get(name) or _refuse(name, self._outputs)

    # --- payloads ----------------------------------------------------------------------------------

    def pack(self, packed: Any, max_bytes: int) -> bytes:
        """Encode arguments without sealing. ``seal_new`` seals them once the job is known."""
        return encode_payload(self._bare, packed, _NO_CAP if self._seals else max_bytes)

    def seal_new(self, new: NewJob, max_bytes: int) -> None:
        """Seal the payload of a new job, bound to that job."""
        if self._seals:
            new.payload = check_size(_seal(self.own, new.payload, sealing.payload_label(new)), max_bytes)

    def unpacked(self, data: bytes) -> Any:
        """Decode bytes of ``pack``, as a worker will."""
        return self._bare.decode(data)

    def as_read(self, value: Any) -> Any:
        """Return ``value`` after encoding and decoding. Raises the codec's error if it cannot be stored."""
        return self._bare.decode(encode_value(self._bare, value))

    def bind_to_schedule(self, template: NewJob, labels: Sequence[bytes], schedule: str) -> None:
        """Bind the payload of a prepared job, sealed under one of ``labels``, to a schedule instead."""
        if self._seals:
            data = _unseal(self.own, template.payload, labels)
            template.payload = _seal(self.own, data, sealing.schedule_label(template, schedule))

    def rebind(self, new: NewJob, labels: Sequence[bytes]) -> None:
        """Seal the payload of a job again if its id, task or queue changed since it was sealed."""
        label = sealing.payload_label(new)
        if self._seals and new.codec == self.own.name and label not in labels:
            new.payload = _seal(self.own, _unseal(self.own, new.payload, labels), label)

    def change(self, record: JobRecord, packed: Any, max_bytes: int) -> bytes:
        """Encode and seal new arguments for an existing job."""
        return _storable(self.payload(record.codec), packed, sealing.id_label(record), max_bytes)

    def labels(self, job: NewJob | JobRecord) -> list[bytes]:
        """Return the labels that the payload of ``job`` may have; empty when this app does not seal."""
        return sealing.payload_labels(job) if self._seals else []

    def arguments(self, codec: Codec, job: NewJob | JobRecord) -> Any:
        """Return the stored form of a call, from the payload of a job."""
        if not isinstance(_innermost(codec), SealingCodec):
            return codec.decode(job.payload)
        return _read(codec, job.payload, sealing.payload_labels(job))

    def template(self, codec: Codec, template: NewJob, schedule: str) -> Any:
        """Return the stored form of a call, from the template of a schedule."""
        return _read(codec, template.payload, [sealing.schedule_label(template, schedule)])

    def are_equal(self, one: NewJob, other: NewJob, schedule: str) -> bool:
        """Whether two templates of a schedule have equal arguments. The bytes of equal ones may differ."""
        if one.codec != other.codec:
            return False
        codec = self.payload(one.codec)
        first, second = (
            _unseal(codec, template.payload, [sealing.schedule_label(template, schedule)])
            for template in (one, other)
        )
        if first == second or has_plain_values(codec):
            return first == second
        return bool(_bare(codec).decode(first) == _bare(codec).decode(second))

    # --- output and signals -----------------------------------------------------------------------

    def write_result(self, record: JobRecord, value: Any) -> bytes:
        """Encode a result. Raises the errors of its codec."""
        return _write(self.output(record.result_codec), value, sealing.output_label("result", record.ref))

    def read_result(self, record: JobRecord) -> Any:
        """Decode the result of a job; None also when it has none."""
        return self.child_value(record.ref, record.result_codec, record.result)

    def child_value(self, ref: JobRef, codec: str, data: bytes | None) -> Any:
        """Decode the result of the job ``ref``, from wherever its bytes are stored."""
        if data is None:
            return None
        return _read(self.output(codec), data, [sealing.output_label("result", ref)])

    def edge_value(self, edge: Edge) -> Any:
        """Decode the result of the child of an edge."""
        return self.child_value(edge.child, edge.codec, edge.value)

    def write_progress(self, record: JobRecord, value: Any, max_bytes: int) -> bytes:
        """Encode progress."""
        label = sealing.output_label("progress", record.ref)
        return _storable(self.output(record.result_codec), value, label, max_bytes)

    def read_progress(self, record: JobRecord) -> Any:
        """Decode the progress of a job; None also when it has none."""
        if record.progress is None:
            return None
        label = sealing.output_label("progress", record.ref)
        return _read(self.output(record.result_codec), record.progress, [label])

    def write_chunk(self, record: JobRecord, value: Any, max_bytes: int) -> bytes:
        """Encode a chunk of live output."""
        label = sealing.output_label("chunk", record.ref)
        return _storable(self.output(record.result_codec), value, label, max_bytes)

    def read_chunk(self, ref: JobRef, codec: str, data: bytes) -> Any:
        """Decode a chunk of live output."""
        return _read(self.output(codec), data, [sealing.output_label("chunk", ref)])

    def write_signal(self, ref: JobRef, name: str, value: Any, max_bytes: int) -> bytes:
        """Encode the data of a signal, in this app's own codec."""
        return _storable(self.own, value, sealing.signal_label(ref, name), max_bytes)

    def read_signal(self, ref: JobRef, name: str, signal: SignalValue) -> Any:
        """Decode the data of a signal."""
        return _read(self.payload(signal.codec), signal.data, [sealing.signal_label(ref, name)])

    # --- child processes ---------------------------------------------------------------------------

    def bare(self, record: JobRecord, packed: Any = None) -> JobRecord:
        """Return ``record`` for a child process, which has no keys, with unsealed payload and signals.

        Each value keeps its own inner codec, since a job of another producer may have sealed signals of this
        app. ``packed`` are arguments to write instead of the stored ones.
        """
        codec = self.payload(record.codec)
        if packed is None:
            payload = _unseal(codec, record.payload, sealing.payload_labels(record))
        else:
            payload = encode_payload(_bare(codec), packed, _NO_CAP)
        signals = {
            name: self._bare_signal(record.ref, name, signal) for name, signal in record.signals.items()
        }
        return msgspec.structs.replace(record, payload=payload, codec=_bare(codec).name, signals=signals)

    def _bare_signal(self, ref: JobRef, name: str, signal: SignalValue) -> SignalValue:
        codec = self.payload(signal.codec)
        data = _unseal(codec, signal.data, [sealing.signal_label(ref, name)])
        return msgspec.structs.replace(signal, data=data, codec=_bare(codec).name)


class AnyCodec(Codecs):
    """Reads every codec that this process knows, for child processes. Their worker has already checked it."""

    def __init__(self) -> None:
        super().__init__(get_codec("json"))

    def payload(self, name: str) -> Codec:
        return get_codec(name)

    def output(self, name: str) -> Codec:
        return get_codec(name)


def _as_list(accept: Iterable[str | Codec]) -> list[str | Codec]:
    if isinstance(accept, (str, bytes)) or not isinstance(accept, Iterable):
        raise ConfigError("accept", "a list of codecs, or of their names", accept)
    return list(accept)


def _as_codec(one: str | Codec) -> Codec:
    if isinstance(one, str):
        return get_codec(one)
    _register(one)  # checks it
    return one


def _forms(codec: Codec | None) -> list[Codec]:
    """Return a codec with and without compression, since accepting one means accepting the other."""
    if codec is None:
        return []
    return [codec.inner, codec] if isinstance(codec, ZlibCodec) else [ZlibCodec(codec), codec]


def _bounded(codec: Codec, limit: int) -> Codec:
    return codec.bounded(limit) if isinstance(codec, ZlibCodec) else codec


def _refuse(name: str, accepted: Iterable[str]) -> Codec:
    words = ", ".join(sorted(accepted))
    raise ConfigError(
        "codec",
        message=f"codec {name!r} is not accepted by this app (accepted: {words}); list it in "
        "Windlass(accept=...)",
        got=name,
    )


def has_plain_values(codec: Codec) -> bool:
    """Whether ``codec`` is one of ours, sealed or not, and so reads only plain data."""
    while isinstance(codec, (ZlibCodec, SealingCodec)):
        codec = codec.inner
    return isinstance(codec, (JsonCodec, MsgpackCodec, TaggedJsonCodec))


def _innermost(codec: Codec) -> Codec:
    """Return the codec inside the compression, if any."""
    return codec.inner if isinstance(codec, ZlibCodec) else codec


def _bare(codec: Codec) -> Codec:
    """Return the codec whose bytes ``codec`` seals; ``codec`` itself if it does not seal."""
    found = _innermost(codec)
    return found.inner if isinstance(found, SealingCodec) else codec


def _seal(codec: Codec, data: bytes, label: bytes) -> bytes:
    found = _innermost(codec)
    if not isinstance(found, SealingCodec):
        return data
    sealed = found.seal(data, label)
    return codec.squeeze(sealed) if isinstance(codec, ZlibCodec) else sealed


def _unseal(codec: Codec, data: bytes, labels: Sequence[bytes]) -> bytes:
    found = _innermost(codec)
    if not isinstance(found, SealingCodec):
        return data
    return found.unseal(codec.unfold(data) if isinstance(codec, ZlibCodec) else data, labels)


def _write(codec: Codec, value: Any, label: bytes) -> bytes:
    return _seal(codec, encode_value(_bare(codec), value), label)


def _read(codec: Codec, data: bytes, labels: Sequence[bytes]) -> Any:
    return _bare(codec).decode(_unseal(codec, data, labels))


def _storable(codec: Codec, value: Any, label: bytes, max_bytes: int) -> bytes:
    return check_size(_seal(codec, encode_payload(_bare(codec), value, _NO_CAP), label), max_bytes)


__all__ = ["PLAIN", "AnyCodec", "Codecs", "has_plain_values"]

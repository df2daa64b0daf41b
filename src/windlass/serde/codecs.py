"""The codecs of one app: the one that it writes with, and those that it reads. Nothing else is read.

A record names its codec, but the app decides: bytes of any other codec are refused, so that a job without a
signature does not run in a worker that signs. This is also the one place where values meet the labels that
``windlass.serde.sealing`` binds them to.
"""

from __future__ import annotations

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

#: Where the size counts only once the value is sealed.
_NO_CAP: Final = sys.maxsize


class Codecs:
    """Which codecs an app uses. ``accept`` lists those that it reads besides its own."""

    def __init__(
        self, own: Codec, *, results: Codec | None = None, accept: Iterable[str | Codec] = ()
    ) -> None:
        #: What this app writes payloads with.
        self.own = own
        self._seals = isinstance(_innermost(own), SealingCodec)
        listed = [get_codec(name) for name in PLAIN] if own.name in PLAIN else []
        listed += [_as_codec(one) for one in _as_list(accept)]
        listed += _forms(own)
        self._payloads: dict[str, Codec] = {codec.name: codec for codec in listed}
        self._outputs = {**self._payloads, **{codec.name: codec for codec in _forms(results)}}

    def __repr__(self) -> str:
        return f"<Codecs {self.own.name}; reads {', '.join(self._payloads)}>"

    def payload(self, name: str) -> Codec:
        """The codec of payloads and signals called ``name``; ``ConfigError`` when it is not accepted."""
        return self._payloads.get(name) or _refuse(name, self._payloads)

    def output(self, name: str) -> Codec:
        """The codec of results, progress and live output called ``name``; ``ConfigError`` as above."""
        return self._outputs.get(name) or _refuse(name, self._outputs)

    # --- payloads ----------------------------------------------------------------------------------

    def pack(self, packed: Any, max_bytes: int) -> bytes:
        """Arguments as bytes, not sealed yet: ``seal_new`` does that once the job is known."""
        return encode_payload(_bare(self.own), packed, _NO_CAP if self._seals else max_bytes)

    def seal_new(self, new: NewJob, max_bytes: int) -> None:
        """Bind the payload of a job that is about to be added to it."""
        if self._seals:
            new.payload = check_size(_seal(self.own, new.payload, sealing.payload_label(new)), max_bytes)

    def unpacked(self, data: bytes) -> Any:
        """What ``pack`` was given, as it will be read."""
        return _bare(self.own).decode(data)

    def as_read(self, value: Any) -> Any:
        """``value`` as a worker reads it; raises what the codec does when it cannot be stored."""
        codec = _bare(self.own)
        return codec.decode(encode_value(codec, value))

    def bind_to_schedule(self, template: NewJob, labels: Sequence[bytes], schedule: str) -> None:
        """Bind the payload of a job that was prepared (under one of ``labels``) to a schedule instead."""
        if self._seals:
            data = _unseal(self.own, template.payload, labels)
            template.payload = _seal(self.own, data, sealing.schedule_label(template, schedule))

    def rebind(self, new: NewJob, labels: Sequence[bytes]) -> None:
        """Bind the payload of a job, sealed under one of ``labels``, to what the job is called by now."""
        label = sealing.payload_label(new)
        if self._seals and new.codec == self.own.name and label not in labels:
            new.payload = _seal(self.own, _unseal(self.own, new.payload, labels), label)

    def change(self, record: JobRecord, packed: Any, max_bytes: int) -> bytes:
        """New arguments for a job that is there."""
        return _storable(self.payload(record.codec), packed, sealing.id_label(record), max_bytes)

    def labels(self, job: NewJob | JobRecord) -> list[bytes]:
        """What the payload of ``job`` may be bound to; nothing when this app binds nothing."""
        return sealing.payload_labels(job) if self._seals else []

    def arguments(self, codec: Codec, job: NewJob | JobRecord) -> Any:
        """The stored form of a call, from the payload of a job."""
        if not isinstance(_innermost(codec), SealingCodec):
            return codec.decode(job.payload)
        return _read(codec, job.payload, sealing.payload_labels(job))

    def template(self, codec: Codec, template: NewJob, schedule: str) -> Any:
        """The stored form of a call, from the template of a schedule."""
        return _read(codec, template.payload, [sealing.schedule_label(template, schedule)])

    # --- what a job puts out, and what it receives ------------------------------------------------

    def write_result(self, record: JobRecord, value: Any) -> bytes:
        """The bytes of a result; raises what its codec does."""
        return _write(self.output(record.result_codec), value, sealing.output_label("result", record.ref))

    def read_result(self, record: JobRecord) -> Any:
        """The result of a job, None as well when it has none."""
        return self.child_value(record.ref, record.result_codec, record.result)

    def child_value(self, ref: JobRef, codec: str, data: bytes | None) -> Any:
        """The result of the job ``ref``, wherever its bytes are kept."""
        if data is None:
            return None
        return _read(self.output(codec), data, [sealing.output_label("result", ref)])

    def edge_value(self, edge: Edge) -> Any:
        """The result of the job at the far end of an edge."""
        return self.child_value(edge.child, edge.codec, edge.value)

    def write_progress(self, record: JobRecord, value: Any, max_bytes: int) -> bytes:
        """The bytes of progress."""
        label = sealing.output_label("progress", record.ref)
        return _storable(self.output(record.result_codec), value, label, max_bytes)

    def read_progress(self, record: JobRecord) -> Any:
        """The progress of a job, None as well when it reported none."""
        if record.progress is None:
            return None
        label = sealing.output_label("progress", record.ref)
        return _read(self.output(record.result_codec), record.progress, [label])

    def write_chunk(self, record: JobRecord, value: Any, max_bytes: int) -> bytes:
        """The bytes of a piece of live output."""
        label = sealing.output_label("chunk", record.ref)
        return _storable(self.output(record.result_codec), value, label, max_bytes)

    def read_chunk(self, ref: JobRef, codec: str, data: bytes) -> Any:
        """A piece of live output."""
        return _read(self.output(codec), data, [sealing.output_label("chunk", ref)])

    def write_signal(self, ref: JobRef, name: str, value: Any, max_bytes: int) -> bytes:
        """The bytes of a signal's data, in this app's own codec."""
        return _storable(self.own, value, sealing.signal_label(ref, name), max_bytes)

    def read_signal(self, ref: JobRef, name: str, signal: SignalValue) -> Any:
        """The data of a signal."""
        return _read(self.payload(signal.codec), signal.data, [sealing.signal_label(ref, name)])

    # --- children ----------------------------------------------------------------------------------

    def bare(self, record: JobRecord, packed: Any = None) -> JobRecord:
        """``record`` for a child process, which has no keys: its payload and signals are not sealed.

        Each by its own codec: a job of a foreign producer gets the sealed signals of this app. ``packed``:
        arguments to write instead of the stored ones.
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
    """Reads every codec that this process knows: for a child process, whose worker has looked already."""

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
    """A codec, compressed and not: who may write the one may write the other."""
    if codec is None:
        return []
    return [codec.inner, codec] if isinstance(codec, ZlibCodec) else [ZlibCodec(codec), codec]


def _refuse(name: str, accepted: Iterable[str]) -> Codec:
    words = ", ".join(sorted(accepted))
    raise ConfigError(
        "codec", f"one that this app accepts ({words}), or listed in Windlass(accept=...)", name
    )


def has_plain_values(codec: Codec) -> bool:
    """Whether ``codec`` reads plain data alone, every field by its name: one of ours, sealed or not."""
    while isinstance(codec, (ZlibCodec, SealingCodec)):
        codec = codec.inner
    return isinstance(codec, (JsonCodec, MsgpackCodec, TaggedJsonCodec))


def _innermost(codec: Codec) -> Codec:
    """What is compressed, if ``codec`` compresses."""
    return codec.inner if isinstance(codec, ZlibCodec) else codec


def _bare(codec: Codec) -> Codec:
    """What makes the bytes that ``codec`` seals; itself if it does not."""
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

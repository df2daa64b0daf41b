"""Sealed values: signed or encrypted for one place in the store, and refused in any other.

A sealing codec works on the bytes of an inner codec and on a *label* that says what the bytes are for. The
label is not stored. The reader computes it from the record, so bytes that were moved to another record,
queue, task or field are refused. ``windlass.serde.codecs`` is the only caller.

The labels (each is a list of texts as JSON, which is unambiguous) contain:

* for a payload: its queue, its task, and the job's id; or the schedule's name; or the unique key of an add
  that may replace the data of a pending job (``debounce``, ``keep_last``), because there the store decides
  which job gets the bytes;
* for a result, progress and a chunk of output: the queue and the id of the job;
* for a signal: the queue and the id of the job, and the signal's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.option_values import UniqueMode, instant_to_ms
from windlass.errors import ConfigError, SignatureError
from windlass.serde import PLAIN, Codec, encode_value

if TYPE_CHECKING:
    from windlass.core.job import JobRecord, JobRef, NewJob

_REPLACING = frozenset({UniqueMode.DEBOUNCE, UniqueMode.KEEP_LAST})
#: The label of values that belong to no job: those of ``encode`` and ``decode``.
NO_LABEL = b""


class SealingCodec(ABC):
    """A codec around ``inner`` whose bytes can only be read with the label that they were sealed with."""

    #: The codec whose bytes are sealed.
    inner: Codec
    name: str

    @abstractmethod
    def seal(self, data: bytes, label: bytes) -> bytes:
        """Seal ``data`` for the place that ``label`` names."""

    @abstractmethod
    def unseal(self, data: bytes, labels: Sequence[bytes]) -> bytes:
        """Return data that was sealed with one of ``labels``. Raises ``SignatureError``."""

    def encode(self, value: Any) -> bytes:
        """Return the sealed bytes of a value that belongs to no job."""
        return self.seal(encode_value(self.inner, value), NO_LABEL)

    def decode(self, data: bytes) -> Any:
        """Return a value that ``encode`` wrote with a known key. Raises ``SignatureError``."""
        return self.inner.decode(self.unseal(data, [NO_LABEL]))


def sealed_name(given: str | None, default: str) -> str:
    """Return the name of a sealing codec. Raises ``ConfigError`` for names of codecs that do not seal."""
    name = given or default
    if name in PLAIN:
        raise ConfigError(
            "name",
            message=f"a codec that seals values cannot be named {name!r}: {', '.join(PLAIN)} mean values "
            "without a seal",
            got=name,
        )
    return name


class UnboundEra:
    """Until when values of older releases, which were not bound to a label, are accepted."""

    def __init__(self, until: datetime | float | None) -> None:
        self._until_ms = None if until is None else instant_to_ms(until, "accept_unbound_until")

    def check(self) -> None:
        """Raise ``SignatureError`` if such values are not accepted, or not any more."""
        if self._until_ms is None or SYSTEM_CLOCK.now_ms() >= self._until_ms:
            raise SignatureError(
                "written by an older release, which did not bind it to its job: give this codec "
                "accept_unbound_until=<a date> while jobs of that release are left"
            )


def _label(*parts: str) -> bytes:
    return msgspec.json.encode(parts)


def payload_label(job: NewJob | JobRecord) -> bytes:
    """Return the label of a payload when ``job`` is added or changed."""
    unique = job.options.unique
    if unique is not None and unique.mode in _REPLACING:
        return _label("payload", job.queue, job.task, "unique", unique.key)
    return id_label(job)


def id_label(job: NewJob | JobRecord) -> bytes:
    """Return the label of the payload of an existing job."""
    return _label("payload", job.queue, job.task, "id", job.id)


def schedule_label(template: NewJob, schedule: str) -> bytes:
    """Return the label of the payload of a schedule's template."""
    return _label("payload", template.queue, template.task, "schedule", schedule)


def payload_labels(job: NewJob | JobRecord) -> list[bytes]:
    """Return all labels that the payload of a stored job may have."""
    labels = [id_label(job)]
    options = job.options
    if options.unique is not None:
        labels.append(_label("payload", job.queue, job.task, "unique", options.unique.key))
    if options.schedule is not None:
        labels.append(_label("payload", job.queue, job.task, "schedule", options.schedule))
    return labels


def output_label(kind: Literal["result", "progress", "chunk"], ref: JobRef) -> bytes:
    """Return the label of a result, of progress or of live output."""
    return _label(kind, ref.queue, ref.id)


def signal_label(ref: JobRef, name: str) -> bytes:
    """Return the label of the data of a signal."""
    return _label("signal", ref.queue, ref.id, name)

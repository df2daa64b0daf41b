"""Sealed values: signed or encrypted for one place in the store, refused in every other.

A sealing codec works on the bytes of an inner codec and gets a *label* with them: what the bytes are for. The
label itself is not stored. The reader computes it from the record, so that bytes which were moved to
another record, queue, task or field do not open. ``windlass.serde.codecs`` is the only caller.

What is bound (each label is a list of texts as JSON, which cannot be read in two ways):

* a payload: its queue, its task, and the job's id; or the schedule's name, or the unique key of an add that
  may replace the data of a pending job (``debounce``, ``keep_last``), because there the store decides which
  job gets the bytes;
* a result, progress and a chunk of output: the queue and the id of their job;
* a signal: the queue and the id of its job, and the signal's name.
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
    """A codec around ``inner`` whose bytes open only under the label that they were sealed with."""

    #: What makes bytes of the values that are sealed.
    inner: Codec
    name: str

    @abstractmethod
    def seal(self, data: bytes, label: bytes) -> bytes:
        """``data``, sealed for the place that ``label`` names."""

    @abstractmethod
    def unseal(self, data: bytes, labels: Sequence[bytes]) -> bytes:
        """What was sealed under one of ``labels``; ``SignatureError`` when it was not."""

    def encode(self, value: Any) -> bytes:
        """The sealed bytes of a value that belongs to no job."""
        return self.seal(encode_value(self.inner, value), NO_LABEL)

    def decode(self, data: bytes) -> Any:
        """The value; ``SignatureError`` when it was not written by ``encode`` and a holder of a known key."""
        return self.inner.decode(self.unseal(data, [NO_LABEL]))


def sealed_name(given: str | None, default: str) -> str:
    """The name of a sealing codec: none of those that stand for values without a seal."""
    name = given or default
    if name in PLAIN:
        raise ConfigError(
            "name", f"another one than {', '.join(PLAIN)}, which mean values without a seal", name
        )
    return name


class UnboundEra:
    """Until when bytes of releases that did not bind them to their place are accepted."""

    def __init__(self, until: datetime | float | None) -> None:
        self._until_ms = None if until is None else instant_to_ms(until, "accept_unbound_until")

    def check(self) -> None:
        """``SignatureError`` when that time is over, or never was."""
        if self._until_ms is None or SYSTEM_CLOCK.now_ms() >= self._until_ms:
            raise SignatureError(
                "written by an older release, which did not bind it to its job: give this codec "
                "accept_unbound_until=<a date> while jobs of that release are left"
            )


def _label(*parts: str) -> bytes:
    return msgspec.json.encode(parts)


def payload_label(job: NewJob | JobRecord) -> bytes:
    """What a payload is bound to when ``job`` is added or changed."""
    unique = job.options.unique
    if unique is not None and unique.mode in _REPLACING:
        return _label("payload", job.queue, job.task, "unique", unique.key)
    return id_label(job)


def id_label(job: NewJob | JobRecord) -> bytes:
    """What the payload of a job that is there already is bound to."""
    return _label("payload", job.queue, job.task, "id", job.id)


def schedule_label(template: NewJob, schedule: str) -> bytes:
    """What the payload of a schedule's template is bound to."""
    return _label("payload", template.queue, template.task, "schedule", schedule)


def payload_labels(job: NewJob | JobRecord) -> list[bytes]:
    """Everything that the payload of a stored job may be bound to."""
    labels = [id_label(job)]
    options = job.options
    if options.unique is not None:
        labels.append(_label("payload", job.queue, job.task, "unique", options.unique.key))
    if options.schedule is not None:
        labels.append(_label("payload", job.queue, job.task, "schedule", options.schedule))
    return labels


def output_label(kind: Literal["result", "progress", "chunk"], ref: JobRef) -> bytes:
    """What something that a job puts out is bound to."""
    return _label(kind, ref.queue, ref.id)


def signal_label(ref: JobRef, name: str) -> bytes:
    """What the data of a signal is bound to."""
    return _label("signal", ref.queue, ref.id, name)

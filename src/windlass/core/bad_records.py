"""Stored records that cannot be read: placeholders for jobs, and a loop that skips other records.

Any stored record may be damaged: by a disk, by another program, or by a bug in an older version of Windlass.
A damaged record must not affect anything else. Every store therefore reads through this module:

* a **job** whose record cannot be read is still a job. ``stand_in`` creates a placeholder record with the
  fields that could be read, the reason ``bad_record``, and the stored bytes as payload. The first verb that
  would change the job fails it (``transitions.set_aside``). Users can inspect the bytes and remove the job;
* **any other record** (an event, a history record, a roll-up, a schedule, a worker) is skipped by
  ``readable``, which logs each of them once.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from windlass.core.job import ErrorInfo, JobRecord
from windlass.core.states import FINISHED
from windlass.core.text import clean_text, printable
from windlass.errors import StorageError

T = TypeVar("T")
S = TypeVar("S")

log: logging.Logger = logging.getLogger("windlass.damage")

#: The reason and the error class of a job whose record cannot be read.
BAD_RECORD = "bad_record"
BAD_RECORD_CLASS = "BadRecord"
#: The codec of its payload. No worker has this codec, so no worker runs such a job.
RAW_CODEC = "raw"
#: Errors that decoding damaged bytes may raise.
UNREADABLE: tuple[type[Exception], ...] = (
    *(ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError, struct.error),
)
#: Also ``StorageError``, which some decoders raise instead.
_TOLD: tuple[type[Exception], ...] = (*UNREADABLE, StorageError)
_WHY_KEPT = 500
_TOLD_KEPT = 10_000
#: The newest messages that were logged, so that each is logged once.
_told: OrderedDict[tuple[str, str], None] = OrderedDict()


class BadRecordError(ValueError):
    """A part of a stored record is invalid."""


def stand_in(queue: str, job_id: str, raw: bytes, why: Exception | str, **fields: Any) -> JobRecord:
    """The placeholder record of a job that cannot be read. ``fields``: the fields that could be read."""
    error = error_of(why)
    log_once(f"the record of job {job_id} in queue {queue}", error.message)
    known = {"task": "", **fields}
    return JobRecord(
        **known, queue=queue, id=job_id, payload=raw, codec=RAW_CODEC, reason=BAD_RECORD, errors=[error]
    )


def error_of(why: Exception | str) -> ErrorInfo:
    """The error of a job whose record cannot be read."""
    text = clean_text(why if isinstance(why, str) else f"{type(why).__name__}: {why}", _WHY_KEPT)
    return ErrorInfo(0, 0, BAD_RECORD_CLASS, text, "", BAD_RECORD_CLASS)


def is_bad(job: JobRecord) -> bool:
    """Whether ``job`` is a placeholder for an unreadable record, set aside or not."""
    return job.reason == BAD_RECORD


def is_lost(job: JobRecord) -> bool:
    """Whether ``job`` is a placeholder for an unreadable record that is not set aside yet."""
    return job.reason == BAD_RECORD and (job.state not in FINISHED or job.finished_ms is None)


def readable(items: Iterable[S], read: Callable[[S], T], what: Callable[[S], str]) -> Iterator[T]:
    """Yield ``read(item)`` for every item that can be read. The others are logged, named by ``what``."""
    for item in items:
        try:
            found = read(item)
        except _TOLD as exc:
            log_once(what(item), f"{type(exc).__name__}: {exc}")
            continue
        yield found


def read_or_none(item: S, read: Callable[[S], T], what: str) -> T | None:
    """``read(item)``, or None and a line in the log if it cannot be read."""
    return next(readable((item,), read, lambda _: what), None)


def log_once(what: str, why: str) -> None:
    """Log once that a record is skipped."""
    key = (what, why)
    if key in _told:
        return
    _told[key] = None
    if len(_told) > _TOLD_KEPT:
        _told.popitem(last=False)
    log.error(
        "%s cannot be read and is passed over: %s (see windlass doctor)", printable(what), printable(why)
    )

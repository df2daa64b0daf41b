"""Stored records that cannot be read: what replaces them, and the one way to read past them.

Any stored record may be damaged: by a disk, by another program, or by a bug in an older version of Windlass.
A damaged record must not affect anything else. Every store therefore reads through this module:

* a **job** whose record cannot be read is still a job. ``stand_in`` makes the record that everyone sees in
  its place: the fields that could be read, reason ``bad_record``, its bytes as payload. The first verb that
  would change it ends it (``transitions.set_aside``): ``failed``, with those bytes, to be looked at and
  removed;
* **anything else** (an event, a row of history, a roll-up, a schedule, a worker) is left out by ``readable``,
  which says so in the log, once for each.
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

#: Why a job failed whose record cannot be read, and the class of its error.
BAD_RECORD = "bad_record"
BAD_RECORD_CLASS = "BadRecord"
#: The codec of its payload: no worker knows it, so that no worker ever runs what is left of a job.
RAW_CODEC = "raw"
#: Errors that decoding damaged bytes may raise.
UNREADABLE: tuple[type[Exception], ...] = (
    *(ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError, struct.error),
)
#: A decoder may have named it already.
_TOLD: tuple[type[Exception], ...] = (*UNREADABLE, StorageError)
_WHY_KEPT = 500
_TOLD_KEPT = 10_000
#: What was logged, the newest.
_told: OrderedDict[tuple[str, str], None] = OrderedDict()


class BadRecordError(ValueError):
    """A part of a stored record is not what it should be."""


def stand_in(queue: str, job_id: str, raw: bytes, why: Exception | str, **fields: Any) -> JobRecord:
    """The record of a job that cannot be read. ``fields``: those that can."""
    error = error_of(why)
    log_once(f"the record of job {job_id} in queue {queue}", error.message)
    known = {"task": "", **fields}
    return JobRecord(
        **known, queue=queue, id=job_id, payload=raw, codec=RAW_CODEC, reason=BAD_RECORD, errors=[error]
    )


def error_of(why: Exception | str) -> ErrorInfo:
    """What stands in the errors of a job that cannot be read."""
    text = clean_text(why if isinstance(why, str) else f"{type(why).__name__}: {why}", _WHY_KEPT)
    return ErrorInfo(0, 0, BAD_RECORD_CLASS, text, "", BAD_RECORD_CLASS)


def is_bad(job: JobRecord) -> bool:
    """Whether ``job`` replaces a record that cannot be read, or is what became of one."""
    return job.reason == BAD_RECORD


def is_lost(job: JobRecord) -> bool:
    """Whether ``job`` replaces a record that cannot be read, and is yet to be set aside."""
    return job.reason == BAD_RECORD and (job.state not in FINISHED or job.finished_ms is None)


def readable(items: Iterable[S], read: Callable[[S], T], what: Callable[[S], str]) -> Iterator[T]:
    """``read`` of every item that can be read. The others, which ``what`` names, are logged."""
    for item in items:
        try:
            found = read(item)
        except _TOLD as exc:
            log_once(what(item), f"{type(exc).__name__}: {exc}")
            continue
        yield found


def read_or_none(item: S, read: Callable[[S], T], what: str) -> T | None:
    """``read`` of one item; None, and a line in the log, when it cannot be read."""
    return next(readable((item,), read, lambda _: what), None)


def log_once(what: str, why: str) -> None:
    """Say, once, that a record is passed over."""
    key = (what, why)
    if key in _told:
        return
    _told[key] = None
    if len(_told) > _TOLD_KEPT:
        _told.popitem(last=False)
    log.error(
        "%s cannot be read and is passed over: %s (see windlass doctor)", printable(what), printable(why)
    )

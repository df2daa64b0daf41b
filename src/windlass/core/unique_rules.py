"""Which job holds a unique key, and how an add with that key is answered.

A key is freed in the same transaction that ends, removes or (``until_start``) starts its holder. A key with a
``ttl`` is also free after that time. ``decide`` is the same for every store; stores keep the index from
(queue, key) to ``KeyEntry``. ``option_values.UniqueMode`` explains the modes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from windlass.core.bad_records import is_bad
from windlass.core.job import JobRecord
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.states import FINISHED, JobState

#: Modes in which a job holds its key from its add to its end.
_TO_THE_END = frozenset({UniqueMode.UNTIL_DONE, UniqueMode.KEEP_LAST})


class KeyEntry(msgspec.Struct):
    """The holder of a key. ``request_id`` is the one of the last add that replaced the holder's data."""

    job_id: str
    until_ms: int | None = None
    request_id: str = ""
    #: Options of that add that the holder did not take (``change_rules.not_taken``).
    not_taken: tuple[str, ...] = ()

    def is_live(self, now_ms: int) -> bool:
        return self.until_ms is None or self.until_ms > now_ms


class UniqueHolder(msgspec.Struct):
    """A key in use, as listings show it."""

    key: str
    job_id: str
    until_ms: int | None = None


class Verdict(StrEnum):
    """What an add with a unique key does."""

    #: The key is free: add a new job, which takes the key.
    NEW = "new"
    DUPLICATE = "duplicate"
    #: The holder takes the new data.
    REPLACE = "replace"
    #: The same request has already replaced the holder's data: answer so, change nothing.
    REPLACED = "replaced"
    #: Add a new job that takes the key and waits until the holder has finished.
    FOLLOW = "follow"


def decide(
    unique: StoredUnique, entry: KeyEntry | None, holder: JobRecord | None, request_id: str, now_ms: int
) -> Verdict:
    """What an add with ``unique`` does, given the holder of its key. The mode of the new job decides."""
    if entry is None or not entry.is_live(now_ms):
        return Verdict.NEW
    if entry.until_ms is None and holder is not None and is_bad(holder):
        return Verdict.NEW  # it never runs, and its unreadable record does not show whether it held this key
    if unique.mode not in (UniqueMode.DEBOUNCE, UniqueMode.KEEP_LAST):
        return Verdict.DUPLICATE
    if holder is None or holder.state in FINISHED:
        return Verdict.NEW
    if request_id and request_id == entry.request_id:
        return Verdict.REPLACED
    if holder.state is not JobState.ACTIVE:
        return Verdict.REPLACE
    return Verdict.FOLLOW if unique.mode is UniqueMode.KEEP_LAST else Verdict.NEW


def entry_for(job: JobRecord, unique: StoredUnique, now_ms: int) -> KeyEntry:
    """The entry of a job that takes its key now."""
    if unique.ttl_ms is None or unique.mode is UniqueMode.DEBOUNCE:
        return KeyEntry(job.id)
    return KeyEntry(job.id, now_ms + unique.ttl_ms)


def extended(entry: KeyEntry, unique: StoredUnique, now_ms: int) -> KeyEntry | None:
    """The entry after a duplicate add that extends the key's ``ttl``; None if the add does not extend it."""
    if not unique.extend or unique.ttl_ms is None or entry.until_ms is None:
        return None
    return KeyEntry(entry.job_id, now_ms + unique.ttl_ms, entry.request_id, entry.not_taken)


def frees_key(job: JobRecord, *, removed: bool = False) -> bool:
    """Whether ``job`` no longer holds its key, because of its state or because it is ``removed``."""
    unique = job.options.unique
    if unique is None or unique.mode is UniqueMode.THROTTLE:
        return False
    if removed or job.state in FINISHED:
        return True
    return unique.mode is UniqueMode.UNTIL_START and job.deliveries > 0


def follows(job: JobRecord) -> bool:
    """Whether ``job`` may have been added behind a running job with its key (``keep_last``)."""
    return job.linked and job.options.unique is not None and job.options.unique.mode is UniqueMode.KEEP_LAST


def precedes(job: JobRecord, follower: JobRecord) -> bool:
    """Whether ``follower``, which waits for ``job``, is kept behind it by their key."""
    mine, its = job.options.unique, follower.options.unique
    if mine is None or its is None or job.queue != follower.queue or job.state in FINISHED:
        return False
    return (mine.key, mine.mode) == (its.key, its.mode)


def holds_key(job: JobRecord, unique: StoredUnique, now_ms: int) -> bool:
    """Whether an unfinished job that is restored holds its key: if not, another job may hold it already."""
    if frees_key(job):
        return False
    timed = unique.ttl_ms is not None and unique.mode is not UniqueMode.DEBOUNCE
    return not timed or job.enqueued_ms + (unique.ttl_ms or 0) > now_ms


def takes_key_again(job: JobRecord) -> bool:
    """Whether a finished job that is retried by hand takes its key again, if the key is free."""
    return job.options.unique is not None and job.options.unique.mode in _TO_THE_END

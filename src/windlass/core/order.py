"""The orders in which jobs of a queue are listed, and the places in them that cursors name.

Stores sort, listings over several queues merge, and both continue from the same cursors: a number for the
order of adding, ``<milliseconds>.<number>`` for an order by time (the number decides between equal times).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from windlass.core.job import JobRecord
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.errors import ConfigError

#: Above every time and every number.
LAST = 2**63 - 1


class Sort(StrEnum):
    """By the time of adding, by the time when a job is due, by the time when it ended."""

    ADDED = "added"
    DUE = "due"
    FINISHED = "finished"


_STATES: dict[Sort, frozenset[JobState]] = {
    Sort.ADDED: frozenset(JobState),
    Sort.DUE: TIMED,
    Sort.FINISHED: FINISHED,
}

Place = tuple[int, int]


def states_of(states: Sequence[JobState], sort: Sort) -> list[JobState]:
    """The states that such a listing is about: those named, or all that have the time it sorts by."""
    allowed = _STATES[sort]
    if any(state not in allowed for state in states):
        names = ", ".join(sorted(allowed))
        raise ConfigError("sort", f"added, or {sort} with states among {names} only", str(sort))
    return list(states) or [state for state in JobState if state in allowed]


def place_of(job: JobRecord, sort: Sort) -> Place | None:
    """Where a job stands in the order; None when it has no place there."""
    if sort is Sort.ADDED:
        return job.enqueued_ms, job.seq
    if job.state not in _STATES[sort]:
        return None
    at_ms = job.due_ms if sort is Sort.DUE else job.finished_ms
    return None if at_ms is None else (at_ms, job.seq)


def cursor_of(job: JobRecord, sort: Sort) -> str:
    """The cursor of what comes after the job."""
    place = place_of(job, sort)
    return str(job.seq) if sort is Sort.ADDED or place is None else f"{place[0]}.{place[1]}"


def check_cursor(cursor: str, sort: Sort) -> None:
    """Refuse a cursor that no page of this order can have had."""
    numbers = cursor.split(".")
    wanted = 1 if sort is Sort.ADDED else 2
    if len(numbers) != wanted or not all(
        one.isdecimal() and len(one) < 20 and int(one) <= LAST for one in numbers
    ):
        raise ConfigError("cursor", "one that came with a page of this order", cursor)


def place_of_cursor(cursor: str) -> tuple[int, ...]:
    """The numbers of a cursor: those of one order can be compared, also of several queues."""
    return tuple(map(int, cursor.split(".")))


def place_after(cursor: str | None, *, newest_first: bool) -> Place:
    """The place that a cursor of an order by time names; without one, the place before all others."""
    if cursor is None:
        return (LAST, LAST) if newest_first else (-1, -1)
    check_cursor(cursor, Sort.DUE)
    at_ms, _, seq = cursor.partition(".")
    return int(at_ms), int(seq)

"""The orders in which jobs of a queue are listed, and their cursors.

Stores sort, and listings of several queues merge. Both use the same cursors: a number for the order of adds,
``<milliseconds>.<number>`` for an order by time (the number decides between equal times).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from windlass.core.job import JobRecord
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.errors import ConfigError, shown

#: Greater than every time and every number.
LAST = 2**63 - 1


class Sort(StrEnum):
    """Sort by the time of the add, by the due time, or by the time when the job finished."""

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
    """``states``, or all states that have the time to sort by. Raises ``ConfigError`` for other states."""
    allowed = _STATES[sort]
    if any(state not in allowed for state in states):
        names = ", ".join(sorted(allowed))
        raise ConfigError(
            "sort",
            message=f"sort={sort} is possible only for the states {names}; ask for no others, or use "
            "sort=added",
            got=str(sort),
        )
    return list(states) or [state for state in JobState if state in allowed]


def place_of(job: JobRecord, sort: Sort) -> Place | None:
    """The position of a job in the order; None if it does not have that time."""
    if sort is Sort.ADDED:
        return job.enqueued_ms, job.seq
    if job.state not in _STATES[sort]:
        return None
    at_ms = job.due_ms if sort is Sort.DUE else job.finished_ms
    return None if at_ms is None else (at_ms, job.seq)


def cursor_of(job: JobRecord, sort: Sort) -> str:
    """The cursor that continues after the job."""
    place = place_of(job, sort)
    return str(job.seq) if sort is Sort.ADDED or place is None else f"{place[0]}.{place[1]}"


def check_cursor(cursor: str, sort: Sort) -> None:
    """Raise if this order cannot have such a cursor."""
    numbers = cursor.split(".")
    wanted = 1 if sort is Sort.ADDED else 2
    if len(numbers) != wanted or not all(
        one.isdecimal() and len(one) < 20 and int(one) <= LAST for one in numbers
    ):
        raise bad_cursor(cursor)


def bad_cursor(cursor: object) -> ConfigError:
    """The error for a cursor that no page returned, or a page of another list or order."""
    message = f"cursor {shown(cursor)} is not valid here: pass the cursor of the page before, unchanged"
    return ConfigError("cursor", message=message, got=cursor)


def seq_after(cursor: str | None, *, newest_first: bool) -> int:
    """The number in a cursor of the order of adds; without a cursor, the one before all others."""
    if cursor is None:
        return LAST if newest_first else 0
    check_cursor(cursor, Sort.ADDED)
    return int(cursor)


def place_of_cursor(cursor: str) -> tuple[int, ...]:
    """The numbers of a cursor. Those of one order can be compared, also across queues."""
    return tuple(map(int, cursor.split(".")))


def place_after(cursor: str | None, *, newest_first: bool) -> Place:
    """The position of a cursor of an order by time; without a cursor, the position before all others."""
    if cursor is None:
        return (LAST, LAST) if newest_first else (-1, -1)
    check_cursor(cursor, Sort.DUE)
    at_ms, _, seq = cursor.partition(".")
    return int(at_ms), int(seq)

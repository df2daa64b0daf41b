"""The part of the ledger that the mark stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.core.job import ArchiverInfo, CounterRow
from windlass.core.schedule_rules import ScheduleRecord

if TYPE_CHECKING:
    from windlass.backends.amqp.ledger import Ledger
    from windlass.backends.amqp.timing import EntryTime, OwnTime


class Counts(msgspec.Struct):
    """The body of a mark: state that cannot be derived from the rest of the log and the kept records."""

    offset: int = -1
    gen: int = 0
    place: int = 0
    counters: list[CounterRow] = []
    events: dict[str, int] = {}
    history: dict[str, int] = {}
    paused: list[str] = []
    cursors: dict[str, int] = {}
    void: list[tuple[str, str, int]] = []
    #: The log may no longer have the requests that created them. None in marks of earlier releases.
    schedules: list[ScheduleRecord] | None = None
    archivers: list[ArchiverInfo] | None = None
    #: Reserved ids of jobs that are gone: queue, id, and until when.
    taken_ids: list[tuple[str, str, int]] = []
    #: The time of the last entry. None in marks of earlier releases, and if requests carry the time.
    time_ms: int | None = None
    #: Entries that did not count at the time of their writers, by offset (see ``timing``).
    corrected: dict[int, int] = {}


def counts_of(ledger: Ledger, offset: int, time: OwnTime | EntryTime) -> Counts:
    """Make the body of a mark at ``offset``."""
    return Counts(
        offset=offset,
        gen=ledger.gen,
        place=ledger.last_place,
        counters=[CounterRow(*key, total) for key, total in ledger.counters.items()],
        events={q.name: q.last_event for q in ledger.queues.values()},
        history={q.name: q.last_history for q in ledger.queues.values()},
        paused=[q.name for q in ledger.queues.values() if q.row.paused],
        cursors=dict(ledger.cursors_of_streams),
        void=list(ledger.void),
        schedules=list(ledger.schedules.values()),
        archivers=list(ledger.archivers.values()),
        taken_ids=[(*ref, until_ms) for ref, until_ms in ledger.kept_ids.items()],
        time_ms=time.last_ms,
        corrected=time.corrected,
    )


def set_counts(ledger: Ledger, counts: Counts) -> None:
    """Set the ledger to the state of a mark, regardless of what the rest of the log gave."""
    if ledger.gen > counts.gen:
        ledger.lower_generations(ledger.gen - counts.gen)
    ledger.gen = max(ledger.gen, counts.gen)
    ledger.last_place = max(ledger.last_place, counts.place)
    ledger.counters.clear()
    for row in counts.counters:
        ledger.counters[row.queue, row.task, row.outcome] = row.total
    for name, last in counts.events.items():
        queue = ledger.queue(name)
        shift = last - queue.last_event
        queue.last_event = last
        moved = [msgspec.structs.replace(event, id=event.id + shift) for event in queue.events]
        queue.events.clear()
        queue.events.extend(moved)
    for name, last in counts.history.items():
        queue = ledger.queue(name)
        shift = last - queue.last_history
        queue.last_history = last
        rows = [(at + shift, row) for at, row in queue.history]
        queue.history.clear()
        queue.history.extend(rows)
    for name in counts.paused:
        ledger.queue(name).row.paused = True
    for kind, offset in counts.cursors.items():
        ledger.cursors_of_streams[kind] = max(ledger.cursors_of_streams.get(kind, -1), offset)
    ledger.void.update(dict.fromkeys(tuple(void) for void in counts.void))  # type: ignore[misc]
    for queue_name, job_id, until_ms in counts.taken_ids:
        ledger.kept_ids.setdefault((queue_name, job_id), until_ms)
    if counts.schedules is not None:
        ledger.schedules.clear()
        ledger.schedules.update(((one.queue, one.name), one) for one in counts.schedules)
        for one in counts.schedules:
            ledger.queue(one.queue).row.known = True
    if counts.archivers is not None:
        ledger.archivers.clear()
        ledger.archivers.update(((one.name,), one) for one in counts.archivers)

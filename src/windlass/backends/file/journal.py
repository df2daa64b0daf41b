"""Collects the changes of the requests of one step, and converts them to the effects of that step."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol

from windlass.backends.file import effects as fx
from windlass.engine.effects import Table

if TYPE_CHECKING:
    from windlass.backends.memory.state import StoredQueue
    from windlass.core.job import AttemptRecord, Event, JobRecord, JobRef
    from windlass.engine.effects import Effects, Starter


class Journaled(Protocol):
    """The store whose changes are collected."""

    @property
    def queues(self) -> Mapping[str, StoredQueue]:
        """The queues by name."""

    def row(self, table: Table, key: tuple[Any, ...]) -> Any:
        """A row of a table; None if it does not exist."""

    def start_times(self, queue: str, group: str | None) -> list[int]:
        """The start times that count for the rate limit, oldest first."""


class Journal:
    """The journal of one ``FileStore``. It also numbers items that the store itself does not number."""

    def __init__(self) -> None:
        #: Totals since the store was created: log lines per job, starts per group or queue, ends that were
        #: put in the outbox, and ends that were relayed.
        self.logs: dict[JobRef, int] = {}
        self.starts: dict[Starter, int] = {}
        self.ends = 0
        self.relayed_ends = 0
        #: The number of requests so far that changed something.
        self.changes = 0
        self._clear()

    def _clear(self) -> None:
        self._jobs: dict[tuple[str, str], tuple[JobRecord, bool]] = {}
        self._gone: list[tuple[Any, ...]] = []
        self._rows: dict[tuple[Table, tuple[Any, ...]], None] = {}
        self._starts: dict[Starter, int | None] = {}
        self._parts: list[tuple[Any, ...]] = []
        self._events: dict[str, list[Event]] = {}
        self._history: dict[str, tuple[int, list[AttemptRecord]]] = {}
        self._trims: dict[str, int] = {}

    # --- collecting ---------------------------------------------------------------------------------

    def add(self, store: Journaled, effects: Effects, events: dict[str, list[Event]]) -> None:
        """Add the effects of a request, which the store has applied, and its numbered events."""
        if not effects:
            return
        self.changes += 1
        for job in effects.gone:
            self._jobs.pop(job.ref, None)
            self.logs.pop(job.ref, None)
            self._gone.append((3, job.queue, job.id, job.seq))
        for job, kind in effects.changed():
            ref = (job.queue, job.id)
            known = self._jobs.get(ref)
            self._jobs[ref] = (job, kind.is_whole or (known is not None and known[1]))
        self._rows.update(dict.fromkeys(effects.rows))
        for counter in effects.counts:
            self._rows[Table.COUNTER, counter] = None
        if effects.relayed or not effects.plain:
            self._add_starts(effects)
            self._add_parts(effects)
        self._add_logs(store, effects, events)

    def _add_starts(self, effects: Effects) -> None:
        for starter, (new, _) in effects.starts.items():
            self.starts[starter] = self.starts.get(starter, 0) + (new or 0)
            known = self._starts.get(starter, 0)
            self._starts[starter] = None if new is None or known is None else known + new

    def _add_parts(self, effects: Effects) -> None:
        for job, lines in effects.logs:
            total = self.logs.get(job.ref, 0)
            self.logs[job.ref] = total + len(lines)
            self._parts.append((8, job.queue, job.id, job.seq, total + 1, lines))
        for job, head, chunks in effects.chunks:
            self._parts.append((9, job.queue, job.id, job.seq, copy(head), chunks))
        self._parts += [(10, edge) for edge in effects.edges.values()]
        if effects.relayed:
            self.relayed_ends += effects.relayed
            self._parts.append((13, self.relayed_ends))
        if effects.ends:
            self._parts.append((12, self.ends + 1, effects.ends))
            self.ends += len(effects.ends)
        self._parts += [(19, mark) for mark in effects.marks]

    def _add_logs(self, store: Journaled, effects: Effects, events: dict[str, list[Event]]) -> None:
        if not effects.plain:
            for name, upto in effects.forgotten.items():
                kept = [event for event in self._events.pop(name, ()) if event.id > upto]
                if kept:
                    self._events[name] = kept
                self._parts.append((15, name, upto))
            self._trims.update(effects.trims)
        for name, new in events.items():
            known = self._events.get(name)
            self._events[name] = new if known is None else [*known, *new]
        for record in effects.history:
            if record.queue not in self._history:
                first = sum(other.queue == record.queue for other in effects.history)
                self._history[record.queue] = (store.queues[record.queue].last_history - first + 1, [])
            self._history[record.queue][1].append(record)

    # --- converting ----------------------------------------------------------------------------------

    def take(self, store: Journaled) -> list[Any]:
        """Return the effects of everything collected, with the present values, and clear the journal."""
        found: list[Any] = self._gone
        for job, whole in self._jobs.values():
            if whole:
                found.append((1, fx.whole_of(job)))
            else:
                found.append((2, job.queue, job.id, job.seq, fx.moving_of(job)))
        for table, key in self._rows:
            value = store.row(table, key)
            found.append((5, table, key) if value is None else (4, table, key, value))
        for (queue, group), new in self._starts.items():
            found.append(self.starts_effect(store, queue, group, new))
        found += self._parts
        found += [(14, queue, events) for queue, events in self._events.items()]
        found += [(16, queue, number, records) for queue, (number, records) in self._history.items()]
        found += [(17, queue, oldest) for queue, oldest in self._trims.items()]
        self._clear()
        return found

    def starts_effect(self, store: Journaled, queue: str, group: str | None, new: int | None) -> Any:
        """The effect for the newest ``new`` start times; None: for all of them."""
        times, number = store.start_times(queue, group), self.starts.get((queue, group), 0)
        if new is None or new >= len(times):
            return (7, queue, group, number, list(times))
        return (6, queue, group, number - new + 1, times[-new:], len(times))

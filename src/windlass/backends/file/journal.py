"""Collects what one step changes, and writes it down as effects."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from windlass.backends.file import effects as fx
from windlass.backends.memory.journal import Journal, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backends.file.store import FileStore
    from windlass.core.edges import ChildEnd, Edge
    from windlass.core.job import AttemptRecord, Event, JobRecord, JobRef
    from windlass.core.metrics import Mark
    from windlass.core.streams import Chunk, StreamHead

Starts = tuple[str, str | None]


class FileJournal(Journal):
    """The journal of one ``FileStore``. It also numbers what the store itself does not number."""

    def __init__(self) -> None:
        #: How many log lines a job ever had, starts a group or queue ever had, ends were left and told.
        self.logs: dict[JobRef, int] = {}
        self.starts: dict[Starts, int] = {}
        self.ends = 0
        self.told_ends = 0
        #: How many changes were told so far: whether a request changed anything.
        self.changes = 0
        self.clear()

    def clear(self) -> None:
        """Forget what was collected."""
        self._jobs: dict[tuple[str, str], tuple[JobRecord, bool]] = {}
        self._gone: list[tuple[Any, ...]] = []
        self._rows: dict[tuple[Any, ...], None] = {}
        self._starts: dict[Starts, int | None] = {}
        self._parts: list[tuple[Any, ...]] = []
        self._events: dict[str, list[Event]] = {}
        self._history: dict[str, tuple[int, list[AttemptRecord]]] = {}
        self._trimmed: set[str] = set()

    # --- what the state machine tells ---------------------------------------------------------------

    def made(self, job: JobRecord) -> None:
        self._jobs[job.queue, job.id] = (job, True)
        self.changes += 1

    def moved(self, job: JobRecord) -> None:
        key = (job.queue, job.id)
        if key not in self._jobs:
            self._jobs[key] = (job, False)
            self.changes += 1

    def gone(self, job: JobRecord) -> None:
        self._jobs.pop((job.queue, job.id), None)
        self.logs.pop(job.ref, None)
        self._gone.append((3, job.queue, job.id, job.seq))
        self.changes += 1

    def row(self, table: Table, *key: Any) -> None:
        self._rows[table, key] = None
        self.changes += 1

    def started(self, queue: str, group: str | None) -> None:
        self.starts[queue, group] = self.starts.get((queue, group), 0) + 1
        new = self._starts.get((queue, group), 0)
        self._starts[queue, group] = None if new is None else new + 1
        self.changes += 1

    def refitted(self, queue: str, group: str | None) -> None:
        self._starts[queue, group] = None
        self.changes += 1

    def logged(self, job: JobRecord, lines: list[str]) -> None:
        total = self.logs.get(job.ref, 0)
        self.logs[job.ref] = total + len(lines)
        self._add(8, job.queue, job.id, job.seq, total + 1, lines)

    def streamed(self, job: JobRecord, head: StreamHead, chunks: list[Chunk]) -> None:
        self._add(9, job.queue, job.id, job.seq, copy(head), chunks)

    def edge(self, edge: Edge) -> None:
        self._add(10, edge)

    def put_out(self, ends: Iterable[ChildEnd]) -> None:
        ends = list(ends)
        self._add(12, self.ends + 1, ends)
        self.ends += len(ends)

    def told(self) -> None:
        self.told_ends += 1
        self._add(13, self.told_ends)

    def happened(self, queue: str, event: Event) -> None:
        self._events.setdefault(queue, []).append(event)
        self.changes += 1

    def forgot_events(self, queue: str, last_event: int) -> None:
        self._events.pop(queue, None)
        self._add(15, queue, last_event)

    def ended(self, queue: str, number: int, record: AttemptRecord) -> None:
        self._history.setdefault(queue, (number, []))[1].append(record)
        self.changes += 1

    def trimmed(self, queue: str) -> None:
        self._trimmed.add(queue)
        self.changes += 1

    def marked(self, mark: Mark) -> None:
        self._add(19, mark)

    def _add(self, *effect: Any) -> None:
        self._parts.append(effect)
        self.changes += 1

    # --- what is written down ------------------------------------------------------------------------

    def take(self, store: FileStore) -> list[Any]:
        """The effects of what was collected, by how things are now; then it is forgotten."""
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
        found += [(17, queue, store.oldest_history(queue)) for queue in self._trimmed]
        self.clear()
        return found

    def starts_effect(self, store: FileStore, queue: str, group: str | None, new: int | None) -> Any:
        """The newest ``new`` start times; None: all that count."""
        times, number = store.start_times(queue, group), self.starts.get((queue, group), 0)
        if new is None or new >= len(times):
            return (7, queue, group, number, list(times))
        return (6, queue, group, number - new + 1, times[-new:], len(times))

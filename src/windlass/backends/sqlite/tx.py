"""One transaction: the requests that share it, and what they write besides jobs.

Events, history, counters and job counts are gathered while requests run and written once, before the
commit: one chunk per queue and log, one row per queue, one per counter. A request that fails takes back
its own share only.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.backends.sqlite.rows import (
    LOG_KEY,
    Row,
    changed_row,
    pack,
    record,
)
from windlass.core import transitions
from windlass.core.job import EVENTS_KEPT, AttemptRecord, JobRecord, JobRef
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.core.transitions import Note, Scribe

if TYPE_CHECKING:
    import sqlite3

    from windlass.backends.sqlite.statements import Statements

#: Most records in one chunk of a log: bounds what a reader has to unpack for one of them.
CHUNK = 1_000
#: Old events are deleted when this many more have come.
TRIM_EVERY = 1_000

_STATES = tuple(state.value for state in JobState)


class Names:
    """Queue names and numbers, as one connection has seen them. Neither ever changes."""

    def __init__(self, conn: sqlite3.Connection, sql: Statements) -> None:
        self._conn = conn
        self._sql = sql
        self._nums: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def num(self, name: str) -> int | None:
        """The number of a queue; None when it was never heard of."""
        found = self._nums.get(name)
        if found is None:
            row = self._conn.execute(self._sql["queue_num"], (name,)).fetchone()
            if row is None:
                return None
            found = self._learn(row[0], name)
        return found

    def name(self, num: int) -> str:
        found = self._names.get(num)
        if found is None:
            (found,) = self._conn.execute(self._sql["queue_name"], (num,)).fetchone()
            self._learn(num, found)
        return found

    def make(self, name: str) -> int:
        """Enter a new queue."""
        (num,) = self._conn.execute(self._sql["queue_insert"], (name,)).fetchone()
        return self._learn(num, name)

    def forget(self, names: list[str]) -> None:
        """The transaction that made these queues was rolled back."""
        for name in names:
            self._names.pop(self._nums.pop(name, 0), None)

    def _learn(self, num: int, name: str) -> int:
        self._nums[name] = num
        self._names[num] = name
        return num


class Meta(NamedTuple):
    """The one row of the meta table."""

    last_place: int
    clock_ms: int
    serial: int


class Step(Scribe):
    """One request at work inside a transaction. Absorbed by the ``Tx`` when it succeeds."""

    def __init__(self, tx: Tx, now_ms: int) -> None:
        super().__init__(now_ms, self._fresh_place)
        self.tx = tx
        self.conn = tx.conn
        self.sql = tx.sql
        self.last_place = tx.last_place
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.tallies: Counter[tuple[str, str]] = Counter()
        self.known: dict[str, bool] = {}
        self.topics: set[str] = set()
        self.made: list[str] = []

    def _fresh_place(self) -> int:
        self.last_place += 1
        return self.last_place

    def all(self, name: str, *params: Any) -> list[Row]:
        """Every row of a named statement."""
        return self.conn.execute(self.sql[name], params).fetchall()

    def one(self, name: str, *params: Any) -> Row | None:
        """The first row of a named statement."""
        row: Row | None = self.conn.execute(self.sql[name], params).fetchone()
        return row

    def run(self, name: str, *params: Any) -> int:
        """Execute a named statement; returns how many rows it changed."""
        return self.conn.execute(self.sql[name], params).rowcount

    def queue(self, name: str) -> int:
        """The number of a queue, which is made when it is new."""
        num = self.tx.names.num(name)
        if num is None:
            num = self.tx.names.make(name)
            self.made.append(name)
        return num

    def find(self, ref: JobRef) -> JobRecord | None:
        """The job under ``ref``."""
        num = self.tx.names.num(ref.queue)
        row = None if num is None else self.one("job_by_id", num, ref.id)
        return None if row is None else record(row, ref.queue)

    def records(self, rows: list[Row]) -> list[JobRecord]:
        """Jobs of any queue."""
        name = self.tx.names.name
        return [record(row, name(row[1])) for row in rows]

    def save(self, jobs: list[tuple[JobRecord, JobState]]) -> None:
        """Write changed jobs back, each given with the state it had before."""
        if jobs:
            self.conn.executemany(self.sql["job_save"], [changed_row(job) for job, _ in jobs])
        for job, before in jobs:
            self.moved(job, before)

    def moved(self, job: JobRecord, before: JobState) -> None:
        """Count a change of state and say who may care."""
        state, queue = job.state, job.queue
        if state is not before:
            self.tallies[queue, before] -= 1
            self.tallies[queue, state] += 1
        if state is JobState.WAITING or state in DUE_LATER:
            self.topics.add(f"ready:{queue}")
        elif state in FINISHED:
            self.topics.add(f"done:{queue}")

    def drop(self, job: JobRecord) -> None:
        """Delete a record and its logs; an id that was promised to be kept stays known."""
        num = self.queue(job.queue)
        self.run("job_delete", job.seq)
        self.run("payload_delete", job.seq)
        self.run("log_delete", job.seq)
        self.tallies[job.queue, job.state] -= 1
        until_ms = transitions.kept_until(job)
        if until_ms > self.now_ms:
            self.run("kept_id_save", num, job.id, until_ms)


class Tx:
    """What the requests of one transaction have in common."""

    def __init__(
        self, conn: sqlite3.Connection, sql: Statements, names: Names, meta: Meta, now_ms: int
    ) -> None:
        self.conn = conn
        self.sql = sql
        self.names = names
        self.meta = meta
        self.now_ms = now_ms
        self.last_place = meta.last_place
        self.notes: dict[str, list[tuple[int, Note]]] = {}
        self.history: dict[str, list[AttemptRecord]] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.tallies: Counter[tuple[str, str]] = Counter()
        self.known: dict[str, bool] = {}
        self.topics: set[str] = set()
        self.made: list[str] = []

    def step(self, now_ms: int | None) -> Step:
        """A fresh share for one request, at its own time or at the store's."""
        return Step(self, self.now_ms if now_ms is None else now_ms)

    def absorb(self, step: Step) -> None:
        """Keep what a successful request did."""
        self.last_place = step.last_place
        for note in step.notes:
            self.notes.setdefault(note.queue, []).append((step.now_ms, note))
        for ended in step.history:
            self.history.setdefault(ended.queue, []).append(ended)
            self.counts[ended.queue, ended.task, ended.outcome] += 1
        self.counts.update(step.counts)
        self.tallies.update(step.tallies)
        self.known.update(step.known)
        self.topics |= step.topics
        self.made += step.made

    def flush(self) -> set[str]:
        """Write everything that was gathered; returns the topics to tell listeners."""
        deltas: dict[str, dict[str, int]] = {}
        for (queue, state), delta in self.tallies.items():
            if delta:
                deltas.setdefault(queue, {})[state] = delta
        for queue in self.notes:
            self.topics.add(f"event:{queue}")
        for queue in dict.fromkeys([*self.notes, *self.history, *deltas, *self.known]):
            self._flush_queue(queue, deltas.get(queue, {}))
        if self.counts:
            self.conn.executemany(
                self.sql["counter_add"],
                [
                    (self._num(queue), task, outcome, count)
                    for (queue, task, outcome), count in self.counts.items()
                ],
            )
        self._flush_meta()
        return self.topics

    def _num(self, queue: str) -> int:
        num = self.names.num(queue)
        if num is None:
            num = self.names.make(queue)
            self.made.append(queue)
        return num

    def _flush_queue(self, queue: str, deltas: dict[str, int]) -> None:
        num = self._num(queue)
        notes, history = self.notes.get(queue, []), self.history.get(queue, [])
        last_event, last_history = self.conn.execute(
            self.sql["queue_flush"],
            (
                len(notes),
                len(history),
                self.known.get(queue),
                *[deltas.get(state, 0) for state in _STATES],
                num,
            ),
        ).fetchone()
        events = [
            (at, at_ms, note.type, note.job_id, note.task, note.data)
            for at, (at_ms, note) in enumerate(notes, last_event - len(notes) + 1)
        ]
        for first in range(0, len(events), CHUNK):
            chunk = events[first : first + CHUNK]
            self._chunk("event", num, chunk[0][0], chunk[-1][0], max(event[1] for event in chunk), chunk)
        first_id = last_history - len(history) + 1
        for first in range(0, len(history), CHUNK):
            part = history[first : first + CHUNK]
            newest = max(ended.finished_ms for ended in part)
            self._chunk("history", num, first_id + first, first_id + first + len(part) - 1, newest, part)
        if notes and last_event // TRIM_EVERY != (last_event - len(notes)) // TRIM_EVERY:
            self.conn.execute(
                self.sql["event_trim"], (num * LOG_KEY, num * LOG_KEY + max(last_event - EVENTS_KEPT, 0))
            )

    def _chunk(self, log: str, num: int, first_id: int, last_id: int, at_ms: int, records: list[Any]) -> None:
        self.conn.execute(
            self.sql[f"{log}_insert"], (num * LOG_KEY + last_id, first_id, at_ms, pack(records))
        )

    def _flush_meta(self) -> None:
        meta = Meta(
            self.last_place,
            max(self.meta.clock_ms, self.now_ms),
            self.meta.serial + bool(self.topics),
        )
        if meta != self.meta:
            self.conn.execute(self.sql["meta_save"], meta)
            self.meta = meta

"""The state of one request inside a transaction: loaded records, and methods that run statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

import msgspec

from windlass.backends.sqlite.rows import Row, record, storable
from windlass.backends.sqlite.statements import SPAN, StatementRunner
from windlass.backends.sqlite.tx import Tx, tally_of
from windlass.core import bad_records
from windlass.core.clock import moment
from windlass.core.job import JobRecord, JobRef
from windlass.core.states import JobState
from windlass.engine.effects import Effects


class Upkeep(msgspec.Struct):
    """Corrections that were found while loading. They are written with the effects of the verb."""

    #: Numbers of the outbox entries that were loaded, in order, and of entries that cannot be read.
    outbox: list[int] = []
    unread: list[int] = []
    #: Jobs whose expiry time is obsolete. Earlier releases left it on jobs that had started.
    stays: list[int] = []


class DamagedError(Exception):
    """A verb read damaged jobs. They must be set aside before the verb can run again."""

    def __init__(self, jobs: list[JobRecord]) -> None:
        super().__init__(jobs)
        self.jobs = jobs


class RequestState(StatementRunner):
    """What one request has loaded and collected, with methods that run named statements."""

    def __init__(self, tx: Tx, now_ms: int | None) -> None:
        self.tx = tx
        self.conn, self.sql = tx.conn, tx.sql
        self.queues = tx.queues
        self.now_ms = moment(now_ms, lambda: tx.now_ms)
        self.last_place = tx.last_place
        #: The effects of its verbs. The transaction writes the logs and counts of all its requests together.
        self.gathered: list[Effects] = []
        #: By queue: by how much the numbers of its jobs in each state change.
        self.tallies: dict[str, dict[JobState, int]] = {}
        self.made: list[str] = []
        #: Whether it only added jobs, and the last of them has the newest place and the current time.
        self.plain = True
        #: Jobs that this request set aside, by number.
        self._aside: dict[int, JobRef] = {}
        self.begin()

    def begin(self) -> None:
        """Reset the state before a verb runs."""
        #: Every loaded job by its number. A job has one record, no matter how it was found.
        self.records: dict[int, JobRecord] = {}
        self.lost: list[JobRecord] = []
        #: Created by ``for_upkeep`` when there is something to correct.
        self.upkeep: Upkeep | None = None
        #: The last place that was assigned before this verb.
        self.first_place = self.last_place

    def hand_over(self) -> None:
        """Add what was collected to the transaction, because the request succeeded."""
        tx, now_ms, logs = self.tx, self.now_ms, self.tx.queue_logs
        tx.last_place = self.last_place
        tx.plain = tx.plain and self.plain and now_ms == tx.now_ms
        for effects in self.gathered:
            for note in effects.pending_events:
                log, ids = logs[note.queue], note.job_ids
                log.events.append((now_ms, note.type, ids[0] if len(ids) == 1 else ids, note.task, note.data))
                log.noted += len(ids)
                if now_ms > log.at_ms:
                    log.at_ms = now_ms
            for alike in effects.attempts:
                logs[alike.first.queue].history.append(alike)
            for (name, task, outcome), by in effects.counts.items():
                counts = logs[name].counts
                counts[task, outcome] = counts.get((task, outcome), 0) + by
            tx.topics |= effects.topics
        for name, moved in self.tallies.items():
            tallies = logs[name].tallies
            for state, by in moved.items():
                tallies[state] = tallies.get(state, 0) + by
        tx.made += self.made

    def for_upkeep(self) -> Upkeep:
        """Return the upkeep of this verb, created on first use."""
        if self.upkeep is None:
            self.upkeep = Upkeep()
        return self.upkeep

    # --- records ----------------------------------------------------------------------------------

    def record(self, row: Row, queue: str) -> JobRecord:
        """Return the job of a row. A damaged one is also added to ``lost``."""
        known = self.records.get(row[0])
        if known is None:
            known = record(row, queue)
            if bad_records.is_lost(known):
                self.lost.append(known)
            else:
                self.records[row[0]] = known
        return known

    def jobs(self, rows: Iterable[Row]) -> list[JobRecord]:
        """Return the jobs of rows, which may be of several queues."""
        name = self.queues.name
        return [self.record(row, name(row[1])) for row in rows]

    def check_lost(self) -> None:
        """Raise ``DamagedError`` if damaged jobs were read."""
        if self.lost:
            raise DamagedError(self.lost)

    def totals(self, queue: str) -> dict[JobState, int]:
        """Count the jobs of a queue by state, including changes that are not written yet."""
        stored = self.queues.get(queue)
        if stored.totals is None:
            stored.totals = tally_of(self.conn, self.sql, stored.num)
        found = stored.totals.copy()
        for state, by in self.tx.queue_log(queue).tallies.items():
            found[state] += by
        for state, by in self.tallies.get(queue, {}).items():
            found[state] += by
        return found

    def tally(self, queue: str, before: JobState | None, state: JobState | None, by: int) -> None:
        """Record that ``by`` jobs moved from ``before`` (None: new) to ``state`` (None: removed)."""
        tallies = self.tallies.setdefault(queue, {})
        if state is not None:
            tallies[state] = tallies.get(state, 0) + by
        if before is not None:
            tallies[before] = tallies.get(before, 0) - by

    def queue(self, name: str) -> int:
        """Return the number of a queue. Creates the queue if it is new."""
        num = self.queues.num(name)
        if num is None:
            num = self.queues.make(name)
            self.made.append(name)
        return num

    # --- statements -------------------------------------------------------------------------------

    def run(self, name: str, *params: Any) -> int:
        """Execute a named statement. Returns the number of rows that it changed."""
        try:
            return self.conn.execute(self.sql[name], params).rowcount
        except UnicodeEncodeError:
            return self.conn.execute(self.sql[name], tuple(storable(params))).rowcount

    def many(self, name: str, rows: list[Row]) -> int:
        """Execute a named statement once for each row. Returns the total number of changed rows."""
        try:
            return self.conn.executemany(self.sql[name], rows).rowcount
        except UnicodeEncodeError:
            return self.conn.executemany(self.sql[name], storable(rows)).rowcount

    def among(self, name: str, seqs: list[int], *params: Any) -> sqlite3.Cursor:
        """Execute a statement about the jobs with the numbers ``seqs``, which must be distinct.

        Consecutive numbers are the common case, and SQLite finds them twice as fast through a range.
        """
        first, last = min(seqs), max(seqs)
        if last - first == len(seqs) - 1:
            return self.conn.execute(self.sql[name + SPAN], (*params, first, last))
        return self.conn.execute(self.sql[name], (*params, str(seqs)))

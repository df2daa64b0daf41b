"""One request inside a transaction: what it has loaded, and the statements that it runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any

from windlass.backends.sqlite.rows import Row, encode_json, record, storable
from windlass.backends.sqlite.statements import SPAN
from windlass.backends.sqlite.tx import Share, Tx, tally_of
from windlass.core import bad_records
from windlass.core.job import JobRecord, JobRef
from windlass.core.states import JobState


class Upkeep:
    """What was found while loading and goes with the writing, whatever the verb decides."""

    def __init__(self) -> None:
        #: Entries of the outbox that were loaded, in their order; and those that cannot be read.
        self.outbox: list[int] = []
        self.unread: list[int] = []
        #: Jobs with a time to end that means nothing any more: they ran under an earlier release.
        self.stays: list[int] = []


class DamagedError(Exception):
    """Jobs that cannot be read are in the way: they have to be set aside before the verb is decided."""

    def __init__(self, jobs: list[JobRecord]) -> None:
        super().__init__(jobs)
        self.jobs = jobs


class RequestState(Share):
    """What one request has loaded and gathered, and the statements that it runs."""

    def __init__(self, tx: Tx, now_ms: int | None) -> None:
        super().__init__(tx, tx.now_ms if now_ms is None else now_ms)
        self.tx = tx
        self.conn = tx.conn
        self.sql = tx.sql
        self.queues = tx.queues
        #: Jobs that were set aside, by number.
        self._aside: dict[int, JobRef] = {}
        self.begin()

    def begin(self) -> None:
        """Nothing is loaded yet."""
        #: Every job that was loaded, by its number: one record for one job, however it was found.
        self.records: dict[int, JobRecord] = {}
        self.lost: list[JobRecord] = []
        #: What was found while loading, if anything was.
        self.upkeep: Upkeep | None = None
        #: The last place that was given out before this verb.
        self.first_place = self.last_place

    def for_upkeep(self) -> Upkeep:
        """Where to put what is found while loading."""
        if self.upkeep is None:
            self.upkeep = Upkeep()
        return self.upkeep

    # --- records ----------------------------------------------------------------------------------

    def record(self, row: Row, queue: str) -> JobRecord:
        """The job of a row."""
        known = self.records.get(row[0])
        if known is None:
            known = record(row, queue)
            if bad_records.is_lost(known):
                self.lost.append(known)
            else:
                self.records[row[0]] = known
        return known

    def jobs(self, rows: Iterable[Row]) -> list[JobRecord]:
        """Jobs of any queue."""
        name = self.queues.name
        return [self.record(row, name(row[1])) for row in rows]

    def check_lost(self) -> None:
        """Stop here if something was read that has to be set aside."""
        if self.lost:
            raise DamagedError(self.lost)

    def totals(self, queue: str) -> dict[JobState, int]:
        """How many jobs of a queue are in each state, as of now."""
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
        """A number of jobs of a queue moved from one state to another (None: to none)."""
        tallies = self.tallies.setdefault(queue, {})
        if state is not None:
            tallies[state] = tallies.get(state, 0) + by
        if before is not None:
            tallies[before] = tallies.get(before, 0) - by

    def queue(self, name: str) -> int:
        """The number of a queue, which is made when it is new."""
        num = self.queues.num(name)
        if num is None:
            num = self.queues.make(name)
            self.made.append(name)
        return num

    # --- statements -------------------------------------------------------------------------------

    def all(self, name: str, *params: Any) -> list[Row]:
        """Every row of a named statement."""
        return self.conn.execute(self.sql[name], params).fetchall()

    def listed(self, name: str, items: Iterable[Any], *params: Any) -> list[Row]:
        """Every row of a named statement about the things in a list, its last parameter."""
        return self.conn.execute(self.sql[name], (*params, encode_json(list(items)))).fetchall()

    def run(self, name: str, *params: Any) -> int:
        """Execute a named statement; returns how many rows it changed."""
        try:
            return self.conn.execute(self.sql[name], params).rowcount
        except UnicodeEncodeError:
            return self.conn.execute(self.sql[name], tuple(storable(params))).rowcount

    def many(self, name: str, rows: list[Row]) -> int:
        """Execute a named statement once for each row; returns how many rows it changed in all."""
        try:
            return self.conn.executemany(self.sql[name], rows).rowcount
        except UnicodeEncodeError:
            return self.conn.executemany(self.sql[name], storable(rows)).rowcount

    def among(self, name: str, seqs: list[int], *params: Any) -> sqlite3.Cursor:
        """Execute a statement about the jobs numbered ``seqs``, which are different numbers.

        Jobs that were added one after the other, the common case, are found twice as fast by a range.
        """
        first, last = min(seqs), max(seqs)
        if last - first == len(seqs) - 1:
            return self.conn.execute(self.sql[name + SPAN], (*params, first, last))
        return self.conn.execute(self.sql[name], (*params, str(seqs)))

"""A request inside a transaction: the port through which the engine decides it.

Nothing is decided here. ``load`` reads what a verb asks for, ``write`` makes its effects so; no row is
changed before a verb has its answer. So a verb may be decided twice: when it met a job that cannot be read,
which is set aside first, and when an id that was taken for new is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.backend import requests as rq
from windlass.backends.sqlite import loading, writing
from windlass.backends.sqlite.rows import Row, encode_json, record, storable
from windlass.backends.sqlite.statements import SPAN
from windlass.backends.sqlite.tx import Share, tally_of
from windlass.backends.sqlite.writing import TakenError
from windlass.core import damage
from windlass.core.clock import moment
from windlass.engine import aside
from windlass.engine.drive import run
from windlass.engine.verbs import decide
from windlass.engine.work import Work
from windlass.errors import StorageError, WindlassError

if TYPE_CHECKING:
    import sqlite3

    from windlass.backends.sqlite.tx import Tx
    from windlass.core.job import JobRecord, JobRef
    from windlass.core.states import JobState
    from windlass.engine.effects import Effects
    from windlass.engine.reads import Reads, Verb

R = TypeVar("R")

#: Most pages that one prune gives back to the file system, and free ones that are left for what comes next.
VACUUM_PAGES = 500
SPARE_PAGES = 500


class DamagedError(Exception):
    """Jobs that cannot be read are in the way: they have to be set aside before the verb is decided."""

    def __init__(self, jobs: list[JobRecord]) -> None:
        super().__init__(jobs)
        self.jobs = jobs


class Step(Share):
    """One request at work. See ``engine.reads.Port``."""

    def __init__(self, tx: Tx, now_ms: int | None) -> None:
        super().__init__(tx, moment(now_ms, lambda: tx.now_ms))
        self.tx = tx
        self.conn = tx.conn
        self.sql = tx.sql
        self.queues = tx.queues
        #: Jobs that were set aside, by number.
        self._aside: dict[int, JobRef] = {}
        self._begin(careful=False)

    def _begin(self, *, careful: bool) -> None:
        """Nothing is loaded yet. ``careful``: no id is taken for new without a look."""
        self.careful = careful
        #: Every job that was loaded, by its number: one record for one job, however it was found.
        self.records: dict[int, JobRecord] = {}
        self.lost: list[JobRecord] = []
        #: Ids that were taken for new.
        self.assumed: list[JobRef] = []
        self.upkeep = loading.Upkeep()
        #: The last place that was given out before this verb.
        self.first_place = self.last_place

    # --- deciding ---------------------------------------------------------------------------------

    def answer(self, request: rq.Request[R]) -> R:
        """Carry out a request."""
        found: R = self.carry_out(lambda work: decide(work, request))
        if type(request) is rq.Prune:
            self._shrink()
        return found

    def carry_out(self, verb: Callable[[Work], Verb[R]]) -> R:
        """Decide a verb and write its effects, once all jobs in its way can be read."""
        while True:
            try:
                return self._decide(verb)
            except DamagedError as found:
                self.lose(found.jobs)

    def _decide(self, verb: Callable[[Work], Verb[R]]) -> R:
        try:
            return self._drive(verb, careful=False)
        except TakenError:
            pass
        except WindlassError:  # which only a verb raises, before anything is written
            if not self.assumed:
                raise
        return self._drive(verb, careful=True)

    def _drive(self, verb: Callable[[Work], Verb[R]], *, careful: bool) -> R:
        self._begin(careful=careful)
        work = Work(self.now_ms, self.fresh_place)
        if self._aside:
            work.aside = list(self._aside.values())
        try:
            return run(verb(work), self, work)
        except BaseException:
            self.last_place = self.first_place
            raise

    def lose(self, jobs: list[JobRecord]) -> None:
        """Write what stands in for jobs over the records that cannot be read, whose bytes they carry.

        Their groups have room for others, of which some may have to be set aside, too.
        """
        shaken = self._set_aside(jobs)
        while shaken:
            try:
                self._decide(partial(aside.let_in, groups=shaken))
                break
            except DamagedError as found:
                shaken |= self._set_aside(found.jobs)

    def _set_aside(self, jobs: list[JobRecord]) -> set[tuple[str, str]]:
        """End jobs that cannot be read; their groups."""
        groups: set[tuple[str, str]] = set()
        ahead = [jobs]
        while ahead:
            lost = [self._renamed(copy(job)) for job in ahead[-1]]
            theirs = {(job.queue, group) for job in lost for (group,) in self.all("job_grp", job.seq)}
            try:
                self._decide(partial(aside.set_aside, lost=lost))
            except DamagedError as found:  # among those that wait for them
                ahead.append(found.jobs)
                continue
            ahead.pop()
            groups |= theirs
            for job in lost:
                self._aside[job.seq] = job.ref
                self.run("unique_key_free_job", self.queue(job.queue), job.id)
        return groups

    def _renamed(self, job: JobRecord) -> JobRecord:
        if job.seq in self._aside:
            raise StorageError(f"job {job.id} cannot be read, nor set aside")
        if any(seq != job.seq for (seq,) in self.all("job_seq", self.queue(job.queue), job.id)):
            job.id += f"~{job.seq}"  # what can be read of its id is another job's
        return job

    def fresh_place(self) -> int:
        """A place behind all others, in any line."""
        self.last_place += 1
        return self.last_place

    def load(self, reads: Reads, work: Work) -> None:
        """Read what is asked for."""
        loading.load(self, reads, work)
        self.check_lost()

    def write(self, effects: Effects) -> None:
        """Make it so."""
        writing.write(self, effects)

    # --- records ----------------------------------------------------------------------------------

    def record(self, row: Row, queue: str) -> JobRecord:
        """The job of a row."""
        known = self.records.get(row[0])
        if known is None:
            known = record(row, queue)
            if damage.is_lost(known):
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
        for held in (self.tx.tallies, self.tallies):
            for (name, state), by in held.items():
                if name == queue:
                    found[state] += by
        return found

    def gather(self, effects: Effects) -> None:
        """Keep what the transaction writes once for all of its requests."""
        self.notes += effects.notes
        self.history += effects.history
        for key, by in effects.counts.items():
            self.counts[key] = self.counts.get(key, 0) + by
        self.topics |= effects.topics

    def tally(self, queue: str, state: JobState, by: int) -> None:
        """Change how many jobs of a queue are in a state."""
        key = (queue, state)
        self.tallies[key] = self.tallies.get(key, 0) + by

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

    def _shrink(self) -> None:
        """Give some free pages back, when they are many: a queue that comes and goes shall reuse its own."""
        ((free,),) = self.conn.execute("PRAGMA freelist_count").fetchall()
        ((pages,),) = self.conn.execute("PRAGMA page_count").fetchall()
        if free > SPARE_PAGES + pages // 8:
            for _ in range(min(free - SPARE_PAGES, VACUUM_PAGES)):
                self.conn.execute("PRAGMA incremental_vacuum(1)")  # the sqlite3 module stops after one page

"""The engine's port: carries out one request inside a transaction.

The engine makes all decisions. ``load`` reads the data that a verb asks for and ``write`` stores its effects.
No row changes before the verb has its answer, so a verb can be run twice. This happens when it reads a
damaged job, which is set aside first, and when an id that was assumed to be new exists (``_add_plain``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, TypeVar

from windlass.backend import requests as rq
from windlass.backends.sqlite import loading, loading_more, writing
from windlass.backends.sqlite.request import DamagedError, RequestState
from windlass.backends.sqlite.writing import TakenError
from windlass.core.job import JobRecord, NewJob
from windlass.core.paths import took
from windlass.engine import unreadable
from windlass.engine.adding import add_new, are_plain
from windlass.engine.drive import run
from windlass.engine.reads import MoreReads, Reads, Verb
from windlass.engine.unit_of_work import QueueView, UnitOfWork
from windlass.engine.verbs import VERBS
from windlass.errors import StorageError

R = TypeVar("R")

#: The most free pages that one prune returns to the file system, and the free pages it leaves for new jobs.
VACUUM_PAGES = 500
SPARE_PAGES = 500


class RequestPort(RequestState):
    """Carries out one request. Implements ``engine.drive.Port``."""

    # --- deciding ---------------------------------------------------------------------------------

    def answer(self, request: rq.Request[R]) -> R:
        """Carry out a request and return its answer."""
        if type(request) is rq.Add and (added := self._add_plain(request.jobs)) is not None:
            return added  # type: ignore[return-value]
        found: R = self.carry_out(VERBS[type(request)], request)
        if type(request) is rq.Prune:
            self._shrink()
        return found

    def _add_plain(self, jobs: list[NewJob]) -> list[rq.Added] | None:
        """Add plain jobs without looking up their ids first: the insert fails if an id exists.

        Returns None, and changes nothing, if the general path is needed.
        """
        if not self.queues.nothing_kept() or not are_plain(jobs):
            return None
        work = UnitOfWork(self.now_ms, self.fresh_place)
        for name in {new.queue for new in jobs}:
            stored = self.queues.find(name)
            if stored is None or not stored.row.known or stored.row.grouped:
                return None
            work.queues[name] = QueueView(name, stored.row)
        added = add_new(work, jobs)
        work.close()
        try:
            writing.write(self, work.effects)
        except TakenError:
            self.last_place = self.first_place
            return None
        took("sqlite.add_rows")
        return added

    def carry_out(self, verb: Callable[..., Verb[R]], *asked: Any) -> R:
        """Run a verb and write its effects. Damaged jobs that it reads are set aside, then it runs again."""
        while True:
            try:
                return self._decide(verb, *asked)
            except DamagedError as found:
                self.lose(found.jobs)

    def _decide(self, verb: Callable[..., Verb[R]], *asked: Any) -> R:
        work = UnitOfWork(self.now_ms, self.fresh_place)
        if self._aside:
            work.aside = list(self._aside.values())
        if self.records or self.lost or self.upkeep or self.last_place != self.first_place:
            self.begin()  # an earlier verb of this request left its state here
        try:
            return run(verb(work, *asked), self, work)
        except DamagedError:
            self.last_place = self.first_place
            self.begin()
            raise

    def lose(self, jobs: list[JobRecord]) -> None:
        """Fail damaged jobs. Each of ``jobs`` replaces a record that cannot be read, and carries its bytes.

        Their groups may then admit other jobs. If some of those are damaged, they are set aside, too.
        """
        affected = self._set_aside(jobs)
        while affected:
            try:
                self._decide(unreadable.let_in, affected)
                break
            except DamagedError as found:
                affected |= self._set_aside(found.jobs)

    def _set_aside(self, jobs: list[JobRecord]) -> set[tuple[str, str]]:
        """Fail jobs that cannot be read. Returns the groups (queue, name) that they were in."""
        groups: set[tuple[str, str]] = set()
        ahead = [jobs]
        while ahead:
            lost = [self._renamed(copy(job)) for job in ahead[-1]]
            theirs = {(job.queue, group) for job in lost for (group,) in self.all("job_grp", job.seq)}
            try:
                self._decide(unreadable.set_aside, lost)
            except DamagedError as found:  # dependents of the jobs are damaged, too
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
            raise StorageError(f"job {job.id} can be neither read nor set aside")
        if any(seq != job.seq for (seq,) in self.all("job_seq", self.queue(job.queue), job.id)):
            job.id += f"~{job.seq}"  # another job has the id that could be read
        return job

    def fresh_place(self) -> int:
        """Return a new place, after all existing ones of every queue."""
        self.last_place += 1
        return self.last_place

    def load(self, reads: Reads, work: UnitOfWork) -> None:
        """Load the data of ``reads`` into ``work``; raises ``DamagedError`` for jobs that cannot be read."""
        if type(reads) is MoreReads:
            loading_more.load(self, reads, work)
        else:
            loading.load(self, reads, work)
        if self.lost:
            self.check_lost()

    write = writing.write

    def _shrink(self) -> None:
        """Return free pages to the file system if there are many. A queue that refills reuses the others."""
        ((free,),) = self.conn.execute("PRAGMA freelist_count").fetchall()
        ((pages,),) = self.conn.execute("PRAGMA page_count").fetchall()
        if free > SPARE_PAGES + pages // 8:
            for _ in range(min(free - SPARE_PAGES, VACUUM_PAGES)):
                self.conn.execute("PRAGMA incremental_vacuum(1)")  # the sqlite3 module stops after one page

"""What the broker has to hold for the jobs of the ledger, and how to get there.

For each job the ledger knows where its message is (``Placed``). After every log entry ``plan`` compares
that with the job's state:

* a job that waits has one message in its queue, of the newest generation; older ones are *void*;
* a job that is scheduled, retrying or dead, or that runs for long, has one message in ``windlass.kept``
  until that ends;
* anything else has none.

The same log gives the same generations, so that what is published twice after a crash is recognised.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from windlass.backends.amqp.foreign_jobs import ForeignJobs, Placed
from windlass.core.job import JobRecord, JobRef
from windlass.core.states import JobState
from windlass.engine.effects import Effects

KEPT = frozenset({JobState.SCHEDULED, JobState.RETRYING, JobState.FAILED})
_GONE_KEPT = 20_000


class BrokerPlan(msgspec.Struct):
    """What the broker must be made to hold after an entry of the log."""

    #: Jobs to publish to their queues, with their generations.
    publish: list[tuple[JobRecord, int]] = []
    #: Records to keep, with their generations.
    keep: list[tuple[JobRecord, int]] = []
    #: Kept records that have served: reference and generation.
    drop: list[tuple[JobRef, int]] = []
    #: Messages in queues that count no more.
    void: list[tuple[str, str, int]] = []
    #: Those of them whose job may run by such a message.
    doubled: list[tuple[str, str, int]] = []
    #: Tokens of attempts that ended otherwise than by their worker.
    lost: list[str] = []


class PlannedJobs(ForeignJobs):
    """The reference store, which also plans what the broker has to hold."""

    def __init__(self) -> None:
        super().__init__()
        #: Messages in queues that count no more.
        self.void: dict[tuple[str, str, int], None] = {}
        #: Messages in the hands of workers whose jobs ended and left no record, the newest. One that is not
        #: acknowledged comes back.
        self.gone: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self.gen = 0
        #: Jobs that changed since the last plan; None for those that are gone.
        self._touched: dict[JobRef, JobRecord | None] = {}
        #: The tokens of running jobs, as of the last plan, and those that their workers ended since.
        self._running: dict[JobRef, str | None] = {}
        self._closed: set[str] = set()
        #: Messages of jobs that have another.
        self._doubled: list[tuple[str, str, int]] = []
        #: Tokens of attempts whose jobs are kept while they run (see ``verbs.Lend``).
        self._lent: set[str] = set()
        #: Jobs whose message another client published, with its generation.
        self._published: dict[JobRef, int] = {}

    def write(self, effects: Effects) -> None:
        """Take in what a request changed, and remember it for the plan."""
        super().write(effects)
        self._touched.update((job.ref, None) for job in effects.gone)
        self._touched.update((job.ref, job) for job, _ in effects.changed())

    def plan(self) -> BrokerPlan:
        """What the changes since the last plan ask of the broker."""
        plan, self._doubled = BrokerPlan(void=list(self._doubled), doubled=self._doubled), []
        touched, self._touched = self._touched, {}
        published, self._published = self._published, {}
        for ref, job in touched.items():
            self._plan_one(ref, job, published.get(ref), plan)
            self._note_token(ref, job, plan)
        self._closed.clear()
        return plan

    def _note_token(self, ref: JobRef, job: JobRecord | None, plan: BrokerPlan) -> None:
        """Remember who runs a job; a worker that ran it before without ending it has lost it."""
        before = self._running.pop(ref, None)
        if job is not None and job.state is JobState.ACTIVE:
            self._running[ref] = job.token
            if before == job.token:
                return
        if before is not None and before not in self._closed:
            plan.lost.append(before)

    def _plan_one(self, ref: JobRef, job: JobRecord | None, published: int | None, plan: BrokerPlan) -> None:
        before = self.placed.get(ref)
        if job is not None and job.state is JobState.ACTIVE:
            if job.token in self._lent:
                self._lent.discard(job.token)
                self._keep(ref, job, plan)
                return
            if before is not None and before.lent:
                return  # renewed
            if before is None or before.where != "queue":
                before = self.placed[ref] = Placed("queue", published or 0, job.state, mark_of(job))
            before.state = job.state
            return
        if job is not None and job.state is JobState.WAITING:
            mark = mark_of(job)
            if published is not None:
                self.placed[ref] = Placed("queue", published, job.state, mark)
                self.gone.pop((ref.queue, ref.id, published), None)  # its id is in use again
                return
            if before is not None and before.where == "queue" and before.mark == mark:
                before.state = job.state  # given back: the broker has it at its old place
                return
            self._leave(ref, before, plan)
            self.gen += 1
            self.placed[ref] = Placed("queue", self.gen, job.state, mark)
            plan.publish.append((job, self.gen))
            return
        self._leave(ref, before, plan)
        if job is not None and job.state in KEPT:
            self._keep(ref, job, plan)
        else:
            self.placed.pop(ref, None)
            if job is None and before is not None and before.state is JobState.ACTIVE:
                self.gone[ref.queue, ref.id, before.gen] = None
                if len(self.gone) > _GONE_KEPT:
                    self.gone.popitem(last=False)

    def _keep(self, ref: JobRef, job: JobRecord, plan: BrokerPlan) -> None:
        self.gen += 1
        self.placed[ref] = Placed("kept", self.gen, job.state, None)
        plan.keep.append((job, self.gen))

    def _leave(self, ref: JobRef, before: Placed | None, plan: BrokerPlan) -> None:
        """A job's message is where it no longer belongs."""
        if before is None:
            return
        if before.where == "kept":
            plan.drop.append((ref, before.gen))
        elif before.state is JobState.WAITING:
            void = (ref.queue, ref.id, before.gen)
            self.void[void] = None
            plan.void.append(void)

    def adopt(self, job: JobRecord, gen: int) -> bool:
        """Take in a kept record that the log no longer has; False when the log knows better."""
        placed = self.placed.get(job.ref)
        if placed is not None and placed.gen >= gen:
            return placed.gen == gen
        self.queue(job.queue).row.known = True
        self.gen, self.last_place = max(self.gen, gen), max(self.last_place, job.seq, job.place)
        self.put_job(job)
        self._touched.pop(job.ref, None)
        if placed is not None and placed.where == "queue" and placed.state is JobState.WAITING:
            self.void[job.queue, job.id, placed.gen] = None
        self.placed[job.ref] = Placed("kept", gen, job.state, None)
        return True


def mark_of(job: JobRecord | None) -> Any:
    """What of a job decides whether its message in the queue is still right."""
    return job and (job.place, job.priority, job.manual_retries, job.payload, job.enqueued_ms)

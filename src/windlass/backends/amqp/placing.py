"""Plans which messages the broker must hold for the jobs of the ledger.

The ledger knows where the message of each job is (``Placed``). After every log entry ``plan`` compares that
with the state of the job:

* A waiting job has one message in its queue, of the newest generation. Older messages are *void*.
* A scheduled, retrying or dead job, or one that runs for a long time, has one message in ``windlass.kept``.
* Any other job has no message.

The same log always gives the same generations. So a message that is published twice after a crash is
recognised.
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
    """The messages to publish and to drop after a log entry."""

    #: Jobs to publish to their queues, with their generations.
    publish: list[tuple[JobRecord, int]] = []
    #: Records to keep, with their generations.
    keep: list[tuple[JobRecord, int]] = []
    #: Kept records that are no longer needed: reference and generation.
    drop: list[tuple[JobRef, int]] = []
    #: Messages in queues that became void.
    void: list[tuple[str, str, int]] = []
    #: Those of ``void`` from which a job may validly run.
    doubled: list[tuple[str, str, int]] = []
    #: Tokens of attempts that their workers have lost.
    lost: list[str] = []


class PlannedJobs(ForeignJobs):
    """The memory store, which also plans the messages of the broker."""

    def __init__(self) -> None:
        super().__init__()
        #: Void messages in queues. Workers verify them before they start a job.
        self.void: dict[tuple[str, str, int], None] = {}
        #: The newest messages whose jobs ended without leaving a record. If a worker did not acknowledge one,
        #: it is redelivered.
        self.gone: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        self.gen = 0
        #: Jobs that changed since the last plan; None for deleted ones.
        self._touched: dict[JobRef, JobRecord | None] = {}
        #: The tokens of running jobs at the last plan, and the tokens that their workers settled since then.
        self._running: dict[JobRef, str | None] = {}
        self._closed: set[str] = set()
        #: Messages of jobs that have a second one.
        self._doubled: list[tuple[str, str, int]] = []
        #: Tokens of running attempts to hand over to their leases (see ``verbs.Lend``).
        self._to_keep: set[str] = set()
        #: Jobs whose message another client published, with its generation.
        self._published: dict[JobRef, int] = {}

    def write(self, effects: Effects) -> None:
        """Apply the effects of a request, and note the changed jobs for the next plan."""
        super().write(effects)
        self._touched.update((job.ref, None) for job in effects.gone)
        self._touched.update((job.ref, job) for job, _ in effects.changed())

    def plan(self) -> BrokerPlan:
        """Plan the messages for the changes since the last plan."""
        plan, self._doubled = BrokerPlan(void=list(self._doubled), doubled=self._doubled), []
        touched, self._touched = self._touched, {}
        published, self._published = self._published, {}
        for ref, job in touched.items():
            self._plan_one(ref, job, published.get(ref), plan)
            self._note_token(ref, job, plan)
        self._closed.clear()
        return plan

    def _note_token(self, ref: JobRef, job: JobRecord | None, plan: BrokerPlan) -> None:
        """Note the token of a running job. An earlier attempt that its worker did not settle is lost."""
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
            if job.token in self._to_keep:
                self._to_keep.discard(job.token)
                self._keep(ref, job, plan)
                return
            if before is not None and before.kept_by_lease:
                return  # a renewal
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
                before.state = job.state  # released: the worker returned the message to its old place
                return
            self._withdraw(ref, before, plan)
            self.gen += 1
            self.placed[ref] = Placed("queue", self.gen, job.state, mark)
            plan.publish.append((job, self.gen))
            return
        self._withdraw(ref, before, plan)
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

    def _withdraw(self, ref: JobRef, before: Placed | None, plan: BrokerPlan) -> None:
        """Drop the kept record of a job, or make its message in the queue void."""
        if before is None:
            return
        if before.where == "kept":
            plan.drop.append((ref, before.gen))
        elif before.state is JobState.WAITING:
            void = (ref.queue, ref.id, before.gen)
            self.void[void] = None
            plan.void.append(void)

    def lower_generations(self, by: int) -> None:
        """Lower the generations of all messages. A replay gave out ``by`` more than were given out before.

        That should not happen. If the generations of a few jobs differ, those of all later ones do, and
        workers would drop valid messages as outdated. With a generation that is too low they start the job;
        only if it is cancelled while it waits, its message is not recognised as void.
        """
        for placed in self.placed.values():
            placed.gen = max(placed.gen - by, 0)

    def adopt(self, job: JobRecord, gen: int) -> bool:
        """Add the job of a kept record that the log no longer has; False if the log has a newer state."""
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
    """The fields of a job that decide whether its message in the queue is still valid."""
    return job and (job.place, job.priority, job.manual_retries, job.payload, job.enqueued_ms)

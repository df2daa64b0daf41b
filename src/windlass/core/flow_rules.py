"""How dependencies change a job: it is blocked, it is unblocked, or it fails with a child.

Pure, like ``core.transitions``, on which it is built. A store finds the edges and calls:

* ``block`` when a job that has not started gets something to wait for;
* ``after_edge`` each time one of its edges was settled;
* ``review`` when a job has just been blocked, for edges may have been settled before;
* ``wait_for_none`` when an attempt ends that waits for children, and none of them is open;
* ``end_of`` to know what to report to the dependents of a job that ended;
* ``Doors`` to know which new jobs of a flow will not be made, and ``check_kept_out`` before it adds the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container

import msgspec

from windlass.core.edges import ChildEnd, Edge, EdgeStatus, OnFailure, forgive, reopen, settle_edge
from windlass.core.job import BRIEF_CHARS, ErrorInfo, EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.core.queue_time import count
from windlass.core.states import PENDING, JobState
from windlass.core.transitions import ChangeRecorder, fail, promote
from windlass.errors import DependencyError

DEPENDENCY_CLASS = "DependencyFailed"
#: What is said of a job that waits for children, again and again, and has none that are open.
CHILDLESS_CLASS = "NoOpenChildren"
CHILDLESS_MESSAGE = "waits for children, but has none that are open"
#: The reason of such a job from the first time on, with the number of children that it ever had.
WAITED = "no child was open of "
#: What a job says whose child did not complete; it names the child's queue.
DEPENDENCY_MESSAGE = re.compile(r"job \S+ of queue (\S+) did not complete: .*")
#: Not started yet, nor waiting for a signal: these wait when they get something to wait for.
BLOCKABLE = PENDING - {JobState.BLOCKED, JobState.SUSPENDED}


def block(job: JobRecord, recorder: ChangeRecorder) -> bool:
    """Make a job that has not started wait for its dependencies; whether that changed anything.

    A due time stays and counts again once it is unblocked. A running job continues: it waits when its handler
    says so.
    """
    if job.state not in BLOCKABLE:
        return False
    count(job, recorder.now_ms)
    job.state = JobState.BLOCKED
    recorder.record_event(job, EventType.BLOCKED)
    return True


def unblock(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Unblock a job: it is waiting, or scheduled if its due time is in the future."""
    if job.due_ms is not None and job.due_ms > recorder.now_ms:
        count(job, recorder.now_ms)
        job.state = JobState.SCHEDULED
        job.ready_ms = job.due_ms
        recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)
    else:
        job.due_ms = None
        promote(job, recorder)


def after_edge(job: JobRecord, edge: Edge, *, has_open: bool, recorder: ChangeRecorder) -> bool:
    """One edge of ``job`` was settled; whether that changed the job.

    ``has_open``: whether other edges of it are open. Only a blocked job is changed: one that runs looks at
    its children when it likes, one that ended has ended.
    """
    if job.state is not JobState.BLOCKED:
        return False
    if edge.broken:
        fail_dependency(job, edge, recorder)
    elif not has_open or (edge.status is EdgeStatus.FAILED and edge.on_failure is OnFailure.CONTINUE):
        unblock(job, recorder)
    else:
        return False
    return True


def review(job: JobRecord, *, broken: Edge | None, has_open: bool, recorder: ChangeRecorder) -> None:
    """Decide about a job that was blocked just now. ``broken``: its first edge that makes it fail."""
    if broken is not None:
        fail_dependency(job, broken, recorder)
    elif not has_open:
        unblock(job, recorder)


def look_again(edge: Edge, child: JobRecord | None, *, runs_again: bool) -> None:
    """A person retries the dependent: what became of a child that did not complete (None: it is gone).

    It counts if it has completed since, and blocks if it is open; what failed is forgiven.
    ``runs_again``: the child is retried with it.
    """
    if child is None or (child.state in (JobState.FAILED, JobState.CANCELLED) and not runs_again):
        forgive(edge)
        return
    reopen(edge, child.seq)
    if child.state is JobState.COMPLETED and not runs_again:
        settle_edge(edge, end_of(child))


def wait_for_none(job: JobRecord, end: Settlement, children: int) -> Settlement:
    """How an attempt ends that waits for children, none of which is open; ``children``: how many it ever had.

    They may have ended while it ran: it runs again at once. But when it has got no other child since it last
    waited for none, it would do so forever: then the attempt has failed.
    """
    if job.cancel_reason is not None:
        return end
    waited = f"{WAITED}{children}"
    if job.reason != waited:
        job.reason = waited
        return end
    error = ErrorInfo(error_class=CHILDLESS_CLASS, message=CHILDLESS_MESSAGE, fingerprint=CHILDLESS_CLASS)
    outcome = Outcome.FAIL if end.reason else Outcome.RETRY
    return msgspec.structs.replace(end, outcome=outcome, error=error)


def fail_dependency(job: JobRecord, edge: Edge, recorder: ChangeRecorder) -> None:
    """End a blocked job whose child did not complete."""
    message = f"job {edge.child.id} of queue {edge.child.queue} did not complete: {edge.reason}"
    error = ErrorInfo(recorder.now_ms, 0, DEPENDENCY_CLASS, message, "", DEPENDENCY_CLASS)
    fail(job, recorder, error, reason="dependency_failed")


def end_of(job: JobRecord) -> ChildEnd:
    """What the dependents of a job receive: how it ended, or that its record goes before it ended."""
    if job.state is JobState.COMPLETED:
        return ChildEnd(child=job.ref, seq=job.seq, completed=True, value=job.result, codec=job.result_codec)
    last = job.errors[-1] if job.errors and job.state is JobState.FAILED else None
    error = f"{last.error_class}: {last.message}"[:BRIEF_CHARS] if last else ""
    match job.state:
        case JobState.FAILED:
            reason = job.reason or "failed"
        case JobState.CANCELLED:
            reason = "cancelled"
        case _:
            reason = "removed"
    return ChildEnd(child=job.ref, seq=job.seq, completed=False, reason=reason, error=error)


class Doors:
    """Says which new jobs of a flow will not be made: a unique key is held, or a group refuses."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], JobRef] = {}
        self._sizes: Counter[tuple[str, str]] = Counter()
        #: The job that stands for the one that was kept out last, if there is one.
        self.holder: JobRef | None = None

    def admit(
        self, new: NewJob, *, held: bool, holder: JobRef | None, refuses: Callable[[int], bool]
    ) -> bool:
        """Whether the job will be made; if so, its key and its place in the group are taken.

        ``held``: a stored job holds its key, ``holder`` if that can be named. ``refuses``: whether its group
        refuses it after this many others of the flow.
        """
        unique, group = new.options.unique, new.options.group
        if unique is not None:
            key = (new.queue, unique.key)
            if key in self._taken or held:
                self.holder = self._taken.get(key, holder)
                return False
        if group is not None and refuses(self._sizes[new.queue, group]):
            self.holder = None
            return False
        if unique is not None:
            self._taken[new.queue, unique.key] = JobRef(new.queue, new.id)
        if group is not None:
            self._sizes[new.queue, group] += 1
        return True


def check_kept_out(held: Container[JobRef], jobs: list[NewJob]) -> None:
    """Refuse a flow that waits for a job of its own which its key or its group keeps out."""
    for new in jobs:
        for dependency in (*new.depends_on, *([new.parent] if new.parent else [])):
            if dependency.ref in held:
                raise DependencyError(
                    "depends_on",
                    f"free of jobs kept out by their unique key, a full or an ordered group: {dependency.id}",
                )

"""How dependencies change a job: it is blocked, it is unblocked, or it fails with a child.

These functions do no I/O, like those of ``core.transitions``, which they use. The engine finds the edges and
calls:

* ``block`` when a job that has not started gets a new dependency;
* ``after_edge`` each time one of its edges was settled;
* ``review`` when a job has just been blocked, because edges may have been settled before;
* ``wait_for_none`` when an attempt ends to wait for children, and none of them is open;
* ``end_of`` for the report to the dependents of a job that ended;
* ``Doors`` to find the new jobs of a flow that will not be created, and ``check_kept_out`` before it adds the
  others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import msgspec

from windlass.core.edges import ChildEnd, Edge, EdgeStatus, OnFailure, settle_edge
from windlass.core.job import BRIEF_CHARS, ErrorInfo, EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.core.queue_time import count
from windlass.core.states import FINISHED, PENDING, JobState
from windlass.core.transitions import ChangeRecorder, fail, promote
from windlass.errors import DependencyError

DEPENDENCY_CLASS = "DependencyFailed"
#: The error of a job that repeatedly waits for children although none is open.
CHILDLESS_CLASS = "NoOpenChildren"
CHILDLESS_MESSAGE = "waits for children, but has none that are open"
#: The job's reason after the first such wait, followed by the number of children that it ever had.
WAITED = "no child was open of "
#: The error message of a job whose child did not complete, with the child's queue.
DEPENDENCY_MESSAGE = re.compile(r"job \S+ of queue (\S+) did not complete: .*")
#: Jobs in these states become blocked when they get a new dependency.
BLOCKABLE = PENDING - {JobState.BLOCKED, JobState.SUSPENDED}


def block(job: JobRecord, recorder: ChangeRecorder) -> bool:
    """Block a job that has not started, until its dependencies have ended. Returns whether it was changed.

    Its due time applies again once it is unblocked. A running job is not changed: its handler decides when
    to wait.
    """
    if job.state not in BLOCKABLE:
        return False
    count(job, recorder.now_ms)
    job.state = JobState.BLOCKED
    recorder.record_event(job, EventType.BLOCKED)
    return True


def unblock(job: JobRecord, recorder: ChangeRecorder) -> None:
    """Make a blocked job waiting, or scheduled if its due time is in the future."""
    if job.due_ms is not None and job.due_ms > recorder.now_ms:
        count(job, recorder.now_ms)
        job.state = JobState.SCHEDULED
        job.ready_ms = job.due_ms
        recorder.record_event(job, EventType.SCHEDULED, run_at_ms=job.due_ms)
    else:
        job.due_ms = None
        promote(job, recorder)


def after_edge(job: JobRecord, edge: Edge, *, has_open: bool, recorder: ChangeRecorder) -> bool:
    """Update ``job`` after one of its edges was settled. Returns whether the job was changed.

    ``has_open``: whether other edges of the job are open. Only a blocked job is changed.
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
    """Fail or unblock a job that was just blocked, if its edges say so. ``broken``: the first failed edge."""
    if broken is not None:
        fail_dependency(job, broken, recorder)
    elif not has_open:
        unblock(job, recorder)


def look_again(edge: Edge, child: JobRecord | None, *, runs_again: bool) -> None:
    """Update a missed edge because a caller retries the dependent. ``child`` None: its record is gone.

    If the child has completed since, the edge is done. If the child has not finished, or is retried too
    (``runs_again``), the edge is open again. A child that failed or is gone is ignored.
    """
    if child is None or (child.state in (JobState.FAILED, JobState.CANCELLED) and not runs_again):
        if edge.broken:
            edge.status = EdgeStatus.IGNORED
        return
    edge.status, edge.child_seq = EdgeStatus.OPEN, child.seq
    edge.child_run = child.manual_retries + (child.state in FINISHED)  # else it has been retried already
    edge.reason = edge.error = ""
    if child.state is JobState.COMPLETED and not runs_again:
        settle_edge(edge, end_of(child))


class RetriedTogether:
    """The jobs that one call retries, and which of them wait for each other again, without a circle.

    Old edges can form one: a child's id was used again for a job that waits for the parent, or a parent that
    ran in spite of a failed child became a child of it. One job of a circle does not wait for the next one.
    """

    def __init__(self, refs: Iterable[JobRef]) -> None:
        self.refs: frozenset[JobRef] = frozenset(refs)
        #: The jobs that each job waits for again, and the reverse.
        self._waits: dict[JobRef, list[JobRef]] = {}
        self._waiters: dict[JobRef, list[JobRef]] = {}

    def may_wait(self, dependent: JobRef, child: JobRef) -> bool:
        """Whether ``dependent`` waits for ``child`` again. If so, later answers take it into account."""
        if self._waits_for(child, dependent):
            return False
        self._waits.setdefault(dependent, []).append(child)
        self._waiters.setdefault(child, []).append(dependent)
        return True

    def _waits_for(self, job: JobRef, target: JobRef) -> bool:
        """Whether ``job`` waits for ``target``, directly or not.

        Searches from both ends in turn: one of them is short if a chain is retried from either end.
        """
        both = zip(_walk(self._waits, job), _walk(self._waiters, target), strict=False)
        return any(awaited == target or waiter == job for awaited, waiter in both)


def _walk(steps: Mapping[JobRef, list[JobRef]], start: JobRef) -> Iterator[JobRef]:
    """``start``, then every job that ``steps`` lead to from it."""
    ahead, seen = [start], {start}
    while ahead:
        ref = ahead.pop()
        yield ref
        new = [one for one in steps.get(ref, ()) if one not in seen]
        seen.update(new)
        ahead += new


def wait_for_none(job: JobRecord, end: Settlement, children: int) -> Settlement:
    """The settlement of an attempt that waits for children while none is open. ``children``: all it ever had.

    The children may have ended while the attempt ran, so the job runs again at once. If it then waits again
    without a new child, it would repeat this forever, so the attempt fails.
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
    """Fail a blocked job whose child did not complete."""
    message = f"job {edge.child.id} of queue {edge.child.queue} did not complete: {edge.reason}"
    error = ErrorInfo(recorder.now_ms, 0, DEPENDENCY_CLASS, message, "", DEPENDENCY_CLASS)
    fail(job, recorder, error, reason="dependency_failed")


def end_of(job: JobRecord) -> ChildEnd:
    """The report to the dependents of a job: how it ended, or that it was removed before it ended."""
    if job.state is JobState.COMPLETED:
        return ChildEnd(
            child=job.ref,
            seq=job.seq,
            run=job.manual_retries,
            completed=True,
            value=job.result,
            codec=job.result_codec,
        )
    last = job.errors[-1] if job.errors and job.state is JobState.FAILED else None
    error = f"{last.error_class}: {last.message}"[:BRIEF_CHARS] if last else ""
    match job.state:
        case JobState.FAILED:
            reason = job.reason or "failed"
        case JobState.CANCELLED:
            reason = "cancelled"
        case _:
            reason = "removed"
    return ChildEnd(
        child=job.ref, seq=job.seq, run=job.manual_retries, completed=False, reason=reason, error=error
    )


class Doors:
    """Finds the new jobs of a flow that will not be created: a unique key is held, or a group refuses."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], JobRef] = {}
        self._sizes: Counter[tuple[str, str]] = Counter()
        #: The job that holds the unique key of the last job that was kept out, if known.
        self.holder: JobRef | None = None

    def admit(
        self, new: NewJob, *, held: bool, holder: JobRef | None, refuses: Callable[[int], bool]
    ) -> bool:
        """Whether the job will be created. If so, its unique key and its place in the group count as taken.

        ``held``: a stored job holds its key (``holder``, if known). ``refuses``: whether its group refuses it
        after this many other jobs of the flow.
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
    """Raise if a job of a flow waits for another of its jobs that will not be created."""
    for new in jobs:
        for dependency in (*new.depends_on, *([new.parent] if new.parent else [])):
            if dependency.ref in held:
                raise DependencyError(
                    "depends_on",
                    message=f"job {new.id!r} depends on job {dependency.id!r}, which cannot be added: its "
                    "unique key is taken, or its group is full or ordered",
                )

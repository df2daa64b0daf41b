"""The edges of a flow: which job waits for which, and the result that it received when the other ended.

A *dependent* waits for its *children*. In a tree, the parent depends on its children; "B after A" means that
B depends on A. Edges are separate records that are kept with the dependent. The result of a child is copied
into the edge when the child ends, so it outlives the child's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from windlass.core.ids import JobRef, check_job_id, check_queue_name
from windlass.errors import ConfigError, CycleError, DependencyError

#: The maximum number of jobs of a flow (one ``Add`` with edges), and of children of one job.
FLOW_LIMIT = 10_000
#: The maximum number of edges that one request settles. ``Relay`` settles the rest.
RELAY_STEP = 1_000
#: The ``run`` of an end that settles all edges to its job.
ANY_RUN = 2**62


class OnFailure(StrEnum):
    """What a child that ends without completing does to its dependent."""

    #: The dependent fails too, reason ``dependency_failed``.
    FAIL = "fail"
    #: The dependent continues as if the child had completed, without a result.
    IGNORE = "ignore"
    #: The dependent starts at once, even if it waits for other children.
    CONTINUE = "continue"


class EdgeStatus(StrEnum):
    """The state of an edge."""

    OPEN = "open"
    #: The child completed; its result is in the edge.
    DONE = "done"
    #: The child failed, was cancelled, expired or was removed.
    FAILED = "failed"
    #: The same, but the dependent ignores it.
    IGNORED = "ignored"


class Dependency(msgspec.Struct, frozen=True, array_like=True):
    """One end of an edge, as a new job names it: the job to wait for, or the job that will wait."""

    queue: str
    id: str
    on_failure: OnFailure = OnFailure.FAIL

    @property
    def ref(self) -> JobRef:
        return JobRef(self.queue, self.id)


class Edge(msgspec.Struct, kw_only=True):
    """``dependent`` waits for ``child``."""

    dependent: JobRef
    child: JobRef
    #: The ``seq`` of the child's record. It distinguishes the child from other jobs with the same id.
    child_seq: int = 0
    #: How often the child had been retried by hand when the edge was opened. An earlier end of the child,
    #: which may still be in the outbox, does not settle the edge.
    child_run: int = 0
    on_failure: OnFailure = OnFailure.FAIL
    status: EdgeStatus = EdgeStatus.OPEN
    #: The child's result and its codec, once the child has completed.
    value: bytes | None = None
    codec: str = "json"
    #: Why the child did not complete (``attempts``, ``cancelled``, ``removed``, ...), and its last error.
    reason: str = ""
    error: str = ""

    def awaits(self, end: ChildEnd) -> bool:
        """Whether ``end``, an end of a job with the child's id, settles this edge."""
        is_open = self.status is EdgeStatus.OPEN
        return is_open and self.child_seq == end.seq and self.child_run <= end.run

    @property
    def missed(self) -> bool:
        """Whether the child has ended and did not complete."""
        return self.status in (EdgeStatus.FAILED, EdgeStatus.IGNORED)

    @property
    def broken(self) -> bool:
        """Whether this edge makes the dependent fail."""
        return self.status is EdgeStatus.FAILED and self.on_failure is OnFailure.FAIL


class ChildEnd(msgspec.Struct, kw_only=True):
    """How a child ended. Its dependents receive this at once, or later through the outbox."""

    child: JobRef
    seq: int = 0
    #: How often the child was retried by hand before. The end of an earlier release does not say.
    run: int = ANY_RUN
    completed: bool
    value: bytes | None = None
    codec: str = "json"
    reason: str = ""
    error: str = ""


def to_dependency(value: object, on_failure: str, queue: str, option: str) -> Dependency:
    """A ``Dependency`` from any accepted form: an object with a ``ref``, a pair, a mapping, or an id."""
    if isinstance(value, Dependency):
        return value
    ref = getattr(value, "ref", value)
    if isinstance(ref, str):
        ref = (queue, ref)
    elif isinstance(ref, Mapping) and set(ref) <= {"queue", "id"} and "id" in ref:
        ref = (ref.get("queue", queue), ref["id"])
    if not isinstance(ref, tuple) or len(ref) != 2:
        want = 'a job, a (queue, id) pair, {"queue": ..., "id": ...}, or the id of a job of the same queue'
        raise ConfigError(option, want, value)
    return Dependency(check_queue_name(ref[0]), check_job_id(ref[1]), to_on_failure(on_failure))


def to_on_failure(value: object) -> OnFailure:
    """``fail``, ``ignore`` or ``continue``."""
    if not isinstance(value, str) or value not in tuple(OnFailure):
        raise ConfigError("on_failure", f"one of {', '.join(OnFailure)}", value)
    return OnFailure(value)


def settle_edge(edge: Edge, end: ChildEnd) -> None:
    """Record in an open edge how the child ended."""
    if end.completed:
        edge.status = EdgeStatus.DONE
        edge.value = end.value
        edge.codec = end.codec
        return
    edge.status = EdgeStatus.IGNORED if edge.on_failure is OnFailure.IGNORE else EdgeStatus.FAILED
    edge.reason = end.reason
    edge.error = end.error


def check_size(jobs: int, edges: int) -> None:
    """Raise if a flow is too large to be added in one transaction."""
    if jobs > FLOW_LIMIT:
        raise ConfigError("flow", message=f"a flow can have at most {FLOW_LIMIT} jobs, got {jobs}", got=jobs)
    if edges > FLOW_LIMIT:
        raise ConfigError(
            "depends_on", message=f"a job can depend on at most {FLOW_LIMIT} jobs, got {edges}", got=edges
        )


def check_cycle(edges: dict[JobRef, list[JobRef]]) -> None:
    """Raise ``CycleError`` if jobs of this graph (dependent -> children) wait for each other in a cycle."""
    done: set[JobRef] = set()
    for start in edges:
        path: dict[JobRef, None] = {}
        stack = [(start, False)]
        while stack:
            ref, leaving = stack.pop()
            if leaving:
                del path[ref]
                done.add(ref)
            elif ref in path:
                circle = [*path][[*path].index(ref) :]
                raise CycleError([f"{one.queue}:{one.id}" for one in (*circle, ref)])
            elif ref not in done:
                path[ref] = None
                stack.append((ref, True))
                stack += [(child, False) for child in reversed(edges.get(ref, ()))]


def unknown_dependency(dependent: JobRef, child: JobRef) -> DependencyError:
    """The error for a job that depends on a job that the store does not have."""
    return DependencyError(
        "depends_on",
        message=f"job {dependent.id!r} depends on job {child.id!r} of queue {child.queue!r}, which does not "
        "exist (never added, pruned or removed)",
    )


def bad_parent(child: JobRef, parent: JobRef, state: str) -> DependencyError:
    """The error for a child whose parent has finished or does not exist (``unknown``)."""
    why = "does not exist" if state == "unknown" else f"is {state} and cannot wait for it"
    return DependencyError(
        "parent",
        message=f"cannot add job {child.id!r}: its parent {parent.id!r} of queue {parent.queue!r} {why}",
    )

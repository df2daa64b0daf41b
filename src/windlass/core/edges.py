"""The edges of a flow: which job waits for which, and what it received when that one ended.

One direction only: a *dependent* waits for its *children*. A tree's parent depends on its children; "B after
A" is B depending on A. Edges are records of their own, kept with the dependent: a child's value is copied
into the edge in the step that ends the child, so it outlives the child's record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from windlass.core.ids import JobRef, check_job_id, check_queue_name
from windlass.errors import ConfigError, CycleError, DependencyError

#: Most jobs of one flow (one ``Add`` with edges), and most children of one job.
FLOW_LIMIT = 10_000
#: Most edges that one request settles; what is left continues through ``Relay``.
RELAY_STEP = 1_000


class OnFailure(StrEnum):
    """What a child that ends without completing does to its dependent."""

    #: The dependent fails too, reason ``dependency_failed``.
    FAIL = "fail"
    #: As if it was done, without a value.
    IGNORE = "ignore"
    #: The dependent starts at once, whatever else it waits for.
    CONTINUE = "continue"


class EdgeStatus(StrEnum):
    """What the dependent knows of its child."""

    OPEN = "open"
    #: The child completed; its value is in the edge.
    DONE = "done"
    #: It failed, was cancelled, expired or was removed.
    FAILED = "failed"
    #: The same, and the dependent does not mind.
    IGNORED = "ignored"


class Dependency(msgspec.Struct, frozen=True, array_like=True):
    """One end of an edge, as a new job names it: the job to wait for, or the job that is to wait."""

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
    #: The ``seq`` of the child's record: distinguishes it from an older or newer job under the same id.
    child_seq: int = 0
    on_failure: OnFailure = OnFailure.FAIL
    status: EdgeStatus = EdgeStatus.OPEN
    #: The child's result and the codec that reads it, once it completed.
    value: bytes | None = None
    codec: str = "json"
    #: Why it did not complete (``attempts``, ``cancelled``, ``removed``, ...), and its last error.
    reason: str = ""
    error: str = ""

    @property
    def missed(self) -> bool:
        """Whether the child has ended and did not complete."""
        return self.status in (EdgeStatus.FAILED, EdgeStatus.IGNORED)

    @property
    def broken(self) -> bool:
        """Whether this edge means that the dependent fails."""
        return self.status is EdgeStatus.FAILED and self.on_failure is OnFailure.FAIL


class ChildEnd(msgspec.Struct, kw_only=True):
    """How a child ended: what its dependents receive, at once or later through the outbox."""

    child: JobRef
    seq: int = 0
    completed: bool
    value: bytes | None = None
    codec: str = "json"
    reason: str = ""
    error: str = ""


def to_dependency(value: object, on_failure: str, queue: str, option: str) -> Dependency:
    """Any accepted spelling of a job to wait for: has a ``ref``, a pair, a mapping, an id of ``queue``."""
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
    try:
        return OnFailure(str(value))
    except ValueError:
        raise ConfigError("on_failure", f"one of {', '.join(OnFailure)}", value) from None


def settle_edge(edge: Edge, end: ChildEnd) -> None:
    """Write the child's end into an open edge."""
    if end.completed:
        edge.status = EdgeStatus.DONE
        edge.value = end.value
        edge.codec = end.codec
        return
    edge.status = EdgeStatus.IGNORED if edge.on_failure is OnFailure.IGNORE else EdgeStatus.FAILED
    edge.reason = end.reason
    edge.error = end.error


def reopen(edge: Edge, child_seq: int) -> None:
    """A person retries the dependent, and the child is to run again: the dependent waits for it once more."""
    edge.status, edge.child_seq = EdgeStatus.OPEN, child_seq
    edge.reason = edge.error = ""


def forgive(edge: Edge) -> None:
    """A person retries the dependent: a failure that ended it does not count any more."""
    if edge.broken:
        edge.status = EdgeStatus.IGNORED


def check_size(jobs: int, edges: int) -> None:
    """Refuse a flow that cannot be one atomic step."""
    if jobs > FLOW_LIMIT:
        raise ConfigError("flow", f"at most {FLOW_LIMIT} jobs", jobs)
    if edges > FLOW_LIMIT:
        raise ConfigError("depends_on", f"at most {FLOW_LIMIT} jobs that one job waits for", edges)


def check_cycle(edges: dict[JobRef, list[JobRef]]) -> None:
    """``CycleError`` when jobs of this graph (dependent -> children) wait for each other in a circle."""
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
    """The refusal of a job that is to wait for one that the store does not have."""
    return DependencyError(
        "depends_on",
        f"jobs that exist or are added together: {dependent.id!r} waits for {child.id!r} of queue "
        f"{child.queue!r}, which does not (never added, pruned or removed)",
    )


def bad_parent(child: JobRef, parent: JobRef, state: str) -> DependencyError:
    """The refusal of a child whose parent cannot wait for it any more."""
    return DependencyError(
        "parent",
        f"a job that has not finished: {parent.id!r} of queue {parent.queue!r} is {state} and cannot wait "
        f"for {child.id!r}",
    )

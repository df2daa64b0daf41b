"""Edges in memory: who waits for whom, and the outbox of ends that are yet to be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice

from windlass.backend.flows import Dependencies
from windlass.core import flows
from windlass.core.edges import (
    RELAY_STEP,
    ChildEnd,
    Dependency,
    Edge,
    EdgeStatus,
    bad_parent,
    check_cycle,
    check_size,
    forgive,
    settle_edge,
    unknown_dependency,
)
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.states import FINISHED, JobState
from windlass.core.transitions import Scribe


class Flows:
    """The edges of one store. ``find`` and ``file`` are the store's: read a record, file a changed one."""

    def __init__(
        self, find: Callable[[JobRef], JobRecord | None], file: Callable[[JobRecord, Scribe], None]
    ) -> None:
        self._find = find
        self._file = file
        self._children: dict[JobRef, dict[JobRef, Edge]] = {}
        self._dependents: dict[JobRef, dict[JobRef, Edge]] = {}
        self._open: dict[JobRef, int] = {}
        self._outbox: deque[ChildEnd] = deque()
        #: Whether the request at hand ended something that others wait for.
        self._fresh = False

    @property
    def pending(self) -> bool:
        """Whether something is yet to be told."""
        return bool(self._outbox)

    # --- add ---------------------------------------------------------------------------------------

    def check(self, fresh: list[NewJob], others: list[NewJob]) -> None:
        """Refuse edges that cannot be. ``fresh`` will be created; ``others`` are answered by a record."""
        made = {JobRef(new.queue, new.id) for new in fresh}
        graph: dict[JobRef, list[JobRef]] = {}
        for new in fresh:
            ref = JobRef(new.queue, new.id)
            check_size(len(fresh), len(new.depends_on))
            for dependency in new.depends_on:
                if dependency.ref not in made and self._find(dependency.ref) is None:
                    raise unknown_dependency(ref, dependency.ref)
                graph.setdefault(ref, []).append(dependency.ref)
        for new in (*fresh, *others):
            if new.parent is not None:
                self._check_parent(JobRef(new.queue, new.id), new.parent, made)
                graph.setdefault(new.parent.ref, []).append(JobRef(new.queue, new.id))
        if graph:
            check_cycle(self._with_stored(graph))

    def _check_parent(self, child: JobRef, parent: Dependency, made: set[JobRef]) -> None:
        if parent.ref in made or child in self._children.get(parent.ref, ()):
            return
        job = self._find(parent.ref)
        if job is None:
            raise bad_parent(child, parent.ref, "unknown")
        if job.state in FINISHED:
            raise bad_parent(child, parent.ref, job.state.value)
        check_size(0, len(self._children.get(parent.ref, ())) + 1)

    def _with_stored(self, graph: dict[JobRef, list[JobRef]]) -> dict[JobRef, list[JobRef]]:
        """The graph with every open edge that can be reached from it."""
        whole = {ref: list(children) for ref, children in graph.items()}
        ahead = [ref for children in graph.values() for ref in children] + list(graph)
        seen: set[JobRef] = set()
        while ahead:
            ref = ahead.pop()
            if ref in seen:
                continue
            seen.add(ref)
            for edge in self._children.get(ref, {}).values():
                if edge.status is EdgeStatus.OPEN:
                    whole.setdefault(ref, []).append(edge.child)
                    ahead.append(edge.child)
        return whole

    def link_new(self, job: JobRecord, new: NewJob, scribe: Scribe) -> None:
        """Make the edges of a job that was just created."""
        for dependency in new.depends_on:
            if dependency.ref not in self._children.get(job.ref, ()):
                self._make(job, dependency.ref, dependency)
        if job.state is JobState.BLOCKED:
            self.review(job, scribe)
        self.link_known(job, new, scribe)

    def follow(self, job: JobRecord, before: Dependency) -> None:
        """Make the edge of a job that was born blocked behind one that runs."""
        self._make(job, before.ref, before)

    def link_known(self, job: JobRecord, new: NewJob, scribe: Scribe) -> None:
        """Make the edge from the parent, if the job was given one; it may have been there before."""
        parent = self._find(new.parent.ref) if new.parent is not None else None
        if new.parent is not None and parent is not None and parent.state not in FINISHED:
            self._adopt(parent, job, new.parent, scribe)

    def _adopt(self, parent: JobRecord, child: JobRecord, wanted: Dependency, scribe: Scribe) -> None:
        """Make ``parent`` wait for ``child``, unless it does already."""
        if child.ref in self._children.get(parent.ref, ()):
            return
        edge = self._make(parent, child.ref, wanted)
        changed = (edge.status is EdgeStatus.OPEN or edge.broken) and flows.block(parent, scribe)
        if edge.status is not EdgeStatus.OPEN:
            has_open = self.has_open(parent.ref)
            changed = flows.after_edge(parent, edge, has_open=has_open, scribe=scribe) or changed
        if changed:
            self._file(parent, scribe)

    def _make(self, dependent: JobRecord, ref: JobRef, wanted: Dependency) -> Edge:
        """The edge from ``dependent`` to the job ``ref``, settled at once when that has ended."""
        child = self._find(ref)
        assert child is not None, "checked before"
        edge = Edge(dependent=dependent.ref, child=ref, child_seq=child.seq, on_failure=wanted.on_failure)
        self._children.setdefault(dependent.ref, {})[ref] = edge
        self._dependents.setdefault(ref, {})[dependent.ref] = edge
        dependent.linked = child.linked = True
        if child.state in FINISHED:
            settle_edge(edge, flows.end_of(child))
        else:
            self._open[dependent.ref] = self._open.get(dependent.ref, 0) + 1
        return edge

    # --- ends --------------------------------------------------------------------------------------

    def review(self, job: JobRecord, scribe: Scribe) -> None:
        """Decide about a job that was blocked just now."""
        edges = self._children.get(job.ref, {}).values()
        broken = next((edge for edge in edges if edge.broken), None)
        flows.review(job, broken=broken, has_open=self.has_open(job.ref), scribe=scribe)
        if job.state is not JobState.BLOCKED:
            self._file(job, scribe)

    def has_open(self, ref: JobRef) -> bool:
        """Whether the job waits for something."""
        return self._open.get(ref, 0) > 0

    def forgive(self, ref: JobRef) -> None:
        """A person retries the job: what made it fail does not count any more."""
        for edge in self._children.get(ref, {}).values():
            forgive(edge)

    def ended(self, job: JobRecord) -> None:
        """The job finished, or its record goes: its dependents will be told."""
        end = flows.end_of(job)
        if self._untold(end):
            self._outbox.append(end)
            self._fresh = True

    def tell(self, scribe: Scribe) -> None:
        """If the request at hand ended something, tell as many dependents as fit into one step."""
        if self._fresh:
            self.relay(RELAY_STEP, scribe)

    def relay(self, limit: int, scribe: Scribe) -> int:
        """Tell up to ``limit`` dependents, in the order of the ends; returns how many."""
        count = 0
        while self._outbox and count < limit:
            end = self._outbox[0]
            untold = self._untold(end)
            for edge in untold[: limit - count]:
                self._tell(edge, end, scribe)
            if len(untold) <= limit - count:
                self._outbox.popleft()
            count += min(len(untold), limit - count)
        self._fresh = False
        return count

    def _untold(self, end: ChildEnd) -> list[Edge]:
        return [
            edge
            for edge in self._dependents.get(end.child, {}).values()
            if edge.status is EdgeStatus.OPEN and edge.child_seq == end.seq
        ]

    def _tell(self, edge: Edge, end: ChildEnd, scribe: Scribe) -> None:
        settle_edge(edge, end)
        self._open[edge.dependent] -= 1
        job = self._find(edge.dependent)
        if job is not None and flows.after_edge(
            job, edge, has_open=self.has_open(edge.dependent), scribe=scribe
        ):
            self._file(job, scribe)

    def forget(self, ref: JobRef) -> None:
        """A record goes: its own edges go with it. Those that wait for it keep theirs."""
        for child in self._children.pop(ref, ()):
            known = self._dependents[child]
            del known[ref]
            if not known:
                del self._dependents[child]
        self._open.pop(ref, None)

    # --- look --------------------------------------------------------------------------------------

    def of(self, ref: JobRef, *, values: bool, limit: int) -> Dependencies:
        """The edges of a job, both ways."""
        dependents = self._dependents.get(ref, {}).values()
        return Dependencies(
            list(_views(self._children.get(ref, {}).values(), values)),
            list(_views(islice(dependents, limit), values)),
            len(dependents) > limit,
        )


def _views(edges: Iterable[Edge], values: bool) -> Iterator[Edge]:
    for edge in edges:
        view = copy(edge)
        if not values:
            view.value = None
        yield view

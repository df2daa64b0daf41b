"""How a store that can change everything in one step carries out flows; it brings the places to keep them.

``FlowWork`` holds the order of things: check, create, link, settle edges, go on with what follows from that.
A store subclasses it with a few reads and writes. (A cluster, where one step cannot reach everything, goes
the same way in several steps: see ``docs/flows.md``.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable

import msgspec

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
    settle_edge,
    unknown_dependency,
)
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome, Outcome, Settlement
from windlass.core.states import FINISHED, JobState
from windlass.core.transitions import Scribe, answer_known


class FlowWork(ABC):
    """The flows of one store, at work on one request after the other."""

    def __init__(self) -> None:
        #: Ends of the request at hand that are yet to be told.
        self._fresh: deque[ChildEnd] = deque()
        #: Whether the request at hand left something to ``Relay``.
        self.left: bool = False

    # --- what a store brings -------------------------------------------------------------------------

    @abstractmethod
    def find(self, ref: JobRef) -> JobRecord | None:
        """The record of a job."""

    def find_child(self, ref: JobRef) -> JobRecord | None:
        """The record of a job, or the stub that it left (``core.stubs``)."""
        return self.find(ref)

    @abstractmethod
    def is_kept(self, ref: JobRef, now_ms: int) -> bool:
        """Whether an id without a record answers ``duplicate`` all the same."""

    @abstractmethod
    def answered_by(self, new: NewJob, now_ms: int) -> str | None:
        """The id of the job that holds the unique key of a new one, and answers instead of it."""

    @abstractmethod
    def refuses(self, new: NewJob, coming: int) -> bool:
        """Whether the group of a new job does not take it after ``coming`` others."""

    @abstractmethod
    def file(self, job: JobRecord, before: JobState) -> None:
        """Write a changed record back; ``before`` is the state it had."""

    @abstractmethod
    def mark_linked(self, job: JobRecord) -> None:
        """Write down that an edge names this job."""

    @abstractmethod
    def add_edge(self, dependent: JobRecord, edge: Edge) -> None:
        """Keep a new edge, behind all others."""

    @abstractmethod
    def save_edge(self, edge: Edge) -> None:
        """Keep what became of an edge that was open."""

    @abstractmethod
    def has_edge(self, dependent: JobRef, child: JobRef) -> bool:
        """Whether there is such an edge."""

    @abstractmethod
    def count_edges(self, dependent: JobRef) -> int:
        """How many jobs a job waits for, or waited for."""

    @abstractmethod
    def open_children(self, dependent: JobRef) -> list[JobRef]:
        """The jobs that a job waits for."""

    @abstractmethod
    def has_open(self, dependent: JobRef) -> bool:
        """Whether a job waits for something."""

    @abstractmethod
    def first_broken(self, dependent: JobRef) -> Edge | None:
        """The first edge that makes a job fail."""

    @abstractmethod
    def missed(self, dependent: JobRef) -> list[Edge]:
        """Edges to jobs that did not complete."""

    @abstractmethod
    def save_again(self, edge: Edge) -> None:
        """Keep what became of an edge that was closed and was looked at again."""

    @abstractmethod
    def untold(self, end: ChildEnd, limit: int) -> list[Edge]:
        """Open edges to the job that ended, in the order of their making."""

    @abstractmethod
    def outbox(self) -> ChildEnd | None:
        """The oldest end that the requests before left untold."""

    @abstractmethod
    def put_out(self, ends: Iterable[ChildEnd]) -> None:
        """Leave ends to later requests."""

    @abstractmethod
    def drop_out(self) -> None:
        """Everybody was told of the oldest end that was left."""

    # --- add -----------------------------------------------------------------------------------------

    def sort(self, jobs: list[NewJob], now_ms: int) -> tuple[dict[JobRef, NewJob], list[NewJob]]:
        """Those of a flow that will be created, and those that a record answers, under its id; checked.

        Repeated requests are in neither: their edges are there. Raises before anything is changed.
        """
        fresh: dict[JobRef, NewJob] = {}
        known: list[NewJob] = []
        out: list[tuple[NewJob, JobRef | None]] = []
        keys: dict[tuple[str, str], JobRef] = {}
        sizes: Counter[tuple[str, str]] = Counter()
        for new in jobs:
            ref = JobRef(new.queue, new.id)
            if ref in fresh:
                continue  # an id may be mentioned twice: the first that is not kept out makes the job
            old = self.find_child(ref)
            outcome = None if old is None else answer_known(old, new, now_ms)
            if outcome is not None:
                if outcome is not AddOutcome.QUEUED:
                    known.append(new)
            elif old is not None or not self.is_kept(ref, now_ms):
                kept_out = self._kept_out(ref, new, now_ms, keys, sizes)
                if kept_out is None:
                    fresh[ref] = new
                else:
                    out.append((new, kept_out if kept_out.id else None))
        flows.check_kept_out({JobRef(new.queue, new.id) for new, _ in out} - fresh.keys(), jobs)
        for new, holder in out:
            if holder is not None and (holder in fresh or self.find(holder) is not None):
                known.append(msgspec.structs.replace(new, id=holder.id))
        self._check(fresh, known)
        return fresh, known

    def _kept_out(
        self,
        ref: JobRef,
        new: NewJob,
        now_ms: int,
        keys: dict[tuple[str, str], JobRef],
        sizes: Counter[tuple[str, str]],
    ) -> JobRef | None:
        """Who answers instead of a new job: the holder of its key; no id: its group refuses it."""
        unique, group = new.options.unique, new.options.group
        if unique is not None:
            holder = self.answered_by(new, now_ms)
            if (new.queue, unique.key) in keys or holder is not None:
                return keys.get((new.queue, unique.key)) or JobRef(new.queue, holder or "")
        if group is not None and self.refuses(new, sizes[new.queue, group]):
            return JobRef(new.queue, "")
        if unique is not None:
            keys[new.queue, unique.key] = ref
        if group is not None:
            sizes[new.queue, group] += 1
        return None

    def _check(self, fresh: dict[JobRef, NewJob], known: list[NewJob]) -> None:
        graph: dict[JobRef, list[JobRef]] = {}
        for ref, new in fresh.items():
            check_size(len(fresh), len(new.depends_on))
            for dependency in new.depends_on:
                if dependency.ref not in fresh and self.find_child(dependency.ref) is None:
                    raise unknown_dependency(ref, dependency.ref)
                graph.setdefault(ref, []).append(dependency.ref)
        for new in (*fresh.values(), *known):
            if new.parent is not None:
                ref = JobRef(new.queue, new.id)
                if new.parent.ref not in fresh:
                    self._check_parent(ref, new.parent)
                graph.setdefault(new.parent.ref, []).append(ref)
        if graph:
            check_cycle(self._with_stored(graph, fresh))

    def _check_parent(self, child: JobRef, parent: Dependency) -> None:
        if self.has_edge(parent.ref, child):
            return
        job = self.find(parent.ref)
        if job is None:
            raise bad_parent(child, parent.ref, "unknown")
        if job.state in FINISHED:
            raise bad_parent(child, parent.ref, job.state.value)
        check_size(0, self.count_edges(parent.ref) + 1)

    def _with_stored(
        self, graph: dict[JobRef, list[JobRef]], fresh: dict[JobRef, NewJob]
    ) -> dict[JobRef, list[JobRef]]:
        """The graph with every open edge that can be reached from it."""
        whole = {ref: list(children) for ref, children in graph.items()}
        ahead = [*graph, *(ref for children in graph.values() for ref in children)]
        seen = set(fresh)
        while ahead:
            ref = ahead.pop()
            if ref not in seen:
                seen.add(ref)
                children = self.open_children(ref)
                if children:
                    whole.setdefault(ref, []).extend(children)
                    ahead += children
        return whole

    def link(self, fresh: dict[JobRef, NewJob], known: list[NewJob], scribe: Scribe) -> None:
        """Make the edges, once all jobs are there: dependents are looked at in the order of their adding."""
        for ref, new in fresh.items():
            job = self.find(ref)
            assert job is not None, "it was just created"
            for dependency in new.depends_on:
                if not self.has_edge(ref, dependency.ref):
                    self._make(job, dependency)
            if job.state is JobState.BLOCKED:
                self.review(job, scribe)
            self._adopt(new, scribe)
        for new in known:
            self._adopt(new, scribe)

    def follow(self, job: JobRecord, before: Dependency) -> None:
        """Make the edge of a job that was born blocked behind one that runs."""
        self._make(job, before)

    def _make(self, dependent: JobRecord, wanted: Dependency) -> Edge:
        """The edge from ``dependent`` to the job it waits for, settled at once when that has ended."""
        child = self.find_child(wanted.ref)
        assert child is not None, "checked before"
        edge = Edge(
            dependent=dependent.ref, child=wanted.ref, child_seq=child.seq, on_failure=wanted.on_failure
        )
        if child.state in FINISHED:
            settle_edge(edge, flows.end_of(child))
        self.add_edge(dependent, edge)
        for job in (dependent, child):
            self._link(job)
        return edge

    def _adopt(self, new: NewJob, scribe: Scribe) -> None:
        """Make the parent that was named with ``new`` wait for it, unless it does already or has ended."""
        if new.parent is None:
            return
        parent, ref = self.find(new.parent.ref), JobRef(new.queue, new.id)
        if parent is None or parent.state in FINISHED or self.has_edge(parent.ref, ref):
            return
        before = parent.state
        edge = self._make(parent, Dependency(new.queue, new.id, new.parent.on_failure))
        is_open = edge.status is EdgeStatus.OPEN
        changed = (is_open or edge.broken) and flows.block(parent, scribe)
        if not is_open:
            has_open = self.has_open(parent.ref)
            changed = flows.after_edge(parent, edge, has_open=has_open, scribe=scribe) or changed
        if changed:
            self.file(parent, before)

    # --- ends ----------------------------------------------------------------------------------------

    def weigh(self, job: JobRecord, end: Settlement) -> Settlement:
        """``end`` of an attempt as it counts: see ``flows.wait_for_none``."""
        if end.outcome is not Outcome.WAIT or self.has_open(job.ref) or self.first_broken(job.ref):
            return end
        return flows.wait_for_none(job, end, self.count_edges(job.ref))

    def review(self, job: JobRecord, scribe: Scribe) -> None:
        """Decide about a job that was blocked just now."""
        broken = self.first_broken(job.ref)
        flows.review(job, broken=broken, has_open=self.has_open(job.ref), scribe=scribe)
        if job.state is not JobState.BLOCKED:
            self.file(job, JobState.BLOCKED)

    def look_again(self, dependent: JobRef) -> None:
        """A person retries a job: what it missed counts if it has completed since, and blocks if it is open.

        What failed, or is gone, is forgiven.
        """
        for edge in self.missed(dependent):
            child = self.find_child(edge.child)
            flows.look_again(edge, child)
            self.save_again(edge)
            if edge.status is EdgeStatus.OPEN and child is not None:
                self._link(child)

    def _link(self, job: JobRecord) -> None:
        if not job.linked:
            job.linked = True
            self.mark_linked(job)

    def ended(self, job: JobRecord) -> None:
        """A linked job finished, or its record goes before it did: its dependents will be told."""
        end = flows.end_of(job)
        if self.untold(end, 1):
            self._fresh.append(end)

    def tell(self, scribe: Scribe) -> None:
        """If the request at hand ended something, tell as many dependents as fit into one step."""
        self.left = False
        if self._fresh:
            self.relay(RELAY_STEP, scribe)

    def relay(self, limit: int, scribe: Scribe) -> int:
        """Tell up to ``limit`` dependents, in the order of the ends; returns how many.

        What earlier requests left goes first; what is left now goes behind it.
        """
        count = 0
        while count < limit and (end := self.outbox()) is not None:
            told = self._tell_all(end, limit - count, scribe)
            count += told
            if count < limit or not self.untold(end, 1):
                self.drop_out()
        while count < limit and self._fresh:  # then nothing older is left
            count += self._tell_all(self._fresh[0], limit - count, scribe)
            if count < limit or not self.untold(self._fresh[0], 1):
                self._fresh.popleft()
        if self._fresh:
            self.put_out(self._fresh)
            self._fresh.clear()
        self.left = count >= limit and self.pending
        return count

    def _tell_all(self, end: ChildEnd, limit: int, scribe: Scribe) -> int:
        edges = self.untold(end, limit)
        for edge in edges:
            settle_edge(edge, end)
            self.save_edge(edge)
            job = self.find(edge.dependent)
            if job is None:
                continue
            before, has_open = job.state, self.has_open(job.ref)
            if flows.after_edge(job, edge, has_open=has_open, scribe=scribe):
                self.file(job, before)
        return len(edges)

    @property
    def pending(self) -> bool:
        """Whether something is yet to be told."""
        return self.outbox() is not None

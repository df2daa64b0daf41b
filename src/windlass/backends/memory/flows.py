"""Edges in memory: who waits for whom, and the outbox of ends that are yet to be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import islice

from windlass.backend.flows import Dependencies
from windlass.backends.memory.journal import Journal
from windlass.core.edges import ChildEnd, Edge, EdgeStatus
from windlass.core.flowwork import FlowWork
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.states import JobState


class Flows(FlowWork):
    """The edges of one store. What is given to it are the store's own: see ``FlowWork``."""

    def __init__(
        self,
        journal: Journal,
        find: Callable[[JobRef], JobRecord | None],
        kept_ids: dict[JobRef, int],
        file: Callable[[JobRecord], None],
        answered_by: Callable[[NewJob, int], str | None],
        refuses: Callable[[NewJob, int], bool],
    ) -> None:
        super().__init__()
        self._journal = journal
        self._find = find
        self._kept_ids = kept_ids
        self._file = file
        self._answered_by = answered_by
        self._refuses = refuses
        self.children: dict[JobRef, dict[JobRef, Edge]] = {}
        self.dependents: dict[JobRef, dict[JobRef, Edge]] = {}
        self._open: dict[JobRef, int] = {}
        self.left_ends: deque[ChildEnd] = deque()

    def find(self, ref: JobRef) -> JobRecord | None:
        return self._find(ref)

    def is_kept(self, ref: JobRef, now_ms: int) -> bool:
        return self._kept_ids.get(ref, 0) > now_ms

    def answered_by(self, new: NewJob, now_ms: int) -> str | None:
        return self._answered_by(new, now_ms)

    def refuses(self, new: NewJob, coming: int) -> bool:
        return self._refuses(new, coming)

    def file(self, job: JobRecord, before: JobState) -> None:
        self._file(job)

    def mark_linked(self, job: JobRecord) -> None:
        self._journal.moved(job)

    def add_edge(self, dependent: JobRecord, edge: Edge) -> None:
        self._journal.edge(edge)
        self.keep_edge(edge)

    def keep_edge(self, edge: Edge) -> None:
        """Put an edge behind all others, or in the place of the one that was there."""
        before = self.children.get(edge.dependent, {}).get(edge.child)
        if before is not None and before.status is EdgeStatus.OPEN:
            self._open[edge.dependent] -= 1
        self.children.setdefault(edge.dependent, {})[edge.child] = edge
        self.dependents.setdefault(edge.child, {})[edge.dependent] = edge
        if edge.status is EdgeStatus.OPEN:
            self._open[edge.dependent] = self._open.get(edge.dependent, 0) + 1

    def save_edge(self, edge: Edge) -> None:
        self._journal.edge(edge)
        self._open[edge.dependent] -= 1

    def has_edge(self, dependent: JobRef, child: JobRef) -> bool:
        return child in self.children.get(dependent, ())

    def count_edges(self, dependent: JobRef) -> int:
        return len(self.children.get(dependent, ()))

    def open_children(self, dependent: JobRef) -> list[JobRef]:
        edges = self.children.get(dependent, {})
        return [ref for ref, edge in edges.items() if edge.status is EdgeStatus.OPEN]

    def has_open(self, dependent: JobRef) -> bool:
        return self._open.get(dependent, 0) > 0

    def first_broken(self, dependent: JobRef) -> Edge | None:
        return next((edge for edge in self.children.get(dependent, {}).values() if edge.broken), None)

    def missed(self, dependent: JobRef) -> list[Edge]:
        edges = self.children.get(dependent, {}).values()
        return [edge for edge in edges if edge.status in (EdgeStatus.FAILED, EdgeStatus.IGNORED)]

    def save_again(self, edge: Edge) -> None:
        self._journal.edge(edge)
        if edge.status is EdgeStatus.OPEN:
            self._open[edge.dependent] = self._open.get(edge.dependent, 0) + 1

    def untold(self, end: ChildEnd, limit: int) -> list[Edge]:
        edges = self.dependents.get(end.child, {}).values()
        found = (edge for edge in edges if edge.status is EdgeStatus.OPEN and edge.child_seq == end.seq)
        return list(islice(found, limit))

    def outbox(self) -> ChildEnd | None:
        return self.left_ends[0] if self.left_ends else None

    def put_out(self, ends: Iterable[ChildEnd]) -> None:
        ends = list(ends)
        self._journal.put_out(ends)
        self.left_ends.extend(ends)

    def drop_out(self) -> None:
        self._journal.told()
        self.left_ends.popleft()

    # --- what only this store needs ------------------------------------------------------------------

    def forget(self, ref: JobRef) -> None:
        """A record goes: its own edges go with it. Those that wait for it keep theirs."""
        for child in self.children.pop(ref, ()):
            known = self.dependents[child]
            del known[ref]
            if not known:
                del self.dependents[child]
        self._open.pop(ref, None)

    def order(self, child: JobRef, dependents: list[JobRef]) -> None:
        """Put those that wait for a job into the order in which they came."""
        known = self.dependents.get(child, {})
        for ref in dependents:
            if ref in known:
                known[ref] = known.pop(ref)

    def of(self, ref: JobRef, *, values: bool, limit: int) -> Dependencies:
        """The edges of a job, both ways."""
        dependents = self.dependents.get(ref, {}).values()
        return Dependencies(
            list(_views(self.children.get(ref, {}).values(), values)),
            list(_views(islice(dependents, limit), values)),
            len(dependents) > limit,
        )


def _views(edges: Iterable[Edge], values: bool) -> Iterator[Edge]:
    for edge in edges:
        view = copy(edge)
        if not values:
            view.value = None
        yield view

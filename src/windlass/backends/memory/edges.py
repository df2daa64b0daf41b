"""Edges between jobs in memory, and the outbox: ended jobs whose dependents are not notified yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice

from windlass.backend.flow_requests import Dependencies
from windlass.core.edges import ChildEnd, Edge, EdgeStatus
from windlass.core.job import JobRef
from windlass.engine.reads import UnsentEnds, Waits


class Edges:
    """The edges of one store."""

    def __init__(self) -> None:
        self.children: dict[JobRef, dict[JobRef, Edge]] = {}
        self.dependents: dict[JobRef, dict[JobRef, Edge]] = {}
        self._open: dict[JobRef, int] = {}
        self.left_ends: deque[ChildEnd] = deque()

    def keep(self, edge: Edge) -> None:
        """Add an edge after all others, or replace the edge between the same jobs."""
        before = self.children.get(edge.dependent, {}).get(edge.child)
        if before is not None and before.status is EdgeStatus.OPEN:
            self._open[edge.dependent] -= 1
        self.children.setdefault(edge.dependent, {})[edge.child] = edge
        self.dependents.setdefault(edge.child, {})[edge.dependent] = edge
        if edge.status is EdgeStatus.OPEN:
            self._open[edge.dependent] = self._open.get(edge.dependent, 0) + 1

    def forget(self, ref: JobRef) -> None:
        """Remove the edges of a removed job to its children. Its dependents keep their edges."""
        for child in self.children.pop(ref, ()):
            known = self.dependents[child]
            del known[ref]
            if not known:
                del self.dependents[child]
        self._open.pop(ref, None)

    def order(self, child: JobRef, dependents: list[JobRef]) -> None:
        """Put the dependents of a job in the order in which they were added."""
        known = self.dependents.get(child, {})
        for ref in dependents:
            if ref in known:
                known[ref] = known.pop(ref)

    # --- reading ----------------------------------------------------------------------------------

    def find(self, dependent: JobRef, child: JobRef) -> Edge | None:
        return self.children.get(dependent, {}).get(child)

    def waits(self, dependent: JobRef) -> Waits:
        """How many edges a job has, and how many of them are open."""
        return Waits(len(self.children.get(dependent, ())), self._open.get(dependent, 0))

    def unmet(self, dependent: JobRef) -> list[Edge]:
        """All edges of a job that are not done."""
        edges = self.children.get(dependent, {}).values()
        return [edge for edge in edges if edge.status is not EdgeStatus.DONE]

    def reachable(self, refs: Iterable[JobRef]) -> dict[JobRef, list[JobRef]]:
        """The children on open edges of each job, for these jobs and all jobs that they wait for."""
        found: dict[JobRef, list[JobRef]] = {}
        ahead = list(refs)
        seen: set[JobRef] = set()
        while ahead:
            ref = ahead.pop()
            if ref in seen:
                continue
            seen.add(ref)
            edges = self.children.get(ref, {})
            children = [child for child, edge in edges.items() if edge.status is EdgeStatus.OPEN]
            if children:
                found[ref] = children
                ahead += children
        return found

    def unsent(self, asked: UnsentEnds) -> list[Edge]:
        """Open edges to ended children, in the order in which the children ended and the edges were added."""
        found = (
            edge
            for end in asked.ends
            for edge in self.dependents.get(end.child, {}).values()
            if edge.awaits(end)
        )
        return list(islice(found, asked.limit))

    def of(self, ref: JobRef, *, values: bool, limit: int) -> Dependencies:
        """The edges of a job in both directions."""
        dependents = self.dependents.get(ref, {}).values()
        return Dependencies(
            list(_views(self.children.get(ref, {}).values(), values)),
            list(_views(islice(dependents, limit), values)),
            0 < limit < len(dependents),
        )


def _views(edges: Iterable[Edge], values: bool) -> Iterator[Edge]:
    for edge in edges:
        view = copy(edge)
        if not values:
            view.value = None
        yield view

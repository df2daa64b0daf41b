"""Check a request with edges against the stored jobs before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from windlass.backends.valkey import packed_options, relay
from windlass.backends.valkey.codes import ADD_OUTCOMES, ON_FAILURE, STATES, WOULD_BE_NEW
from windlass.backends.valkey.session import ValkeySession
from windlass.core.edges import (
    Dependency,
    bad_parent,
    check_cycle,
    check_size,
    unknown_dependency,
)
from windlass.core.flow_rules import Doors, check_kept_out
from windlass.core.job import JobRef, NewJob
from windlass.core.limit_rules import wants_rank
from windlass.core.outcome import AddOutcome
from windlass.core.states import FINISHED

#: What adding an id would find: the same request again, a duplicate, a cached result, or nothing (a new job).
_AGAIN, _DUPLICATE, _CACHED = (
    ADD_OUTCOMES.index(one) for one in (AddOutcome.QUEUED, AddOutcome.DUPLICATE, AddOutcome.CACHED)
)
_FRESH = WOULD_BE_NEW

#: Parent, child, on failure.
Parent = tuple[JobRef, JobRef, int]


class _Seen(NamedTuple):
    """The stored state of a job, as ``flow_look`` returns it."""

    state: int
    outcome: int
    edges: int
    has_edge: int
    #: The job that holds its unique key, and its state.
    holder: bytes = b""
    holder_state: int = 0
    #: How many more jobs its group takes (-1: any number).
    room: int = -1


_NOTHING = _Seen(0, _FRESH, 0, 0)
#: Job, request id, child, unique key, group, whether it has a priority or is ``lifo``.
_Asked = tuple[JobRef, str, str, Any, Any, int]


def _admits(doors: Doors, new: NewJob, seen: _Seen) -> bool:
    return doors.admit(
        new,
        held=bool(seen.holder),
        holder=JobRef(new.queue, seen.holder.decode()) if seen.holder_state else None,
        refuses=lambda coming: 0 <= seen.room <= coming,
    )


class FlowPlan:
    """The jobs of one ``Add`` by what will be done with them. A position is an index into ``jobs``."""

    def __init__(self, jobs: list[NewJob]) -> None:
        self.jobs = jobs
        self._refs = [JobRef(new.queue, new.id) for new in jobs]
        self._first = {ref: at for at, ref in reversed(list(enumerate(self._refs)))}
        #: Jobs that will be created, with the position of the first mention that is not kept out.
        self._fresh: dict[JobRef, int] = {}
        #: Positions of jobs that exist already, and of jobs that this same request has added before.
        self._known: list[int] = []
        self._again: set[int] = set()
        self._seen: dict[JobRef, _Seen] = {}
        self._pairs: dict[tuple[JobRef, JobRef], _Seen] = {}
        #: Positions of jobs that are kept out (unique key, full group), and the job that holds the key.
        self._kept_out: dict[int, JobRef | None] = {}
        #: Position of a parent of this request -> its children, for flows that are written in several steps.
        self._children: dict[int, list[Dependency]] = {}

    def ref(self, at: int) -> JobRef:
        return self._refs[at]

    # --- what is stored --------------------------------------------------------------------------

    async def look(self, session: ValkeySession, now: str) -> None:
        """Read the stored state of all jobs that the request names."""
        mentioned = {one.ref for new in self.jobs for one in new.depends_on} - set(self._refs)
        pairs = [
            (new.parent.ref, ref)
            for new, ref in zip(self.jobs, self._refs, strict=True)
            if new.parent is not None
        ]
        asked: list[_Asked] = [
            (ref, new.request_id, "", _unique(new), new.options.group or 0, int(wants_rank(new)))
            for ref, new in zip(self._refs, self.jobs, strict=True)
        ]
        asked += [(ref, "", "", 0, 0, 0) for ref in mentioned]
        asked += [_pair(*pair) for pair in pairs]
        found = await _look(session, asked, now)
        rows = found[: len(self.jobs)]
        self._seen = dict(zip(mentioned, found[len(rows) :], strict=False))
        self._pairs = dict(zip(pairs, found[len(rows) + len(mentioned) :], strict=True))
        doors = Doors()
        for at, (ref, seen) in enumerate(zip(self._refs, rows, strict=True)):
            self._seen[ref] = seen
            if ref in self._fresh:
                continue
            if seen.outcome == _FRESH:
                if _admits(doors, self.jobs[at], seen):
                    self._fresh[ref] = at
                else:
                    self._kept_out[at] = doors.holder
            elif seen.outcome in (_DUPLICATE, _CACHED):
                self._known.append(at)
            elif seen.outcome == _AGAIN:
                self._again.add(at)
        check_kept_out({self._refs[at] for at in self._kept_out} - self._fresh.keys(), self.jobs)
        await self._look_at_holders(session, now)

    async def _look_at_holders(self, session: ValkeySession, now: str) -> None:
        """Read the edges between parents and the holders that replace kept-out children."""
        pairs = []
        for at, holder in self._kept_out.items():
            if holder is not None:
                self._known.append(at)
                parent = self.jobs[at].parent
                pairs += [] if parent is None else [(parent.ref, self._child(at))]
        found = await _look(session, [_pair(*pair) for pair in pairs], now)
        self._pairs |= dict(zip(pairs, found, strict=True))

    def _child(self, at: int) -> JobRef:
        """The job that the parent at this position waits for: the holder if this one is kept out."""
        return self._kept_out.get(at) or self._refs[at]

    async def check(self, session: ValkeySession) -> None:
        """Raise for unknown dependencies, finished parents, cycles and flows that are too large."""
        graph: dict[JobRef, list[JobRef]] = {}
        for ref, at in self._fresh.items():
            new = self.jobs[at]
            check_size(len(self._fresh), len(new.depends_on))
            for dependency in new.depends_on:
                if dependency.ref not in self._fresh and not self._seen[dependency.ref].state:
                    raise unknown_dependency(ref, dependency.ref)
                graph.setdefault(ref, []).append(dependency.ref)
        for at in (*self._fresh.values(), *self._known):
            parent = self.jobs[at].parent
            if parent is not None:
                if parent.ref not in self._fresh:
                    self._check_parent(self._child(at), parent.ref)
                graph.setdefault(parent.ref, []).append(self._child(at))
        if graph:
            check_cycle(await self._with_stored(session, graph))

    def _check_parent(self, child: JobRef, parent: JobRef) -> None:
        seen = self._pairs[parent, child]
        if seen.has_edge:
            return
        if not seen.state:
            raise bad_parent(child, parent, "unknown")
        if STATES[seen.state] in FINISHED:
            raise bad_parent(child, parent, STATES[seen.state].value)
        check_size(0, seen.edges + 1)

    async def _with_stored(
        self, session: ValkeySession, graph: dict[JobRef, list[JobRef]]
    ) -> dict[JobRef, list[JobRef]]:
        """The graph with stored edges that could close a cycle: paths from the new child of a stored job."""
        if graph.keys() <= self._fresh.keys():
            return graph
        whole = {ref: list(children) for ref, children in graph.items()}
        ahead = [one for row in graph.values() for one in row]
        seen = set(self._fresh)
        while ahead := [ref for ref in dict.fromkeys(ahead) if ref not in seen]:
            seen.update(ahead)
            found = await relay.open_edges(session, ahead)
            ahead = []
            for ref, (_, children) in found.items():
                if children:
                    whole.setdefault(ref, []).extend(children)
                    ahead += children
        return whole

    # --- what is to be written ------------------------------------------------------------------

    @property
    def size(self) -> int:
        """The number of jobs and edges."""
        return len(self.jobs) + sum(len(new.depends_on) for new in self.jobs)

    def is_local(self, place: Callable[[str], str]) -> bool:
        """Whether ``place`` is the same for both ends of every edge."""
        return all(
            place(new.queue) == place(one.queue)
            for new in self.jobs
            for one in (*new.depends_on, *((new.parent,) if new.parent is not None else ()))
        )

    def _is_first(self, at: int) -> bool:
        """Whether the ``depends_on`` of this mention is used."""
        return self._fresh.get(self._refs[at]) == at or at in self._again or at in self._kept_out

    def other_mention(self, at: int) -> int:
        """See ``layouts.Wanted.out``; 0 if no other mention creates the job."""
        made = self._fresh.get(self._refs[at], at)
        return 2 if made < at else int(made > at and at in self._kept_out)

    def stands_for(self, at: int) -> bool:
        """Whether this mention creates the job, or is the first mention of an existing one."""
        ref = self._refs[at]
        return self._fresh.get(ref, self._first[ref]) == at

    def edges_of(self, at: int) -> list[Dependency]:
        """The jobs that a job waits for."""
        return self.jobs[at].depends_on if self._is_first(at) else []

    def parent_of(self, at: int) -> Dependency | None:
        """The parent of a job that this mention creates."""
        return self.jobs[at].parent if self._fresh.get(self._refs[at]) == at else None

    def known_parents(self) -> list[Parent]:
        """The parents of jobs that exist already."""
        return [self._parent(at) for at in self._known if self.jobs[at].parent is not None]

    def _parent(self, at: int) -> Parent:
        parent = self.jobs[at].parent
        assert parent is not None
        return parent.ref, self._child(at), ON_FAILURE.index(parent.on_failure)

    # --- in several steps -----------------------------------------------------------------------

    def split(self) -> tuple[list[int], list[int]]:
        """Positions of jobs that wait for others, and of the rest, in the order in which they are written.

        A parent waits for its children of this request from the start. A job that is kept out belongs to the
        rest even if it waits: the job that takes its key or its room in the group must be written first.
        """
        for at in (*self._fresh.values(), *self._known):
            parent = self.jobs[at].parent
            if parent is not None and parent.ref in self._fresh:
                child = Dependency(*self._child(at), parent.on_failure)
                self._children.setdefault(self._fresh[parent.ref], []).append(child)
        first = [at for at in range(len(self.jobs)) if self.dependencies(at) and at not in self._kept_out]
        waiting = set(first)
        return first, [at for at in range(len(self.jobs)) if at not in waiting]

    def dependencies(self, at: int) -> list[Dependency]:
        """The jobs that a job waits for, including children that name it as their parent. After ``split``."""
        return [*self.edges_of(at), *self._children.get(at, ())]

    def all_parents(self) -> list[Parent]:
        """The parents that exist already and get children from this request."""
        found = []
        for at in (*self._fresh.values(), *self._known):
            parent = self.jobs[at].parent
            if parent is not None and parent.ref not in self._fresh:
                found.append(self._parent(at))
        return found


def _unique(new: NewJob) -> Any:
    unique = new.options.unique
    return 0 if unique is None else packed_options.server_unique(unique)


def _pair(parent: JobRef, child: JobRef) -> _Asked:
    return parent, "", f"{child.queue}:{child.id}", 0, 0, 0


async def _look(session: ValkeySession, asked: list[_Asked], now: str) -> list[_Seen]:
    found = [_NOTHING] * len(asked)
    for first in range(0, len(asked), 1_000):
        part = asked[first : first + 1_000]
        for group in session.grouped(ref.queue for ref, *_ in part):
            items = [
                (index, part[at][0].id, *part[at][1:])
                for index, at in zip(group.indexes, group.positions, strict=True)
            ]
            rows = await session.functions.flow_look(group.roots, now, items)
            for at, row in zip(group.positions, rows, strict=True):
                found[first + at] = _Seen(*row)
    return found

"""Adding flows, and reading their edges.

A flow of up to about 2,000 jobs and edges is added in one step if its queues share a slot; on one server they
always do. Any other flow is written in an order that is safe to interrupt. Dependents come first, blocked by
all of their edges. Then come their children, which are linked to their dependents from the start. Last,
children that existed before are linked, or their dependents are notified if they have ended. If the client
dies in between, the dependents are still in a list of unfinished flows, which the duty ``relay`` completes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backends.valkey import records, relay, sent_records
from windlass.backends.valkey.adds import added
from windlass.backends.valkey.codes import EDGE_STATUS, ON_FAILURE, STATES
from windlass.backends.valkey.flowplan import FlowPlan
from windlass.backends.valkey.layouts import EdgeRow, Fate, Wanted
from windlass.backends.valkey.relay import Dependent, Notification
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core.edges import Dependency, Edge
from windlass.core.job import JobRef
from windlass.core.states import JobState

#: The most jobs and edges in one call.
_STEP = 2_000
_decode = msgspec.msgpack.Decoder().decode


def has_edges(request: rq.Add) -> bool:
    """Whether a job of this request waits for another."""
    for new in request.jobs:  # a loop is faster than any(), and every job passes here
        if new.depends_on or new.parent is not None:
            return True
    return False


async def add(session: ValkeySession, request: rq.Add, now: str) -> list[rq.Added]:
    """Add a flow. Raises for an invalid one before anything is written."""
    await session.list_queues(new.queue for new in request.jobs)
    plan = FlowPlan(request.jobs)
    await plan.look(session, now)
    await plan.check(session)
    return await _Adding(session, plan, now).run()


class _Adding:
    """Writes one request."""

    def __init__(self, session: ValkeySession, plan: FlowPlan, now: str) -> None:
        self._session = session
        self._plan = plan
        self._now = now
        self._jobs = plan.jobs
        self._answers: list[rq.Added | None] = [None] * len(plan.jobs)
        #: Child -> dependents that it is not linked to yet.
        self._unlinked: dict[JobRef, list[Dependent]] = {}
        #: Dependents with children that are still to be linked (a dict keeps their order).
        self._late: dict[JobRef, None] = {}
        self._notifications: list[Notification] = []
        #: Queues whose outbox has entries to relay.
        self._left: list[str] = []

    async def run(self) -> list[rq.Added]:
        plan = self._plan
        if plan.size <= _STEP and plan.is_local(self._place):
            everything = range(len(self._jobs))
            await self._send_all(list(everything), plan.edges_of, plan.known_parents(), plan.parent_of)
        else:
            await self._write_in_steps()
        if self._left:
            await relay.after(self._session, dict.fromkeys(self._left), self._now)
        return [answer for answer in self._answers if answer is not None]

    def _place(self, queue: str) -> str:
        """Queues with the same place may share a call: all on one server, none in a cluster."""
        return queue if self._session.client.settings.kind == "cluster" else ""

    async def _write_in_steps(self) -> None:
        """Write dependents, then the other jobs, then links to children that existed before."""
        plan = self._plan
        first, last = plan.split()
        await self._send_parts(first, plan.all_parents())
        await self._send_parts(last, [])
        links = [(dependent, child) for child, found in self._unlinked.items() for dependent in found]
        self._notifications += await relay.link(self._session, links, self._now)
        _, left = await relay.notify(self._session, self._notifications, self._now)
        self._left += left
        await relay.linked(self._session, list(self._late))
        if self._notifications:
            await self._refresh_states()

    async def _send_parts(self, positions: list[int], parents: list[tuple[JobRef, JobRef, int]]) -> None:
        """Send jobs and parents in calls of bounded size."""
        plan = self._plan
        part: list[int] = []
        size = 0
        for at in positions:
            more = 1 + len(plan.dependencies(at)) + len(self._unlinked.get(plan.ref(at), ()))
            if part and size + more > _STEP:
                await self._send_all(part, plan.dependencies, [], None)
                part, size = [], 0
            part.append(at)
            size += more
        for begin in range(0, len(parents), _STEP):
            await self._send_all([], plan.dependencies, parents[begin : begin + _STEP], None)
        if part:
            await self._send_all(part, plan.dependencies, [], None)

    async def _send_all(self, positions: list[int], edges: Any, parents: Any, parent_of: Any) -> None:
        """Send one call per slot."""
        names = [self._jobs[at].queue for at in positions] + [parent.queue for parent, _, _ in parents]
        groups = self._session.grouped(names)
        await together(*(self._send(group, positions, edges, parents, parent_of) for group in groups))

    async def _send(
        self, group: SlotGroup, positions: list[int], edges: Any, parents: Any, parent_of: Any
    ) -> None:
        heads, tails, mine, asked = [], [], [], []
        for index, item in zip(group.indexes, group.positions, strict=True):
            if item >= len(positions):
                parent, child, on_failure = parents[item - len(positions)]
                asked.append((index, parent.id, child.queue, child.id, on_failure))
                mine.append(item)
                continue
            at = positions[item]
            heads.append(self._head(index, at, edges(at), parent_of(at) if parent_of else None))
            tails.append(sent_records.tail(self._jobs[at]))
            mine.append(item)
        now_ms, new, left, answers, adopted = await self._session.functions.flow_add(
            group.roots, self._now, heads, asked, tails
        )
        if new:
            await self._session.list_again([group.names[index - 1] for index in new])
        self._left += [name.decode() for name in left]
        jobs = iter(answers)
        waiting = iter(adopted)
        for item in mine:
            if item >= len(positions):
                parent, child, _ = parents[item - len(positions)]
                self._note_parent(parent, child, next(waiting))
            else:
                self._note_job(positions[item], edges(positions[item]), next(jobs), now_ms)

    def _head(self, index: int, at: int, edges: list[Dependency], parent: Dependency | None) -> Wanted:
        new, ref = self._jobs[at], self._plan.ref(at)
        flag = 2 if edges else int(new.parent is not None)
        flat = [part for one in edges for part in (one.queue, one.id, ON_FAILURE.index(one.on_failure))]
        above: Any = 0
        if parent is not None:
            above = (parent.queue, parent.id, ON_FAILURE.index(parent.on_failure))
        waiting = self._unlinked.get(ref, ()) if self._plan.stands_for(at) else ()
        links = [part for one in waiting for part in (one.ref.queue, one.ref.id, one.seq)]
        return sent_records.new_job(index, new)._replace(
            kind=flag,
            edges=flat,
            parent=above,
            links=links,
            waits=int(bool(new.depends_on)),
            out=self._plan.other_mention(at),
        )

    def _note_job(self, at: int, edges: list[Dependency], answer: list[Any], now_ms: int) -> None:
        """Note the answer for one job: its outcome, children to link, dependents to notify."""
        ref = self._plan.ref(at)
        outcome, seq, unlinked, _, fates = answer
        self._answers[at] = added(outcome, now_ms, ref.queue)
        for position in unlinked:
            child = edges[(position - 1) // 3].ref
            self._unlinked.setdefault(child, []).append(Dependent(ref, seq))
            self._late[ref] = None
        for dependent, fate in zip(self._unlinked.pop(ref, ()) if fates else (), fates, strict=True):
            if fate != 1:
                self._notifications.append(
                    Notification(dependent, ref, Fate(*fate) if isinstance(fate, list) else relay.GONE)
                )

    def _note_parent(self, parent: JobRef, child: JobRef, answer: list[int]) -> None:
        seq, unlinked = answer
        if unlinked:
            self._unlinked.setdefault(child, []).append(Dependent(parent, seq))
            self._late[parent] = None

    async def _refresh_states(self) -> None:
        """Read the states of the added jobs again, since notifications may have changed them."""
        for first in range(0, len(self._jobs), 1_000):
            part = self._jobs[first : first + 1_000]
            for group in self._session.grouped(new.queue for new in part):
                items = [
                    (index, part[at].id, "", "", 0, 0)
                    for index, at in zip(group.indexes, group.positions, strict=True)
                ]
                rows = await self._session.functions.flow_look(group.roots, self._now, items)
                for at, row in zip(group.positions, rows, strict=True):
                    answer = self._answers[first + at]
                    if answer is not None and answer.record is None and row[0]:
                        answer.state = STATES[row[0]]
                        if answer.state is JobState.WAITING:
                            answer.due_ms = None


# --- reading -----------------------------------------------------------------------------------------------


async def get_dependencies(
    session: ValkeySession, request: fl.GetDependencies, now: str
) -> list[fl.Dependencies]:
    """The edges of jobs, in both directions."""
    waits = await _edges(session, request.refs, request.values)
    found = []
    for ref, depends_on in zip(request.refs, waits, strict=True):
        dependents = await _dependents(session, ref, request.values, request.limit) if request.limit else []
        found.append(
            fl.Dependencies(depends_on, dependents[: request.limit], len(dependents) > request.limit)
        )
    return found


async def _edges(session: ValkeySession, refs: list[JobRef], values: bool) -> list[list[Edge]]:
    rows: list[dict[str, bytes]] = [{} for _ in refs]
    ahead = dict.fromkeys(range(len(refs)), 0)
    while ahead:
        part = list(ahead.items())[:100]
        for group in session.grouped(refs[at].queue for at, _ in part):
            items = [
                (index, refs[part[item][0]].id, str(part[item][1]))
                for index, item in zip(group.indexes, group.positions, strict=True)
            ]
            pages = await session.functions.flow_edges(group.roots, values, items)
            for item, (cursor, *fields) in zip(group.positions, pages, strict=True):
                at = part[item][0]
                children = (child.decode() for child in fields[::2])
                rows[at].update(zip(children, fields[1::2], strict=True))
                if int(cursor):
                    ahead[at] = int(cursor)
                else:
                    del ahead[at]
    return [_in_order(ref, found, values) for ref, found in zip(refs, rows, strict=True)]


def _in_order(ref: JobRef, rows: dict[str, bytes], values: bool) -> list[Edge]:
    edges = [_edge(ref, JobRef(*child.split(":", 1)), stored, values) for child, stored in rows.items()]
    return [edge for _, edge in sorted(edges, key=lambda row: row[0])]


@records.wrap_unreadable
def _edge(dependent: JobRef, child: JobRef, stored: bytes, values: bool) -> tuple[int, Edge]:
    """The number of a stored edge, by which edges are sorted, and the edge."""
    end = 2 + int.from_bytes(stored[:2], "big")
    row = EdgeRow(*_decode(stored[2:end]))
    return row.number, Edge(
        dependent=dependent,
        child=child,
        child_seq=row.seq,
        on_failure=ON_FAILURE[row.on_failure],
        status=EDGE_STATUS[row.status],
        value=stored[end:] if row.has_value and values else None,
        codec=row.codec,
        reason=row.reason,
        error=row.error,
    )


async def _dependents(session: ValkeySession, ref: JobRef, values: bool, limit: int) -> list[Edge]:
    """Up to ``limit`` + 1 edges to dependents of a job. Links to jobs that are gone are skipped."""
    found: list[Edge] = []
    after = 0
    while len(found) <= limit:
        asked = min(limit + 1, 1_000) + 1
        root = session.keys.queue(ref.queue)
        seq, *links = await session.functions.flow_links(root, ref.id, after, asked)
        if not links:
            break
        after = links[-2]
        dependents = [Dependent.read(link) for link in links[1::2]]
        for edge in await _edges_to(session, ref, dependents, values):
            edge.child_seq = seq
            found.append(edge)
    return found[: limit + 1]


async def _edges_to(
    session: ValkeySession, child: JobRef, dependents: list[Dependent], values: bool
) -> list[Edge]:
    rows: list[Edge | None] = [None] * len(dependents)
    for group in session.grouped(one.ref.queue for one in dependents):
        items = [
            (index, dependents[at].ref.id, dependents[at].seq, f"{child.queue}:{child.id}")
            for index, at in zip(group.indexes, group.positions, strict=True)
        ]
        stored = await session.functions.flow_edge(group.roots, values, items)
        for at, edge in zip(group.positions, stored, strict=True):
            if edge is not None:
                rows[at] = _edge(dependents[at].ref, child, edge, values)[1]
    return [row for row in rows if row is not None]

"""Flows: check, create, settle and relay the edges between jobs (rules: ``core.flow_rules``).

When a request ends a job, the same transaction settles the edges to its dependents, and to the dependents of
those that end too. It handles up to ``RELAY_STEP`` edges and ``ROUNDS`` levels. The rest stays in the outbox
for ``Relay``. (In a cluster, where one transaction cannot reach all jobs, several requests do the same: see
``docs/flows.md``.)
"""

from __future__ import annotations

from copy import copy

import msgspec

from windlass.backend import flow_requests as fl
from windlass.core import flow_rules as rules
from windlass.core.edges import (
    RELAY_STEP,
    ChildEnd,
    Dependency,
    Edge,
    EdgeStatus,
    OnFailure,
    bad_parent,
    check_cycle,
    check_size,
    settle_edge,
    unknown_dependency,
)
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome, Settlement
from windlass.core.states import FINISHED, JobState
from windlass.core.transitions import answer_known
from windlass.engine import unique_keys
from windlass.engine.reads import MoreReads, Reads, UnsentEnds, Verb, Waits
from windlass.engine.saving import load_followed, prepare, refuses, save
from windlass.engine.unit_of_work import UnitOfWork

#: How many levels of dependents one request follows.
ROUNDS = 16
#: The maximum number of ends that one request takes from the outbox.
OUTBOX = 100

Fresh = dict[JobRef, NewJob]


# --- add ------------------------------------------------------------------------------------------


def sort(work: UnitOfWork, jobs: list[NewJob]) -> tuple[Fresh, list[NewJob]]:
    """The jobs of a flow that will be created, and the jobs that exist already, under the existing job's id.

    A flow may name an id twice. The first mention that is admitted creates the job with its edges. Repeated
    requests are in neither result, because their edges exist. Raises before anything is changed.
    """
    fresh: Fresh = {}
    known: list[NewJob] = []
    out: list[tuple[NewJob, JobRef | None]] = []
    doors = rules.Doors()
    for new in jobs:
        ref = JobRef(new.queue, new.id)
        if ref in fresh:
            continue
        old = work.known(ref)
        outcome = None if old is None else answer_known(old, new, work.now_ms)
        if outcome is not None:
            if outcome is not AddOutcome.QUEUED:
                known.append(new)
        elif old is not None or work.kept.get(ref, 0) <= work.now_ms:
            if _admits(work, doors, new):
                fresh[ref] = new
            else:
                out.append((new, doors.holder))
    rules.check_kept_out({JobRef(new.queue, new.id) for new, _ in out} - fresh.keys(), jobs)
    for new, holder in out:
        if holder is not None and (holder in fresh or work.jobs[holder] is not None):
            known.append(msgspec.structs.replace(new, id=holder.id))
    return fresh, known


def _admits(work: UnitOfWork, doors: rules.Doors, new: NewJob) -> bool:
    stored = None if new.options.unique is None else unique_keys.answered_by(work, new)
    return doors.admit(
        new,
        held=stored is not None,
        holder=JobRef(new.queue, stored or ""),
        refuses=lambda coming: refuses(work, new, coming) is not None,
    )


def load(work: UnitOfWork, fresh: Fresh, known: list[NewJob]) -> Verb[None]:
    """Load the stored jobs that a flow names, and the edges that could form a cycle with it. Reads: 2."""
    parents = [new.parent.ref for new in (*fresh.values(), *known) if new.parent is not None]
    named = [dependency.ref for new in fresh.values() for dependency in new.depends_on]
    pairs = [
        (new.parent.ref, JobRef(new.queue, new.id))
        for new in (*fresh.values(), *known)
        if new.parent is not None
    ]
    # A cycle needs a stored job that gets a new child, and leads from that child back to it. So only paths
    # from new children are read: the other children of a parent may be many.
    around = {*named, *(child for _, child in pairs)} if {*parents} - {*fresh} else set()
    yield MoreReads(
        jobs=[ref for ref in {*named, *parents} if ref not in work.jobs],
        pairs=pairs,
        waits=[ref for ref in {*parents} if ref not in fresh],
        reachable=around - {*fresh},
    )
    for ref in fresh:
        work.waits[ref] = Waits()
    yield from prepare(work, work.existing(parents))


def check(work: UnitOfWork, fresh: Fresh, known: list[NewJob]) -> None:
    """Raise if the flow is too large, has a cycle, or names an unknown dependency or an unusable parent."""
    graph: dict[JobRef, list[JobRef]] = {}
    for ref, new in fresh.items():
        check_size(len(fresh), len(new.depends_on))
        for dependency in new.depends_on:
            if dependency.ref not in fresh and work.known(dependency.ref) is None:
                raise unknown_dependency(ref, dependency.ref)
            graph.setdefault(ref, []).append(dependency.ref)
    for new in (*fresh.values(), *known):
        if new.parent is not None:
            ref = JobRef(new.queue, new.id)
            if new.parent.ref not in fresh:
                _check_parent(work, ref, new.parent)
            graph.setdefault(new.parent.ref, []).append(ref)
    if graph:
        for ref, children in work.graph.items():
            if ref not in fresh:
                graph.setdefault(ref, []).extend(children)
        check_cycle(graph)


def _check_parent(work: UnitOfWork, child: JobRef, parent: Dependency) -> None:
    if work.edges[parent.ref, child] is not None:
        return
    job = work.jobs[parent.ref]
    if job is None:
        raise bad_parent(child, parent.ref, "unknown")
    if job.state in FINISHED:
        raise bad_parent(child, parent.ref, job.state.value)
    check_size(0, work.waits[parent.ref].count + 1)


def link(work: UnitOfWork, fresh: Fresh, known: list[NewJob]) -> None:
    """Create the edges, after all jobs were added. Dependents are reviewed in the order of the add."""
    for ref, new in fresh.items():
        job = work.jobs[ref]
        assert job is not None, "it was just created"
        for dependency in new.depends_on:
            if work.edges.get((ref, dependency.ref)) is None:
                _make(work, job, dependency)
        if job.state is JobState.BLOCKED:
            review(work, job)
        _adopt(work, new)
    for new in known:
        _adopt(work, new)


def follow(work: UnitOfWork, job: JobRecord, before: Dependency) -> None:
    """Create the edge of a new job that waits for the running job ``before`` (``keep_last``)."""
    work.waits.setdefault(job.ref, Waits())
    _make(work, job, before)


def _make(work: UnitOfWork, dependent: JobRecord, wanted: Dependency) -> Edge:
    """Create the edge from ``dependent`` to the job it waits for. It is settled at once if that has ended."""
    child = work.known(wanted.ref)
    assert child is not None, "checked before"
    edge = Edge(
        dependent=dependent.ref,
        child=wanted.ref,
        child_seq=child.seq,
        child_run=child.manual_retries,
        on_failure=wanted.on_failure,
    )
    if child.state in FINISHED:
        settle_edge(edge, rules.end_of(child))
    _put(work, edge)
    waits = work.waits[edge.dependent]
    waits.count += 1
    waits.open += edge.status is EdgeStatus.OPEN
    if edge.broken and waits.broken is None:
        waits.broken = edge
    for job in (dependent, child):
        _link(work, job)
    return edge


def _link(work: UnitOfWork, job: JobRecord) -> None:
    if not job.linked and work.jobs[job.ref] is not None:  # a stub is not written again
        job.linked = True
        work.put(job, job.state)


def _put(work: UnitOfWork, edge: Edge) -> None:
    work.edges[edge.dependent, edge.child] = edge
    work.effects.edges[edge.dependent, edge.child] = edge


def _adopt(work: UnitOfWork, new: NewJob) -> None:
    """Make the parent of ``new`` wait for it, unless the parent already does or has finished."""
    if new.parent is None:
        return
    ref = JobRef(new.queue, new.id)
    parent = work.jobs[new.parent.ref]
    if parent is None or parent.state in FINISHED or work.edges.get((new.parent.ref, ref)) is not None:
        return
    before = parent.state
    edge = _make(work, parent, Dependency(new.queue, new.id, new.parent.on_failure))
    is_open = edge.status is EdgeStatus.OPEN
    changed = (is_open or edge.broken) and rules.block(parent, work)
    if not is_open:
        has_open = work.waits[parent.ref].open > 0
        changed = rules.after_edge(parent, edge, has_open=has_open, recorder=work) or changed
    if changed:
        save(work, parent, before)


# --- ends -----------------------------------------------------------------------------------------


def weigh(work: UnitOfWork, job: JobRecord, end: Settlement) -> Settlement:
    """The settlement to apply for a ``wait``: unchanged, or ``core.flow_rules.wait_for_none``."""
    waits = work.waits[job.ref]
    if waits.open or any(edge.broken for edge in work.unmet[job.ref]):
        return end
    return rules.wait_for_none(job, end, waits.count)


def load_missed(work: UnitOfWork, dependents: list[JobRef]) -> Verb[None]:
    """Load the children of these jobs that did not complete. Reads: 1."""
    children = {edge.child for ref in dependents for edge in work.unmet[ref] if edge.missed}
    absent = [ref for ref in children if ref not in work.jobs]
    if absent:
        yield Reads(jobs=absent)


def look_again(work: UnitOfWork, dependent: JobRef, again: rules.RetriedTogether) -> None:
    """Settle the missed edges of a job again, because a caller retries the job.

    A child that has completed since then counts as met. A child that has not finished blocks the job again.
    A child that failed or is gone is ignored from now on. ``again``: jobs that the same request retries; as
    children they count as not finished, or as gone if they would wait for this job.
    """
    for stored in work.unmet[dependent]:
        if stored.missed:
            waits = stored.child not in again.refs or again.may_wait(dependent, stored.child)
            edge, child = copy(stored), work.known(stored.child) if waits else None
            rules.look_again(edge, child, runs_again=stored.child in again.refs)
            _put(work, edge)
            if edge.status is EdgeStatus.OPEN:
                work.waits[dependent].open += 1
            if child is not None and edge.status in (EdgeStatus.OPEN, EdgeStatus.DONE):
                _link(work, child)


def review(work: UnitOfWork, job: JobRecord) -> None:
    """Decide whether a job that was just blocked stays blocked, starts or fails."""
    waits = work.waits[job.ref]
    stored = next((edge for edge in work.unmet.get(job.ref, ()) if edge.broken), None)
    rules.review(job, broken=stored or waits.broken, has_open=waits.open > 0, recorder=work)
    if job.state is not JobState.BLOCKED:
        save(work, job, JobState.BLOCKED)


def notify_dependents(work: UnitOfWork, limit: int = RELAY_STEP) -> Verb[int]:
    """Relay ended jobs to up to ``limit`` dependents, in the order of the ends. Returns how many.

    Ends that earlier requests left in the outbox come first. Ends that do not fit are appended to the outbox.
    Reads: 4 if no dependent ends in turn; at most 1 + 5 x ``ROUNDS`` (two of them only for ``keep_last``).
    """
    count = 0
    if work.outbox is None:
        yield MoreReads(outbox=OUTBOX)
    for _ in range(ROUNDS):
        old = work.outbox or []
        fresh, work.ended = (work.ended, []) if len(old) < OUTBOX else ([], work.ended)
        ends = [*old, *fresh]
        if not ends or count >= limit:
            work.ended = [*fresh, *work.ended]
            break
        yield MoreReads(unsent=UnsentEnds(ends, limit - count + 1))
        edges = _unsent(work, ends)
        relayed = edges[: limit - count]
        yield from _load_relayed(work, relayed)
        for edge, end in relayed:
            _tell_one(work, edge, end)
        count += len(relayed)
        done = len(ends) if len(relayed) == len(edges) else ends.index(edges[len(relayed)][1])
        work.outbox = old[done:]
        work.effects.relayed += min(done, len(old))
        work.ended = [*fresh[max(done - len(old), 0) :], *work.ended]
    work.effects.ends += work.ended
    work.left = bool(work.outbox or work.effects.ends)
    work.ended = []
    return count


def _unsent(work: UnitOfWork, ends: list[ChildEnd]) -> list[tuple[Edge, ChildEnd]]:
    """Open edges to children that ended, stored and new ones of this request, in the order of the ends."""
    changed = work.effects.edges
    edges = [edge for edge in work.unsent if (edge.dependent, edge.child) not in changed]
    by_child: dict[JobRef, list[Edge]] = {}
    for edge in (*edges, *changed.values()):
        if edge.status is EdgeStatus.OPEN:
            by_child.setdefault(edge.child, []).append(edge)
    return [(edge, end) for end in ends for edge in by_child.get(end.child, ()) if edge.awaits(end)]


def _load_relayed(work: UnitOfWork, relayed: list[tuple[Edge, ChildEnd]]) -> Verb[None]:
    refs = dict.fromkeys(edge.dependent for edge, _ in relayed)
    jobs = [ref for ref in refs if ref not in work.jobs]
    waits = [ref for ref in refs if ref not in work.waits]
    if jobs or waits:
        yield MoreReads(jobs=jobs, waits=waits)
    yield from prepare(work, work.existing(refs))
    failing = [
        edge.dependent for edge, end in relayed if edge.on_failure is OnFailure.FAIL and not end.completed
    ]
    yield from load_followed(work, work.existing(dict.fromkeys(failing)))


def _tell_one(work: UnitOfWork, stored: Edge, end: ChildEnd) -> None:
    job = work.jobs[stored.dependent]
    if job is None:
        return  # this request has removed it, with its edges
    edge = copy(stored)
    settle_edge(edge, end)
    _put(work, edge)
    waits = work.waits[edge.dependent]
    waits.open -= 1
    before = job.state
    if rules.after_edge(job, edge, has_open=waits.open > 0, recorder=work):
        save(work, job, before)


def relay(work: UnitOfWork, request: fl.Relay) -> Verb[fl.Relayed]:
    """Process the outbox. Reads: as ``notify_dependents``."""
    count = yield from notify_dependents(work, request.limit)
    return fl.Relayed(count, work.left)

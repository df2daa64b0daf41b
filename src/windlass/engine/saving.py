"""Save a changed job, with the consequences: parking, freed keys, freed group slots, notifications.

Every verb calls ``prepare`` to load what saving needs, changes jobs by the rules of ``core``, and then calls
``save`` or ``drop``. A waiting or active job of a group is *admitted*. Other ready jobs of the group are
parked in the group's own line (see ``core.limit_rules``).

Turns make groups share a queue fairly. A job that joins the line gets the turn after the last waiting job of
its group and priority, but not a turn before the one that is being served. So the second job of a busy group
comes after the first job of every other group. Jobs without a group count as one group. While a queue has
never had a group, all turns are 0, and only places decide the order.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.core import limit_rules as lm
from windlass.core import transitions, unique_rules
from windlass.core.flow_rules import end_of
from windlass.core.job import JobRecord, NewJob
from windlass.core.limit_rules import GroupLimits
from windlass.core.outcome import AddOutcome
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.core.transitions import NO_TURN
from windlass.core.unique_rules import KeyEntry
from windlass.engine.effects import Entry, Kind, Move, Table
from windlass.engine.reads import STEP, MoreReads, Reads, Verb
from windlass.engine.unit_of_work import GroupView, UnitOfWork

_WAITING, _ACTIVE, _PARKED = JobState.WAITING, JobState.ACTIVE, JobState.PARKED


#: A stored or a new job.
SavedJob = JobRecord | NewJob


def prepare(
    work: UnitOfWork, jobs: Iterable[SavedJob], *, groups: Iterable[tuple[str, str]] = ()
) -> Iterable[Reads]:
    """Load what saving these jobs may need: groups, unique keys, turns. Call it before the jobs are changed.

    Reads: 1, none for plain jobs. Use it with ``yield from``.
    """
    kinds: dict[tuple[str, int], SavedJob] = {}
    grouped: list[JobRecord] = []
    queue, options = "", None
    for job in jobs:
        if job.options is not options or job.queue != queue:
            queue, options = job.queue, job.options
            if options.group is not None or options.unique is not None or work.queues[queue].row.grouped:
                kinds[queue, id(options)] = job
        if options.group is not None and isinstance(job, JobRecord):
            grouped.append(job)
    return _prepare(work, kinds.values(), grouped, groups) if kinds or groups else ()


def _prepare(
    work: UnitOfWork, kinds: Iterable[SavedJob], grouped: list[JobRecord], groups: Iterable[tuple[str, str]]
) -> Verb[None]:
    """``prepare`` with one job for each pair of queue and options, and all records that have a group."""
    wanted = dict.fromkeys(key for key in groups if key not in work.groups)
    keys: dict[Entry, None] = {}
    lines: dict[str, int] = {}
    for job in kinds:
        queue, options = job.queue, job.options
        if options.group is not None:
            if (queue, options.group) not in work.groups:
                wanted[queue, options.group] = None
        elif work.queues[queue].row.grouped and queue not in work.lines:
            lines[queue] = 0
        if options.unique is not None:
            key: Entry = (Table.KEY, (queue, options.unique.key))
            if key not in work.rows:
                keys[key] = None
    if wanted or keys or lines:
        yield Reads(groups=wanted, rows=keys, lines=lines)
    for one in grouped:
        work.groups[one.queue, one.options.group].count_stored(one)


def is_prepared(work: UnitOfWork, job: JobRecord) -> bool:
    """Whether enough is loaded to change and save this job. Call it before the job is changed."""
    options = job.options
    if options.unique is not None and (Table.KEY, (job.queue, options.unique.key)) not in work.rows:
        return False
    if options.group is None:
        return True
    if (job.queue, options.group) not in work.groups:
        return False
    work.groups[job.queue, options.group].count_stored(job)
    return True


def save(work: UnitOfWork, job: JobRecord, before: JobState | None, kind: Kind = Kind.MOVED) -> None:
    """Write a changed job, and update its group. ``before`` is its previous state (None: it is new)."""
    if job.options.group is None:
        _save_and_notify(work, job, before, kind)
        return
    group = work.groups[job.queue, job.options.group]
    group.leave(job.id)
    _check(work, group, job)
    _enter(work, group, job, before, kind)
    advance(work, group)


def save_alike(
    work: UnitOfWork, queue: str, jobs: list[JobRecord], before: JobState | None, state: JobState, kind: Kind
) -> None:
    """``save`` for plain jobs without edges that make the same move, in a queue that has never had a group.

    This request must not have changed them before. Waiting jobs have already been removed from their line.
    """
    if state is _WAITING:
        for job in jobs:
            job.turn = 0
    work.put_alike(Move(jobs, queue, before, state, kind))
    if state is not _ACTIVE:
        _notify(work, queue, before, state)


def save_regrouped(work: UnitOfWork, job: JobRecord, before: JobState, group: str | None, kind: Kind) -> None:
    """``save`` for a job that was in ``group`` and may be in another group now."""
    left = None
    if group is not None and group != job.options.group:
        left = work.groups[job.queue, group]
        left.leave(job.id)
    save(work, job, before, kind)
    if left is not None:
        advance(work, left)


def drop(work: UnitOfWork, job: JobRecord) -> None:
    """Remove a record. Its id stays known for as long as ``keep_id`` says."""
    work.drop(job)
    finished = job.state in FINISHED
    if job.linked and not finished:
        work.ended.append(end_of(job))
    if job.state is _ACTIVE:
        _has_room(work, job.queue)
    if job.options.unique is not None:
        free_key(work, job, removed=True)
    until_ms = transitions.kept_until(job)
    if until_ms > work.now_ms:
        work.put_row(Table.KEPT_ID, (job.queue, job.id), until_ms)
    if job.options.group is not None and not finished:
        group = work.groups[job.queue, job.options.group]
        group.leave(job.id)
        advance(work, group)


def _save_and_notify(work: UnitOfWork, job: JobRecord, before: JobState | None, kind: Kind) -> None:
    """Write a job in its new state, and collect the notifications."""
    state = job.state
    if job.turn < 0 and state is _WAITING:  # it has no turn yet
        job.turn = _fresh_turn(work, job) if work.queues[job.queue].row.grouped else 0
    work.put(job, before, kind)
    if job.options.unique is not None:
        free_key(work, job)
    if state is _ACTIVE:
        return
    move = (job.queue, before, state)
    if move != work.moved:  # most jobs of a request make the same move
        work.moved = move
        _notify(work, *move)
    if job.linked and state in FINISHED:
        work.ended.append(end_of(job))


def _notify(work: UnitOfWork, queue: str, before: JobState | None, state: JobState) -> None:
    """Collect the notifications for a state change of a job."""
    if before is _ACTIVE:
        _has_room(work, queue)
    if state is _WAITING or state in TIMED:
        work.wake(queue)
    elif state in FINISHED:
        work.notify(f"done:{queue}")


def _has_room(work: UnitOfWork, queue: str) -> None:
    """Wake workers after an active job ended, if the queue limits concurrency: one more job may start now."""
    if work.queues[queue].row.limits.concurrency is not None:
        work.wake(queue)


def free_key(work: UnitOfWork, job: JobRecord, *, removed: bool = False) -> None:
    """Free the unique key of a job whose state no longer holds it."""
    wanted = job.options.unique
    if wanted is None or not unique_rules.frees_key(job, removed=removed):
        return
    key = (job.queue, wanted.key)
    entry = work.rows[Table.KEY, key]
    if entry is not None and entry.job_id == job.id:
        work.put_row(Table.KEY, key, _given_back(work, job, entry))


def load_followed(work: UnitOfWork, jobs: list[JobRecord]) -> Verb[None]:
    """Load the jobs behind which ``keep_last`` keeps these, for verbs that end blocked jobs.

    Reads: 2, none for other jobs.
    """
    behind = [job.ref for job in jobs if job.state is JobState.BLOCKED and unique_rules.follows(job)]
    if behind:
        work.jobs.update((job.ref, job) for job in jobs)  # not read again: this request changes them
        yield MoreReads(reachable=behind)
        children = dict.fromkeys(child for ref in behind for child in work.graph.get(ref, ()))
        yield Reads(jobs=[child for child in children if child not in work.jobs])


def _given_back(work: UnitOfWork, job: JobRecord, entry: KeyEntry) -> KeyEntry | None:
    """The entry of the job behind which ``keep_last`` kept ``job``; None if that job has ended."""
    if not unique_rules.follows(job):
        return None
    new = (edge.child for edge in work.effects.edges.values() if edge.dependent == job.ref)
    children = (work.jobs.get(child) for child in (*work.graph.get(job.ref, ()), *new))
    before = [one for one in children if one is not None and unique_rules.precedes(one, job)]
    return KeyEntry(min(before, key=lambda one: one.seq).id, entry.until_ms) if before else None


def _fresh_turn(work: UnitOfWork, job: JobRecord) -> int:
    """The turn of a job that joins the line: see the module docstring."""
    group, line = job.options.group or "", work.lines[job.queue]
    line.remove(job.id)
    last, served = line.last(job.priority, group), line.served(job.priority)
    return max(0 if last is None else last + 1, served or 0)


# --- groups ---------------------------------------------------------------------------------------


def limits_of(work: UnitOfWork, group: GroupView) -> GroupLimits:
    """The limits that apply to a group: its own, or those of every group of its queue."""
    return group.own if group.own is not None else work.queues[group.queue].row.every_group


def is_ordered(work: UnitOfWork, job: JobRecord | NewJob) -> bool:
    """Whether a job is in an ordered group."""
    name = job.options.group
    return name is not None and limits_of(work, work.groups[job.queue, name]).ordered


def refuses(work: UnitOfWork, new: NewJob | JobRecord, coming: int = 0) -> AddOutcome | None:
    """Why the group of a new job refuses it, after ``coming`` other jobs; None if it accepts it."""
    if new.options.group is None:
        return None
    group = work.groups[new.queue, new.options.group]
    return lm.refuses(limits_of(work, group), new, group.usage.size + coming)


def _enter(work: UnitOfWork, group: GroupView, job: JobRecord, before: JobState | None, kind: Kind) -> None:
    """Count a job in its group by its new state, and write it."""
    queue = work.queues[job.queue]
    if not queue.row.grouped:  # set even if the job is parked or due later: claims then look for parked jobs
        queue.row.grouped = True
        work.put_queue(queue)
    _save_and_notify(work, job, before, kind)
    group.enter(job)


def _check(work: UnitOfWork, group: GroupView, job: JobRecord) -> None:
    """Park a job that has become ready while its group has no room. Fail a job that can never start.

    A released or recovered job keeps its place, and with it its admission.
    """
    limits = limits_of(work, group)
    lm.take_place(limits, job)
    if job.state is not _WAITING or job.turn != NO_TURN:
        return
    if not limits.takes(job.options.cost):
        transitions.refuse_cost(job, work)
    elif not _takes_one(work, group, limits, job):
        transitions.park(job, work)


def _takes_one(work: UnitOfWork, group: GroupView, limits: GroupLimits, job: JobRecord) -> bool:
    first = group.parked.head()
    if first is not None and (-first.priority, first.place) < (-job.priority, job.place):
        return False
    at_ms = group.opens_at(limits, job, work.now_ms)
    return at_ms is not None and at_ms <= work.now_ms


def advance(work: UnitOfWork, group: GroupView, budget: int = STEP) -> int:
    """Let in parked jobs from the head of the group's line while there is room. Returns how many it moved.

    If it stops at ``budget``, the group is marked as due at once, and the next claim continues.
    """
    limits, moved = limits_of(work, group), 0
    budget = min(budget, work.moves)
    at_ms: int | None = None
    while (job := group.parked.head()) is not None:
        takes = limits.takes(job.options.cost)
        at_ms = group.opens_at(limits, job, work.now_ms)
        if takes and (at_ms is None or at_ms > work.now_ms):
            break
        if moved >= budget:
            at_ms = work.now_ms
            break
        group.count_stored(job)
        group.leave(job.id)
        if transitions.is_expired(job, work.now_ms):
            transitions.expire(job, work)
        elif not takes:
            transitions.refuse_cost(job, work)
        else:
            transitions.let_in(job, work)
        _enter(work, group, job, _PARKED, Kind.MOVED)
        moved += 1
        work.moves -= 1
    else:
        at_ms = work.now_ms if group.parked.is_cut and group.usage.parked else None
    wait_until(work, group, at_ms)
    return moved


def wait_until(work: UnitOfWork, group: GroupView, at_ms: int | None) -> None:
    """Set the time at which the group's line is checked again (None: time alone gives it no room)."""
    if at_ms == group.next_ms:
        return
    group.next_ms = at_ms
    work.put_group(group)
    if at_ms is not None and not work.claiming:  # idle workers must know how long to sleep
        work.wake(group.queue)

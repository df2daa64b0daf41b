"""Add, claim, settle, extend, reconcile: the verbs that every job goes through.

Plain adds, claims of jobs that never ran and settlements that complete are written for speed: few columns,
one statement for many jobs. They do what ``core.transitions`` does; everything else calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from windlass.backend import requests as rq
from windlass.backends.sqlite.rows import (
    INLINE_PAYLOAD,
    STATES,
    Row,
    decode_options,
    encode_options,
    new_row,
    record,
)
from windlass.core import transitions
from windlass.core.job import AttemptOutcome, AttemptRecord, EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome, Extended, Outcome, Settled, Settlement
from windlass.core.retention import keep_until, result_until, spare_until
from windlass.core.states import JobState
from windlass.core.transitions import NO_DATA, EventData, Note

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step

#: Most due jobs that one claim promotes, and most expired ones that it ends per queue and round.
STEP = 1_000
#: Where these stand in the parameters of ``job_insert``.
STATE, PAYLOAD, DUE = 4, 7, 13


# --- add ------------------------------------------------------------------------------------------


def add(step: Step, request: rq.Add) -> list[rq.Added]:
    """Insert all jobs at once; if an id is taken, or kept, go through them one by one instead."""
    jobs = request.jobs
    if any(new.depends_on or new.parent is not None for new in jobs):
        return _add_flow(step, jobs)
    if _no_kept_ids(step):
        last_place, noted, made = step.last_place, len(step.notes), len(step.made)
        rows, answers = _new_rows(step, jobs)
        if step.many("job_insert", rows) == len(rows):
            _count_added(step, jobs, rows)
            step.plain = request.now_ms is None
            return answers
        step.run("job_undo_insert", last_place)
        step.last_place = last_place
        del step.notes[noted:]
        assert made <= len(step.made)  # queues that were made for the attempt are needed all the same
    return [_add_one(step, new) for new in jobs]


def _add_flow(step: Step, jobs: list[NewJob]) -> list[rq.Added]:
    """All jobs first, then all edges; a flow that cannot be is refused before anything is changed."""
    fresh, known = step.flows.sort(jobs, step.now_ms)
    answers = [_add_one(step, new) for new in jobs]
    step.flows.link(fresh, known, step)
    for new, answer in zip(jobs, answers, strict=True):
        job = step.find(JobRef(new.queue, new.id))
        if job is not None and answer.record is None:
            answer.state, answer.due_ms = job.state, job.due_ms
    return answers


def _no_kept_ids(step: Step) -> bool:
    queues = step.queues
    if queues.no_kept_ids is None:
        queues.no_kept_ids = step.one("kept_id_any") is None
    return queues.no_kept_ids


def _new_rows(step: Step, jobs: list[NewJob]) -> tuple[list[Row], list[rq.Added]]:
    """What ``transitions.create`` makes of new jobs, as rows; and the answers to their callers."""
    rows: list[Row] = []
    answers: list[rq.Added] = []
    now_ms, seq, queue, num = step.now_ms, step.last_place, "", 0
    options, options_text = None, ""
    for new in jobs:
        if new.queue != queue:
            queue = new.queue
            num = step.queue(queue)
        if new.options is not options:
            options = new.options
            options_text = encode_options(options)
        seq += 1
        row = fresh_row(new, num, seq, now_ms, options_text)
        due_ms = row[DUE]
        step.notes.append(cast("Note", (queue, *added_event(new, due_ms))))
        rows.append(row)
        answers.append(rq.Added(AddOutcome.QUEUED, row[STATE], now_ms, due_ms))
    step.last_place = seq
    return rows, answers


def fresh_row(new: NewJob, num: int, seq: int, now_ms: int, options_text: str) -> Row:
    """The parameters of ``job_insert`` for a job that is added now."""
    ready_ms = new.run_at_ms if new.run_at_ms is not None else now_ms + new.delay_ms
    due_ms: int | None
    if ready_ms > now_ms:
        state, due_ms = JobState.SCHEDULED, ready_ms
    else:
        state, ready_ms, due_ms = JobState.WAITING, now_ms, None
    return (
        seq,
        num,
        new.id,
        new.task,
        state,
        new.priority,
        -seq if new.options.lifo else seq,
        new.payload if len(new.payload) <= INLINE_PAYLOAD else None,
        new.codec,
        options_text,
        None if new.request_id == new.id else new.request_id,
        now_ms,
        ready_ms,
        due_ms,
        None if new.expires_in_ms is None else now_ms + new.expires_in_ms,
    )


def added_event(new: NewJob, due_ms: int | None) -> tuple[EventType, str, str, EventData]:
    """What the event log says of a new job."""
    if due_ms is None:
        return EventType.ENQUEUED, new.id, new.task, NO_DATA
    return EventType.SCHEDULED, new.id, new.task, {"run_at_ms": due_ms}


def _count_added(step: Step, jobs: list[NewJob], rows: list[Row]) -> None:
    for new, row in zip(jobs, rows, strict=True):
        queue = new.queue
        step.count(queue, new.task, "enqueued")
        step.tally(queue, row[STATE], 1)
        if row[PAYLOAD] is None:
            step.run("payload_insert", row[0], new.payload)
    for queue in {new.queue for new in jobs}:
        step.known[queue] = True
        step.topics.add(f"ready:{queue}")


def _add_one(step: Step, new: NewJob) -> rq.Added:
    old = step.find(JobRef(new.queue, new.id))
    if old is not None:
        answer = _answer_known(step, old, new)
        if answer is not None:
            return answer
        transitions.remove(old, step)
        step.drop([old])
    elif _is_kept(step, new):
        step.notes.append(Note(new.queue, EventType.DEDUPLICATED, new.id, new.task))
        return rq.Added(AddOutcome.DUPLICATE, None)
    job = transitions.create(new, step, after_ms=old.enqueued_ms if old else 0)
    _insert(step, job)
    return rq.Added(AddOutcome.QUEUED, job.state, job.enqueued_ms, job.due_ms)


def _insert(step: Step, job: JobRecord) -> None:
    step.run("job_insert_one", *new_row(job, step.queue(job.queue)))
    if len(job.payload) > INLINE_PAYLOAD:
        step.run("payload_insert", job.seq, job.payload)
    if job.linked:
        step.run("job_hold", job.due_ms if job.state is JobState.BLOCKED else None, job.seq)
    step.known[job.queue] = True
    step.count(job.queue, job.task, "enqueued")
    step.tally(job.queue, job.state, 1)
    step.topics.add(f"ready:{job.queue}")


def _is_kept(step: Step, new: NewJob) -> bool:
    num = step.queues.num(new.queue)
    row = None if num is None else step.one("kept_id", num, new.id)
    return row is not None and row[0] > step.now_ms


def _answer_known(step: Step, old: JobRecord, new: NewJob) -> rq.Added | None:
    """The answer that an existing record gives; None when it makes way for the new job."""
    outcome = transitions.answer_known(old, new, step.now_ms)
    if outcome is None:
        return None
    if outcome is AddOutcome.QUEUED:
        return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms)
    step.note(old, EventType.DEDUPLICATED)
    return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms, view(old, step.now_ms))


def view(job: JobRecord, now_ms: int) -> JobRecord:
    """A record for the caller, without a result that is past its time."""
    if job.result_until_ms is not None and job.result_until_ms <= now_ms:
        job.result = None
    return job


# --- claim ----------------------------------------------------------------------------------------


class _Line:
    """One queue during a claim."""

    def __init__(self, name: str, num: int, paused: bool, due_ms: int | None, ready: bool) -> None:
        self.name = name
        self.num = num
        self.paused = paused
        self.due_ms = due_ms
        #: False when nobody waits; True may be out of date.
        self.ready = ready
        self.taken = 0


def claim(step: Step, request: rq.Claim) -> rq.Claimed:
    lines = _lines(step, request)
    _promote_lines(step, lines.values())
    jobs: list[JobRecord] = []
    for bound in ("share", "cap"):
        for item in request.queues:
            line = lines.get(item.name)
            if line is None or line.paused or not line.ready:
                continue
            room = min(getattr(item, bound) - line.taken, request.limit - len(jobs))
            _pick(step, line, room, request, jobs)
    for line in lines.values():
        if line.taken and not line.ready:
            step.notes.append(Note(line.name, EventType.DRAINED))
    dues = [line.due_ms for line in lines.values() if line.due_ms is not None]
    return rq.Claimed(jobs, step.now_ms, max(min(dues) - step.now_ms, 0) if dues else None)


def _lines(step: Step, request: rq.Claim) -> dict[str, _Line]:
    nums = {item.name: num for item in request.queues if (num := step.queues.num(item.name)) is not None}
    if len(nums) == 1:
        ((name, num),) = nums.items()
        return {name: _Line(name, *step.all("claim_queue", num)[0])}
    found = {row[0]: row for row in step.all("claim_queues", str([*nums.values()]))}
    return {name: _Line(name, *found[num]) for name, num in nums.items()}


def _promote_lines(step: Step, lines: Iterable[_Line]) -> None:
    budget = STEP
    for line in lines:
        if line.due_ms is not None and line.due_ms <= step.now_ms and budget > 0:
            budget -= promote_queue(step, line.num, budget)
            (line.due_ms,) = step.all("job_next_due", line.num)[0]
            line.ready = True


def promote_queue(step: Step, num: int, limit: int) -> int:
    """Make due jobs of one queue waiting, earliest first; returns how many."""
    rows = step.all("job_due", num, step.now_ms, limit)
    promote_rows(step, rows)
    return len(rows)


def promote_rows(step: Step, rows: list[Row]) -> None:
    """Make the jobs of rows of ``job_due`` waiting, in this order, as ``transitions.promote`` does."""
    changed = []
    for due_ms, seq, num, job_id, task, state, lifo in rows:
        queue = step.queues.name(num)
        place = step.fresh_place()
        changed.append((min(due_ms, step.now_ms), -place if lifo else place, seq))
        step.notes.append(cast("Note", (queue, EventType.PROMOTED, job_id, task, NO_DATA)))
        step.tally(queue, STATES[state], -1)
        step.tally(queue, JobState.WAITING, 1)
        step.topics.add(f"ready:{queue}")
    if changed:
        step.many("job_promote", changed)


def _pick(step: Step, line: _Line, room: int, request: rq.Claim, jobs: list[JobRecord]) -> None:
    """Lease up to ``room`` jobs of one queue, and end those that expired before their turn."""
    expired = 0
    while room > 0 and line.ready and expired < STEP:
        rows = step.all("job_ready", line.num, room + 1)
        line.ready = len(rows) > room
        leased = _lease(step, line.name, rows[:room], request)
        if leased:
            _save_leased(step, line, leased, request)
        jobs += leased
        expired += min(len(rows), room) - len(leased)
        room -= len(leased)
    if expired >= STEP and line.ready:
        line.due_ms = step.now_ms  # the bound was reached: ask again at once


def _lease(step: Step, queue: str, rows: list[Row], request: rq.Claim) -> list[JobRecord]:
    """The jobs of rows of ``job_ready``, leased to the worker, without those that expired."""
    leased = []
    now_ms, worker, notes = step.now_ms, request.worker, step.notes
    data: EventData = {"attempt": 1, "worker": worker}
    for row in rows:
        seq, job_id, task, priority, place, payload, codec, options_text, request_id, *times, again = row
        enqueued_ms, ready_ms, expires_ms = times
        if again or (expires_ms is not None and expires_ms <= now_ms):
            if (job := _lease_old(step, queue, seq, request)) is not None:
                leased.append(job)
            continue
        options = decode_options(options_text)
        notes.append(cast("Note", (queue, EventType.STARTED, job_id, task, data)))
        leased.append(
            JobRecord(
                queue=queue,
                id=job_id,
                task=task,
                payload=payload,
                codec=codec,
                state=JobState.ACTIVE,
                priority=priority,
                seq=seq,
                place=place,
                options=options,
                request_id=job_id if request_id is None else request_id,
                enqueued_ms=enqueued_ms,
                ready_ms=ready_ms,
                expires_ms=expires_ms,
                started_ms=now_ms,
                deliveries=1,
                token=f"{request.claim_id}.{seq}",
                lease_until_ms=now_ms + (options.lease_ms or request.lease_ms),
                worker=worker,
            )
        )
    return leased


def _lease_old(step: Step, queue: str, seq: int, request: rq.Claim) -> JobRecord | None:
    """As ``_lease``, for a job that ran before or may have expired."""
    job = record(step.all("job_by_seqs", f"[{seq}]")[0], queue)
    if transitions.is_expired(job, step.now_ms):
        transitions.expire(job, step)
        step.save([(job, JobState.WAITING)])
        return None
    token = f"{request.claim_id}.{seq}"
    transitions.lease(job, step, token=token, worker=request.worker, lease_ms=request.lease_ms)
    return job


def _save_leased(step: Step, line: _Line, jobs: list[JobRecord], request: rq.Claim) -> None:
    by_lease: dict[int | None, list[int]] = {}
    for job in jobs:
        by_lease.setdefault(job.lease_until_ms, []).append(job.seq)
    for until_ms, seqs in by_lease.items():
        step.run("job_lease", request.claim_id, request.worker, step.now_ms, until_ms, str(seqs))
    line.taken += len(jobs)
    step.tally(line.name, JobState.WAITING, -len(jobs))
    step.tally(line.name, JobState.ACTIVE, len(jobs))


# --- settle ---------------------------------------------------------------------------------------


def settle(step: Step, request: rq.Settle) -> rq.SettleResult:
    items = request.items
    seqs = [_seq(end.token) for end in items]
    if len(set(seqs)) == len(seqs):
        statuses = _settle_quick(step, items, seqs)
    else:  # a job that comes twice must be seen as its first settlement left it
        statuses = _settle_slow(step, items)
    left = step.tell()  # so that what is unblocked here can be claimed here
    return rq.SettleResult(statuses, claim(step, request.claim) if request.claim else None, left)


def _settle_quick(step: Step, items: list[Settlement], seqs: list[int]) -> list[Settled]:
    """Complete what holds its lease in a few statements; the rest in the slow way, in its turn."""
    rows = {row[0]: row for row in step.all("job_leased", str(seqs))} if items else {}
    groups: dict[tuple[str, bytes | None], list[int]] = {}
    done: dict[str, int] = {}
    statuses = []
    for end, seq in zip(items, seqs, strict=True):
        row = rows.get(seq)
        if (
            row is None
            or end.outcome is not Outcome.COMPLETE
            or row[3] != end.token
            or row[2] != end.id
            or step.queues.name(row[1]) != end.queue
        ):
            statuses += _settle_slow(step, [end])
            continue
        _complete(step, row, end)
        done[end.queue] = done.get(end.queue, 0) + 1
        groups.setdefault((row[7], end.result), []).append(seq)
        statuses.append(Settled.OK)
    _save_completed(step, groups)
    for queue, count in done.items():
        step.tally(queue, JobState.ACTIVE, -count)
        step.tally(queue, JobState.COMPLETED, count)
        step.topics.add(f"done:{queue}")
    return statuses


def _complete(step: Step, row: Row, end: Settlement) -> None:
    """The traces of a completed attempt; ``row`` is one of ``job_leased``."""
    _, _, job_id, token, attempts, deliveries, task, options_text, worker, *times = row
    enqueued_ms, ready_ms, started_ms = times
    step.history.append(
        AttemptRecord(
            token,
            job_id,
            attempts + 1,
            deliveries,
            end.queue,
            task,
            None,
            decode_options(options_text).tags,
            worker,
            enqueued_ms,
            ready_ms,
            started_ms,
            step.now_ms,
            started_ms - ready_ms,
            end.duration_ms,
            AttemptOutcome.COMPLETED,
            None,
            None,
        )
    )
    step.notes.append(cast("Note", (end.queue, EventType.COMPLETED, job_id, task, NO_DATA)))


def _save_completed(step: Step, groups: dict[tuple[str, bytes | None], list[int]]) -> None:
    """One statement for all jobs with the same options and result, or one run per job if few are alike."""
    now_ms = step.now_ms
    single: list[Row] = []
    for (options_text, result), seqs in groups.items():
        options = decode_options(options_text)
        values = (
            now_ms,
            result,
            result_until(options, now_ms),
            keep_until(options, JobState.COMPLETED, now_ms),
            spare_until(options, now_ms),
        )
        if len(seqs) == 1:
            single.append((*values, seqs[0]))
        else:
            step.run("job_complete", *values, str(seqs))
    if single:
        step.many("job_complete_one", single)


def _settle_slow(step: Step, items: list[Settlement]) -> list[Settled]:
    jobs: dict[JobRef, JobRecord | None] = {}
    statuses, changed = [], {}
    for end in items:
        ref = JobRef(end.queue, end.id)
        if ref not in jobs:
            jobs[ref] = step.find(ref)
        job = jobs[ref]
        status = transitions.check_token(job, end.token)
        if status is Settled.OK and job is not None:
            transitions.settle(job, end, step)
            if end.outcome is Outcome.WAIT and job.state is JobState.BLOCKED:
                step.save([(job, JobState.ACTIVE)])
                step.flows.review(job, step)
            else:
                changed[ref] = (job, JobState.ACTIVE)
        statuses.append(status)
    step.save(list(changed.values()))
    return statuses


def _seq(token: str) -> int:
    """The number of the job that a token of ours was made for; 0 for any other text."""
    tail = token.rpartition(".")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 19 else 0


# --- extend, reconcile ------------------------------------------------------------------------------


def extend(step: Step, request: rq.Extend) -> list[Extended]:
    rows = step.all("job_held", str([_seq(lease.token) for lease in request.leases]))
    held = {(step.queues.name(row[1]), row[2], row[3]): row for row in rows}
    answers, moved = [], []
    for lease in request.leases:
        row = held.get((lease.queue, lease.id, lease.token))
        if row is None:
            answers.append(Extended.LOST)
            continue
        moved.append((step.now_ms + lease.lease_ms, row[0]))
        answers.append(Extended.OK if row[4] is None else Extended.CANCELLING)
    if moved:
        step.many("job_extend", moved)
    return answers


def reconcile(step: Step, request: rq.Reconcile) -> int:
    held = set(request.held)
    jobs = step.records(step.all("job_leased_by", request.worker))
    lost = [job for job in jobs if job.token not in held]
    for job in lost:
        transitions.give_back(job, step)
    step.save([(job, JobState.ACTIVE) for job in lost])
    return len(lost)

"""Add, claim, settle, extend, reconcile: the verbs that every job goes through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.backend import requests as rq
from windlass.backends.sqlite.rows import INLINE_PAYLOAD, new_row, record
from windlass.core import transitions
from windlass.core.job import EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome, Extended, Settled
from windlass.core.states import JobState
from windlass.core.transitions import Note

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backends.sqlite.tx import Step

#: Most due jobs that one claim promotes, and most expired ones that it ends.
STEP = 1_000

_json = msgspec.json.Encoder()


# --- add ------------------------------------------------------------------------------------------


def add(step: Step, request: rq.Add) -> list[rq.Added]:
    return [_add_one(step, new) for new in request.jobs]


def _add_one(step: Step, new: NewJob) -> rq.Added:
    old = step.find(JobRef(new.queue, new.id))
    if old is not None:
        answer = _answer_known(step, old, new)
        if answer is not None:
            return answer
        transitions.remove(old, step)
        step.drop(old)
    elif _is_kept(step, new):
        step.notes.append(Note(new.queue, EventType.DEDUPLICATED, new.id, new.task))
        return rq.Added(AddOutcome.DUPLICATE, None)
    job = transitions.create(new, step, after_ms=old.enqueued_ms if old else 0)
    _insert(step, [job])
    return rq.Added(AddOutcome.QUEUED, job.state, job.enqueued_ms, job.due_ms)


def _insert(step: Step, jobs: list[JobRecord]) -> None:
    step.conn.executemany(step.sql["job_insert"], [new_row(job, step.queue(job.queue)) for job in jobs])
    for job in jobs:
        if len(job.payload) > INLINE_PAYLOAD:
            step.run("payload_insert", job.seq, job.payload)
        step.known[job.queue] = True
        step.counts[job.queue, job.task, "enqueued"] += 1
        step.tallies[job.queue, job.state] += 1
        step.topics.add(f"ready:{job.queue}")


def _is_kept(step: Step, new: NewJob) -> bool:
    num = step.tx.names.num(new.queue)
    row = None if num is None else step.one("kept_id", num, new.id)
    return row is not None and row[0] > step.now_ms


def _answer_known(step: Step, old: JobRecord, new: NewJob) -> rq.Added | None:
    """The answer that an existing record gives; None when it makes way for the new job."""
    if new.request_id and new.request_id == old.request_id:
        return rq.Added(AddOutcome.QUEUED, old.state, old.enqueued_ms, old.due_ms)
    if transitions.blocks_id(old, step.now_ms):
        outcome = AddOutcome.DUPLICATE
    elif transitions.answers_cached(old, step.now_ms):
        outcome = AddOutcome.CACHED
    else:
        return None
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
    nums = {item.name: num for item in request.queues if (num := step.tx.names.num(item.name)) is not None}
    names = {num: name for name, num in nums.items()}
    rows = step.all("claim_queues", _json.encode(list(names)).decode())
    found = {row[0]: _Line(names[row[0]], *row) for row in rows}
    return {name: found[num] for name, num in nums.items()}


def _promote_lines(step: Step, lines: Iterable[_Line]) -> None:
    budget = STEP
    for line in lines:
        if line.due_ms is not None and line.due_ms <= step.now_ms and budget > 0:
            budget -= promote_queue(step, line.num, budget)
            (line.due_ms,) = step.all("job_next_due", line.num)[0]
            line.ready = True


def promote_queue(step: Step, num: int, limit: int) -> int:
    """Make due jobs of one queue waiting, earliest first; returns how many."""
    jobs = step.records(step.all("job_due", num, step.now_ms, limit))
    promote_jobs(step, jobs)
    return len(jobs)


def promote_jobs(step: Step, jobs: list[JobRecord]) -> None:
    changed = []
    for job in jobs:
        changed.append((job, job.state))
        transitions.promote(job, step)
    step.save(changed)


def _pick(step: Step, line: _Line, room: int, request: rq.Claim, jobs: list[JobRecord]) -> None:
    """Lease up to ``room`` jobs of one queue, and end those that expired before their turn."""
    expired = 0
    while room > 0 and line.ready and expired < STEP:
        rows = step.all("job_ready", line.num, room + 1)
        line.ready = len(rows) > room
        leased, ended = [], []
        for row in rows[:room]:
            job = record(row, line.name)
            if transitions.is_expired(job, step.now_ms):
                transitions.expire(job, step)
                ended.append((job, JobState.WAITING))
            else:
                token = f"{request.claim_id}.{job.seq}"
                transitions.lease(job, step, token=token, worker=request.worker, lease_ms=request.lease_ms)
                leased.append(job)
        _save_leased(step, line, leased)
        step.save(ended)
        jobs += leased
        expired += len(ended)
        room -= len(leased)
    if expired >= STEP and line.ready:
        line.due_ms = step.now_ms  # the bound was reached: ask again at once


def _save_leased(step: Step, line: _Line, jobs: list[JobRecord]) -> None:
    if not jobs:
        return
    step.conn.executemany(
        step.sql["job_lease"],
        [
            (job.token, job.worker, job.started_ms, job.deliveries, job.lease_until_ms, job.seq)
            for job in jobs
        ],
    )
    line.taken += len(jobs)
    step.tallies[line.name, JobState.WAITING] -= len(jobs)
    step.tallies[line.name, JobState.ACTIVE] += len(jobs)


# --- settle, extend, reconcile ----------------------------------------------------------------------


def settle(step: Step, request: rq.Settle) -> rq.SettleResult:
    jobs = _by_token(step, [(end.queue, end.id, end.token) for end in request.items])
    items, changed = [], {}
    for end in request.items:
        job = jobs.get(JobRef(end.queue, end.id))
        status = transitions.check_token(job, end.token)
        if status is Settled.OK and job is not None:
            transitions.settle(job, end, step)
            changed[job.ref] = (job, JobState.ACTIVE)
        items.append(status)
    step.save(list(changed.values()))
    return rq.SettleResult(items, claim(step, request.claim) if request.claim else None)


def _by_token(step: Step, leases: list[tuple[str, str, str]]) -> dict[JobRef, JobRecord]:
    """The jobs of these (queue, id, token), found by the number at the end of the token if possible."""
    seqs = [int(tail) for _, _, token in leases if (tail := token.rpartition(".")[2]).isdecimal()]
    rows = (
        step.all("job_by_seqs", _json.encode([seq for seq in seqs if seq < 2**63]).decode()) if seqs else []
    )
    found = {job.ref: job for job in step.records(rows)}
    for queue, job_id, _ in leases:
        ref = JobRef(queue, job_id)
        if ref not in found and (job := step.find(ref)) is not None:
            found[ref] = job
    return found


def extend(step: Step, request: rq.Extend) -> list[Extended]:
    jobs = _by_token(step, [(lease.queue, lease.id, lease.token) for lease in request.leases])
    answers = []
    for lease in request.leases:
        job = jobs.get(JobRef(lease.queue, lease.id))
        answer = transitions.extend(job, lease.token, lease.lease_ms, step.now_ms)
        if answer is not Extended.LOST and job is not None:
            step.run("job_extend", job.lease_until_ms, job.seq)
        answers.append(answer)
    return answers


def reconcile(step: Step, request: rq.Reconcile) -> int:
    held = set(request.held)
    jobs = step.records(step.all("job_leased_by", request.worker))
    lost = [job for job in jobs if job.token not in held]
    for job in lost:
        transitions.give_back(job, step)
    step.save([(job, JobState.ACTIVE) for job in lost])
    return len(lost)

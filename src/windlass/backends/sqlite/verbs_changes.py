"""Cancel, remove, retry, change, report, pause, purge: changes by people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.backends.sqlite import keys
from windlass.backends.sqlite.rows import IDLE, LOG_KEY, Row, encode_options, is_simple
from windlass.backends.sqlite.tx import fold
from windlass.core import damage, transitions
from windlass.core.job import LOGS_KEPT, EventType, JobRecord, JobRef
from windlass.core.outcome import CancelResult, Changed
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.core.transitions import Note

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.backends.sqlite.tx import Step


#: Up to this many jobs of a state are sorted to find the oldest.
SORTABLE = 10_000


def cancel(step: Step, request: rq.CancelJobs) -> list[CancelResult]:
    answers = []
    for ref in request.refs:
        job = step.find(ref)
        before = job.state if job else None
        outcome = transitions.cancel(job, request.reason, step, dead=request.dead)
        if job is not None and before is not None and outcome is CancelResult.CANCELLED:
            step.save([(job, before)])
        if job is not None and outcome is CancelResult.CANCELLING:
            step.run("job_cancelling", job.cancel_reason, job.seq)
            step.topics.add(f"worker:{job.worker}")
        answers.append(outcome)
    return answers


def remove(step: Step, request: rq.RemoveJobs) -> list[rq.ChangeResult]:
    answers = []
    for ref in request.refs:
        job = step.find(ref)
        if job is None:
            answers.append(rq.ChangeResult(Changed.NOT_FOUND))
        elif job.state is JobState.ACTIVE and not request.force:
            answers.append(rq.ChangeResult(Changed.ILLEGAL, job.state))
        else:
            transitions.remove(job, step)
            step.drop([job])
            step.topics.add(f"done:{ref.queue}")
            answers.append(rq.ChangeResult(Changed.OK, job.state))
    return answers


def retry(step: Step, request: rq.RetryJobs) -> list[rq.ChangeResult]:
    return [change_one(step, ref, lambda job: _retry_one(step, job)) for ref in request.refs]


def _retry_one(step: Step, job: JobRecord) -> Changed:
    finished, blocked = job.state in FINISHED, False
    if job.linked:
        if finished:
            step.flows.look_again(job.ref)
        blocked = step.flows.has_open(job.ref)
    status = transitions.retry(job, step, blocked=blocked)
    if finished:
        keys.take_again(step, step.queue(job.queue), job)
    return status


def change(step: Step, request: rq.ChangeJob) -> rq.ChangeResult:
    def turn(job: JobRecord) -> Changed:
        status = transitions.change(
            job,
            step,
            token=request.token,
            priority=request.priority,
            delay_ms=request.delay_ms,
            payload=request.payload,
            ordered=request.priority is not None and step.gates.is_ordered(step.queue(job.queue), job),
        )
        if status is Changed.OK and request.payload is not None:
            step.save_payload(job)
        return status

    return change_one(step, request.ref, turn)


def change_one(step: Step, ref: JobRef, turn: Callable[[JobRecord], Changed]) -> rq.ChangeResult:
    """Change one job by ``turn``, and save it when that went well."""
    job = step.find(ref)
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if damage.is_bad(job):
        return rq.ChangeResult(Changed.ILLEGAL, job.state)
    before = job.state
    status = turn(job)
    if status is Changed.OK:
        step.save([(job, before)])
    return rq.ChangeResult(status, job.state)


def set_result_ttl(step: Step, request: rq.SetResultTtl) -> rq.ChangeResult:
    return change_one(step, request.ref, lambda job: transitions.set_result_ttl(job, request.ttl_ms, step))


def report(step: Step, request: rq.Report) -> rq.ChangeResult:
    job = step.find(request.ref)
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if request.progress is not None:
        if (refused := transitions.refuses_report(job, request.token)) is not None:
            return rq.ChangeResult(refused, job.state)
        job.progress = request.progress
        step.run("job_progress", job.progress, job.seq)
        step.note(job, EventType.PROGRESS, progress=transitions.progress_text(job))
    if request.logs:
        last = (step.all("log_last", job.seq)[0][0] or 0) + len(request.logs)
        lines = list(enumerate(request.logs, last - len(request.logs) + 1))[-LOGS_KEPT:]
        step.many("log_insert", [(job.seq, n, line) for n, line in lines])
        step.run("log_trim", job.seq, last - LOGS_KEPT)
    return rq.ChangeResult(Changed.OK, job.state)


def pause(step: Step, request: rq.PauseQueue) -> bool:
    if request.paused:
        step.queue(request.queue)
    num = step.queues.num(request.queue)
    if num is None or not step.run("queue_pause", request.paused, num):
        return False
    step.known[request.queue] = True
    event = EventType.PAUSED if request.paused else EventType.RESUMED
    step.notes.append(Note(request.queue, event))
    step.topics.add(f"ready:{request.queue}")
    return True


# --- purge ----------------------------------------------------------------------------------------


def purge(step: Step, request: rq.Purge) -> rq.Purged:
    num = step.queues.num(request.queue)
    if num is None:
        return rq.Purged(0, [])
    jobs = _purgeable(step, num, request)
    if all(is_simple(encode_options(job.options)) for job in jobs):
        for job in jobs:
            transitions.remove(job, step)
        step.drop(jobs)
    else:
        _purge_one_by_one(step, jobs)
    if jobs:
        step.topics.add(f"done:{request.queue}")
    if request.forget and step.one("job_exists", num) is None:
        _forget(step, num, request.queue)
    return rq.Purged(len(jobs), [job.id for job in jobs])


def _purge_one_by_one(step: Step, jobs: list[JobRecord]) -> None:
    """Remove jobs that may make room for one another: each as it is when its turn comes."""
    for found in jobs:
        job = step.find(found.ref)
        if job is not None:
            transitions.remove(job, step)
            step.drop([job])


def _purgeable(step: Step, num: int, request: rq.Purge) -> list[JobRecord]:
    """Jobs that go, oldest first. Among very many of a state that has no such order, those first in line."""
    before_ms = step.now_ms - request.grace_ms
    totals = step.totals(request.queue)
    rows: list[Row] = []
    for state in set(request.states):
        if totals[state] and (request.force or state is not JobState.ACTIVE):
            statement, params = _purge_statement(state, num, totals[state])
            rows += step.all(statement, *params, before_ms, request.limit)
    jobs = step.records(rows)
    jobs.sort(key=lambda job: (job.enqueued_ms if job.finished_ms is None else job.finished_ms, job.seq))
    return jobs[: request.limit]


def _purge_statement(state: JobState, num: int, total: int) -> tuple[str, tuple[int | JobState, ...]]:
    many = "_many" if total > SORTABLE else ""
    if state in FINISHED:
        return "purge_finished", (num, state)
    if state is JobState.ACTIVE:
        return "purge_active", (num,)
    if state is JobState.WAITING:
        return f"purge_waiting{many}", (num,)
    if state in DUE_LATER:
        return f"purge_due{many}", (num, state)
    return "purge_idle", (num, IDLE[state])


def _forget(step: Step, num: int, queue: str) -> None:
    """Drop a queue's settings and events. What this request itself notes comes after, and stays."""
    found = step.queues.get(queue)
    fold(step.conn, step.sql, found)
    floor = found.last_event + step.tx.held_notes(queue)
    step.run("queue_forget", floor, num)
    step.run("event_trim", num * LOG_KEY, num * LOG_KEY + floor)
    for statement in ("limits_forget", "grp_forget", "unique_key_forget", "stub_forget"):
        step.run(statement, num)
    step.gates.forget(num)
    found.special = 0
    step.run("schedule_forget", num)
    step.known[queue] = False

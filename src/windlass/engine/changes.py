"""Changes by users and handlers: cancel, remove, retry, change, report, pause, purge, signal, live output."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.core import change_rules, transitions
from windlass.core.flow_rules import RetriedTogether
from windlass.core.job import EventType, JobRecord, JobRef, LogLine
from windlass.core.outcome import CancelResult, Changed
from windlass.core.states import JobState
from windlass.core.stream_rules import StreamHead, accept
from windlass.core.transitions import EventData
from windlass.engine import flows, unique_keys
from windlass.engine.adding import keep_queue
from windlass.engine.effects import Kind, QueueRow, Table
from windlass.engine.reads import MoreReads, PurgeReads, Reads, Verb
from windlass.engine.saving import drop, is_ordered, load_followed, prepare, save
from windlass.engine.unit_of_work import UnitOfWork


def _load(work: UnitOfWork, refs: list[JobRef]) -> Verb[list[JobRecord]]:
    """Load jobs and what saving them may need; returns those that exist. Reads: 1, with groups or keys 2."""
    yield Reads(jobs=refs)
    found = work.existing(refs)
    yield from prepare(work, found)
    return found


def cancel(work: UnitOfWork, request: rq.CancelJobs) -> Verb[list[CancelResult]]:
    """Cancel pending jobs, and ask the workers of active ones to stop.

    Reads: 1, with groups or keys 2, with blocked jobs of ``keep_last`` 4.
    """
    found = yield from _load(work, request.refs)
    yield from load_followed(work, found)
    return [_cancel_one(work, work.jobs[ref], request) for ref in request.refs]


def _cancel_one(work: UnitOfWork, job: JobRecord | None, request: rq.CancelJobs) -> CancelResult:
    before = job.state if job else None
    outcome = change_rules.cancel(job, request.reason, work, dead=request.dead)
    if job is not None and outcome is CancelResult.CANCELLED:
        save(work, job, before)
    if job is not None and outcome is CancelResult.CANCELLING:
        work.put(job, before)
        work.notify(f"worker:{job.worker}")
    return outcome


def remove(work: UnitOfWork, request: rq.RemoveJobs) -> Verb[list[rq.ChangeResult]]:
    """Remove jobs, active ones only with ``force``.

    Reads: 1, with groups or keys 2, with blocked jobs of ``keep_last`` 4.
    """
    found = yield from _load(work, request.refs)
    yield from load_followed(work, found)
    return [_remove_one(work, work.jobs[ref], request.force) for ref in request.refs]


def _remove_one(work: UnitOfWork, job: JobRecord | None, force: bool) -> rq.ChangeResult:
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if job.state is JobState.ACTIVE and not force:
        return rq.ChangeResult(Changed.ILLEGAL, job.state)
    change_rules.remove(job, work)
    drop(work, job)
    work.notify(f"done:{job.queue}")
    return rq.ChangeResult(Changed.OK, job.state)


def retry(work: UnitOfWork, request: rq.RetryJobs) -> Verb[list[rq.ChangeResult]]:
    """Retry jobs in any order: a job that depends on another retried job waits for it again.

    Reads: 1; with groups or keys 2, with edges 4.
    """
    yield Reads(jobs=request.refs)
    found = work.existing(request.refs)
    if any(job.linked for job in found):  # the retry of a dependent may link the others, too
        refs = [job.ref for job in found]
        yield MoreReads(waits=refs, unmet=refs)
        yield from flows.load_missed(work, refs)
    yield from prepare(work, found)
    again = RetriedTogether(job.ref for job in found if change_rules.may_run_again(job))
    return [_change_one(work, ref, lambda job: _retry_one(work, job, again)) for ref in request.refs]


def _retry_one(work: UnitOfWork, job: JobRecord, again: RetriedTogether) -> Changed:
    finished = change_rules.may_run_again(job)
    blocked = False
    if job.linked:
        if finished:
            flows.look_again(work, job.ref, again)
        blocked = work.waits[job.ref].open > 0
    status = change_rules.retry(job, work, blocked=blocked)
    if finished:
        unique_keys.take_again(work, job)
    return status


def change(work: UnitOfWork, request: rq.ChangeJob) -> Verb[rq.ChangeResult]:
    """Change priority, delay or data of a job. Reads: 1, with groups or keys 2."""
    yield from _load(work, [request.ref])
    return _change_one(
        work,
        request.ref,
        lambda job: change_rules.change(
            job,
            work,
            token=request.token,
            priority=request.priority,
            delay_ms=request.delay_ms,
            payload=request.payload,
            ordered=request.priority is not None and is_ordered(work, job),
        ),
    )


def set_result_ttl(work: UnitOfWork, request: rq.SetResultTtl) -> Verb[rq.ChangeResult]:
    """Change how long a finished job's result or errors are kept. Reads: 1, with groups or keys 2."""
    yield from _load(work, [request.ref])
    return _change_one(work, request.ref, lambda job: change_rules.set_result_ttl(job, request.ttl_ms, work))


def signal(work: UnitOfWork, request: fl.Signal) -> Verb[rq.ChangeResult]:
    """Send a signal to a job, which resumes if it is suspended on it. Reads: 1, with groups or keys 2."""
    yield from _load(work, [request.ref])
    return _change_one(
        work,
        request.ref,
        lambda job: change_rules.signal(job, request.name, request.data, request.codec, work),
    )


def _change_one(work: UnitOfWork, ref: JobRef, step: Callable[[JobRecord], Changed]) -> rq.ChangeResult:
    job = work.jobs[ref]
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    before, payload, options = job.state, job.payload, job.options
    status = step(job)
    if status is Changed.OK:
        is_new = job.payload is not payload or job.options is not options
        save(work, job, before, Kind.REPLACED if is_new else Kind.MOVED)
    return rq.ChangeResult(status, job.state)


def report(work: UnitOfWork, request: rq.Report) -> Verb[rq.ChangeResult]:
    """Store the progress and log lines of a job. Reads: 1."""
    yield Reads(jobs=[request.ref])
    job = work.jobs[request.ref]
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if request.progress is not None:
        if (refused := change_rules.refuses_report(job, request.token)) is not None:
            return rq.ChangeResult(refused, job.state)
        job.progress = request.progress
        work.put(job, job.state)
        work.record_event(job, EventType.PROGRESS, progress=change_rules.progress_text(job))
    if request.logs:
        attempt = job.attempts + (job.state is JobState.ACTIVE)
        facts = (work.now_ms, request.level, attempt, job.deliveries)
        work.effects.logs.append((job, [LogLine(text, *facts) for text in request.logs]))
    return rq.ChangeResult(Changed.OK, job.state)


def append_stream(work: UnitOfWork, request: sm.AppendStream) -> Verb[rq.ChangeResult]:
    """Append live output of a running job; repeated chunks are dropped. Reads: 1."""
    yield MoreReads(jobs=[request.ref], streams=[request.ref])
    job = work.jobs[request.ref]
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if not transitions.holds(job, request.token):
        return rq.ChangeResult(Changed.LOST, job.state)
    head = copy(work.streams[request.ref]) or StreamHead()
    new = accept(head, job.deliveries, request.first, request.chunks)
    work.effects.chunks.append((job, head, new))
    work.notify(f"stream:{job.queue}")
    return rq.ChangeResult(Changed.OK, job.state)


# --- whole queues ---------------------------------------------------------------------------------


def pause(work: UnitOfWork, request: rq.PauseQueue) -> Verb[bool]:
    """Pause or resume a queue. False if it already was. Reads: 1."""
    yield Reads(queues=[request.queue])
    queue = work.queues[request.queue]
    if queue.row.paused is request.paused:
        return False
    queue.row.paused, queue.row.known = request.paused, True
    work.put_queue(queue)
    work.note_of(queue.name, EventType.PAUSED if request.paused else EventType.RESUMED)
    work.wake(queue.name)
    return True


def publish(work: UnitOfWork, request: rq.PublishEvent) -> Verb[None]:
    """Append a custom event to a queue's event log. Reads: 1."""
    yield Reads(queues=[request.queue])
    keep_queue(work, work.queues[request.queue])
    data: EventData = {"name": request.name, "data": request.data}
    work.note_of(request.queue, EventType.CUSTOM, request.job_id, data=data)


def trim_events(work: UnitOfWork, request: rq.TrimEvents) -> Verb[int]:
    """Remove all events of a queue except the newest ``keep``. Returns how many. Reads: 1."""
    yield MoreReads(events_of=request.queue)
    log = work.event_logs[request.queue]
    upto = log.newest - request.keep
    if upto < log.oldest:
        return 0
    work.effects.forgotten[request.queue] = upto
    return upto - log.oldest + 1


def purge(work: UnitOfWork, request: rq.Purge) -> Verb[rq.Purged]:
    """Remove jobs of a queue by state and age and, if asked, the queue itself once it is empty.

    Reads: 1, with groups or keys 2, with blocked jobs of ``keep_last`` 4; 1 more to remove the queue.
    """
    states = frozenset(state for state in request.states if request.force or state is not JobState.ACTIVE)
    before_ms = work.now_ms - request.grace_ms
    yield MoreReads(queues=[request.queue], purge=PurgeReads(request.queue, states, before_ms, request.limit))
    queue = work.queues[request.queue]
    if not queue.exists:
        return rq.Purged(0, [])
    yield from prepare(work, work.found)
    yield from load_followed(work, work.found)
    for job in work.found:
        change_rules.remove(job, work)
        drop(work, job)
    if work.found:
        work.notify(f"done:{queue.name}")
    if request.forget and queue.jobs == len(work.found):
        yield from _forget_queue(work, request.queue)
    return rq.Purged(len(work.found), [job.id for job in work.found])


def _forget_queue(work: UnitOfWork, name: str) -> Verb[None]:
    """Remove all settings and events of an empty queue that is obliterated. Reads: 1."""
    yield MoreReads(settings_of=name, events_of=name)
    queue = work.queues[name]
    queue.row = QueueRow(known=False)
    work.put_queue(queue)
    work.cut_starts(name, None, [])
    work.effects.forgotten[name] = work.event_logs[name].newest
    for table, key in list(work.rows):  # all of this queue
        if table in (Table.KEY, Table.SCHEDULE, Table.STUB):
            work.put_row(table, key, None)
    for key in list(work.groups):
        work.effects.rows[Table.GROUP, key] = None
        work.effects.starts.pop(key, None)

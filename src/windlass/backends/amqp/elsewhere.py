"""Jobs that run, fail, die or are scheduled elsewhere: what other programs tell by the streams."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backends.amqp import verbs
from windlass.backends.amqp.messages import poison, queue_of, read_entry
from windlass.backends.memory.store import MemoryStore
from windlass.core import damage, transitions
from windlass.core.job import AttemptOutcome, AttemptRecord, EventType, JobRecord, JobRef, attempt_record
from windlass.core.states import JobState
from windlass.core.transitions import Scribe


class Placed:
    """Where the message of a job is."""

    __slots__ = ("gen", "mark", "state", "where")

    def __init__(self, where: str, gen: int, state: JobState, mark: Any) -> None:
        self.where = where
        self.gen = gen
        self.state = state
        self.mark = mark


class Elsewhere(MemoryStore):
    """The reference store, with the entries of others."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[JobRef, Placed] = {}
        #: How far each stream of others is read.
        self.cursors: dict[str, int] = {}
        self._verbs |= {verbs.Foreign: self._foreign, verbs.ForeignMetric: self._foreign_metric}

    def _bury(self, job: JobRecord, scribe: Scribe) -> None:
        """Take in a record that is dead from the start, and count it."""
        queue = self.queue(job.queue)
        if job.id in queue.jobs:
            return
        job.seq = job.place = scribe.fresh_place()
        queue.jobs[job.id], queue.known = job, True
        self.file(job, scribe)
        error = job.errors[-1] = msgspec.structs.replace(job.errors[-1], at_ms=scribe.now_ms)
        scribe.history.append(attempt_record(job, AttemptOutcome.FAILED, scribe.now_ms, error=error))
        scribe.note(
            job,
            EventType.FAILED,
            reason=job.reason,
            error_class=error.error_class,
            message=error.message[:500],
        )

    def _foreign(self, request: verbs.Foreign, scribe: Scribe) -> None:
        if request.offset <= self.cursors.get(request.kind, -1):
            return  # a coordinator before us took it
        self.cursors[request.kind] = request.offset
        try:
            entry = read_entry(request.body, request.kind, scribe.now_ms)
        except damage.UNREADABLE as exc:
            problem = f"an entry of type {request.kind}: {exc}"
            self._bury(poison(queue_of(request.body), request.body, problem, scribe.now_ms), scribe)
            return
        known = self._find(entry.job.ref)
        if known is not None and known.state not in (JobState.WAITING, JobState.ACTIVE):
            return  # told before
        job = known or entry.job
        if known is None:
            queue = self.queue(job.queue)
            job.seq = job.place = scribe.fresh_place()
            queue.jobs[job.id], queue.known = job, True
            if entry.state is JobState.SCHEDULED:
                self._counters[job.queue, job.task, "enqueued"] += 1
        self._end_elsewhere(job, entry.state, entry.at_ms, entry, scribe)
        self.file(job, scribe)

    def _end_elsewhere(self, job: JobRecord, state: JobState, at_ms: int, entry: Any, scribe: Scribe) -> None:
        """A worker in another language ran ``job`` (or somebody scheduled it) and says what is next."""
        placed = self.placed.get(job.ref)
        if placed is not None:
            placed.state = JobState.ACTIVE  # they had its message and acknowledge it
        job.token, job.lease_until_ms = None, None
        job.attempts = entry.job.attempts
        if entry.error is not None:
            job.errors = [*job.errors, entry.error][-32:]
        job.state = state
        if state is JobState.FAILED:
            job.finished_ms, job.due_ms, job.reason = at_ms, None, "attempts"
            scribe.note(job, EventType.FAILED, reason="attempts", error_class=entry.error.error_class)
            return
        job.due_ms = job.ready_ms = at_ms
        if state is JobState.RETRYING:
            scribe.note(job, EventType.RETRYING, attempt=job.attempts, run_at_ms=at_ms)
        else:
            scribe.note(job, EventType.SCHEDULED, run_at_ms=at_ms)

    def _foreign_metric(self, request: verbs.ForeignMetric, scribe: Scribe) -> None:
        if request.offset <= self.cursors.get("job_metric", -1):
            return
        self.cursors["job_metric"] = request.offset
        try:
            told = msgspec.json.decode(request.body)
            metrics = told["data"] if isinstance(told.get("data"), list) else [told]
            rows = [self._metric_row(metric, request.offset, n, scribe) for n, metric in enumerate(metrics)]
        except damage.UNREADABLE as exc:
            damage.tell(f"entry {request.offset} of job_metrics", str(exc))
            return
        scribe.history += rows

    def _metric_row(self, metric: Any, offset: int, n: int, scribe: Scribe) -> AttemptRecord:
        at_ms = round(float(metric["timestamp"]) * 1000)
        duration_ms = round(float(metric["duration_ms"]))
        done = metric["status"] == "success"
        job_id = str(metric.get("jid") or "")
        queue = str(metric["queue"])
        known = self._find(JobRef(queue, job_id)) if job_id else None
        if known is not None and done and known.state in (JobState.WAITING, JobState.ACTIVE):
            placed = self.placed.get(known.ref)
            if placed is not None:
                placed.state = JobState.ACTIVE
            known.token = None
            transitions.finish(known, JobState.COMPLETED, scribe)
            scribe.note(known, EventType.COMPLETED)
            self.file(known, scribe)
        return AttemptRecord(
            f"metric.{offset}.{n}", job_id, 1, 1, queue, str(metric["job_class"]), None, (),
            str(metric.get("worker_identity") or ""), at_ms - duration_ms, at_ms - duration_ms,
            at_ms - duration_ms, at_ms, 0, duration_ms,
            AttemptOutcome.COMPLETED if done else AttemptOutcome.FAILED, None, None,
        )  # fmt: skip

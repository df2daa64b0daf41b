"""Applies what other programs report in the public streams: jobs that they run, fail or schedule."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backends.amqp import verbs
from windlass.backends.amqp.messages import opened, read_entry, to_ms
from windlass.backends.amqp.unreadable import poison, queue_of
from windlass.backends.memory.store import MemoryStore
from windlass.core import bad_records
from windlass.core.ids import check_queue_name, check_task_name
from windlass.core.job import AttemptOutcome, AttemptRecord, JobRecord, JobRef
from windlass.core.states import JobState
from windlass.engine import reports
from windlass.engine.reads import Reads, Verb
from windlass.engine.unit_of_work import UnitOfWork


class Placed:
    """Where the message of a job is."""

    __slots__ = ("copy", "gen", "mark", "state", "where")

    def __init__(self, where: str, gen: int, state: JobState, mark: Any) -> None:
        self.where = where
        self.gen = gen
        self.state = state
        self.mark = mark
        #: Which message of its generation counts: the first one that a worker verified or started (None: not
        #: known yet). It is kept until the job leaves the queue, so that all others can be dropped.
        self.copy: int | None = None

    @property
    def kept_by_lease(self) -> bool:
        """Whether only the lease of the running job counts (see ``verbs.Lend``), not a message in a queue."""
        return self.where == "kept" and self.state is JobState.ACTIVE


class ForeignJobs(MemoryStore):
    """The memory store, which also applies entries of other programs."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[JobRef, Placed] = {}
        #: The offset of the last applied entry of each public stream.
        self.cursors_of_streams: dict[str, int] = {}
        self.verbs = self.verbs | {
            verbs.Foreign: self._foreign,
            verbs.ForeignMetric: self._foreign_metric,
        }

    def _is_news(self, kind: str, offset: int) -> bool:
        """Whether an entry of a stream was not applied yet. Moves the offset of the stream."""
        if offset <= self.cursors_of_streams.get(kind, -1):
            return False
        self.cursors_of_streams[kind] = offset
        return True

    def bury(self, work: UnitOfWork, job: JobRecord) -> Verb[None]:
        """Add a record that is in the dead set from the start, and count it."""
        yield Reads(jobs=[job.ref])
        if work.jobs[job.ref] is None:
            reports.bury(work, job)

    def _foreign(self, work: UnitOfWork, request: verbs.Foreign) -> Verb[None]:
        if not self._is_news(request.kind, request.offset):
            return
        try:
            entry = read_entry(request.body, request.kind, work.now_ms)
        except bad_records.UNREADABLE as exc:
            problem = f"an entry of type {request.kind}: {exc}"
            yield from self.bury(work, poison(queue_of(request.body), request.body, problem, work.now_ms))
            return
        yield Reads(jobs=[entry.job.ref])
        known = work.jobs[entry.job.ref]
        if known is not None and known.state not in (JobState.WAITING, JobState.ACTIVE):
            return  # the coordinator already knows a later state
        job = known or entry.job
        self.has_left(job)
        reports.apply_report(
            work, job, state=entry.state, at_ms=entry.at_ms, attempts=entry.job.attempts, error=entry.error
        )

    def has_left(self, job: JobRecord) -> None:
        """Note that a worker has the message of ``job`` and will acknowledge it."""
        placed = self.placed.get(job.ref)
        if placed is not None:
            placed.state = JobState.ACTIVE

    def _foreign_metric(self, work: UnitOfWork, request: verbs.ForeignMetric) -> Verb[None]:
        if not self._is_news("job_metric", request.offset):
            return
        try:
            report = msgspec.json.decode(request.body)
            metrics = report["data"] if isinstance(report.get("data"), list) else [opened(report)]
        except bad_records.UNREADABLE as exc:
            bad_records.log_once(f"entry {request.offset} of job_metrics", str(exc))
            return
        rows = _metric_rows(metrics, request.offset)
        yield Reads(jobs=[JobRef(row.queue, row.job_id) for row in rows])
        for row in rows:
            job = work.jobs[JobRef(row.queue, row.job_id)]
            done = row.outcome is AttemptOutcome.COMPLETED
            if job is not None and done and job.state in (JobState.WAITING, JobState.ACTIVE):
                self.has_left(job)
                reports.apply_report(work, job, state=JobState.COMPLETED, at_ms=work.now_ms)
        for row in rows:
            work.record_attempt(row)


def _metric_rows(metrics: list[Any], offset: int) -> list[AttemptRecord]:
    """The metrics of one message. Metrics that cannot be read are logged and left out."""
    rows: list[AttemptRecord] = []
    for n, metric in enumerate(metrics):
        try:
            rows.append(_metric_row(metric, offset, n))
        except bad_records.UNREADABLE as exc:
            bad_records.log_once(f"metric {n} of entry {offset} of job_metrics", str(exc))
    return rows


def _metric_row(metric: Any, offset: int, n: int) -> AttemptRecord:
    at_ms = to_ms(float(metric["timestamp"]), 0, "timestamp")
    duration_ms = to_ms(float(metric["duration_ms"]) / 1000, 0, "duration_ms")
    done = metric["status"] == "success"
    return AttemptRecord(
        f"metric.{offset}.{n}", str(metric.get("jid") or ""), 1, 1, check_queue_name(metric["queue"]),
        check_task_name(metric["job_class"]), None, (), str(metric.get("worker_identity") or ""),
        at_ms - duration_ms, at_ms - duration_ms, at_ms - duration_ms, at_ms, 0, duration_ms,
        AttemptOutcome.COMPLETED if done else AttemptOutcome.FAILED, None, None,
    )  # fmt: skip

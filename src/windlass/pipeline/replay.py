"""Run failed jobs again, selected by SQL over the lake.

The lake says which jobs failed. The store must still hold their records. Jobs that it has pruned, and ids
that a newer job has taken, are reported and not changed.

A condition may refer to single arguments (``args.customer = 42``; ``args.arg0`` for the first positional
one). If the lake does not hold them, they are read from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from windlass.backend import requests as rq
from windlass.core.job import JobRef
from windlass.core.outcome import Changed
from windlass.core.states import JobState
from windlass.pipeline.lake import Lake
from windlass.pipeline.payloads import select_where
from windlass.pipeline.store_requests import ask_many

CHUNK = 500
#: The maximum number of jobs that one selection returns. More jobs need several commands.
LIMIT = 1_000_000


class FailedJob(NamedTuple):
    """A job that has failed according to the lake."""

    queue: str
    job_id: str
    enqueued_ms: int
    task: str


@dataclass
class ReplayResult:
    """What happened to the selected jobs."""

    retried: list[FailedJob] = field(default_factory=list)
    #: The store no longer has a record of these.
    pruned: list[FailedJob] = field(default_factory=list)
    #: No longer failed, or the id now belongs to another job.
    changed: list[FailedJob] = field(default_factory=list)


def select_failed(lake: str, where: str, source: str = "default", url: str | None = None) -> list[FailedJob]:
    """Jobs whose last outcome is ``failed`` and that match ``where`` (SQL over the ``jobs`` view).

    ``url``: the store, for a condition on arguments that the lake does not hold.
    """
    name = source.replace("'", "''")
    failed = f"final AND outcome = 'failed' AND source = '{name}'"
    opened = Lake(lake).open().level()
    with ExitStack() as stack:
        ask = None if url is None else stack.enter_context(ask_many(url))
        rows = select_where(opened, [*FailedJob._fields, "finished_ms"], where, failed, ask)
    order = [(name, "ascending") for name in ("finished_ms", "queue", "job_id")]
    kept = rows.sort_by(order).slice(0, LIMIT).select(FailedJob._fields)
    return [FailedJob(**row) for row in kept.to_pylist()]


def replay(
    url: str,
    jobs: Sequence[FailedJob],
    *,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda count: None,
) -> ReplayResult:
    """Retry the jobs whose records the store still holds. Safe to repeat: jobs that run again are skipped."""
    result = ReplayResult()
    with ask_many(url) as ask:
        for first in range(0, len(jobs), CHUNK):
            chunk = jobs[first : first + CHUNK]
            records = ask(rq.GetJobs(refs=[JobRef(job.queue, job.job_id) for job in chunk]))
            ready: list[FailedJob] = []
            for job, record in zip(chunk, records, strict=True):
                if record is None:
                    result.pruned.append(job)
                elif record.state != JobState.FAILED or record.enqueued_ms != job.enqueued_ms:
                    result.changed.append(job)
                else:
                    ready.append(job)
            if dry_run:
                result.retried += ready
            elif ready:
                answers = ask(rq.RetryJobs(refs=[JobRef(job.queue, job.job_id) for job in ready]))
                for job, answer in zip(ready, answers, strict=True):
                    (result.retried if answer.status == Changed.OK else result.changed).append(job)
            progress(len(chunk))
    return result

"""Run failed jobs again, chosen by SQL over the lake.

The lake says which jobs failed; the store still has to hold their records. Those that it pruned, and ids
that belong to a newer job by now, are reported and left alone.

A condition may also speak of single arguments (``args.customer = 42``; ``args.arg0`` for the first of those
that have no name). A lake that does not hold them has them read from the store.
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
from windlass.pipeline.store import ask_many

CHUNK = 500
#: More than this are asked for in several commands.
LIMIT = 1_000_000


class FailedJob(NamedTuple):
    """A job that the lake knows as failed."""

    queue: str
    job_id: str
    enqueued_ms: int
    task: str


@dataclass
class ReplayResult:
    """What became of the chosen jobs."""

    retried: list[FailedJob] = field(default_factory=list)
    #: The store has no record of them any more.
    pruned: list[FailedJob] = field(default_factory=list)
    #: Not failed any more, or the id is another job's by now.
    changed: list[FailedJob] = field(default_factory=list)


def select_failed(lake: str, where: str, source: str = "default", url: str | None = None) -> list[FailedJob]:
    """Jobs whose last outcome is ``failed`` and that ``where`` (SQL over the ``jobs`` view) chooses.

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
    """Retry the records that the store still holds. May be repeated: what runs again is not failed."""
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

"""Run failed jobs again, chosen by SQL over the lake.

The lake says which jobs failed; the store still has to hold their records. Those that it pruned, and ids
that belong to a newer job by now, are reported and left alone.

A condition may also speak of ``args``, the arguments by name (``args.customer = 42``; ``args.arg0`` for the
first of those that have none). The lake does not hold them, so they are read from the store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Changed
from windlass.core.states import JobState
from windlass.jobs.payload import read_call
from windlass.pipeline.lake import Lake
from windlass.pipeline.sqlquery import query
from windlass.pipeline.store import ask_many
from windlass.serde import JSON
from windlass.serde.codecs import Codecs

if TYPE_CHECKING:
    import pyarrow as pa

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


_ARGS = re.compile(r"\bargs\b", re.IGNORECASE)
_CHOSEN = "queue, job_id, enqueued_ms, task"
_KEYS = ["queue", "job_id", "enqueued_ms"]


def select_failed(lake: str, where: str, source: str = "default", url: str | None = None) -> list[FailedJob]:
    """Jobs whose last outcome is ``failed`` and that ``where`` (SQL over the ``jobs`` view) chooses.

    ``url``: the store, for a condition on ``args``; jobs that it has pruned are not chosen then.
    """
    name = source.replace("'", "''")
    failed = f"final AND outcome = 'failed' AND source = '{name}'"
    order = "ORDER BY finished_ms, queue, job_id"
    if url is None or not _ARGS.search(where):
        sql = f"SELECT {_CHOSEN} FROM jobs WHERE {failed} AND ({where}) {order}"
        return [FailedJob(*row) for row in query(lake, sql, LIMIT).rows]
    opened = Lake(lake).open().level()
    known = [
        FailedJob(*row) for row in query(opened, f"SELECT {_CHOSEN} FROM jobs WHERE {failed}", LIMIT).rows
    ]
    sql = (
        f"SELECT {_CHOSEN} FROM (SELECT j.*, a.args FROM jobs j JOIN stored a USING ({', '.join(_KEYS)}) "
        f"WHERE {failed}) WHERE ({where}) {order}"
    )
    rows = query(opened, sql, LIMIT, stored=_arguments(url, known)).rows
    return [FailedJob(*row) for row in rows]


def _arguments(url: str, jobs: Sequence[FailedJob]) -> pa.Table:
    """The arguments of those jobs that the store still holds, as a struct by name."""
    import pyarrow as pa

    found: list[FailedJob] = []
    calls: list[dict[str, Any]] = []
    with ask_many(url) as ask:
        for first in range(0, len(jobs), CHUNK):
            chunk = jobs[first : first + CHUNK]
            records = ask(rq.GetJobs(refs=[JobRef(job.queue, job.job_id) for job in chunk]))
            for job, record in zip(chunk, records, strict=True):
                if record is not None and record.enqueued_ms == job.enqueued_ms:
                    found.append(job)
                    calls.append(_by_name(record))
    names = sorted({name for call in calls for name in call}) or ["arg0"]
    columns = [_column([call.get(name) for call in calls]) for name in names]
    keys = {name: pa.array([getattr(job, name) for job in found]) for name in _KEYS}
    if not found:
        keys = {"queue": pa.array([], pa.string()), "job_id": pa.array([], pa.string())}
        keys["enqueued_ms"] = pa.array([], pa.int64())
    return pa.table({**keys, "args": pa.StructArray.from_arrays(columns, names)})


def _by_name(record: JobRecord) -> dict[str, Any]:
    """A job's arguments; none when its codec is not known here."""
    try:
        call = read_call(Codecs(JSON), record)
    except Exception:  # whatever a codec says of bytes that are not its own
        return {}
    return {**{f"arg{at}": value for at, value in enumerate(call.args)}, **call.kwargs}


def _column(values: list[Any]) -> pa.Array:
    """Values of one argument: numbers, texts and truths as they are, all else as JSON."""
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or (len(kinds) == 1 and kinds <= {str, bool}):
        try:
            return pa.array([float(v) if float in kinds and v is not None else v for v in values])
        except (pa.ArrowInvalid, OverflowError):
            pass  # a number that is too large
    texts = [None if value is None else JSON.encode(value).decode() for value in values]
    return pa.array(texts, pa.string())


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

"""Reading the jobs of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from windlass.api.query import PlainReader, parse
from windlass.api.queue_context import QueueContext
from windlass.api.search import States, find_page, to_states
from windlass.api.why import Why, explain
from windlass.backend import requests as rq
from windlass.core.job import JobRecord, LogLine, WorkerInfo
from windlass.core.option_values import check_int
from windlass.core.remote_errors import of_record
from windlass.core.states import FINISHED, JobState
from windlass.errors import (
    ConfigError,
    IllegalTransitionError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    MaxRetriesError,
    ResultExpiredError,
)
from windlass.jobs.job import Job

#: Jobs that one page holds at most.
_LONGEST_PAGE = 1_000


class Page(list[Job[Any]]):
    """Jobs of one page; ``cursor`` fetches the next one (None: that was all)."""

    cursor: str | None = None


class ReadVerbs(QueueContext):
    """The part of ``Queue`` that reads jobs: by id, by state, by search; their counts, results and logs."""

    async def get_job(self, job_id: str) -> Job[Any] | None:
        """The job, or None when there is no record of it."""
        record = await self.store.get(self._ref(job_id))
        return None if record is None else self._job(record)

    async def get_jobs(
        self,
        states: Iterable[JobState | str] | JobState | str = (),
        cursor: str | None = None,
        limit: int = 100,
        *,
        newest_first: bool = True,
    ) -> Page:
        """Jobs in the given states (all when empty), by order of their adding."""
        request = rq.ListJobs(
            queue=self.name,
            states=to_states(states),
            cursor=_cursor(cursor),
            limit=_limit(limit),
            newest_first=newest_first,
        )
        return self._page(await self.store.execute(request))

    async def get_dead_letter_jobs(self, cursor: str | None = None, limit: int = 100) -> Page:
        """Failed jobs: the dead set."""
        return await self.get_jobs(JobState.FAILED, cursor, limit)

    async def search_jobs(  # noqa: PLR0913 - each is one filter, given by name
        self,
        *,
        name: str | None = None,
        state: States = (),
        data: Mapping[str, Any] | None = None,
        tag: str | None = None,
        error: str | None = None,
        query: str = "",
        cursor: str | None = None,
        limit: int = 100,
        scan: int = 10_000,
        newest_first: bool = True,
    ) -> Page:
        """Jobs by task name (``*`` and ``?`` match), state, tag, last error's class, and payload keys.

        ``data`` matches jobs whose keyword arguments hold these values. ``query`` is a text such as
        ``task:charge_card error:Payment* finished:<1h`` (see ``windlass.api.query``). At most ``scan``
        records are looked at; a page with a cursor may hold fewer than ``limit`` jobs.
        """
        asked = parse(query)
        if asked.queues and self.name not in asked.queues:
            return self._page(rq.Page([]))
        reader, now_ms = PlainReader(self.app.codecs), self.app.clock.now_ms()
        search = replace(
            asked.narrowed(now_ms),
            name=name or asked.search.name,
            state=to_states(state) or asked.search.state,
            data=data,
            tag=tag or asked.search.tag,
            error=error,
        )
        return self._page(
            await find_page(
                self.store,
                self.name,
                search,
                self.app.codecs,
                cursor=_cursor(cursor),
                limit=_limit(limit),
                scan=scan,
                newest_first=newest_first,
                keep=(lambda record: asked.fits(record, reader, now_ms)) if asked.tests else None,
            )
        )

    async def why(self, job_id: str) -> Why:
        """Why a job is not running: what holds it now comes first, what would hold it next comes after."""
        return await explain(self.store, self._ref(job_id), self.app.clock.now_ms())

    async def get_job_counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; every state is there."""
        return await self.store.execute(rq.CountJobs(queue=self.name))

    async def count(self) -> int:
        """Jobs that are yet to run: waiting, scheduled, retrying, blocked, parked, suspended."""
        counts = await self.get_job_counts()
        return sum(n for state, n in counts.items() if state not in FINISHED and state is not JobState.ACTIVE)

    async def get_status(self, job_id: str) -> dict[str, Any] | None:
        """A job at a glance: id, state, created_at (ms), attempts, progress, result or error.

        None when the job is unknown; ``progress`` only when the handler reported some.

        A result past its time is reported as ``result_expired``.
        """
        job = await self.get_job(job_id)
        if job is None:
            return None
        status: dict[str, Any] = {
            "id": job.id,
            "state": job.state,
            "created_at": job.enqueued_ms,
            "attempts": job.attempts,
        }
        if job.progress is not None:
            status["progress"] = job.progress
        if job.record.result_expired:
            status["result_expired"] = True
        elif job.state is JobState.COMPLETED:
            status["result"] = job.return_value
        elif job.errors:
            status["error"] = {"class": job.errors[-1].error_class, "message": job.errors[-1].message}
        return status

    async def get_result(self, job_id: str) -> Any:
        """The result of a job that has completed, without waiting. Raises like ``Job.result``.

        ``IllegalTransitionError`` when the job has not ended; ``get_status`` says the same without raising.
        """
        record = await self.store.get(self._ref(job_id))
        if record is None:
            raise JobNotFoundError(self.name, job_id)
        if record.state not in FINISHED:
            raise IllegalTransitionError(
                record.id, record.state, "read the result of", "wait for it with job.result()"
            )
        return self.result_of(record)

    def result_of(self, record: JobRecord) -> Any:
        """The value of a finished job, or the error that it means."""
        if record.state is JobState.COMPLETED:
            if record.result is None:
                raise ResultExpiredError(record.queue, record.id)
            return self.app.typed_result(record.task, self.app.codecs.read_result(record))
        if record.state is JobState.CANCELLED:
            raise JobCancelledError(record.id, record.reason)
        last = record.errors[-1] if record.errors else None
        facts = (last.error_class, last.message, last.traceback) if last else ("", "", "")
        cause = None if last is None else of_record(last)
        if record.reason == "attempts":
            payload = self._job(record).payload
            raise MaxRetriesError(record.id, record.attempts, *facts, payload=payload) from cause
        raise JobFailedError(record.id, record.reason or "failed", *facts) from cause

    async def get_job_logs(self, job_id: str, start: int = 0, limit: int = 1_000) -> tuple[list[str], int]:
        """Log lines of a job from ``start``, and how many are kept."""
        lines, count = await self.get_job_log_lines(job_id, start, limit)
        return [line.text for line in lines], count

    async def get_job_log_lines(
        self, job_id: str, start: int = 0, limit: int = 1_000
    ) -> tuple[list[LogLine], int]:
        """As ``get_job_logs``, each line with its time, level, attempt and run."""
        check_int("start", start, 0, 10**9)
        check_int("limit", limit, 0, 10**9)
        page = await self.store.execute(rq.GetLogs(ref=self._ref(job_id), start=start, limit=limit))
        return page.entries, page.count

    async def get_workers(self) -> list[WorkerInfo]:
        """Workers that serve this queue and were alive in the last 45 seconds."""
        workers = await self.store.execute(rq.ListWorkers())
        return [worker for worker in workers if self.name in worker.queues]

    def _page(self, page: rq.Page) -> Page:
        jobs = Page(self._job(record) for record in page.jobs)
        jobs.cursor = page.cursor
        return jobs


def _cursor(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        raise ConfigError("cursor", "one that a page before returned", value)
    return value


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST_PAGE:
        raise ConfigError("limit", f"from 1 to {_LONGEST_PAGE}", value)
    return value

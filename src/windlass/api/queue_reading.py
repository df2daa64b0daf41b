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
from windlass.core.option_values import check_flag, check_int
from windlass.core.order import bad_cursor
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

#: The maximum number of jobs of one page.
_LONGEST_PAGE = 1_000


class Page(list[Job[Any]]):
    """A page of jobs. ``cursor`` fetches the next page; None on the last one."""

    cursor: str | None = None


class ReadVerbs(QueueContext):
    """The part of ``Queue`` that reads jobs, their counts, results and logs."""

    async def get_job(self, job_id: str) -> Job[Any] | None:
        """Return the job, or None when it does not exist."""
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
        """Return a page of jobs in the given states (all when empty), ordered by when they were added."""
        check_flag("newest_first", newest_first)
        request = rq.ListJobs(
            queue=self.name,
            states=to_states(states),
            cursor=_cursor(cursor),
            limit=_limit(limit),
            newest_first=newest_first,
        )
        return self._page(await self.store.execute(request))

    async def get_dead_letter_jobs(self, cursor: str | None = None, limit: int = 100) -> Page:
        """Return a page of failed jobs (the dead set)."""
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
        """Search jobs by task name (``*`` and ``?`` match), state, tag, class of the last error, and
        arguments.

        ``data`` matches jobs whose keyword arguments have these values. ``query`` is a text such as
        ``task:charge_card error:Payment* finished:<1h`` (see ``windlass.api.query``). At most ``scan``
        records are read, so a page with a cursor may have fewer than ``limit`` jobs.
        """
        check_flag("newest_first", newest_first)
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
        """Explain why a job is not running. The first cause holds it now; later ones would hold it next."""
        return await explain(self.store, self._ref(job_id), self.app.clock.now_ms())

    async def get_job_counts(self) -> dict[JobState, int]:
        """Return the number of jobs in each state, including states without jobs."""
        return await self.store.execute(rq.CountJobs(queue=self.name))

    async def count(self) -> int:
        """Return the number of unfinished jobs that are not running."""
        counts = await self.get_job_counts()
        return sum(n for state, n in counts.items() if state not in FINISHED and state is not JobState.ACTIVE)

    async def get_status(self, job_id: str) -> dict[str, Any] | None:
        """Return a summary of a job: id, state, created_at (ms), attempts, progress, result or error.

        None when the job is unknown. ``progress`` is included if the handler reported any. An expired result
        is shown as ``result_expired``.
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
        """Return the result of a completed job without waiting. Raises like ``Job.result``.

        Raises ``IllegalTransitionError`` when the job has not ended. ``get_status`` does not raise.
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
        """Return the value of a finished job, or raise the error that it stands for."""
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
        """Return the log lines of a job from ``start``, and the number of lines that are kept."""
        lines, count = await self.get_job_log_lines(job_id, start, limit)
        return [line.text for line in lines], count

    async def get_job_log_lines(
        self, job_id: str, start: int = 0, limit: int = 1_000
    ) -> tuple[list[LogLine], int]:
        """Like ``get_job_logs``, with the time, level, attempt and run of each line."""
        check_int("start", start, 0, 10**9)
        check_int("limit", limit, 0, 10**9)
        page = await self.store.execute(rq.GetLogs(ref=self._ref(job_id), start=start, limit=limit))
        return page.entries, page.count

    async def get_workers(self) -> list[WorkerInfo]:
        """Return workers that serve this queue and sent a heartbeat in the last 45 seconds."""
        workers = await self.store.execute(rq.ListWorkers())
        return [worker for worker in workers if self.name in worker.queues]

    def _page(self, page: rq.Page) -> Page:
        jobs = Page(self._job(record) for record in page.jobs)
        jobs.cursor = page.cursor
        return jobs


def _cursor(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        raise bad_cursor(value)
    return value


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LONGEST_PAGE:
        raise ConfigError("limit", f"a whole number from 1 to {_LONGEST_PAGE}", value)
    return value

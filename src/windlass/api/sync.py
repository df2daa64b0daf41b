"""The producer methods without asyncio. One background thread runs the event loop.

``app.sync.queue("mail").add(...)`` and ``send_mail.sync.enqueue(...)`` run the async methods on one
background loop per process. This is for web views, scripts and notebooks, not for workers.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, Unpack

from windlass._renamed import old_names
from windlass.api.queue import Page, Queue
from windlass.core import foreign_names
from windlass.core.foreign_names import ForeignNames
from windlass.core.job import JobRecord
from windlass.core.option_values import WAIT_S
from windlass.core.options import JobOptionsDict
from windlass.jobs.fields import RecordFields
from windlass.jobs.job import Job
from windlass.jobs.payload import Call
from windlass.serde.codecs import Codecs

P = ParamSpec("P")
R = TypeVar("R")


class Portal:
    """An event loop in a daemon thread, started on first use and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run ``coroutine`` on the portal's loop and return its result. Raises ``RuntimeError`` on an event
        loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            coroutine.close()
            raise RuntimeError("an event loop runs in this thread: await the async verb instead of .sync")
        loop = self._ensure()
        waited = _Waited(coroutine)
        try:
            return asyncio.run_coroutine_threadsafe(waited.run(), loop).result()
        except BaseException:  # also of a signal handler: this thread does not wait any longer
            loop.call_soon_threadsafe(waited.end)
            raise

    def _ensure(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="windlass-sync", daemon=True
                )
                self._thread.start()
            return self._loop

    def forget(self) -> None:
        """Start again in a fork: another thread may have held the lock at that moment."""
        self._lock, self._loop, self._thread = threading.Lock(), None, None

    def stop(self) -> None:
        """End the thread and wait for it. The next ``run`` starts a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()


class _Waited(Generic[R]):
    """A coroutine on the portal's loop. The thread that waits for it can end it, also before it began."""

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Any] | None = None
        self._ended = False

    async def run(self) -> R:
        if self._ended:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        return await self._coroutine

    def end(self) -> None:
        """Cancel the coroutine unless it is done. Runs on the loop."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


PORTAL = Portal()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PORTAL.forget)


def _plain(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncQueue, P], R]:
    @functools.wraps(verb)
    def run(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return PORTAL.run(verb(self.queue, *args, **kwargs))

    return run


def _one_job(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, Job[Any]]],
) -> Callable[Concatenate[SyncQueue, P], SyncJob[Any]]:
    @functools.wraps(verb)
    def run(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> SyncJob[Any]:
        return SyncJob(PORTAL.run(verb(self.queue, *args, **kwargs)))

    return run


def _any_job(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, Job[Any] | None]],
) -> Callable[Concatenate[SyncQueue, P], SyncJob[Any] | None]:
    @functools.wraps(verb)
    def run(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> SyncJob[Any] | None:
        job = PORTAL.run(verb(self.queue, *args, **kwargs))
        return None if job is None else SyncJob(job)

    return run


def _many_jobs(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, list[Job[Any]]]],
) -> Callable[Concatenate[SyncQueue, P], list[SyncJob[Any]]]:
    @functools.wraps(verb)
    def run(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> list[SyncJob[Any]]:
        return [SyncJob(job) for job in PORTAL.run(verb(self.queue, *args, **kwargs))]

    return run


class SyncPage(list["SyncJob[Any]"]):
    """A page of jobs. ``cursor`` fetches the next page; None on the last one."""

    cursor: str | None = None


def _page(
    verb: Callable[Concatenate[Queue, P], Coroutine[Any, Any, Page]],
) -> Callable[Concatenate[SyncQueue, P], SyncPage]:
    @functools.wraps(verb)
    def run(self: SyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> SyncPage:
        found = PORTAL.run(verb(self.queue, *args, **kwargs))
        page = SyncPage(SyncJob(job) for job in found)
        page.cursor = found.cursor
        return page

    return run


def _of_job(
    verb: Callable[Concatenate[Job[Any], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncJob[Any], P], R]:
    @functools.wraps(verb)
    def run(self: SyncJob[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return PORTAL.run(verb(self.job, *args, **kwargs))

    return run


class SyncJob(RecordFields, ForeignNames, Generic[R]):
    """A job for code without an event loop, with blocking methods. ``job`` is the async job."""

    _called = "the .sync of a job"
    _elsewhere = foreign_names.JOB

    def __init__(self, job: Job[R]) -> None:
        self.job = job

    def __repr__(self) -> str:
        return f"<SyncJob {self.job.name} {self.job.id}>"

    @property
    def _record(self) -> JobRecord:  # type: ignore[override]  # the job may refresh its record
        return self.job.record

    @property
    def _codecs(self) -> Codecs:
        return self.job.queue.app.codecs

    @property
    def call(self) -> Call:
        """The decoded arguments. Raises ``ValueError`` when the stored bytes are not arguments."""
        return self.job.call

    @property
    def progress(self) -> Any:
        """The last reported progress, or None."""
        return self.job.progress

    @property
    def outcome(self) -> str | None:
        """What the ``add`` that returned this job did; see ``Job.outcome``."""
        return self.job.outcome

    @property
    def not_taken(self) -> tuple[str, ...]:
        """For ``replaced``: options of the ``add`` that this job did not take."""
        return self.job.not_taken

    get_state: Final = _of_job(Job.get_state)
    wait_until_finished: Final = _of_job(Job.wait_until_finished)
    retry: Final = _of_job(Job.retry)
    remove: Final = _of_job(Job.remove)
    promote: Final = _of_job(Job.promote)
    change_delay: Final = _of_job(Job.change_delay)
    change_priority: Final = _of_job(Job.change_priority)
    update_progress: Final = _of_job(Job.update_progress)
    update_data: Final = _of_job(Job.update_data)
    move_to_failed: Final = _of_job(Job.move_to_failed)
    get_children_values: Final = _of_job(Job.get_children_values)
    get_failed_children: Final = _of_job(Job.get_failed_children)
    get_dependencies: Final = _of_job(Job.get_dependencies)
    get_dependents: Final = _of_job(Job.get_dependents)

    def refresh(self) -> SyncJob[R]:
        """Read the record again; see ``Job.refresh``."""
        PORTAL.run(self.job.refresh())
        return self

    def result(self, timeout: float | timedelta | None = WAIT_S) -> R:
        """Wait for the result; raises like ``Job.result``."""
        return PORTAL.run(self.job.result(timeout))

    def cancel(self, reason: str = "") -> str:
        """Cancel the job; see ``Queue.cancel``."""
        return PORTAL.run(self.job.cancel(reason))


class SyncQueue(ForeignNames):
    """The methods of a queue for code without an event loop: same names, same arguments."""

    _called = "the .sync of a queue"
    _elsewhere = foreign_names.QUEUE

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    add: Final = _one_job(Queue.add)
    add_bulk: Final = _many_jobs(Queue.add_bulk)
    add_and_wait: Final = _plain(Queue.add_and_wait)
    get_job: Final = _any_job(Queue.get_job)
    get_jobs: Final = _page(Queue.get_jobs)
    search_jobs: Final = _page(Queue.search_jobs)
    get_dead_letter_jobs: Final = _page(Queue.get_dead_letter_jobs)
    get_job_logs: Final = _plain(Queue.get_job_logs)
    get_job_log_lines: Final = _plain(Queue.get_job_log_lines)
    get_job_counts: Final = _plain(Queue.get_job_counts)
    why: Final = _plain(Queue.why)
    count: Final = _plain(Queue.count)
    get_status: Final = _plain(Queue.get_status)
    get_result: Final = _plain(Queue.get_result)
    update_result_ttl: Final = _plain(Queue.update_result_ttl)
    cancel: Final = _plain(Queue.cancel)
    kill: Final = _plain(Queue.kill)
    revoke: Final = _plain(Queue.revoke)
    cancel_jobs: Final = _plain(Queue.cancel_jobs)
    remove: Final = _plain(Queue.remove)
    retry: Final = _plain(Queue.retry)
    retry_jobs: Final = _plain(Queue.retry_jobs)
    remove_jobs: Final = _plain(Queue.remove_jobs)
    promote_jobs: Final = _plain(Queue.promote_jobs)
    clean: Final = _plain(Queue.clean)
    clear: Final = _plain(Queue.clear)
    drain: Final = _plain(Queue.drain)
    obliterate: Final = _plain(Queue.obliterate)
    upsert_job_scheduler: Final = _plain(Queue.upsert_job_scheduler)
    get_job_scheduler: Final = _plain(Queue.get_job_scheduler)
    get_job_schedulers: Final = _plain(Queue.get_job_schedulers)
    remove_job_scheduler: Final = _plain(Queue.remove_job_scheduler)
    pause_job_scheduler: Final = _plain(Queue.pause_job_scheduler)
    resume_job_scheduler: Final = _plain(Queue.resume_job_scheduler)
    run_job_scheduler: Final = _one_job(Queue.run_job_scheduler)
    pause: Final = _plain(Queue.pause)
    resume: Final = _plain(Queue.resume)
    is_paused: Final = _plain(Queue.is_paused)
    get_workers: Final = _plain(Queue.get_workers)
    get_metrics: Final = _plain(Queue.get_metrics)
    get_rollups: Final = _plain(Queue.get_rollups)
    get_daily_totals: Final = _plain(Queue.get_daily_totals)
    get_latency: Final = _plain(Queue.get_latency)
    get_utilisation: Final = _plain(Queue.get_utilisation)
    stats_for_task: Final = _plain(Queue.stats_for_task)
    set_global_concurrency: Final = _plain(Queue.set_global_concurrency)
    get_global_concurrency: Final = _plain(Queue.get_global_concurrency)
    get_global_rate_limit: Final = _plain(Queue.get_global_rate_limit)
    set_global_rate_limit: Final = _plain(Queue.set_global_rate_limit)
    remove_global_rate_limit: Final = _plain(Queue.remove_global_rate_limit)
    get_rate_limit_ttl: Final = _plain(Queue.get_rate_limit_ttl)
    publish_event: Final = _plain(Queue.publish_event)
    trim_events: Final = _plain(Queue.trim_events)
    rate_limit: Final = _plain(Queue.rate_limit)
    revoke_task: Final = _plain(Queue.revoke_task)
    restore_task: Final = _plain(Queue.restore_task)
    revoked_tasks: Final = _plain(Queue.revoked_tasks)
    set_group_limits: Final = _plain(Queue.set_group_limits)
    get_group_limits: Final = _plain(Queue.get_group_limits)
    remove_group_limits: Final = _plain(Queue.remove_group_limits)
    list_groups: Final = _plain(Queue.list_groups)
    pause_group: Final = _plain(Queue.pause_group)
    resume_group: Final = _plain(Queue.resume_group)
    rate_limit_group: Final = _plain(Queue.rate_limit_group)
    get_unique_holder: Final = _any_job(Queue.get_unique_holder)
    list_unique_keys: Final = _plain(Queue.list_unique_keys)
    free_unique_key: Final = _plain(Queue.free_unique_key)
    signal: Final = _plain(Queue.signal)
    get_flow: Final = _plain(Queue.get_flow)
    cancel_flow: Final = _plain(Queue.cancel_flow)
    remove_flow: Final = _plain(Queue.remove_flow)

    def add_in_transaction(
        self, connection: Any, /, name: str, data: Any = None, **options: Unpack[JobOptionsDict]
    ) -> SyncJob[Any]:
        """Add a job in the application's own open transaction; see ``Queue.add_in_transaction``."""
        return SyncJob(self.queue.add_in_transaction(connection, name, data, **options))


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

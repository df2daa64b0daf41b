"""The methods of a queue without asyncio.

``app.sync.queue("mail").add(...)`` and ``send_mail.sync.enqueue(...)`` run the async methods on one
background loop per process. This is for web views, scripts and notebooks, not for workers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, Unpack

from windlass._renamed import old_names
from windlass.api.queue import Page, Queue
from windlass.core import foreign_names
from windlass.core.foreign_names import ForeignNames
from windlass.core.options import JobOptionsDict
from windlass.jobs.job import Job
from windlass.jobs.sync import PORTAL, SyncJob

P = ParamSpec("P")
R = TypeVar("R")


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


__all__ = ["PORTAL", "SyncJob", "SyncPage", "SyncQueue"]


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

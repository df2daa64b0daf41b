"""What routes share: the app, the visible queues, and methods to find jobs."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from windlass.api.app import Windlass
from windlass.api.health import WorkersSeen, workers_seen
from windlass.api.queue import Queue
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.edges import OnFailure, to_dependency
from windlass.core.job import CounterRow, JobRecord, JobRef, QueueInfo, WorkerInfo
from windlass.core.states import JobState
from windlass.dashboard.access import Grant, check_queue
from windlass.dashboard.audit import AuditLog
from windlass.dashboard.errors_seen import ErrorsSeen
from windlass.dashboard.lost import LostRuns
from windlass.dashboard.masking import Mask
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.readiness import Readiness
from windlass.dashboard.settings import Action, DashboardSettings
from windlass.jobs.job import Job

_BATCH = 500


class StoreView:
    """One dashboard on one store, with the rights of one request. Hidden queues do not exist for it.

    Before ``granted``, no queue is visible.
    """

    def __init__(self, app: Windlass, settings: DashboardSettings) -> None:
        self.app = app
        self.settings = settings
        # A few stored bytes must not become more than the largest value that is stored as it is.
        self.mask = Mask(settings.mask, app.codecs.bounded(app.max_payload_bytes))
        self.audit = AuditLog(settings.audit_file, app.clock.monotonic_ms)
        self.readiness = Readiness(app)
        self.lost_runs = LostRuns(app)
        self.errors_seen = ErrorsSeen(app)
        self.grant = Grant(settings)

    def granted(self, grant: Grant) -> StoreView:
        """A store view with the rights of a request."""
        mine = copy.copy(self)
        mine.grant = grant
        mine.mask = self.mask.seeing(mine.shows)
        return mine

    def with_action(self, action: Action) -> StoreView:
        """A store view that checks ``action``, for routes where the body of the request names the action."""
        return self.granted(replace(self.grant, action=action))

    @property
    def sees_all(self) -> bool:
        """Whether the caller sees every queue of the store."""
        return self.settings.queues is None and self.grant.may_everywhere("read")

    def shows(self, queue: str) -> bool:
        """Whether the caller may see a queue."""
        return self.grant.may(queue, "read")

    def may(self, queue: str) -> bool:
        """Whether the caller may see a queue and perform the request's action on it."""
        return self.shows(queue) and self.grant.may(queue, self.grant.action)

    @property
    def store(self) -> Store:
        return self.app.store

    def now_ms(self) -> int:
        return self.app.clock.now_ms()

    def queue(self, name: str) -> Queue:
        """The queue of that name. Raises 404 if it is hidden, 403 if the action is not allowed on it."""
        check_queue(self.grant, name)
        return self.app.queue(name)

    def check_links(self, queue: str, options: Mapping[str, Any]) -> None:
        """Refuse options that link a job to one in a queue on which the action is not allowed."""
        for name in ("depends_on", "parent"):
            linked = options.get(name)
            for one in linked if isinstance(linked, list) else [linked]:
                if one is not None:
                    self.queue(to_dependency(one, OnFailure.FAIL, queue, name).queue)

    async def queues(self) -> list[QueueInfo]:
        """The visible queues, by name, with their counts."""
        return [info for info in await self.app.queues() if self.shows(info.name)]

    async def info(self, name: str) -> QueueInfo:
        """One queue with its counts. Raises 404 if the store does not know it."""
        self.queue(name)
        for info in await self.app.queues():
            if info.name == name:
                return info
        raise not_found(f"there is no queue {name!r} yet", "It is there once a job was added.")

    async def counters(self, queue: str | None = None) -> list[CounterRow]:
        """Lifetime counters of the visible queues."""
        rows = await self.store.execute(rq.ReadCounters(queue=queue))
        return [row for row in rows if self.shows(row.queue)]

    async def workers(self) -> list[WorkerInfo]:
        """Live workers that serve a visible queue, without the names of hidden queues."""
        return self.seen(await self.app.workers())

    async def workers_seen(self) -> WorkersSeen:
        """The workers of ``workers``, and such workers that were lost in the last day."""
        living, lost = await workers_seen(self.app)
        return WorkersSeen(self.seen(living), self.seen(lost))

    def seen(self, workers: list[WorkerInfo]) -> list[WorkerInfo]:
        """The workers that serve a visible queue, without the names of hidden queues."""
        found = []
        for info in workers:
            shown = tuple(name for name in info.queues if self.shows(name))
            if shown or not info.queues:
                info.queues = shown
                found.append(info)
        return found

    async def job(self, queue: str, job_id: str) -> Job[Any]:
        """A job. Raises 404 if there is none."""
        found = await self.queue(queue).get_job(job_id)
        if found is None:
            raise not_found(
                f"queue {queue!r} has no job {job_id!r}", "It was never added, or pruned, or removed."
            )
        return found

    async def find(self, job_id: str, states: Collection[JobState], queue: str | None) -> Job[Any]:
        """The job of that id in one of ``states``, in any queue. Raises 404 if there is none.

        Ids are unique only within a queue. If several queues have one, the caller must name the queue (409).
        """
        if queue is not None:
            self.queue(queue)
        names = [queue] if queue is not None else [info.name for info in await self.queues()]
        found: list[JobRecord] = []
        for start in range(0, len(names), _BATCH):
            refs = [JobRef(name, job_id) for name in names[start : start + _BATCH]]
            found += [record for record in await self.store.execute(rq.GetJobs(refs=refs)) if record]
        fitting = [record for record in found if record.state in states]
        if len(fitting) > 1:
            where = ", ".join(record.queue for record in fitting)
            raise ApiError(
                409, "ambiguous", f"several queues have a job {job_id!r}: {where}", "Add ?queue=NAME."
            )
        if not fitting:
            words = " or ".join(state.value for state in states)
            raise not_found(
                f"there is no {words} job {job_id!r}", "It may have moved on: look at /api/jobs?q=ID."
            )
        return Job(self.queue(fitting[0].queue), fitting[0])

"""``Queue``: add jobs, read and change them, wait for them.

A queue checks and encodes, then sends a request to the store. It connects on first use. Queue names are data,
so a process that only adds jobs need not register anything.

The methods are in modules by subject: ``queue_adding``, ``queue_reading``, ``queue_changing`` (one job),
``bulk`` (many jobs), ``queue_watching`` (results, events, live output) and ``metrics``, and in the packages
``flows``, ``limits`` and ``schedules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from windlass._renamed import old_names
from windlass.api.bulk import BulkVerbs
from windlass.api.metrics import MetricsVerbs
from windlass.api.queue_adding import AddVerbs
from windlass.api.queue_changing import ChangeVerbs
from windlass.api.queue_reading import Page, ReadVerbs
from windlass.api.queue_watching import WatchVerbs
from windlass.core import foreign_names
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_queue_name, check_task_name, new_id
from windlass.core.option_values import WAIT_S, seconds_to_ms
from windlass.core.options import CallOptionsDict, JobOptions
from windlass.core.outcome import AddOutcome
from windlass.core.states import FINISHED
from windlass.flows.tree import FlowVerbs
from windlass.jobs.interfaces import as_app
from windlass.jobs.payload import pack_data
from windlass.jobs.prepare import PreparedOptions, call_options
from windlass.limits.verbs import KeyVerbs, LimitVerbs
from windlass.schedules.verbs import Schedules, ScheduleVerbs

if TYPE_CHECKING:
    from windlass.api.interfaces import App


class Queue(
    AddVerbs,
    ReadVerbs,
    ChangeVerbs,
    WatchVerbs,
    BulkVerbs,
    FlowVerbs,
    KeyVerbs,
    LimitVerbs,
    MetricsVerbs,
    ScheduleVerbs,
    ForeignNames,
):
    """A named queue of a store. It exists in the store as soon as a job is added.

    ``url_or_app`` is a ``Windlass`` app or a URL. ``defaults`` are job options for all jobs that this object
    adds.
    """

    _called = "a queue"
    _elsewhere = foreign_names.QUEUE

    def __init__(
        self,
        name: str,
        url_or_app: str | App | None = None,
        *,
        defaults: JobOptions | Mapping[str, Any] | None = None,
    ) -> None:
        check_queue_name(name)
        app: App = as_app(url_or_app)
        base = app.defaults.as_unsaid()  # the task's own options take precedence; the worker knows them
        given = defaults if isinstance(defaults, JobOptions) else base.merged(defaults or {})
        super().__init__(name, app, given.as_defaults())
        self._owns_app = app is not url_or_app
        self._schedules = Schedules(self, app.schedule_strategies)

    def __repr__(self) -> str:
        return f"<Queue {self.name} on {self.app.store.name}>"

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called. A closed queue cannot be opened again."""
        return self._closing.closed

    async def __aenter__(self) -> Queue:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close this queue object: pending waits and later calls raise ``ClosedError``. Idempotent.

        A queue that was created from a URL also disconnects. A queue of an app leaves the app open.
        """
        self._closing.close()
        await self.stop_waiting(self._closing.error())
        if self._owns_app:
            await self.app.close()

    async def add_and_wait(
        self,
        /,
        name: str,
        data: Any = None,
        timeout: float | timedelta | None = WAIT_S,
        **options: Unpack[CallOptionsDict],
    ) -> Any:
        """Add a job and wait for its result.

        With a ``job_id`` of an existing job: a completed job answers with its stored result, and an
        unfinished job is waited for. Raises like ``Job.result``.
        """
        check_task_name(name)
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        wanted = self.defaults.merged(options) if options else self.defaults
        kept = call_options(wanted, timeout_ms, chosen="result_ttl" in options)
        plan = self._plain if kept is self.defaults else PreparedOptions(kept, self.app.backoff_strategies)
        return await self.call_planned(name, pack_data(data), plan, timeout)

    async def call_planned(
        self, name: str, packed: dict[str, Any], plan: PreparedOptions, timeout: float | timedelta | None
    ) -> Any:
        """Like ``add_and_wait``, for an encoded call with checked options."""
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        fresh_id = new_id()
        job_id = plan.job_id or fresh_id
        waiters = self._waiters_here()
        future = await waiters.subscribe(job_id)  # before adding, so that no result is missed
        try:
            job = (await self.add_new([plan.new_job(self, name, packed, fresh_id)]))[0]
            if job.outcome is AddOutcome.CACHED:
                return self.result_of(job.record)
            added = job.record if job.outcome is AddOutcome.QUEUED else None
            there = job.state not in FINISHED  # the waiter is registered before the job can end
            return self.result_of(
                await waiters.outcome(job.ref, future, timeout_ms, added=added, there=there)
            )
        finally:
            waiters.unsubscribe(job_id, future)


__all__ = ["Page", "Queue"]


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

"""Adding jobs to a queue: one, many, or in a transaction of the application."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast

from windlass.api.queue_context import QueueContext
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import check_task_name, new_id, new_ids
from windlass.core.job import JobRecord, NewJob
from windlass.core.option_values import seconds_to_ms
from windlass.core.options import AddOptionsDict, JobOptions, JobOptionsDict
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import ConfigError, GroupFullError, OrderedGroupError, StorageError, WindlassError, shown
from windlass.flows.builder import add_steps, step_of
from windlass.jobs.interfaces import JobQueue
from windlass.jobs.job import Job
from windlass.jobs.payload import pack_data
from windlass.jobs.prepare import PreparedOptions, spread_out

if TYPE_CHECKING:
    from windlass.api.interfaces import App
    from windlass.backend.protocol import TransactionalBackend


#: Jobs per atomic chunk of ``add_bulk``.
CHUNK = 1_000
#: An ``add`` that fails within the first second is tried again after these pauses.
_REPEAT_AFTER_MS = (20, 100)
_REPEAT_WITHIN_MS = 1_000
#: Outcomes of an add that created no job. (Looking up enum members is slow.)
_REFUSED, _OUT_OF_ORDER = AddOutcome.REFUSED, AddOutcome.OUT_OF_ORDER
#: From this many jobs on, the returned objects are created while the store adds the jobs.
_AHEAD_FROM = 16


class AddVerbs(QueueContext):
    """The part of ``Queue`` that adds jobs: it checks and encodes them, and sends them to the store."""

    def __init__(self, name: str, app: App, defaults: JobOptions) -> None:
        super().__init__(name, app, defaults)
        self._plain = PreparedOptions(defaults, app.backoff_strategies)

    async def add(self, /, name: str, data: Any = None, **options: Unpack[AddOptionsDict]) -> Job[Any]:
        """Add one job. ``job.outcome`` says whether it was queued or an existing job was returned.

        ``depends_on`` names jobs that must end first. ``children`` and ``then`` add jobs before and after
        this one, as in ``FlowProducer.add``, all in one atomic step.
        """
        if "children" in options or "then" in options:
            return await self._add_tree(name, data, {**options})
        check_task_name(name)
        plan = (
            PreparedOptions(self.defaults.merged(options), self.app.backoff_strategies)
            if options
            else self._plain
        )
        return await self.add_planned(name, pack_data(data), plan)

    async def _add_tree(self, name: str, data: Any, options: dict[str, Any]) -> Job[Any]:
        tree: dict[str, Any] = {key: options.pop(key) for key in ("children", "then") if key in options}
        root = step_of({"name": name, "queue": self.name, "data": data, "options": options, **tree})
        return (await add_steps(self.app, [root]))[root].job

    async def add_bulk(
        self, jobs: Iterable[Mapping[str, Any]], *, spread: float | timedelta = 0
    ) -> list[Job[Any]]:
        """Add many jobs: ``[{"name": ..., "data": ..., **options}, ...]``.

        All jobs are checked before any is stored. Each chunk of 1,000 is one atomic step. ``spread``
        distributes their due times evenly over that time, in addition to their own delays.
        """
        items, queue = list(jobs), self._as_queue
        ids = new_ids(len(items))
        news = [self._new_job(queue, item, fresh_id) for item, fresh_id in zip(items, ids, strict=True)]
        if spread:
            spread_out(news, seconds_to_ms(spread, "spread"))
        return await self.add_new(news)

    async def add_planned(self, name: str, packed: dict[str, Any], plan: PreparedOptions) -> Job[Any]:
        """Add one job: an encoded call with checked options."""
        new = plan.new_job(self._as_queue, name, packed, new_id())
        app = self.app
        if app.hooks.enqueue is not None or app.after_add is not None:
            return (await self.add_new([new]))[0]
        (added,) = await self._add_chunk([new])  # the common case: no hook needs the job
        if added.outcome is _REFUSED or added.outcome is _OUT_OF_ORDER:
            raise _refusal([(new, added)], [])
        return self._added(new, added)

    async def add_new(self, news: Sequence[NewJob], *, chunk: int = CHUNK) -> list[Job[Any]]:
        """Add prepared jobs through the app's enqueue hooks. Each ``chunk`` is one atomic step."""
        around = self.app.hooks.enqueue
        if around is None:
            return await self._send(news, chunk)
        outgoing = self.app.hooks.outgoing(news)

        async def send() -> list[Job[Any]]:
            outgoing.rebind()
            outgoing.added = await self._send(outgoing.jobs, chunk)
            return outgoing.added

        jobs = await around(outgoing, send)
        if not isinstance(jobs, list):
            raise ConfigError(
                "enqueue hook",
                message=f"an enqueue hook must return what proceed() returned, but returned {shown(jobs)}",
                got=jobs,
            )
        return jobs

    async def _send(self, news: Sequence[NewJob], chunk: int) -> list[Job[Any]]:
        """Add prepared jobs chunk by chunk. An error names all jobs that were refused."""
        jobs: list[Job[Any]] = []
        refused: list[tuple[NewJob, rq.Added]] = []

        for start in range(0, len(news), chunk):
            part = list(news[start : start + chunk])
            made: Sequence[Job[Any] | None] = [None] * len(part)
            if len(part) < _AHEAD_FROM:
                answers = await self._add_chunk(part)
            else:
                pending = asyncio.ensure_future(self._add_chunk(part))
                try:
                    await asyncio.sleep(0)  # the request is in flight; create the job objects meanwhile
                    made = self._make_all(part)
                except BaseException:
                    pending.cancel()
                    raise
                answers = await pending
            for new, job, added in zip(part, made, answers, strict=True):
                if added.outcome is _REFUSED or added.outcome is _OUT_OF_ORDER:
                    refused.append((new, added))
                else:
                    jobs.append(self._added(new, added, job))
        if self.app.after_add is not None:
            await self.app.after_add(jobs)
        if refused:
            raise _refusal(refused, jobs)
        return jobs

    async def _add_chunk(self, chunk: list[NewJob]) -> list[rq.Added]:
        """Add one chunk. A quick failure may be a lost reply, and repeating the request is safe."""
        started_ms = SYSTEM_CLOCK.monotonic_ms()
        for pause_ms in _REPEAT_AFTER_MS:
            try:
                return await self.store.execute(rq.Add(jobs=chunk))
            except StorageError:
                if SYSTEM_CLOCK.monotonic_ms() - started_ms > _REPEAT_WITHIN_MS:
                    raise
            await SYSTEM_CLOCK.wait(asyncio.Event(), pause_ms)
        return await self.store.execute(rq.Add(jobs=chunk))

    def prepare(self, name: str, data: Any = None, **options: Unpack[JobOptionsDict]) -> NewJob:
        """Return a checked and encoded job without adding it."""
        check_task_name(name)
        plan = (
            PreparedOptions(self.defaults.merged(options), self.app.backoff_strategies)
            if options
            else self._plain
        )
        return plan.new_job(self._as_queue, name, pack_data(data), new_id())

    def add_in_transaction(
        self, connection: Any, /, name: str, data: Any = None, **options: Unpack[JobOptionsDict]
    ) -> Job[Any]:
        """Add a job in the application's own open transaction on the same database.

        The job exists once the transaction commits, and never if it rolls back. This works only with stores
        that are a database the application can open (``sqlite``). ``connection`` is a ``sqlite3.Connection``
        to the same file. The method is not async, because it uses the caller's connection. Workers notice the
        job within a fraction of a second after the commit.
        """
        self.store.capabilities.require(self.store.name, "transactions", "use add after the commit")
        backend = cast("TransactionalBackend", self.store.backend)
        new = self.prepare(name, data, **options)
        outgoing = self.app.hooks.outgoing([new])

        def send() -> Job[Any]:
            outgoing.rebind()
            (added,) = backend.add_in_transaction(connection, [new])
            if added.outcome is _REFUSED or added.outcome is _OUT_OF_ORDER:
                raise _refusal([(new, added)], [])
            outgoing.added = [self._added(new, added)]
            return outgoing.added[0]

        hooks = self.app.hooks
        return send() if hooks.enqueue is None else hooks.enqueue_now(outgoing, send)

    def _new_job(self, queue: JobQueue, item: Mapping[str, Any], fresh_id: str) -> NewJob:
        if not (type(item) is dict or isinstance(item, Mapping)) or "name" not in item:
            raise ConfigError("jobs", 'objects like {"name": ..., "data": ..., **options}', item)
        plan = self._plain
        if len(item) > 1 + ("data" in item):
            options = {key: value for key, value in item.items() if key not in ("name", "data")}
            plan = PreparedOptions(self.defaults.merged(options), self.app.backoff_strategies)
        name = check_task_name(item["name"])
        return plan.new_job(queue, name, pack_data(item.get("data")), fresh_id)

    def _queue_of(self, new: NewJob) -> JobQueue:
        """Return the queue of a job of this add. In a flow, it may be another queue."""
        return self._as_queue if new.queue == self.name else self.app.queue(new.queue)

    def _make_all(self, news: list[NewJob]) -> list[Job[Any]]:
        """Create the job objects of new jobs, without the fields that the store fills in."""
        own, queue = self.name, self._as_queue
        return [self._made(new, queue if new.queue == own else self._queue_of(new)) for new in news]

    def _made(self, new: NewJob, queue: JobQueue) -> Job[Any]:
        record = JobRecord(
            queue=new.queue,
            id=new.id,
            task=new.task,
            payload=new.payload,
            codec=new.codec,
            priority=new.priority,
            options=new.options,
            linked=bool(new.depends_on or new.parent),
        )
        return Job(queue, record, AddOutcome.QUEUED)

    def _added(self, new: NewJob, added: rq.Added, made: Job[Any] | None = None) -> Job[Any]:
        """Return the job for an answered ``add``. ``made`` is its object, if it was created before."""
        if added.record is not None:
            job = Job[Any](self._queue_of(new), added.record, added.outcome)
            job.not_taken = added.not_taken
            return job
        job = made or self._made(new, self._queue_of(new))
        job.outcome, record = added.outcome, job.record
        record.state = added.state or JobState.COMPLETED
        record.enqueued_ms, record.due_ms = added.enqueued_ms, added.due_ms
        return job


def _refusal(refused: list[tuple[NewJob, rq.Added]], jobs: list[Job[Any]]) -> WindlassError:
    """Return the error for jobs that their groups refused. It also lists the jobs that were added."""
    ids = [new.id for new, _ in refused]
    for new, added in refused:
        if added.outcome is _OUT_OF_ORDER:
            return OrderedGroupError.at_add(new.queue, new.options.group or "", ids, jobs)
    first = refused[0][0]
    return GroupFullError(first.queue, first.options.group or "", ids, jobs)

"""``Queue``: add jobs, look at them, change them, wait for them.

Thin on purpose: it checks and encodes, then asks the store. It connects on first use; queue names are data,
so a process that only produces needs no registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast
from weakref import WeakKeyDictionary

from windlass.api.bulk import BulkVerbs
from windlass.api.event_feed import EventFeed, read_events
from windlass.api.event_values import EventValues
from windlass.api.metrics import MetricsVerbs
from windlass.api.query import PlainReader, parse
from windlass.api.search import States, find_page, to_states
from windlass.api.why import Why, explain
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend.closing import Closing
from windlass.backend.store import Store, check_changed
from windlass.core import foreign_names
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_queue_name, check_signal_name, check_task_name, is_text, new_id, new_ids
from windlass.core.job import (
    EVENT_DATA_BYTES,
    EVENTS_KEPT,
    Event,
    JobRecord,
    JobRef,
    LogLine,
    NewJob,
    WorkerInfo,
)
from windlass.core.option_values import WAIT_S, check_int, seconds_to_ms
from windlass.core.options import AddOptionsDict, CallOptionsDict, JobOptions, JobOptionsDict
from windlass.core.outcome import AddOutcome, CancelResult, to_reason
from windlass.core.remote_errors import of_record
from windlass.core.states import FINISHED, JobState
from windlass.errors import (
    ConfigError,
    GroupFullError,
    IllegalTransitionError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    MaxRetriesError,
    OrderedGroupError,
    ResultExpiredError,
    StorageError,
    WindlassError,
)
from windlass.flows.builder import add_steps, step_of
from windlass.flows.tree import FlowVerbs
from windlass.jobs.interfaces import as_app
from windlass.jobs.job import Job
from windlass.jobs.live_output import StreamChunk, read_stream
from windlass.jobs.payload import pack_data
from windlass.jobs.prepare import PreparedOptions, call_options, spread_out
from windlass.jobs.results import Waiters
from windlass.limits.verbs import KeyVerbs, LimitVerbs
from windlass.schedules.verbs import Schedules, ScheduleVerbs
from windlass.serde import JSON, encode_payload

if TYPE_CHECKING:
    from windlass.api.interfaces import App
    from windlass.backend.protocol import TransactionalBackend

#: Jobs per atomic chunk of ``add_bulk``, and per page.
CHUNK = 1_000
#: An ``add`` that fails within the first second is tried again after these pauses.
_REPEAT_AFTER_MS = (20, 100)
_REPEAT_WITHIN_MS = 1_000
#: What an add is answered that made no job. (Members of an enum are slow to look up.)
_REFUSED, _OUT_OF_ORDER = AddOutcome.REFUSED, AddOutcome.OUT_OF_ORDER
#: With this many at once, the jobs to return are made while the store adds them.
_AHEAD_FROM = 16
#: Longer than any id that can be given: what is there by another way can still be seen and removed.
_LONGEST_ID = 1_024


class Page(list[Job[Any]]):
    """Jobs of one page; ``cursor`` fetches the next one (None: that was all)."""

    cursor: str | None = None


class Queue(BulkVerbs, FlowVerbs, KeyVerbs, LimitVerbs, MetricsVerbs, ScheduleVerbs, ForeignNames):
    """A named queue of a store."""

    _called = "a queue"
    _elsewhere = foreign_names.QUEUE

    def __init__(
        self,
        name: str,
        url_or_app: str | App | None = None,
        *,
        defaults: JobOptions | Mapping[str, Any] | None = None,
    ) -> None:
        self.name: str = check_queue_name(name)
        self.app: App = as_app(url_or_app)
        self._owns_app = self.app is not url_or_app
        base = self.app.defaults.as_unsaid()  # a task overrules the app, and may be known to the worker alone
        given = defaults if isinstance(defaults, JobOptions) else base.merged(defaults or {})
        self.defaults: JobOptions = given
        self._plain = PreparedOptions(self.defaults, self.app.backoff_strategies)
        self._feed: EventFeed | None = None
        self._schedules = Schedules(self, self.app.schedule_strategies)
        self._waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiters] = WeakKeyDictionary()
        self._closing = Closing(
            f"queue {name!r}", f"take another: app.queue({name!r}), or Queue({name!r}, ...)"
        )

    def __repr__(self) -> str:
        return f"<Queue {self.name} on {self.app.store.name}>"

    @property
    def store(self) -> Store:
        """The app's store; ``ClosedError`` after ``close``."""
        self._closing.check()
        return self.app.store

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called. A queue that was closed stays so."""
        return self._closing.closed

    async def __aenter__(self) -> Queue:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it: waits under way, and calls from now on, raise ``ClosedError``. Idempotent.

        A queue that was made from a URL also disconnects; one of an app leaves the app as it is.
        """
        self._closing.close()
        await self.stop_waiting(self._closing.error())
        if self._owns_app:
            await self.app.close()

    async def stop_waiting(self, error: WindlassError) -> None:
        """Raise ``error`` in every wait for a job of this queue, and stop its callbacks."""
        if self._feed is not None:
            await self._feed.stop()
        here = asyncio.get_running_loop()
        for loop, waiters in list(self._waiters.items()):
            if loop is here:
                await waiters.close(error)
            else:
                with suppress(RuntimeError):  # that loop has ended, and its waits with it
                    loop.call_soon_threadsafe(waiters.end, error)
        self._waiters.clear()

    # --- add -----------------------------------------------------------------------------------------

    async def add(self, /, name: str, data: Any = None, **options: Unpack[AddOptionsDict]) -> Job[Any]:
        """Add one job. ``job.outcome`` says whether it was queued or answered by an existing one.

        ``depends_on`` names jobs that must end first; ``children`` and ``then`` add jobs along with it,
        before and after (as in ``FlowProducer.add``), all in one step.
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

        Everything is checked before anything is stored; each chunk of 1,000 is one atomic step. ``spread``
        makes them due evenly over that time, on top of their own delays.
        """
        items = list(jobs)
        news = [
            self._new_job(item, fresh_id) for item, fresh_id in zip(items, new_ids(len(items)), strict=True)
        ]
        if spread:
            spread_out(news, seconds_to_ms(spread, "spread"))
        return await self.add_new(news)

    async def add_and_wait(
        self,
        /,
        name: str,
        data: Any = None,
        timeout: float | timedelta | None = WAIT_S,
        **options: Unpack[CallOptionsDict],
    ) -> Any:
        """Add a job and wait for its result: request and response.

        A completed job under the same ``job_id`` answers at once from its cached result; a running one is
        joined. Raises like ``Job.result``.
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
        """``add_and_wait`` for a call in its stored form."""
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        fresh_id = new_id()
        job_id = plan.job_id or fresh_id
        waiters = self._waiters_here()
        future = await waiters.subscribe(job_id)  # before adding, so that no answer is missed
        try:
            job = (await self.add_new([plan.new_job(self, name, packed, fresh_id)]))[0]
            if job.outcome is AddOutcome.CACHED:
                return self.result_of(job.record)
            added = job.record if job.outcome is AddOutcome.QUEUED else None
            there = job.state not in FINISHED  # it cannot end before its waiter is registered
            return self.result_of(
                await waiters.outcome(job.ref, future, timeout_ms, added=added, there=there)
            )
        finally:
            waiters.unsubscribe(job_id, future)

    async def add_planned(self, name: str, packed: dict[str, Any], plan: PreparedOptions) -> Job[Any]:
        """Add one job: a call in its stored form, with options that are checked."""
        new = plan.new_job(self, name, packed, new_id())
        app = self.app
        if app.hooks.enqueue is not None or app.after_add is not None:
            return (await self.add_new([new]))[0]
        (added,) = await self._add_chunk([new])  # the common case: no hook or backend wants to see the job
        if added.outcome is _REFUSED or added.outcome is _OUT_OF_ORDER:
            raise _refusal([(new, added)], [])
        return self._added(new, added)

    async def add_new(self, news: Sequence[NewJob], *, chunk: int = CHUNK) -> list[Job[Any]]:
        """Add prepared jobs, through the app's enqueue hooks; each ``chunk`` is one atomic step."""
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
            raise ConfigError("enqueue hook", "one that returns what proceed() returned", jobs)
        return jobs

    async def _send(self, news: Sequence[NewJob], chunk: int) -> list[Job[Any]]:
        """Add prepared jobs, chunk by chunk. The error of a refusal names those that were refused, of all."""
        jobs: list[Job[Any]] = []
        refused: list[tuple[NewJob, rq.Added]] = []

        for start in range(0, len(news), chunk):
            part = list(news[start : start + chunk])
            made: Sequence[Job[Any] | None] = [None] * len(part)
            if len(part) < _AHEAD_FROM:
                answers = await self._add_chunk(part)
            else:
                under_way = asyncio.ensure_future(self._add_chunk(part))
                try:
                    await asyncio.sleep(0)  # it leaves now; meanwhile, prepare for its answer
                    made = [self._made(new) for new in part]
                except BaseException:
                    under_way.cancel()
                    raise
                answers = await under_way
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
        """Add one chunk; a quick failure may be a lost reply and is repeated, which is safe by request id."""
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
        """A checked and encoded job that is not added yet."""
        check_task_name(name)
        plan = (
            PreparedOptions(self.defaults.merged(options), self.app.backoff_strategies)
            if options
            else self._plain
        )
        return plan.new_job(self, name, pack_data(data), new_id())

    def add_in_transaction(
        self, connection: Any, /, name: str, data: Any = None, **options: Unpack[JobOptionsDict]
    ) -> Job[Any]:
        """Add a job inside the application's own open transaction on the same database.

        It is there when the transaction commits and was never there when it rolls back. Only for stores
        that are a database the application can open (``sqlite``); ``connection`` is a ``sqlite3.Connection``
        to the same file. Plain, not async: it uses the caller's connection. Workers notice the job within a
        fraction of a second after the commit.
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

    def _new_job(self, item: Mapping[str, Any], fresh_id: str) -> NewJob:
        if not (type(item) is dict or isinstance(item, Mapping)) or "name" not in item:
            raise ConfigError("jobs", 'objects like {"name": ..., "data": ..., **options}', item)
        plan = self._plain
        if len(item) > 1 + ("data" in item):
            options = {key: value for key, value in item.items() if key not in ("name", "data")}
            plan = PreparedOptions(self.defaults.merged(options), self.app.backoff_strategies)
        name = check_task_name(item["name"])
        return plan.new_job(self, name, pack_data(item.get("data")), fresh_id)

    def _made(self, new: NewJob) -> Job[Any]:
        """A job as it is when it was just added, except for what only the store knows."""
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
        return Job(self if new.queue == self.name else self.app.queue(new.queue), record, AddOutcome.QUEUED)

    def _added(self, new: NewJob, added: rq.Added, made: Job[Any] | None = None) -> Job[Any]:
        """The job that an ``add`` of ``new`` returns; ``made``: of ``_made``, if there is one already."""
        if added.record is not None:
            queue = self if new.queue == self.name else self.app.queue(new.queue)
            job = Job[Any](queue, added.record, added.outcome)
            job.not_taken = added.not_taken
            return job
        job = made or self._made(new)
        job.outcome, record = added.outcome, job.record
        record.state = added.state or JobState.COMPLETED
        record.enqueued_ms, record.due_ms = added.enqueued_ms, added.due_ms
        return job

    # --- look ------------------------------------------------------------------------------------------

    def _ref(self, job_id: str) -> JobRef:
        """The job of that id in this queue. Anything that is no text cannot be an id."""
        if not job_id or not is_text(job_id) or len(job_id) > _LONGEST_ID:
            raise ConfigError(
                "job_id", f"the id of a job, a text of at most {_LONGEST_ID} characters", job_id
            )
        return JobRef(self.name, job_id)

    async def get_job(self, job_id: str) -> Job[Any] | None:
        """The job, or None when there is no record of it."""
        record = await self.store.get(self._ref(job_id))
        return None if record is None else Job(self, record)

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

    async def update_result_ttl(self, job_id: str, ttl: float | timedelta) -> None:
        """Keep a completed job's result, or a failed job and its errors, for ``ttl`` from now.

        A failed job goes after that, and stays for a minute at least; otherwise ``keep_failed`` says when.
        """
        ref = self._ref(job_id)
        request = rq.SetResultTtl(ref=ref, ttl_ms=seconds_to_ms(ttl, "ttl"))
        check_changed(
            ref,
            await self.store.execute(request),
            "keep the result of",
            "only completed and failed jobs have one",
        )

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

    # --- change ------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = "") -> CancelResult:
        """Cancel a job: ``cancelled``, ``cancelling`` (its worker stops it), ``finished``, ``not_found``."""
        refs = [self._ref(job_id)]
        return (await self.store.execute(rq.CancelJobs(refs=refs, reason=to_reason(reason))))[0]

    async def kill(self, job_id: str, reason: str = "killed") -> CancelResult:
        """Give a job that waits for a retry no further one: it has failed, and can be retried by hand.

        Any other job is cancelled, with the answers of ``cancel``.
        """
        refs = [self._ref(job_id)]
        return (await self.store.execute(rq.CancelJobs(refs=refs, reason=to_reason(reason), dead=True)))[0]

    async def revoke(self, job_id: str, reason: str = "") -> CancelResult:
        """Another word for ``cancel``."""
        return await self.cancel(job_id, reason)

    async def remove(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job's record. An active one is refused unless ``force``."""
        ref = self._ref(job_id)
        result = (await self.store.execute(rq.RemoveJobs(refs=[ref], force=force)))[0]
        check_changed(ref, result, "remove", "cancel it, or force")

    async def retry(self, job_id: str) -> None:
        """Run a finished job again with a fresh budget; make a retrying one ready now."""
        ref = self._ref(job_id)
        result = (await self.store.execute(rq.RetryJobs(refs=[ref])))[0]
        check_changed(ref, result, "retry", "only finished or retrying jobs can be retried")

    async def pause(self) -> None:
        """Give out no more jobs of this queue, on any worker. Jobs keep their state."""
        await self.store.execute(rq.PauseQueue(queue=self.name, paused=True))

    async def resume(self) -> None:
        """Undo ``pause``."""
        await self.store.execute(rq.PauseQueue(queue=self.name, paused=False))

    async def is_paused(self) -> bool:
        """Whether the queue is paused."""
        queues = await self.store.execute(rq.ListQueues())
        return any(info.name == self.name and info.paused for info in queues)

    # --- signals, live output -----------------------------------------------------------------------

    async def signal(self, job_id: str, name: str, data: Any = None) -> None:
        """Send a signal to a job: one that is suspended on ``name`` runs again, with ``job.signals[name]``.

        A signal that comes early is kept. Finished jobs refuse it (``IllegalTransitionError``).
        """
        check_signal_name(name)
        ref, codecs = self._ref(job_id), self.app.codecs
        value = codecs.write_signal(ref, name, data, self.app.max_payload_bytes)
        request = fl.Signal(ref=ref, name=name, data=value, codec=codecs.own.name)
        result = await self.store.execute(request)
        check_changed(ref, result, "signal", "it has ended")

    def read_stream(
        self, job_id: str, after: int = 0, *, skip_gap: bool = False
    ) -> AsyncGenerator[StreamChunk, None]:
        """What a job puts out with ``job.stream``, as it comes; ends when the job has ended.

        ``after`` a chunk's ``index`` continues from there. Raises ``HistoryTrimmedError`` when chunks in
        between are not kept any more, unless ``skip_gap``. An unreachable store is asked again.
        """
        return read_stream(
            self.store, self.app.codecs, self._ref(job_id), after, skip_gap=skip_gap, closing=self._closing
        )

    # --- wait and watch ------------------------------------------------------------------------------------

    async def wait_for(self, ref: JobRef, timeout: float | timedelta | None = WAIT_S) -> JobRecord:
        """The record of a job once it finished."""
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        return await self._waiters_here().finished(ref, timeout_ms)

    def _waiters_here(self) -> Waiters:
        loop = asyncio.get_running_loop()
        waiters = self._waiters.get(loop)
        if waiters is None:
            waiters = self._waiters[loop] = Waiters(self.store, self.name)
        return waiters

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
            payload = Job[Any](self, record).payload
            raise MaxRetriesError(record.id, record.attempts, *facts, payload=payload) from cause
        raise JobFailedError(record.id, record.reason or "failed", *facts) from cause

    def events(self, after: int | None = None, *, values: bool = True) -> AsyncGenerator[Event, None]:
        """The queue's events as they happen; ``after`` an event id replays from there (0: all kept).

        With ``values``, ``completed`` has the job's ``return_value`` while that is kept, which costs a read.
        """
        fill = EventValues(self.store, self.app.codecs, self.name).fill if values else None
        return read_events(self.store, self.name, after, self._closing, fill)

    def on(self, event: str, callback: Callable[[Any], Any], *, job_id: str | None = None) -> None:
        """Call ``callback(event)`` at every event of that name in this queue (of one job), on any process.

        ``added`` hands the ``Job``. A shorthand for ``QueueEvents``: needs a running event loop, ends with
        ``close``.
        """
        if self._feed is None:
            values = EventValues(self.store, self.app.codecs, self.name)
            self._feed = EventFeed(self.store, self.name, values)
        hand = self._job_of if event == "added" else None
        self._feed.on(event, callback, job_id=job_id, hand=hand)

    async def publish_event(self, name: str, data: Any = None, *, job_id: str | None = None) -> None:
        """Put an event of your own among those of the queue: ``on("custom:name", callback)`` gets it.

        ``data`` is any JSON value of at most 10,000 bytes. It stands in order with the other events, is kept
        and replayed as they are, and changes nothing. Sent twice (after a lost reply), it is there twice.
        """
        text = encode_payload(JSON, data, EVENT_DATA_BYTES).decode()
        about = "" if job_id is None else self._ref(job_id).id
        request = rq.PublishEvent(queue=self.name, name=check_task_name(name), data=text, job_id=about)
        await self.store.execute(request)

    async def trim_events(self, keep: int) -> int:
        """Forget all events of this queue but the newest ``keep``; returns how many went.

        A reader that had not read them gets a ``gap``, as when the log outgrows its bound.
        """
        check_int("keep", keep, 0, EVENTS_KEPT)
        return await self.store.execute(rq.TrimEvents(queue=self.name, keep=keep))

    async def _job_of(self, event: Event) -> Job[Any]:
        """The job that an event is about; if its record is gone, as much as the event has."""
        record = await self.store.get(JobRef(self.name, event.job_id))
        if record is None:
            gone = JobRecord(queue=self.name, id=event.job_id, task=event.task, payload=b"null")
            return Job(self, gone)
        return Job(self, record)

    def _page(self, page: rq.Page) -> Page:
        jobs = Page(Job(self, record) for record in page.jobs)
        jobs.cursor = page.cursor
        return jobs


def _cursor(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        raise ConfigError("cursor", "one that a page before returned", value)
    return value


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CHUNK:
        raise ConfigError("limit", f"from 1 to {CHUNK}", value)
    return value


def _refusal(refused: list[tuple[NewJob, rq.Added]], jobs: list[Job[Any]]) -> WindlassError:
    """The error for jobs that their groups did not take; it also names those that were added."""
    ids = [new.id for new, _ in refused]
    for new, added in refused:
        if added.outcome is _OUT_OF_ORDER:
            return OrderedGroupError.at_add(new.queue, new.options.group or "", ids, jobs)
    first = refused[0][0]
    return GroupFullError(first.queue, first.options.group or "", ids, jobs)


__all__ = ["Page", "Queue"]

"""``Queue``: add jobs, look at them, change them, wait for them.

Thin on purpose: it checks and encodes, then asks the store. It connects on first use; queue names are data,
so a process that only produces needs no registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import msgspec

from windlass.backend import requests as rq
from windlass.backend.store import Store, check_changed
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import check_queue_name, check_task_name, new_id, new_ids
from windlass.core.job import CounterRow, Event, JobRecord, JobRef, NewJob, WorkerInfo
from windlass.core.options import JobOptions, StoredOptions, check_known, seconds_to_ms, to_unique
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.core.states import FINISHED, JobState
from windlass.errors import (
    ConfigError,
    GroupFullError,
    IllegalTransitionError,
    JobCancelledError,
    JobFailedError,
    MaxRetriesError,
    StorageError,
)
from windlass.feed import EventFeed, read_events
from windlass.hooks import Outgoing
from windlass.job import Job
from windlass.limits import KeyVerbs, LimitVerbs
from windlass.payload import pack_data, unpack
from windlass.serde import Codec, encode_payload, get_codec
from windlass.waiting import Waiters

if TYPE_CHECKING:
    from windlass.app import Windlass
    from windlass.backend.protocol import TransactionalBackend

#: Jobs per atomic chunk of ``add_bulk`` and of other batches.
CHUNK = 1_000
#: An ``add`` that fails within the first second is tried again after these pauses.
_REPEAT_AFTER_MS = (20, 100)
_REPEAT_WITHIN_MS = 1_000


class Page(list[Job[Any]]):
    """Jobs of one page; ``cursor`` fetches the next one (None: that was all)."""

    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What ``clean`` removed."""

    count: int
    ids: list[str]


class Queue(LimitVerbs, KeyVerbs):
    """A named queue of a store."""

    def __init__(
        self,
        name: str,
        url_or_app: str | Windlass | None = None,
        *,
        defaults: JobOptions | Mapping[str, Any] | None = None,
    ) -> None:
        from windlass.app import as_app  # the app makes queues, a bare queue makes its app

        self.name = check_queue_name(name)
        self.app = as_app(url_or_app)
        self._owns_app = self.app is not url_or_app
        base = self.app.defaults
        self.defaults = defaults if isinstance(defaults, JobOptions) else base.merged(defaults or {})
        self._plain = _Plan(self.defaults)
        self._feed: EventFeed | None = None
        self._waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, Waiters] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<Queue {self.name} on {self.store.name}>"

    @property
    def store(self) -> Store:
        return self.app.store

    async def __aenter__(self) -> Queue:
        await self.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop waiting; a queue that was made from a URL also disconnects. Idempotent."""
        if self._feed is not None:
            await self._feed.stop()
        waiters = self._waiters.pop(asyncio.get_running_loop(), None)
        if waiters is not None:
            await waiters.close()
        if self._owns_app:
            await self.app.close()

    # --- add -----------------------------------------------------------------------------------------

    async def add(self, /, name: str, data: Any = None, **options: Any) -> Job[Any]:
        """Add one job. ``job.outcome`` tells whether it was queued or answered by an existing one."""
        check_task_name(name)
        plan = _Plan(self.defaults.merged(options)) if options else self._plain
        return await self.add_planned(name, self._encode(pack_data(data)), plan)

    async def add_bulk(
        self, jobs: Iterable[Mapping[str, Any]], *, spread: float | timedelta = 0
    ) -> list[Job[Any]]:
        """Add many jobs: ``[{"name": ..., "data": ..., **options}, ...]``.

        Everything is checked before anything is stored; each chunk of 1,000 is one atomic step. ``spread``
        makes them due evenly over that time, on top of their own delays.
        """
        planned = [self._plan_item(item) for item in jobs]
        ids = new_ids(len(planned))
        news = [
            plan.new_job(self, name, payload, fresh_id)
            for (name, payload, plan), fresh_id in zip(planned, ids, strict=True)
        ]
        if spread:
            _spread(news, seconds_to_ms(spread, "spread"))
        return await self.add_new(news)

    async def add_and_wait(
        self, /, name: str, data: Any = None, timeout: float | timedelta | None = 30, **options: Any
    ) -> Any:
        """Add a job and wait for its result: request and response.

        A completed job under the same ``job_id`` answers at once from its cached result; a running one is
        joined. Raises like ``Job.result``.
        """
        check_task_name(name)
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        options.setdefault("result_ttl", max((timeout_ms or 0) / 1000, 60))
        return await self.call_planned(
            name, self._encode(pack_data(data)), _Plan(self.defaults.merged(options)), timeout
        )

    async def call_planned(
        self, name: str, payload: bytes, plan: _Plan, timeout: float | timedelta | None
    ) -> Any:
        """``add_and_wait`` for arguments that are already encoded."""
        timeout_ms = None if timeout is None else seconds_to_ms(timeout, "timeout")
        fresh_id = new_id()
        job_id = plan.job_id or fresh_id
        waiters = self._waiters_here()
        future = await waiters.subscribe(job_id)  # before adding, so that no answer is missed
        try:
            job = (await self.add_new([plan.new_job(self, name, payload, fresh_id)]))[0]
            if job.outcome is AddOutcome.CACHED:
                return self.result_of(job.record)
            return self.result_of(await waiters.outcome(job.ref, future, timeout_ms))
        finally:
            waiters.unsubscribe(job_id, future)

    async def add_planned(self, name: str, payload: bytes, plan: _Plan) -> Job[Any]:
        """Add one job whose arguments are encoded and whose options are checked."""
        return (await self.add_new([plan.new_job(self, name, payload, new_id())]))[0]

    async def add_new(self, news: Sequence[NewJob]) -> list[Job[Any]]:
        """Add prepared jobs, through the app's enqueue hooks."""
        around = self.app.hooks.enqueue
        if around is None:
            return await self._send(news)
        outgoing = Outgoing(news)
        jobs = await around(outgoing, partial(self._send, outgoing.jobs))
        if not isinstance(jobs, list):
            raise ConfigError("enqueue hook", "one that returns what proceed() returned", jobs)
        return jobs

    async def _send(self, news: Sequence[NewJob]) -> list[Job[Any]]:
        """Add prepared jobs, chunk by chunk. ``GroupFullError`` tells which were refused, of all."""
        jobs: list[Job[Any]] = []
        refused: list[NewJob] = []
        for start in range(0, len(news), CHUNK):
            chunk = list(news[start : start + CHUNK])
            answers = await self._add_chunk(chunk)
            jobs += [
                self._added(new, added)
                for new, added in zip(chunk, answers, strict=True)
                if added.outcome is not AddOutcome.REFUSED
            ]
            refused += [
                new for new, added in zip(chunk, answers, strict=True) if added.outcome is AddOutcome.REFUSED
            ]
        if self.app.after_add is not None:
            await self.app.after_add(jobs)
        if refused:
            raise GroupFullError(self.name, refused[0].options.group or "", [new.id for new in refused], jobs)
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

    def prepare(self, name: str, data: Any = None, **options: Any) -> NewJob:
        """A checked and encoded job that is not added yet."""
        check_task_name(name)
        plan = _Plan(self.defaults.merged(options)) if options else self._plain
        return plan.new_job(self, name, self._encode(pack_data(data)), new_id())

    def add_in_transaction(self, connection: Any, /, name: str, data: Any = None, **options: Any) -> Job[Any]:
        """Add a job inside the application's own open transaction on the same database.

        It is there when the transaction commits and was never there when it rolls back. Only for stores
        that are a database the application can open (``sqlite``); ``connection`` is a ``sqlite3.Connection``
        to the same file. Plain, not async: it uses the caller's connection. Workers notice the job within a
        fraction of a second after the commit.
        """
        self.store.capabilities.require(self.store.name, "transactional_add", "use add after the commit")
        backend = cast("TransactionalBackend", self.store.backend)
        new = self.prepare(name, data, **options)

        def send() -> Job[Any]:
            return self._added(new, backend.add_in_transaction(connection, [new])[0])

        hooks = self.app.hooks
        return send() if hooks.enqueue is None else hooks.enqueue_now(Outgoing([new]), send)

    def _plan_item(self, item: Mapping[str, Any]) -> tuple[str, bytes, _Plan]:
        if not isinstance(item, Mapping) or "name" not in item:
            raise ConfigError("jobs", 'objects like {"name": ..., "data": ..., **options}', item)
        options = {key: value for key, value in item.items() if key not in ("name", "data")}
        plan = _Plan(self.defaults.merged(options)) if options else self._plain
        return check_task_name(item["name"]), self._encode(pack_data(item.get("data"))), plan

    def _encode(self, packed: dict[str, Any]) -> bytes:
        return encode_payload(self.app.codec, packed, self.app.max_payload_bytes)

    def _added(self, new: NewJob, added: rq.Added) -> Job[Any]:
        if added.record is not None:
            return Job(self, added.record, added.outcome)
        record = JobRecord(
            queue=new.queue,
            id=new.id,
            task=new.task,
            payload=new.payload,
            codec=new.codec,
            state=added.state or JobState.COMPLETED,
            priority=new.priority,
            options=new.options,
            enqueued_ms=added.enqueued_ms,
            due_ms=added.due_ms,
        )
        return Job(self, record, added.outcome)

    # --- look ------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str) -> Job[Any] | None:
        """The job, or None when there is no record of it."""
        record = await self.store.get(JobRef(self.name, job_id))
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
            states=_states(states),
            cursor=_cursor(cursor),
            limit=_limit(limit),
            newest_first=newest_first,
        )
        return self._page(await self.store.execute(request))

    async def get_dead_letter_jobs(self, cursor: str | None = None, limit: int = 100) -> Page:
        """Failed jobs: the dead set."""
        return await self.get_jobs(JobState.FAILED, cursor, limit)

    async def search_jobs(
        self,
        *,
        name: str | None = None,
        state: Iterable[JobState | str] | JobState | str = (),
        data: Mapping[str, Any] | None = None,
        tag: str | None = None,
        error: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
        scan: int = 10_000,
    ) -> Page:
        """Jobs by task name (``*`` and ``?`` match), state, tag, last error's class, and payload keys.

        ``data`` matches jobs whose keyword arguments hold these values. At most ``scan`` records are looked
        at; a page with a cursor may hold fewer than ``limit`` jobs.
        """
        found, looked, page = Page(), 0, Page()
        while looked < scan and len(found) < limit:
            request = rq.ListJobs(
                queue=self.name,
                states=_states(state),
                task=name,
                tag=tag,
                error_class=error,
                cursor=_cursor(cursor),
                limit=_limit(min(limit - len(found) if not data else CHUNK, CHUNK)),
            )
            page = self._page(await self.store.execute(request))
            looked += max(len(page), 1)
            cursor = page.cursor
            for job in page:
                if _data_matches(job, data):
                    found.append(job)
                    if len(found) == limit and job is not page[-1]:
                        cursor = str(job.record.seq)
                        break
            if cursor is None:
                break
        found.cursor = cursor
        return found

    async def get_job_counts(self) -> dict[JobState, int]:
        """How many jobs are in each state; every state is there."""
        return await self.store.execute(rq.CountJobs(queue=self.name))

    async def count(self) -> int:
        """Jobs that are yet to run: waiting, scheduled, retrying, blocked, parked."""
        counts = await self.get_job_counts()
        return sum(n for state, n in counts.items() if state not in FINISHED and state is not JobState.ACTIVE)

    async def get_status(self, job_id: str) -> dict[str, Any] | None:
        """A job at a glance: id, state, created_at (ms), attempts, result or error; None when unknown."""
        job = await self.get_job(job_id)
        if job is None:
            return None
        status: dict[str, Any] = {
            "id": job.id,
            "state": job.state,
            "created_at": job.enqueued_ms,
            "attempts": job.attempts,
        }
        if job.state is JobState.COMPLETED:
            status["result"] = job.return_value
        elif job.errors:
            status["error"] = {"class": job.errors[-1].error_class, "message": job.errors[-1].message}
        return status

    async def get_result(self, job_id: str) -> Any:
        """The result of a completed job while it is kept; else None (``get_status`` tells why)."""
        job = await self.get_job(job_id)
        return job.return_value if job is not None else None

    async def update_result_ttl(self, job_id: str, ttl: float | timedelta) -> None:
        """Keep a completed job's result for ``ttl`` from now."""
        ref = JobRef(self.name, job_id)
        request = rq.SetResultTtl(ref=ref, ttl_ms=seconds_to_ms(ttl, "ttl"))
        check_changed(
            ref, await self.store.execute(request), "keep the result of", "only completed jobs have one"
        )

    async def get_job_logs(self, job_id: str, start: int = 0, limit: int = 1_000) -> tuple[list[str], int]:
        """Log lines of a job from ``start``, and how many are kept."""
        page = await self.store.execute(rq.GetLogs(ref=JobRef(self.name, job_id), start=start, limit=limit))
        return page.lines, page.count

    async def get_workers(self) -> list[WorkerInfo]:
        """Workers that serve this queue and were alive in the last 45 seconds."""
        workers = await self.store.execute(rq.ListWorkers())
        return [worker for worker in workers if self.name in worker.queues]

    async def get_metrics(self) -> list[CounterRow]:
        """Lifetime counters per task and outcome (``enqueued`` among them). They only grow."""
        return await self.store.execute(rq.ReadCounters(queue=self.name))

    # --- change ------------------------------------------------------------------------------------------

    async def cancel(self, job_id: str, reason: str = "") -> CancelResult:
        """Cancel a job: ``cancelled``, ``cancelling`` (it runs and was told), ``finished``, ``not_found``."""
        refs = [JobRef(self.name, job_id)]
        return (await self.store.execute(rq.CancelJobs(refs=refs, reason=reason)))[0]

    async def revoke(self, job_id: str, reason: str = "") -> CancelResult:
        """Another word for ``cancel``."""
        return await self.cancel(job_id, reason)

    async def remove(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job's record. An active one is refused unless ``force``."""
        ref = JobRef(self.name, job_id)
        result = (await self.store.execute(rq.RemoveJobs(refs=[ref], force=force)))[0]
        check_changed(ref, result, "remove", "cancel it, or force")

    async def retry(self, job_id: str) -> None:
        """Run a finished job again with a fresh budget; make a retrying one ready now."""
        ref = JobRef(self.name, job_id)
        result = (await self.store.execute(rq.RetryJobs(refs=[ref])))[0]
        check_changed(ref, result, "retry", "only finished or retrying jobs can be retried")

    async def retry_jobs(
        self, *, state: JobState | str = JobState.FAILED, name: str | None = None, count: int | None = None
    ) -> int:
        """Retry jobs in ``state`` (failed by default), oldest first; returns how many."""
        retried = 0
        cursor: str | None = None
        while count is None or retried < count:
            limit = CHUNK if count is None else min(CHUNK, count - retried)
            request = rq.ListJobs(
                queue=self.name,
                states=_states(state),
                task=name,
                newest_first=False,
                limit=limit,
                cursor=cursor,
            )
            page = await self.store.execute(request)
            if page.jobs:
                answers = await self.store.execute(rq.RetryJobs(refs=[job.ref for job in page.jobs]))
                retried += sum(answer.status == "ok" for answer in answers)
            cursor = page.cursor
            if cursor is None:
                break
        return retried

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

    async def clean(
        self,
        grace: float | timedelta = 0,
        limit: int = 1_000,
        state: Iterable[JobState | str] | JobState | str = JobState.COMPLETED,
    ) -> Cleaned:
        """Remove up to ``limit`` jobs that are in ``state`` for longer than ``grace``, oldest first."""
        states = _states(state)
        if not states or JobState.ACTIVE in states:
            raise ConfigError("state", "one or more states other than active", state)
        grace_ms = seconds_to_ms(grace, "grace")
        removed: list[str] = []
        while len(removed) < limit:
            step = min(CHUNK, limit - len(removed))
            request = rq.Purge(queue=self.name, states=states, grace_ms=grace_ms, limit=step)
            purged = await self.store.execute(request)
            removed += purged.ids
            if purged.count < step:
                break
        return Cleaned(len(removed), removed)

    async def drain(self, delayed: bool = False) -> int:
        """Remove all waiting jobs, with ``delayed`` also those due later; returns how many."""
        states = [JobState.WAITING, JobState.BLOCKED, JobState.PARKED]
        if delayed:
            states += [JobState.SCHEDULED, JobState.RETRYING]
        return await self._purge_all(states)

    async def obliterate(self, force: bool = False) -> int:
        """Remove every job and the queue itself. Refused while jobs run, unless ``force``."""
        counts = await self.get_job_counts()
        if counts[JobState.ACTIVE] and not force:
            raise IllegalTransitionError(
                self.name,
                "busy",
                "obliterate the queue of",
                f"{counts[JobState.ACTIVE]} jobs run; pass force=True",
            )
        return await self._purge_all(list(JobState), force=force, forget=True)

    async def _purge_all(self, states: list[JobState], *, force: bool = False, forget: bool = False) -> int:
        total = 0
        while True:
            request = rq.Purge(queue=self.name, states=states, force=force, forget=forget, limit=CHUNK)
            purged = await self.store.execute(request)
            total += purged.count
            if purged.count < CHUNK:
                return total

    # --- wait and watch ------------------------------------------------------------------------------------

    async def wait_for(self, ref: JobRef, timeout: float | timedelta | None = 30) -> JobRecord:
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
            return None if record.result is None else get_codec(record.result_codec).decode(record.result)
        if record.state is JobState.CANCELLED:
            raise JobCancelledError(record.id, record.reason)
        last = record.errors[-1] if record.errors else None
        facts = (last.error_class, last.message, last.traceback) if last else ("", "", "")
        if record.reason == "attempts":
            raise MaxRetriesError(record.id, record.attempts, *facts, payload=_payload_of(record))
        raise JobFailedError(record.id, record.reason or "failed", *facts)

    def events(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """The queue's events as they happen; ``after`` an event id replays from there (0: all kept)."""
        return read_events(self.store, self.name, after)

    def on(self, event: str, callback: Callable[[Event], Any], *, job_id: str | None = None) -> None:
        """Call ``callback(event)`` at every event of that name in this queue (of one job), on any process.

        A shorthand for ``QueueEvents``: needs a running event loop, ends with ``close``.
        """
        if self._feed is None:
            self._feed = EventFeed(self.store, self.name)
        self._feed.on(event, callback, job_id=job_id)

    def _page(self, page: rq.Page) -> Page:
        jobs = Page(Job(self, record) for record in page.jobs)
        jobs.cursor = page.cursor
        return jobs


class _Plan:
    """Checked options in the form that the store takes; made once, used for many jobs."""

    __slots__ = ("delay_ms", "expires_in_ms", "job_id", "priority", "run_at_ms", "stored", "unique")

    def __init__(self, options: JobOptions) -> None:
        self.stored: StoredOptions = options.stored()
        self.unique = to_unique(options.unique)
        if self.unique is not None and self.unique.key is not None:
            fixed = self.unique.stored("", {})
            self.stored, self.unique = msgspec.structs.replace(self.stored, unique=fixed), None
        if options.result_codec is not None:
            get_codec(options.result_codec)  # unknown names are refused now, not by the worker
        self.priority = options.priority
        self.delay_ms = options.delay_ms
        self.run_at_ms = options.run_at_ms
        self.expires_in_ms = options.expires_in_ms
        self.job_id = options.job_id

    def new_job(self, queue: Queue, name: str, payload: bytes, fresh_id: str) -> NewJob:
        """A job to add. ``fresh_id`` names it unless the caller chose an id; it also names the request."""
        stored = self.stored
        if self.unique is not None:  # its key depends on the arguments
            key = self.unique.stored(name, queue.app.arguments(name, payload))
            stored = msgspec.structs.replace(stored, unique=key)
        return NewJob(
            queue=queue.name,
            id=self.job_id or fresh_id,
            task=name,
            payload=payload,
            codec=queue.app.codec.name,
            priority=self.priority,
            options=stored,
            delay_ms=self.delay_ms,
            run_at_ms=self.run_at_ms,
            expires_in_ms=self.expires_in_ms,
            request_id=fresh_id,
        )


Plan = _Plan


def _spread(news: list[NewJob], span_ms: int) -> None:
    """Make the jobs due one after the other, evenly over ``span_ms``."""
    for index, new in enumerate(news):
        later_ms = index * span_ms // len(news)
        if new.run_at_ms is None:
            new.delay_ms += later_ms
        else:
            new.run_at_ms += later_ms


def _states(value: Iterable[JobState | str] | JobState | str) -> list[JobState]:
    given = [value] if isinstance(value, str) else list(value)
    check_known(given, [state.value for state in JobState], "job state")
    return [JobState(state) for state in given]


def _cursor(value: str | None) -> str | None:
    if value is not None and not (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        raise ConfigError("cursor", "one that a page before returned", value)
    return value


def _limit(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= CHUNK:
        raise ConfigError("limit", f"from 1 to {CHUNK}", value)
    return value


def _data_matches(job: Job[Any], wanted: Mapping[str, Any] | None) -> bool:
    if not wanted:
        return True
    try:
        kwargs = job.kwargs
    except ValueError:
        return False  # bytes that are not arguments match nothing
    missing = object()
    return all(kwargs.get(key, missing) == value for key, value in wanted.items())


def _payload_of(record: JobRecord) -> Any:
    try:
        return unpack(get_codec(record.codec).decode(record.payload)).data
    except (ValueError, ConfigError):
        return record.payload


__all__ = ["Cleaned", "Codec", "Page", "Plan", "Queue"]

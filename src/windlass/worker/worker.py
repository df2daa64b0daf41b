"""``Worker``: claims jobs of any number of queues, runs them in one pool of slots, settles them.

The pump is the heart: it gathers finished attempts and free slots and calls ``settle(ends, claim)``. Under
load one call carries many jobs; when idle nothing waits for a batch to fill. A lease is never held without
a slot, a claim or settle in flight is never cancelled, and after a lost reply the worker reconciles before
it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec

from windlass._version import __version__
from windlass.abort import StopReason
from windlass.app import Windlass, as_app
from windlass.backend import requests as rq
from windlass.backend.limits import SetQueueLimits
from windlass.backend.protocol import Listener, OfferedListener, OverlappingBackend
from windlass.batch import Batch
from windlass.core.backoff import Strategy
from windlass.core.ids import new_id
from windlass.core.job import Action, JobRecord, WorkerInfo
from windlass.core.limits import to_rate
from windlass.core.options import check_known, check_registered, seconds_to_ms, to_backoff
from windlass.core.outcome import Extended, Outcome, Settled, Settlement
from windlass.core.probe import reach
from windlass.core.states import JobState
from windlass.core.text import printable
from windlass.errors import ClosedError, ConfigError, RateLimitError, StorageError
from windlass.job import Job
from windlass.payload import read_call
from windlass.queue import Queue
from windlass.registry import Handler, Registry, job_handler
from windlass.speedups.shared_tasks import make_starter
from windlass.worker import classify
from windlass.worker.attempt import Attempt, Tools
from windlass.worker.batches import Batches
from windlass.worker.emitter import Emitter
from windlass.worker.heartbeat import Heartbeat, dump_stacks, rss_kb
from windlass.worker.leases import LeaseKeeper
from windlass.worker.lifecycle import PARTS_MS, Parts, Stop, let_go
from windlass.worker.options import Queues, QueueSpec, WorkerOptions, to_specs
from windlass.worker.processes import SandboxRunner
from windlass.worker.services import Deployer, Duties, Leadership, Recoverer, Relayer, store_duties
from windlass.worker.settling import settle_apart
from windlass.worker.shares import SharePlanner
from windlass.worker.supervisor import Supervisor
from windlass.worker.teller import Teller, log_attempt

log: Final = logging.getLogger("windlass.worker")

_FIRST_BACKOFF_MS, _LAST_BACKOFF_MS = 100, 5_000
#: A wait may end so much before its time: clocks of event loops are coarse.
_EARLY_MS = 5
#: With fewer slots than this, two lanes would be two trickles.
_LANES_FROM = 16
_Ways = dict[tuple[str, str], tuple[Queue, Handler | None]]
_OPTION_NAMES = frozenset(WorkerOptions.__struct_fields__)


class Worker:
    """A pool of slots that serves queues.

    ``queues`` is a name, a list of names, ``{name: weight}`` or ``{name: QueueSpec(...)}``. With ``handler``,
    every job goes to it (as a ``Job``; with ``batch`` as a list of them); without, to the app's tasks and
    registered handlers.
    """

    RateLimitError = RateLimitError
    _listener: Listener
    _threads: ThreadPoolExecutor
    _tools: Tools

    def __init__(
        self,
        queues: Queues,
        handler: Callable[[Job[Any]], Any] | None = None,
        *,
        url_or_app: str | Windlass | None = None,
        context: Any = None,
        backoff_strategies: Mapping[str, Strategy] | None = None,
        batch: Batch | Mapping[str, Any] | int | None = None,
        **options: Any,
    ) -> None:
        check_known(options, _OPTION_NAMES, "worker option")
        self.options: WorkerOptions = WorkerOptions(**options)
        self._lease_ms, self._poll_ms = self.options.ms("lease"), float(self.options.ms("poll"))
        self.app: Windlass = as_app(url_or_app)
        self._owns_app = self.app is not url_or_app
        if handler is not None and not callable(handler):
            raise ConfigError("handler", "callable", handler)
        #: Jobs that run at once; ``resize`` changes it.
        self.concurrency: int = self.options.concurrency
        self.registry: Registry = (
            self.app.registry if handler is None else Registry(job_handler(handler, batch))
        )
        self.id: str = self.options.id or f"{socket.gethostname()[:80]}:{os.getpid()}:{new_id()[-8:]}"
        self._context = context if context is not None else self.app.context
        self._strategies = {**self.app.backoff_strategies, **(backoff_strategies or {})}
        self._shares = SharePlanner(to_specs(queues, self.options.concurrency), self.options.order)
        self._queues: dict[str, Queue] = {}
        self._emitter = Emitter()
        self._teller = Teller(self._emitter, self.app.hooks)
        self._attempts: dict[str, Attempt] = {}
        self._busy: dict[str, int] = {}
        self._ends: list[Settlement] = []
        #: Slots that claims under way may fill.
        self._asked = 0
        #: The second lane, see ``_exchange_beside``.
        self._lane: asyncio.Task[None] | None = None
        self._overlaps = False
        self._hints = 0
        self._state = "new"
        self._paused = False
        self._closing = False
        self._listening = False
        self._parts = Parts()
        self._stop = Stop(
            self.app.clock, grace_ms=self.options.ms("grace"), cancel_wait_ms=self.options.ms("cancel_wait")
        )
        self._idle = asyncio.Event()
        self._idle.set()
        self._opening: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None
        #: Requests of the pump that the store has yet to answer.
        self._pending: list[rq.Request[Any]] = []
        self._until_empty = self.options.burst
        self._look = True
        #: Whether the pump waits for something to do.
        self._waiting = False
        self._next_due_ms: float | None = None
        self._rng = random.Random()
        self._limited_until_ms = 0.0
        self._failures = 0
        self._fed = False  # whether jobs came since the last time that none were left
        #: When the pump last got through to the store, by the worker's monotonic clock.
        self.last_progress_ms: float = 0.0
        self._relayer = Relayer(self.app.store)
        self._supervisor = Supervisor(self.app.clock)
        self._reconciles = False  # whether a reply may have been lost
        #: Handlers that did not stop in time; their jobs were given back.
        self.abandoned: int = 0
        #: What the stop could not wait for, by name: handlers, calls to the store, parts of the worker.
        self.left_behind: list[str] = []

    def __repr__(self) -> str:
        return f"<Worker {self.id} on {', '.join(self._shares.names)}: {self._state}>"

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- what users call -----------------------------------------------------------------------------

    def register(
        self,
        name: str,
        handler: Callable[..., Any],
        queue: str | None = None,
        *,
        batch: Batch | Mapping[str, Any] | int | None = None,
    ) -> None:
        """Send jobs of task ``name`` (of one queue, or of all) to ``handler``; also while running.

        With ``batch`` it gets a list of jobs, many at once.
        """
        self.registry.add(name, job_handler(handler, batch), queue)

    def add_queue(self, name: str, spec: QueueSpec | float = 1) -> None:
        """Serve one more queue from now on."""
        added = to_specs({name: spec}, self.options.concurrency)
        self._shares.add(name, added[name])
        if self._listening:
            before, self._listener = self._listener, self.app.store.backend.listen(self._topics())
            self._take_offers()
            before.wake()  # the pump may be waiting on it
            before.close()
        self._wake()

    def on(self, event: str, callback: Callable[..., Any]) -> None:
        """Call ``callback`` when something happens here; the events are listed in ``WORKER_EVENTS``."""
        self._emitter.on(event, callback)

    def resize(self, concurrency: int) -> None:
        """Run at most ``concurrency`` jobs at once from now on. Running jobs go on, also above it."""
        resized = msgspec.structs.replace(self.options, concurrency=concurrency)  # checks the range
        self._shares.check_slots(concurrency)
        self.options, self.concurrency = resized, concurrency
        if self._state == "running":
            before, self._threads = self._threads, self._make_threads()
            self._tools.threads = self._threads
            before.shutdown(wait=False)  # what runs in it ends by itself
        self._wake()

    async def start(self) -> None:
        """Begin to work in the background. Idempotent; ``ClosedError`` once the worker was closed.

        A start that fails, or is cancelled, undoes what it did, and may be tried again.
        """
        if self._is_closing:
            raise ClosedError("the worker", "make another one")
        if self._state == "running":
            return
        self._check_strategies()
        if self._opening is None:
            self._state = "starting"
            self._opening = asyncio.create_task(self._open(), name="windlass-start")
        opening = self._opening
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.done() and self._is_closing:
                raise ClosedError("the worker", "it had not started yet; make another one") from None
            opening.cancel()
            await asyncio.wait([opening])
            if self._state == "running":  # it was through at the very moment of the cancel
                await self._closed_through_cancels(self._begin_close(force=True))
            raise

    @property
    def _is_closing(self) -> bool:
        return self._close_task is not None

    async def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self._open_parts()
        except BaseException:
            stop = Stop(self.app.clock, grace_ms=0, cancel_wait_ms=0)
            stop.begin()
            self._name_left(await self._parts.close(stop))
            self._state, self._opening = "new", None  # it may be started again
            raise
        self._state, self._opening = "running", None
        self.last_progress_ms = self.app.clock.monotonic_ms()
        self._emitter.emit("ready")

    async def _open_parts(self) -> None:
        """Open one part after the other."""
        parts, store, options = self._parts, self.app.store, self.options
        self._overlaps = isinstance(store.backend, OverlappingBackend)
        await store.open()
        await self._set_limits()
        await self._open_resources()
        deployed = await self._deploy_schedules()
        self._keeper = LeaseKeeper(store, self._supervisor, on_lost=self._on_lost, on_cancel=self._on_cancel)
        parts.opened("the renewing of leases", self._keeper.stop)
        await self._keeper.start()
        self._listener, self._listening = await store.listen(self._topics()), True
        parts.opened("the listener", self._stop_listening)
        self._take_offers()
        self._threads = self._make_threads()
        parts.opened("threads", lambda: self._threads.shutdown(wait=False, cancel_futures=True))
        self._processes = SandboxRunner(options)
        parts.opened("child processes", self._processes.close)
        self._tools = self._make_tools()
        self._starter = make_starter(self._loop)
        self._leadership = Leadership(store, self.id, on_change=self._on_leader)
        self._heartbeat = Heartbeat(store, options.ms("heartbeat"), self.info, self._obey)
        self._duties = self._make_duties(deployed)
        parts.opened("duties and heartbeat", self._stop_services)
        await asyncio.sleep(0)  # a cancel that came meanwhile is heard here, before anything begins
        self._supervisor.serve(self._heartbeat)
        if options.duties:
            self._duties.start()
        self._supervisor.start("pump", self._pump_safely)

    def _make_tools(self) -> Tools:
        return Tools(
            clock=self.app.clock,
            threads=self._threads,
            processes=self._processes,
            strategies=self._strategies,
            rng=self._rng,
            max_result_bytes=self.app.max_payload_bytes,
            hooks=self.app.hooks,
            batches=Batches(self.app.clock, lambda: self._threads, lambda: self.concurrency),
            context=self._context,
            on_progress=self._on_progress,
            on_end=self._ended,
            stopping=lambda: self._closing,
        )

    def _check_strategies(self) -> None:
        """Refuse to run tasks by a backoff strategy that nobody gave us: its name may be misspelt."""
        for task in self.app.tasks.values() if self.registry is self.app.registry else ():
            if task.queue_name in self._shares.names:
                check_registered(to_backoff(task.job_options.backoff), self._strategies, task.name)

    async def _set_limits(self) -> None:
        """Make the worker's ``limiter`` and ``global_concurrency`` those of its queues."""
        concurrency, rate = self.options.global_concurrency, to_rate(self.options.limiter, "limiter")
        given = {"concurrency": concurrency, "rate": rate}
        fields = [name for name, value in given.items() if value is not None]
        for queue in self._shares.names if fields else ():
            request = SetQueueLimits(queue=queue, fields=fields, concurrency=concurrency, rate=rate)
            await self.app.store.execute(request)

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until ``close`` is called, or until all is done with ``burst``.

        Cancelling it is a graceful close, a second cancel releases what runs at once; then it raises.
        """
        if not self._is_closing or self._state == "closed":
            await self.start()
            if handle_signals:
                self._handle_signals()
        await self._see_out()

    async def wait_until_ready(self) -> None:
        """Return when the worker is connected and claiming."""
        await self.start()

    async def drain(self) -> None:
        """Work until nothing is waiting, active or retrying, then stop fetching and close.

        Cancelling it is a graceful close, as with ``run``.
        """
        self._until_empty = True
        await self.start()
        self._wake()
        await self._see_out()

    async def _see_out(self) -> None:
        """Wait until the pump has ended, then close; never cancels the pump itself."""
        try:
            if not self._is_closing:
                await asyncio.wait([self._supervisor.over("pump")])
        except asyncio.CancelledError:
            await self._closed_through_cancels(self._begin_close())
            raise
        await self.close()

    def pause(self) -> None:
        """Claim no more jobs here; running ones go on."""
        if not self._paused:
            self._paused = True
            self._decline()
            self._emitter.emit("paused")

    def resume(self) -> None:
        """Undo ``pause``."""
        if self._paused:
            self._paused = False
            self._emitter.emit("resumed")
            self._wake()

    @property
    def is_running(self) -> bool:
        return self._state == "running"

    @property
    def is_paused(self) -> bool:
        return self._paused

    @property
    def busy(self) -> int:
        """Jobs that run now."""
        return len(self._attempts)

    @property
    def is_ready(self) -> bool:
        """Connected, and the pump moved lately: what a readiness probe asks."""
        if self._state != "running":
            return False
        return self.app.clock.monotonic_ms() - self.last_progress_ms < 3 * self.options.ms("poll") + 5_000

    def rate_limit(self, seconds: float) -> None:
        """Claim nothing for ``seconds``: the service behind the handlers said so.

        A claim that is under way may still bring jobs.
        """
        self._limited_until_ms = self.app.clock.monotonic_ms() + seconds_to_ms(seconds, "seconds")
        self._decline()

    def _stop_listening(self) -> None:
        self._listening = False
        self._listener.close()

    def _take_offers(self) -> None:
        """Start at once what a store hands out by itself, if it does."""
        if isinstance(self._listener, OfferedListener):
            self._listener.on_offer(self._begin_offered)

    def _decline(self) -> None:
        """Let no store that hands out jobs by itself count on this worker."""
        if self._state in ("running", "closing") and isinstance(self._listener, OfferedListener):
            self._listener.decline()

    def abort_job(self, job_id: str) -> bool:
        """Stop a job that runs here, as if it was cancelled; False when it does not."""
        found = [attempt for attempt in self._attempts.values() if attempt.record.id == job_id]
        for attempt in found:
            attempt.stop(StopReason.CANCEL)
        return bool(found)

    async def close(self, force: bool = False) -> None:
        """Stop: claim no more, wait ``grace``, cancel, wait ``cancel_wait``, give the rest back. Idempotent.

        ``force`` skips the waiting; calling again with it hurries a close that is under way, and so does
        cancelling this call. It ends within the grace, the wait and two seconds, whatever the store does:
        what is pending then is abandoned (``left_behind`` names it) and its leases run out.
        """
        if await self._closed_through_cancels(self._begin_close(force=force)):
            raise asyncio.CancelledError

    def _begin_close(self, *, force: bool = False) -> asyncio.Task[None]:
        """Close in the background; the task is the same for all who ask."""
        if force:
            self._stop.hurry()
        if self._close_task is None:
            self._stop.begin()
            self._close_task = asyncio.create_task(self._shut(), name="windlass-close")
        return self._close_task

    async def _closed_through_cancels(self, closing: asyncio.Task[None]) -> bool:
        """Wait for the end of a close; being cancelled meanwhile hurries it. Whether that happened."""
        cancelled = False
        while not closing.done():
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError:
                cancelled = True
                self._stop.hurry()
        closing.result()
        return cancelled

    async def _shut(self) -> None:
        """The close itself."""
        stop = self._stop
        if self._opening is not None:
            self._opening.cancel()
            await stop.wait_for(self._opening)
        if self._state == "running":
            await self._wind_up(stop)
        self._name_left(await self._parts.close(stop))
        if self._owns_app and not await let_go(stop, "the client of the store", self.app.close):
            self._name_left(["the client of the store"])
        before, self._state = self._state, "closed"
        if before == "closing":
            self._emitter.emit("closed")
            await stop.wait_for(asyncio.ensure_future(self._emitter.settle()))
        if self.left_behind:
            log.error("the worker stopped without waiting for: %s", "; ".join(self.left_behind))

    async def _wind_up(self, stop: Stop) -> None:
        """End what runs and settle it."""
        self._state = "closing"
        self._closing = True
        self._emitter.emit("closing")
        self._decline()
        self._wake()
        self._supervisor.hurry("pump")
        await self._finish_attempts(stop)
        if not await stop.wait_for(self._supervisor.over("pump"), keep_ms=PARTS_MS) or self._ends:
            self._abandon_pump()

    def info(self) -> WorkerInfo:
        """This worker as its heartbeat tells it."""
        return WorkerInfo(
            id=self.id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            tag=self.options.tag,
            queues=tuple(self._shares.names),
            concurrency=self.concurrency,
            busy=len(self._attempts),
            rss_kb=rss_kb(),
            version=__version__,
            quiet=self._paused or self._closing,
            leader=self._state == "running" and self._leadership.is_leader,
        )

    # --- the pump ----------------------------------------------------------------------------------------

    def _topics(self) -> list[str]:
        return [f"worker:{self.id}", "schedules", *(f"ready:{name}" for name in self._shares.names)]

    def _wake(self) -> None:
        if self._state in ("running", "closing"):
            self._look_again()
            self._listener.wake()

    def _look_again(self) -> None:
        """There may be jobs, whatever a claim that is already under way is going to answer."""
        self._look = True
        self._hints += 1

    async def _pump_safely(self) -> None:
        """Keep the pump going through anything but a deliberate stop."""
        while True:
            try:
                if self._reconciles:
                    await self._reconcile()
                    self._reconciles = False
                await self._pump()
                return
            except StorageError as exc:
                log.warning("the store is out of reach, trying again: %s", printable(str(exc)))
                self._emitter.emit("error", exc)
            except Exception as exc:
                log.exception("the worker met an unexpected error and goes on")
                self._emitter.emit("error", exc)
            except asyncio.CancelledError:
                self._reconciles = True
                if not self._closing or self._stop.is_over:
                    raise
                self._stop.hurry()  # all tasks of the loop were cancelled in the middle of a close
                continue
            self._reconciles = True
            if (
                self._stop.hurried.is_set()
            ):  # a close in a hurry has begun, though its task may not have run yet
                return
            backoff_ms = min(_FIRST_BACKOFF_MS * 2**self._failures, _LAST_BACKOFF_MS)
            self._failures = min(self._failures + 1, 10)
            await self.app.clock.wait(self._stop.hurried, backoff_ms * self._rng.uniform(0.5, 1))

    async def _pump(self) -> None:
        try:
            while self._attempts or self._ends or self._lane is not None or not self._closing:
                if not await self._turn():
                    break
                self.last_progress_ms = self.app.clock.monotonic_ms()
        except BaseException:
            await self._leave_lane()  # nothing is under way when the worker reconciles
            raise

    async def _turn(self) -> bool:
        """Settle and claim, or wait until there is something to do; False when all is done."""
        if self._lane is not None and self._lane.done():
            lane, self._lane = self._lane, None
            lane.result()
            return True
        claim = self._plan_claim()
        if self._ends or (claim is not None and self._look):
            exchange = self._exchange(claim)
            if self._lane is None and self._is_worth_a_lane(self._batch):
                self._lane = self._loop.create_task(self._exchange_beside(), name="windlass-lane")
            await exchange
            await self._first_steps()
        elif self._until_empty and not self._attempts and self._lane is None and await self._is_empty():
            return False
        else:
            await self._wait()
        return True

    # A store that works while we do is asked by two lanes in turn, each for half of the slots: while it
    # settles the jobs of one, those of the other run. The pump is the first lane; the second exists as long
    # as there is enough to do for both.

    @property
    def _batch(self) -> int:
        """Most jobs that one exchange settles, and claims."""
        return (self.concurrency + 1) // 2 if self._has_lanes else self.concurrency

    @property
    def _has_lanes(self) -> bool:
        return self._overlaps and self.concurrency >= _LANES_FROM and not self._shares.is_bounded

    def _is_worth_a_lane(self, taken: int = 0) -> bool:
        """Whether half a batch is left to settle or claim besides the ``taken`` that are on their way."""
        if not self._has_lanes:
            return False
        enough = self._batch // 2 + taken
        return len(self._ends) >= enough or (self._look and self._free_slots() >= enough)

    async def _exchange_beside(self) -> None:
        try:
            while self._lane is not None and self._is_worth_a_lane():
                await self._exchange(self._plan_claim())
                await self._first_steps()
        finally:
            self._listener.wake()  # the pump sees how it ended

    async def _first_steps(self) -> None:
        """Let what was claimed have its first step: what ends in it is settled without a wait in between."""
        await asyncio.sleep(0)
        self._starter.look_back()

    async def _leave_lane(self) -> None:
        """Wait for what the second lane has under way, whatever becomes of it."""
        lane, self._lane = self._lane, None
        if lane is not None:
            await asyncio.wait([lane])
            if not lane.cancelled() and (error := lane.exception()) is not None:
                log.debug("an exchange beside the pump failed as well: %s", error)

    def _free_slots(self) -> int:
        if self._paused or self._closing:
            return 0
        if self._limited_until_ms and self._limited_until_ms > self.app.clock.monotonic_ms():
            return 0
        return max(self.concurrency - len(self._attempts) - self._asked, 0)

    def _plan_claim(self) -> rq.Claim | None:
        free = min(self._free_slots(), self._batch)
        queues = self._shares.plan(free, self._busy) if free else []
        if not queues:
            return None
        return rq.Claim(
            worker=self.id,
            queues=queues,
            limit=free,
            claim_id=new_id(),
            lease_ms=self._lease_ms,
            idle=not self._attempts,
        )

    async def _exchange(self, claim: rq.Claim | None) -> None:
        """Settle what ended and claim what fits, in one round trip."""
        ends, self._ends = self._ends[: self._batch], self._ends[self._batch :]
        asked = claim.limit if claim is not None else 0
        self._asked += asked
        try:
            await self._settle_and_claim(ends, claim)
        finally:
            self._asked -= asked

    async def _settle_and_claim(self, ends: list[Settlement], claim: rq.Claim | None) -> None:
        sent_ms, hints = self.app.clock.monotonic_ms(), self._hints
        if ends:
            try:
                result = await self._settle(ends, claim)
            except BaseException:
                self._ends = ends + self._ends  # not off our hands: they are settled again
                raise
            self._after_settle(ends, result.items)
            claimed = result.claimed
            if result.relay:
                self._relay_soon()
        elif claim is not None:
            claimed = await self._call(claim)
        else:
            return
        self._failures = 0
        reach("worker.claimed", count=len(claimed.jobs) if claimed else 0)
        if claim is not None and claimed is not None:
            self._take(claim, claimed, sent_ms, hints)

    async def _settle(self, ends: list[Settlement], claim: rq.Claim | None) -> rq.SettleResult:
        """Settle ``ends`` together; one by one, and without a claim, when the store refuses the batch."""
        try:
            result: rq.SettleResult = await self._call(rq.Settle(items=ends, claim=claim))
        except StorageError:
            raise
        except Exception as exc:
            return await settle_apart(self._call, ends, exc)
        return result

    def _relay_soon(self) -> None:
        """What ended here concerns more jobs than one request could tell: go on beside the pump."""
        self._supervisor.start("relay-now", self._relay)

    async def _relay(self) -> None:
        try:
            await self._relayer.run_once()
        except Exception as exc:  # who drains waits for this: an error kept here would be met at every turn
            told = printable(str(exc))
            log.warning("some jobs are yet to be told that others ended; the leader will: %s", told)

    async def _call(self, request: rq.Request[Any]) -> Any:
        self._pending.append(request)
        try:
            return await self.app.store.execute(request)
        finally:
            self._pending.remove(request)

    def _take(self, claim: rq.Claim, claimed: rq.Claimed, sent_ms: float, hints: int) -> None:
        """Begin what was claimed; ``hints``: how many had come when the claim was sent."""
        plan_again = self._shares.charge(claim.queues, claimed.jobs)
        if plan_again or len(claimed.jobs) >= claim.limit:
            self._look = True
        elif self._hints == hints:  # else it may be older than what we heard of
            self._look = False
        due_ms = claimed.next_due_in_ms
        self._next_due_ms = None if due_ms is None else sent_ms + due_ms
        self._begin_all(claimed.jobs, claim.lease_ms, sent_ms - claimed.held_ms)
        self._fed = self._fed or bool(claimed.jobs)
        if self._fed and not self._look and self._asked == claim.limit:
            self._fed = False
            self._emitter.emit("drained")

    def _begin_offered(self, record: JobRecord, since_ms: float) -> bool:
        """Begin what our only queue gave us before we asked; False: no room, or the pump is busy and asks."""
        if not self._waiting or self._look:
            return False
        if self._shares.room(record.queue, self._free_slots(), self._busy) < 1:
            return False
        self._begin_all([record], self._lease_ms, since_ms)
        self._loop.call_soon(self._starter.look_back)
        self._fed = self._asked > 0
        if not self._fed and self._emitter.wants("drained"):
            self._emitter.emit("drained")
        return True

    def _begin_all(self, jobs: list[JobRecord], lease_ms: int, since_ms: float) -> None:
        ways: _Ways = {}
        begun: list[Attempt] = []
        for record in jobs:
            if self._closing:  # the stop came while the claim was under way
                self._end(classify.end(record, Outcome.RELEASE, reason="shutdown"))
            elif (attempt := self._begin(record, lease_ms, since_ms, ways)) is not None:
                begun.append(attempt)
        self._starter.start(begun)
        if self._emitter.wants("active"):
            for attempt in begun:
                self._emitter.emit("active", attempt.job)

    def _after_settle(self, ends: list[Settlement], answers: list[Settled]) -> None:
        for end, answer in zip(ends, answers, strict=True):
            self._teller.settled(end, answer)

    async def _wait(self) -> None:
        clock, wait_ms = self.app.clock, self._wait_ms()
        until_ms = clock.monotonic_ms() + wait_ms - _EARLY_MS
        self._waiting = True
        try:
            topics = await self._listener.wait(wait_ms, clock)
        finally:
            self._waiting = False
        # When time passed, a job may be due, or a hint was lost. (An end, settled meanwhile, also wakes.)
        time_passed = not topics and not self._ends and clock.monotonic_ms() >= until_ms
        if time_passed or any(topic.startswith("ready:") for topic in topics):
            self._look_again()
            self._shares.refill()
        if "schedules" in topics:
            self._supervisor.hurry("schedule")
        if f"worker:{self.id}" in topics:
            await self._ask_cancels()
            await self._heartbeat.run_once()  # somebody may have told us something

    def _wait_ms(self) -> float:
        now = self.app.clock.monotonic_ms()
        wait_ms = self._poll_ms
        if self._next_due_ms is not None:
            wait_ms = min(wait_ms, max(round(self._next_due_ms - now) + 1, 1))
        if self._limited_until_ms > now:
            wait_ms = min(wait_ms, max(round(self._limited_until_ms - now), 1))
        return wait_ms

    async def _is_empty(self) -> bool:
        await asyncio.wait([self._supervisor.over("relay-now")])
        busy_states = (JobState.WAITING, JobState.PARKED, JobState.ACTIVE, JobState.RETRYING)
        for name in self._shares.names:
            counts = await self._call(rq.CountJobs(queue=name))
            if any(counts[state] for state in busy_states):
                return False
        return True

    async def _reconcile(self) -> None:
        """After a lost reply: give back leases that we do not hold, so that nothing waits for a stall."""
        held = [*self._attempts, *(end.token for end in self._ends)]
        released = await self._call(rq.Reconcile(worker=self.id, held=held))
        if released:
            log.info("gave back %d leases whose claim was never answered", released)
        self._look_again()
        reach("worker.reconciled", released=released)

    # --- attempts ------------------------------------------------------------------------------------------

    def _way(self, queue_name: str, task: str) -> tuple[Queue, Handler | None]:
        """Where jobs of a task come from, and what runs them."""
        queue = self._queues.get(queue_name)
        if queue is None:
            # Its own: whoever closes the one that the app hands out does not close it under the handlers.
            queue = self._queues[queue_name] = Queue(queue_name, self.app)
        return queue, self.registry.find(queue_name, task)

    def _begin(self, record: JobRecord, lease_ms: int, since_ms: float, ways: _Ways) -> Attempt | None:
        """Give a claimed job its slot; None when it cannot run. ``ways``: of others of its claim."""
        name = (record.queue, record.task)
        way = ways.get(name)
        if way is None:
            way = ways[name] = self._way(*name)
        queue, handler = way
        token = record.token or ""
        if handler is None:
            facts = {"job_id": record.id, "task": record.task, "queue": record.queue}
            log.warning("no handler here for task %r of queue %r", record.task, record.queue, extra=facts)
            self._end(classify.unknown_task(record))
            return None
        try:
            call = read_call(self.app.codecs, record)
        except Exception as exc:  # these bytes are not arguments; a codec of one's own may raise anything
            bad = classify.bad_payload(record, exc)
            self._teller.refused(Job(queue, record, held=True, context=self._context), record, bad)
            self._end(bad)
            return None
        attempt = Attempt(queue, record, call, handler, self._tools)
        if not self._attempts:
            self._idle.clear()
        self._attempts[token] = attempt
        self._busy[record.queue] = self._busy.get(record.queue, 0) + 1
        self._keeper.hold(token, record, record.options.lease_ms or lease_ms, since_ms)
        return attempt

    def _ended(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """An attempt is over: free its slot, hand its end to the pump."""
        record = attempt.record
        token = record.token or ""
        attempts = self._attempts
        if attempts.pop(token, None) is None:
            return  # given back at shutdown; what it did since does not count
        self._busy[record.queue] -= 1
        if not attempts:
            self._idle.set()
        if self._keeper.drop(token) and settlement is not None:
            self._teller.ended(attempt, settlement)
            self._end(settlement)
        else:
            self._teller.lost(attempt)
            self._listener.wake()

    def _end(self, settlement: Settlement) -> None:
        self._ends.append(settlement)
        if len(self._ends) == 1:  # else it is awake, or about to look
            self._listener.wake()

    def _on_progress(self, job: Job[Any], progress: Any) -> None:
        if self._emitter.wants("progress"):
            self._emitter.emit("progress", job, progress)

    def _on_lost(self, token: str) -> None:
        attempt = self._attempts.get(token)
        if attempt is not None:
            log_attempt(logging.WARNING, "lost its lease and is stopped", attempt)
            attempt.stop(StopReason.LOST)

    def _on_cancel(self, token: str) -> None:
        attempt = self._attempts.get(token)
        if attempt is not None:
            attempt.stop(StopReason.CANCEL)

    async def _ask_cancels(self) -> None:
        """Somebody cancelled a job that may run here: ask which."""
        leases = [
            rq.LeaseRef(a.record.queue, a.record.id, token, a.record.options.lease_ms or self._lease_ms)
            for token, a in self._attempts.items()
        ]
        if not leases:
            return
        for lease, answer in zip(leases, await self._call(rq.Extend(leases=leases)), strict=True):
            if answer is Extended.CANCELLING:
                self._on_cancel(lease.token)

    # --- the end ---------------------------------------------------------------------------------

    async def _finish_attempts(self, stop: Stop) -> None:
        """Let running jobs end by themselves, then by force, then give them back."""
        if not await stop.wait_unhurried(self._idle, self.options.ms("grace")):
            for attempt in list(self._attempts.values()):
                attempt.stop(StopReason.SHUTDOWN)
            await stop.wait_unhurried(self._idle, self.options.ms("cancel_wait"))
        for token, attempt in list(self._attempts.items()):
            del self._attempts[token]
            attempt.stop(StopReason.SHUTDOWN)
            self.abandoned += 1
            if attempt.handler.mode == "thread" or not stop.hurried.is_set():
                self.left_behind.append(f"job {attempt.record.id} ({printable(attempt.record.task)})")
            if self._keeper.drop(token):
                end = attempt.release("shutdown")
                self._teller.ended(attempt, end)
                self._end(end)
        self._listener.wake()

    def _abandon_pump(self) -> None:
        """The store has not taken all settlements in time: leave them, their leases run out."""
        self._name_left([f"the answer to {type(request).__name__}" for request in self._pending])
        ends, self._ends = self._ends, []
        if ends or not self._pending:
            self._name_left([f"the settlement of {len(ends)} jobs"])
        self._teller.abandon()
        self._supervisor.let_go("pump")
        self._supervisor.let_go("relay-now")
        if self._lane is not None:
            self._lane.cancel()

    def _name_left(self, names: list[str]) -> None:
        self.left_behind += names

    async def _stop_services(self) -> None:
        await asyncio.wait([self._supervisor.over("relay-now")])
        await asyncio.gather(self._duties.stop(), self._supervisor.stop("heartbeat"))

    def _make_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.concurrency, thread_name_prefix="windlass-job")

    async def _open_resources(self) -> None:
        """Enter the app's lifespan; a worker whose resources fail does not start."""
        lifespan = self.app.open_lifespan()
        value = await lifespan.__aenter__()
        # Code of the application: it may use all the time that is left.
        self._parts.opened("the app's lifespan", lambda: _leave(lifespan), most_ms=float("inf"))
        if self._context is None:
            self._context = value
        self._teller.report_errors()

    def _make_duties(self, deployed: bool) -> Duties:
        app, options, leadership = self.app, self.options, self._leadership
        duties = store_duties(app, options.ms("prune_every"), leadership)
        stalled = lambda job_id: self._emitter.emit("stalled", job_id)  # noqa: E731
        duties.append(Recoverer(app.store, options.recover_ms, stalled))
        if not deployed:
            duties.append(Deployer(app.deploy_schedules))
        if app.store.capabilities.flows:
            duties.append(self._relayer)
        return Duties(self._supervisor, leadership, duties, self._rng)

    def _on_leader(self, leads: bool) -> None:
        self._emitter.emit("leadership_acquired" if leads else "leadership_lost")

    async def _deploy_schedules(self) -> bool:
        """Bring the store the schedules of this code; if it is out of reach now, that becomes a duty."""
        try:
            if not self._owns_app:
                await self.app.deploy_schedules()
        except StorageError as exc:
            log.warning("the schedules of the code are not in the store yet: %s", printable(str(exc)))
            return False
        return True

    def _obey(self, action: Action) -> None:
        """Do what this worker was told from afar."""
        log.info("told to %s", action)
        match action:
            case "quiet":
                self.pause()
            case "resume":
                self.resume()
            case "stop":
                self._begin_close()
            case "dump":
                log.warning("what runs here now:\n%s", dump_stacks(), extra={"lines": True})

    def _handle_signals(self) -> None:
        asked = 0

        def stop() -> None:
            nonlocal asked
            asked += 1
            log.info("stopping%s", "" if asked == 1 else " at once")
            self._begin_close(force=asked > 1)

        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stop)


async def _leave(context: AbstractAsyncContextManager[Any]) -> None:
    await context.__aexit__(None, None, None)

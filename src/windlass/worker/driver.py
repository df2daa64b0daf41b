"""The driver: executes the steps of the pump and reports their outcome to it.

The worker never cancels an exchange in flight. After a failure, or when another task cancelled an exchange,
the driver reconciles before it continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from windlass.backend import requests as rq
from windlass.backend.protocol import Listener, OfferedListener, OverlappingBackend, PushedBackend
from windlass.backend.store import Store
from windlass.core.ids import new_id
from windlass.core.job import JobRecord
from windlass.core.outcome import Extended, Settlement
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.core.states import JobState
from windlass.core.text import printable
from windlass.errors import StorageError
from windlass.worker.duties import Relayer
from windlass.worker.lifecycle import PARTS_MS, Parts, Stop
from windlass.worker.parts import WorkerParts
from windlass.worker.pump import Check, Exchange, ReconcileStep, Wait
from windlass.worker.refused_settlements import settle_one_by_one
from windlass.worker.running import Running
from windlass.worker.startup import set_limits

log: Final = logging.getLogger("windlass.worker")

#: A worker with ``burst`` runs while a queue has jobs in one of these states.
_UNDONE = (JobState.WAITING, JobState.PARKED, JobState.ACTIVE, JobState.RETRYING)


class Driver:
    """Connects one worker's pump to its store. Runs on the worker's loop."""

    _store: Store

    def __init__(
        self, shared: WorkerParts, running: Running, *, on_command_hint: Callable[[], Awaitable[None]]
    ) -> None:
        self._shared = shared
        self._clock = shared.app.clock
        self._pump = shared.pump
        self._running = running
        self._emitter = shared.emitter
        self._supervisor = shared.supervisor
        self._stop = shared.stop
        self._lease_ms = shared.lease_ms
        #: Called when a command may have been sent to this worker.
        self._on_command_hint = on_command_hint
        self._listener: Listener | None = None
        self._lane: asyncio.Task[None] | None = None
        #: Whether the second lane may start: not between a failed step and the next one.
        self._lane_open = False
        #: Set when the store has answered an exchange.
        self._answered = asyncio.Event()
        #: Paused queues that keep a worker with ``burst`` from stopping, and were logged.
        self._named_as_paused: set[str] = set()
        #: Requests that the store has not answered yet.
        self._pending: list[rq.Request[Any]] = []
        #: When the last step succeeded, by the monotonic clock.
        self.last_progress_ms: float = 0

    # --- hints ---------------------------------------------------------------------------------------

    async def open(self, parts: Parts) -> None:
        """Start to listen for hints."""
        self._store = self._shared.app.store
        self._pump.overlaps = isinstance(self._store.backend, OverlappingBackend)
        self._pump.claims_separately = isinstance(self._store.backend, PushedBackend)
        await self._store.prepare(self._shared.shares.names)
        self._listener = await self._store.listen(self._topics())
        parts.opened("the listener", self._stop_listening)
        self._take_offers(self._listener)
        self.last_progress_ms = self._clock.monotonic_ms()

    def admit_held(self) -> None:
        """Claim from the queues that were added since the start began, once the store is ready for each."""
        for queue in self._shared.shares.held:
            self._supervisor.start(f"queue {queue}", partial(self._admit, queue))

    async def _admit(self, queue: str) -> None:
        await self._store.prepare([queue])
        await set_limits(self._shared, [queue])
        listener = await self._store.listen(self._topics())
        before, self._listener = self._listener, listener
        self._take_offers(listener)
        if before is not None:
            before.wake()  # the pump may be waiting on it
            before.close()
        self._shared.shares.admit(queue)
        self.request_claim()

    def wake(self) -> None:
        """End the current or the next wait of the pump."""
        if self._listener is not None:
            self._listener.wake()

    def settle(self) -> None:
        """Settle jobs that have ended: in the second lane if it is separate, else in the first one.

        The first lane is not woken if it has nothing to claim: the end of the second lane wakes it.
        """
        if self._lane_open and self._pump.claims_separately:
            self._start_second_lane(self._clock.monotonic_ms())
            if self._lane is not None and not self._lane.done() and not self._pump.waits_for_slots:
                return
        self.wake()

    def request_claim(self) -> None:
        """Make the pump claim again, because there may be new jobs or free slots."""
        if self._listener is not None:
            self._pump.hint()
            self._listener.wake()

    def decline(self) -> None:
        """Accept no more jobs from a store that offers them without a claim."""
        listener: object = self._listener
        if isinstance(listener, OfferedListener):
            listener.decline()

    def _topics(self) -> list[str]:
        queues = (f"ready:{name}" for name in self._shared.shares.names)
        return [f"worker:{self._shared.worker_id}", "schedules", *queues]

    def _take_offers(self, listener: Listener) -> None:
        """Start jobs that the store offers without a claim, if this listener supports offers."""
        if isinstance(listener, OfferedListener):
            listener.on_offer(self._begin_offered)

    def _stop_listening(self) -> None:
        for queue in self._shared.shares.held:
            self._supervisor.release(f"queue {queue}")
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    # --- the main loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Execute the pump's steps until it has finished. Errors are logged and do not end the loop."""
        while True:
            try:
                while await self._turn():
                    pass
                return
            except StorageError as exc:
                log.warning("the store is unreachable, retrying: %s", printable(str(exc)))
                self._emitter.emit("error", exc)
            except Exception as exc:
                log.exception("unexpected error in the worker, which continues")
                self._emitter.emit("error", exc)
            except asyncio.CancelledError:
                self._pump.interrupted()
                if not self._pump.closing or self._stop.is_over:
                    raise
                self._stop.force()  # all tasks of the loop were cancelled during a close
                continue
            finally:
                await self._end_second_lane()  # nothing may be in flight when the worker reconciles
            if self._stop.forced.is_set():  # a forced close has begun; its task may not have run yet
                self._pump.fail_fast()
            self._pump.step_failed(self._clock.monotonic_ms())

    async def _turn(self) -> bool:
        """Execute one step; False when the pump has finished."""
        if self._lane is not None and self._lane.done():
            lane, self._lane = self._lane, None
            lane.result()
        self._lane_open = True
        now_ms = self._clock.monotonic_ms()
        if self._pump.claims_separately:
            self._start_second_lane(now_ms)
        step = self._pump.next(now_ms)
        match step:
            case Exchange():
                self._start_second_lane(now_ms)
                await self._exchange(step)
                # Claimed jobs run their first step, so that the next exchange settles short ones.
                await asyncio.sleep(0)
            case Wait(ignore_hints=True):
                await self._rest(step.until_ms - now_ms)
                return True
            case Wait():
                await self._wait(step.until_ms - now_ms)
            case ReconcileStep():
                await self._reconcile(step)
            case Check():
                self._pump.checked(empty=await self._is_empty())
            case _:
                return False
        self.last_progress_ms = self._clock.monotonic_ms()
        return True

    def _start_second_lane(self, now_ms: float) -> None:
        """Start the second lane if there is enough work for it."""
        if self._lane is None and self._pump.wants_second_lane(now_ms):
            self._lane = asyncio.create_task(self._run_second_lane(), name="windlass-lane")

    async def _run_second_lane(self) -> None:
        """Run the second lane while there is enough work for it."""
        took("worker.lane")
        try:
            while self._lane is not None:
                exchange = self._pump.next_in_second_lane(self._clock.monotonic_ms())
                if exchange is None:
                    return
                await self._exchange(exchange)
                if not self._pump.claims_separately:
                    await asyncio.sleep(0)  # as in ``_turn``
                elif self._pump.unsettled:  # otherwise this lane ends, which wakes the first one
                    self.wake()  # the first lane may wait until fewer jobs are unsettled
        finally:
            self.wake()  # the first lane handles the outcome of this task

    async def _end_second_lane(self) -> None:
        """Wait until the request of the second lane has ended, with or without an error."""
        self._lane_open = False
        lane, self._lane = self._lane, None
        if lane is not None:
            await asyncio.wait([lane])
            if not lane.cancelled() and (error := lane.exception()) is not None:
                log.debug("a request of the second lane failed as well: %s", error)

    async def _rest(self, ms: float) -> None:
        """Wait after a failure. Only a forced close ends this early."""
        await self._clock.wait(self._stop.forced, ms)
        if self._stop.forced.is_set():
            self._pump.fail_fast()

    async def _wait(self, ms: float) -> None:
        assert self._listener is not None
        topics: frozenset[str] = frozenset()
        try:
            topics = await self._listener.wait(ms, self._clock)
        finally:
            self._pump.woke(self._clock.monotonic_ms(), topics)
        if "schedules" in topics:
            self._supervisor.run_now("schedule")
        if f"worker:{self._shared.worker_id}" in topics:
            await self._check_cancelled()
            await self._on_command_hint()

    # --- requests ------------------------------------------------------------------------------------

    async def _exchange(self, exchange: Exchange) -> None:
        """Settle ended jobs and claim new ones, in one round trip."""
        sent_ms, claim = self._clock.monotonic_ms(), self._claim(exchange)
        relay, answers = False, []
        try:
            if exchange.settlements:
                result = await self._settle(exchange.settlements, claim)
                claimed, relay, answers = result.claimed, result.relay, result.items
            else:
                claimed = await self._call(claim)
        except BaseException:
            self._pump.failed(exchange)
            self._answered.set()
            raise
        drained = self._pump.answered(exchange, claimed, sent_ms)
        self._running.reporter.settled(exchange.settlements, answers)
        self._answered.set()
        if relay:
            self._supervisor.start("relay-now", self._relay)
        reach("worker.claimed", count=len(claimed.jobs) if claimed else 0)
        if claimed is not None:
            # The other lane may be settling an earlier attempt of these jobs, which is reported first.
            while self._pump.is_settling(claimed.jobs):
                self._answered.clear()
                await self._answered.wait()
            self._running.begin(claimed.jobs, self._lease_ms, sent_ms - claimed.held_ms)
        if drained:
            self._emitter.emit("drained")

    def _claim(self, exchange: Exchange) -> rq.Claim | None:
        if not exchange.queues:
            return None
        return rq.Claim(
            worker=self._shared.worker_id,
            queues=exchange.queues,
            limit=exchange.limit,
            claim_id=new_id(),
            lease_ms=self._lease_ms,
            idle=exchange.idle,
        )

    async def _settle(self, settlements: list[Settlement], claim: rq.Claim | None) -> rq.SettleResult:
        """Settle in one request; one by one and without the claim if the store refuses that."""
        try:
            result: rq.SettleResult = await self._call(rq.Settle(items=settlements, claim=claim))
        except StorageError:
            raise
        except Exception as exc:
            return await settle_one_by_one(self._call, settlements, exc)
        return result

    async def _call(self, request: Any) -> Any:
        self._pending.append(request)
        try:
            return await self._store.execute(request)
        finally:
            self._pending.remove(request)

    def _begin_offered(self, record: JobRecord, since_ms: float) -> bool:
        """Start an offered job. False when no slot is free, or when a claim is about to be sent."""
        if not self._pump.has_room(record.queue, self._clock.monotonic_ms()):
            return False
        if self._pump.is_settling([record]):  # a claim would wait for the settlement; an offer cannot
            return False
        self._running.begin([record], self._lease_ms, since_ms)
        if self._pump.took_offer() and self._emitter.wants("drained"):
            self._emitter.emit("drained")
        return True

    async def _reconcile(self, step: ReconcileStep) -> None:
        """Release leases that this worker does not hold, so that their jobs need not wait for a stall."""
        held = [*self._running.attempts, *step.tokens]
        released = await self._call(rq.Reconcile(worker=self._shared.worker_id, held=held))
        if released:
            log.info("released %d leases: the answer to their claim was lost", released)
        self._pump.reconciled()
        self._running.release_unstarted()
        reach("worker.reconciled", released=released)

    async def _is_empty(self) -> bool:
        """Whether no queue of this worker has jobs that are waiting, parked, active or retrying."""
        await asyncio.wait([self._supervisor.over("relay-now")])
        for name in self._shared.shares.names:
            counts = await self._call(rq.CountJobs(queue=name))
            if any(counts[state] for state in _UNDONE):
                if counts[JobState.WAITING] and name not in self._named_as_paused:
                    await self._name_if_paused(name)
                return False
        return True

    async def _name_if_paused(self, queue: str) -> None:
        """Log once that this worker cannot become empty, because ``queue`` is paused."""
        infos = await self._call(rq.ListQueues())
        if any(info.name == queue and info.paused for info in infos):
            self._named_as_paused.add(queue)
            log.warning("waiting for the jobs of queue %s, which is paused: windlass resume %s", queue, queue)

    async def _relay(self) -> None:
        """Notify dependents that did not fit into the request that settled the job. Runs beside the pump.

        A worker that closes stops after the current step; the leader does the rest.
        """
        relayer, more = Relayer(self._store), True
        try:
            while more:
                more = (await relayer.step()).more and not self._pump.closing
        except Exception as exc:  # ``drain`` awaits this task: a stored error would be raised each time
            text = printable(str(exc))
            log.warning("could not notify all dependents of ended jobs; the leader will do it: %s", text)

    async def _check_cancelled(self) -> None:
        """Ask the store which running jobs were cancelled, and stop those."""
        leases = self._running.leases(self._lease_ms)
        if leases:
            for lease, answer in zip(leases, await self._call(rq.Extend(leases=leases)), strict=True):
                if answer is Extended.CANCELLING:
                    self._running.cancel(lease.token)

    # --- shutdown ------------------------------------------------------------------------------------

    async def end(self, stop: Stop) -> list[str]:
        """Wait until all jobs are settled, as long as ``stop`` allows.

        Returns the names of pending requests and settlements that were abandoned. Their leases expire.
        """
        over = self._supervisor.over("pump")
        if await stop.wait_for(over, keep_ms=PARTS_MS) and not self._pump.unsettled:
            return []
        left = [f"the answer to {type(request).__name__}" for request in self._pending]
        unsettled = self._pump.abandon()
        if unsettled or not left:
            left.append(f"the settlement of {unsettled} jobs")
        self._running.reporter.abandon()
        self._supervisor.release("pump")
        self._supervisor.release("relay-now")
        if self._lane is not None:
            self._lane.cancel()
        return left

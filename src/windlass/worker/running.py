"""The jobs that run in one worker. Each has a slot and a lease, from its claim to its end.

A lease is never held without a slot. Ended jobs are handed to the pump, which settles them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final

import msgspec

from windlass.api.queue import Queue
from windlass.backend import requests as rq
from windlass.core.job import JobRecord, WorkerFacts
from windlass.core.outcome import Outcome, Settlement
from windlass.core.text import printable
from windlass.handlers.registry import Handler
from windlass.jobs.abort import StopReason
from windlass.jobs.job import Job
from windlass.worker import classify
from windlass.worker.attempt import Attempt, Tools
from windlass.worker.attempt_log import log_attempt
from windlass.worker.batches import Batches
from windlass.worker.child_processes import SandboxRunner
from windlass.worker.leases import LeaseKeeper
from windlass.worker.lifecycle import Parts, Stop
from windlass.worker.loop_watch import LoopWatch
from windlass.worker.parts import WorkerParts
from windlass.worker.reporter import OutcomeReporter

log: Final = logging.getLogger("windlass.worker")

_Routes = dict[tuple[str, str], tuple[Queue, Handler | None]]


class Running:
    """The running attempts of one worker. Used on the worker's loop only."""

    _keeper: LeaseKeeper
    _threads: ThreadPoolExecutor
    _tools: Tools

    def __init__(self, shared: WorkerParts, *, wake: Callable[[], None], settle: Callable[[], None]) -> None:
        self._shared = shared
        self._app = shared.app
        self._pump = shared.pump
        self._emitter = shared.emitter
        #: Wakes the pump, and has it settle ended jobs.
        self._wake = wake
        self._settle = settle
        self._facts: Callable[[int], WorkerFacts] = lru_cache(maxsize=64)(shared.facts)
        self._queues: dict[str, Queue] = {}
        self.reporter: OutcomeReporter = OutcomeReporter(shared.emitter, shared.app.hooks)
        #: Running attempts by the token of their lease.
        self.attempts: dict[str, Attempt] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        #: The number of handlers that did not stop in time. Their jobs were released.
        self.abandoned: int = 0

    async def open(self, parts: Parts) -> None:
        """Open the lease keeper, the loop watch, the threads and the child processes."""
        app, shared = self._app, self._shared
        self._keeper = LeaseKeeper(app.store, shared.supervisor, on_lost=self._lost, on_cancel=self.cancel)
        parts.opened("the renewing of leases", self._keeper.stop)
        await self._keeper.start()
        watch = LoopWatch(self.attempts)
        parts.opened("the watch of the event loop", watch.stop)
        watch.start()
        self._threads = self._make_threads()
        parts.opened("threads", lambda: self._threads.shutdown(wait=False, cancel_futures=True))
        processes = SandboxRunner(shared.options)
        parts.opened("child processes", processes.close)
        self._tools = Tools(
            clock=app.clock,
            codecs=app.codecs,
            threads=self._threads,
            processes=processes,
            strategies=shared.strategies,
            rng=shared.rng,
            max_result_bytes=app.max_payload_bytes,
            hooks=app.hooks,
            batches=Batches(app.clock, lambda: self._threads, lambda: self._pump.slots),
            context=shared.context,
            on_progress=self._on_progress,
            on_end=self._ended,
            stopping=lambda: self._pump.closing,
        )

    def _make_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._pump.slots, thread_name_prefix="windlass-job")

    def resize(self) -> None:
        """Replace the thread pool after the number of slots has changed."""
        before, self._threads = self._threads, self._make_threads()
        self._tools.threads = self._threads
        before.shutdown(wait=False)  # its running jobs finish in it

    # --- starting jobs -------------------------------------------------------------------------------

    def begin(self, jobs: list[JobRecord], lease_ms: int, since_ms: float) -> None:
        """Start claimed jobs. ``since_ms`` (monotonic) is when their leases were requested."""
        routes: _Routes = {}
        begun: list[Attempt] = []
        leased: list[JobRecord] = []
        for record in jobs:
            if self._pump.closing:  # the stop began while the claim was in flight
                self._end(record, classify.end(record, Outcome.RELEASE, reason="shutdown"))
            elif (attempt := self._admit(record, routes)) is not None:
                begun.append(attempt)
                leased.append(record)
        if leased:
            self._keeper.hold(leased, lease_ms, since_ms)
        create_task = asyncio.get_running_loop().create_task
        for attempt in begun:
            attempt.task = create_task(attempt.run(), name=attempt.record.id)
        self.reporter.started(begun)

    def _admit(self, record: JobRecord, routes: _Routes) -> Attempt | None:
        """Assign a slot to a claimed job; None when it cannot run. ``routes`` is a cache for this claim."""
        name = (record.queue, record.task)
        route = routes.get(name)
        if route is None:
            route = routes[name] = self._route(*name)
        queue, handler = route
        if handler is None:
            facts = {"job_id": record.id, "task": record.task, "queue": record.queue}
            advice = self._shared.registry.advice(record.task)
            log.warning(
                "no handler here for task %r of queue %r%s", record.task, record.queue, advice, extra=facts
            )
            self._end(record, classify.unknown_task(record))
            return None
        attempt = Attempt(queue, record, handler, self._tools)
        bad = attempt.decode()
        if bad is not None:
            self.reporter.refused(attempt, bad)
            self._end(record, bad)
            return None
        if not self.attempts:
            self._idle.clear()
        self.attempts[record.token or ""] = attempt
        self._pump.began(record.queue)
        return attempt

    def _route(self, queue_name: str, task: str) -> tuple[Queue, Handler | None]:
        """Return the queue object and the handler of a task."""
        queue = self._queues.get(queue_name)
        if queue is None:
            # The worker has its own queue objects, so that the application can close its own at any time.
            queue = self._queues[queue_name] = Queue(queue_name, self._app)
        return queue, self._shared.registry.find(queue_name, task)

    # --- ending jobs ---------------------------------------------------------------------------------

    def _ended(self, attempt: Attempt, settlement: Settlement | None) -> None:
        """Free the slot of an ended attempt and queue its settlement."""
        record = attempt.record
        token = record.token or ""
        attempts = self.attempts
        if attempts.pop(token, None) is None:
            return  # its job was released by the shutdown
        self._pump.freed(record.queue)
        if not attempts:
            self._idle.set()
        if self._keeper.drop(token) and settlement is not None:
            self.reporter.ended(attempt, settlement)
            self._end(record, settlement)
        else:
            self.reporter.lost(attempt)
            self._wake()

    def release_unstarted(self) -> None:
        """Release jobs whose task was cancelled before its first step, by a handler that cancels all."""
        for attempt in list(self.attempts.values()):
            if attempt.task is not None and attempt.task.done():
                self._ended(attempt, attempt.release("reconciled"))

    def _end(self, record: JobRecord, settlement: Settlement) -> None:
        """Queue a settlement with the pump, with the worker's data for the history."""
        settlement.facts = self._facts(record.options.max_attempts)
        error = settlement.error
        if error is not None and (brief := self._app.messages.brief(error.message)) is not None:
            settlement.error = msgspec.structs.replace(error, brief=brief)
        if self._pump.ended(settlement):
            self._settle()

    def _on_progress(self, job: Job[Any], progress: Any) -> None:
        if self._emitter.wants("progress"):
            self._emitter.emit("progress", job, progress)

    def _lost(self, token: str) -> None:
        attempt = self.attempts.get(token)
        if attempt is not None:
            log_attempt(logging.WARNING, "lost its lease and is stopped", attempt.record)
            attempt.stop(StopReason.LOST)

    def cancel(self, token: str) -> None:
        """Stop the job with this lease token as cancelled, if it runs here."""
        attempt = self.attempts.get(token)
        if attempt is not None:
            attempt.stop(StopReason.CANCEL)

    def abort(self, job_id: str, reason: str) -> bool:
        """Stop a job as cancelled, with ``reason``; False when it does not run here."""
        found = [attempt for attempt in self.attempts.values() if attempt.record.id == job_id]
        for attempt in found:
            attempt.stop(StopReason.CANCEL, reason)
        return bool(found)

    def leases(self, lease_ms: int) -> list[rq.LeaseRef]:
        """Return the leases of all running jobs. ``lease_ms`` is for jobs without their own lease time."""
        return [
            rq.LeaseRef(a.record.queue, a.record.id, token, a.record.options.lease_ms or lease_ms)
            for token, a in self.attempts.items()
        ]

    async def wait_idle(self) -> None:
        """Return when no job runs."""
        await self._idle.wait()

    async def finish(self, stop: Stop) -> list[str]:
        """Wait for running jobs, then cancel them, then release the rest.

        Returns the names of jobs whose handlers did not end.
        """
        options, left = self._shared.options, list[str]()
        if not stop.forced.is_set():
            self._tools.batches.flush()
        if not await stop.wait_unless_forced(self._idle, options.ms("grace")):
            for attempt in list(self.attempts.values()):
                attempt.stop(StopReason.SHUTDOWN)
            await stop.wait_unless_forced(self._idle, options.ms("cancel_wait"))
        for token, attempt in list(self.attempts.items()):
            del self.attempts[token]
            self._pump.freed(attempt.record.queue)
            attempt.stop(StopReason.SHUTDOWN)
            self.abandoned += 1
            if attempt.handler.mode == "thread" or not stop.forced.is_set():
                left.append(f"job {attempt.record.id} ({printable(attempt.record.task)})")
            if self._keeper.drop(token):
                end = attempt.release("shutdown")
                self.reporter.ended(attempt, end)
                self._end(attempt.record, end)
        self._wake()
        return left

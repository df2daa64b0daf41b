"""One run of one job, in six steps. ``run`` goes through steps 2 to 6; the file has them in this order:

1. decode: the stored bytes become the arguments of the call;
2. inject: the handler gets the arguments as it annotated them, and its dependencies;
3. run: on the loop, in a thread, in a child process or as part of a batch;
4. encode: the returned value becomes bytes;
5. classify: the outcome becomes a settlement;
6. settle: the worker queues the settlement and frees the slot.

An attempt ends in exactly one settlement, or in none when its lease was lost. A timeout, a cancel or a
shutdown sets the attempt's abort signal and cancels the handler where that is possible (``stop``). How the
attempt ends is decided in step 5, by the reason of the signal and by what the handler did.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from windlass.api.queue import Queue
from windlass.core.backoff import BackoffStrategy
from windlass.core.clock import Clock, Timer
from windlass.core.job import JobRecord
from windlass.core.outcome import Filled, Outcome, Settlement
from windlass.errors import (
    Cancel,
    JobTimeoutError,
    RateLimitError,
    ResultError,
    Snooze,
    Suspend,
    UnsupportedByBackendError,
    WaitForChildren,
)
from windlass.handlers.hooks import Hooks
from windlass.handlers.registry import Handler
from windlass.jobs.abort import AbortSignal, StopReason
from windlass.jobs.context import set_current_job
from windlass.jobs.job import Job
from windlass.jobs.payload import Call, read_call
from windlass.serde import JSON
from windlass.serde.codecs import Codecs
from windlass.worker import classify
from windlass.worker.batches import Batches, run_in_thread
from windlass.worker.taking import take_results

log: Final = logging.getLogger("windlass.worker")


#: The encoded result of handlers that return None, which most do.
_NULL = JSON.encode(None)
_COMPLETE: Final = Outcome.COMPLETE  # members of an enum are slow to look up
#: Signals about the job rather than about this run. They count even during a shutdown.
_JOB_SIGNALS: Final = (Snooze, Cancel, RateLimitError, WaitForChildren, Suspend)


class ProcessRunner(Protocol):
    """Runs a handler in a child process. Cancelling the call kills the child that runs it."""

    async def run(self, attempt: Attempt) -> Any: ...


@dataclass(slots=True, kw_only=True)
class Tools:
    """Objects that all attempts of a worker share."""

    clock: Clock
    codecs: Codecs
    threads: ThreadPoolExecutor
    processes: ProcessRunner
    strategies: Mapping[str, BackoffStrategy]
    rng: random.Random
    max_result_bytes: int
    hooks: Hooks
    batches: Batches
    #: ``job.context`` of every job, and the callback for its progress.
    context: Any
    on_progress: Callable[[Job[Any], Any], None]
    #: Called when an attempt has ended; None when there is nothing to settle.
    on_end: Callable[[Attempt, Settlement | None], None]
    #: Whether the worker is being closed.
    stopping: Callable[[], bool]


class Attempt:
    """One run of a job in this worker."""

    __slots__ = (
        "_job",
        "_signal",
        "_timer",
        "call",
        "error",
        "filled",
        "handler",
        "in_thread",
        "queue",
        "record",
        "result",
        "started_ms",
        "task",
        "tools",
    )

    def __init__(self, queue: Queue, record: JobRecord, handler: Handler, tools: Tools) -> None:
        self.queue: Queue = queue
        self.record: JobRecord = record
        self.handler: Handler = handler
        self.tools: Tools = tools
        self.call: Call | None = None
        self._signal: AbortSignal | None = None
        self._job: Job[Any] | None = None
        self.started_ms: float | None = None
        self.task: asyncio.Task[None] | None = None
        #: Whether its function runs in a thread now, which cannot be interrupted.
        self.in_thread: bool = False
        self.result: Any = None
        self.error: BaseException | None = None
        self._timer: Timer | None = None
        self.filled: Filled | None = None
        if record.options.unsaid and handler.task is not None:
            record.options, self.filled = handler.task.filling.fill(record.options)

    # --- 1. decode: before the job has a slot --------------------------------------------------------

    def decode(self) -> Settlement | None:
        """Decode the arguments. Returns a settlement that fails the job when they cannot be decoded."""
        try:
            self.call = read_call(self.tools.codecs, self.record)
        except Exception as exc:  # a custom codec may raise anything
            bad = classify.bad_payload(self.record, exc)
            bad.filled = self.filled
            return bad
        return None

    # --- steps 2 to 6 --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Call the handler, classify how it ended, and report that to ``tools.on_end``. Never raises."""
        now_ms = self.tools.clock.monotonic_ms
        self.started_ms = started_ms = now_ms()
        set_current_job(self.get_job)
        settlement: Settlement | None = None
        try:
            try:
                value = await self._begin()
            except BaseException as exc:
                settlement = self._settle_raised(exc)
            else:
                settlement = self._settle_returned(value)
        except BaseException as fault:  # classifying failed: this counts as a failed attempt
            log.exception("the outcome of an attempt of job %r could not be determined", self.record.id)
            self.error = fault if self.error is None else self.error
            settlement = classify.broken(self.record, self.error, fault)
        finally:
            self.task = None  # breaks a reference cycle, so that the garbage collector has less to do
            if self._timer is not None:
                self._timer.cancel()
            if settlement is not None:
                settlement.duration_ms = int(now_ms() - started_ms)
                settlement.filled = self.filled
            self.tools.on_end(self, settlement)  # 6. settle; None when the lease was lost

    def _begin(self) -> Awaitable[Any]:
        """Start the time limit and return an awaitable that runs the handler within the app's hooks."""
        handler = self.handler
        if self.record.options.timeout_ms is not None and handler.mode != "process" and handler.batch is None:
            self.start_timer()
        if self._signal is not None and self._signal.reason is not None:
            raise asyncio.CancelledError  # stopped before its first step
        if self.call is not None and self.call.takes is not None:
            return self._with_results(self.call)
        return self._call_with_hooks()

    async def _with_results(self, call: Call) -> Any:
        """Put the results of the previous steps into the arguments, then call the handler."""
        await take_results(self.queue, self.record, call)
        return await self._call_with_hooks()

    def _call_with_hooks(self) -> Awaitable[Any]:
        around = self.tools.hooks.execute
        return self._inject() if around is None else around(self.get_job(), self._inject)

    # --- 2. inject -----------------------------------------------------------------------------------

    def _inject(self) -> Awaitable[Any]:
        """Return an awaitable that calls the handler with its job or its arguments, and its dependencies."""
        handler = self.handler
        if handler.mode == "process":  # the child injects
            return self.tools.processes.run(self)
        if handler.batch is not None:  # one call for all jobs of the batch
            return self.tools.batches.join(self)
        if handler.is_simple and handler.takes_job:  # no list to make and unpack
            awaitable: Awaitable[Any] = handler.call(self.get_job())
            return awaitable
        args, kwargs = ([self.get_job()], {}) if handler.takes_job else self._arguments()
        if handler.needs is not None:
            return handler.needs.call(self._call, args, kwargs)
        return self._call(args, kwargs)

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        call = self.call
        assert call is not None
        arguments: tuple[list[Any], dict[str, Any]] = self.handler.task.signature.decode(
            call.args, call.kwargs
        )
        return arguments

    # --- 3. run --------------------------------------------------------------------------------------

    def _call(self, args: list[Any], kwargs: dict[str, Any]) -> Awaitable[Any]:
        """Return the handler's own coroutine, or one that waits for its thread."""
        handler = self.handler
        if handler.mode == "loop":
            awaitable: Awaitable[Any] = handler.call(*args, **kwargs)
            return awaitable
        return self._in_thread(args, kwargs)

    async def _in_thread(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        self.get_job().loop = asyncio.get_running_loop()
        self.in_thread = True
        try:
            value = await run_in_thread(self.tools.threads, self.handler.call, *args, **kwargs)
        finally:
            self.in_thread = False
        if not inspect.isawaitable(value):
            return value
        # A plain function may return a coroutine (a wrapped async one): finish it on the loop.
        if self.stopped_for is not None and self.task is not None:
            self.task.cancel()  # ``stop`` could not
        return await value

    def start_timer(self) -> None:
        """Start the attempt's time limit, if it has one."""
        timeout_ms = self.record.options.timeout_ms
        if timeout_ms is not None:
            self._timer = self.tools.clock.call_later(timeout_ms, partial(self.stop, StopReason.TIMEOUT))

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Ask the attempt to stop. Only the first reason counts.

        What runs on the loop is cancelled. A thread cannot be interrupted; its handler sees the abort signal.
        """
        if self.signal.aborted:
            return
        self.signal.abort(reason, detail)
        # Before the first step there is nothing to cancel; run() checks the signal.
        if self.started_ms is not None and self.task is not None and not self.in_thread:
            self.task.cancel()

    # --- 4. encode -----------------------------------------------------------------------------------

    def _encode(self, value: Any) -> bytes:
        record, codecs = self.record, self.tools.codecs
        try:
            if value is None and codecs.output(record.result_codec) is JSON:
                data = _NULL
            else:
                data = codecs.write_result(record, value)
        except ResultError:
            raise
        except Exception as exc:  # a custom codec may raise anything
            what = f"the result ({type(value).__name__}) cannot be stored as {record.result_codec}"
            raise ResultError(f"{what}: {classify.message_of(exc)}") from None
        limit = self.tools.max_result_bytes
        if len(data) > limit:
            what = f"the result is {len(data)} bytes, over the limit of {limit}"
            raise ResultError(f"{what}; store it elsewhere and return a reference")
        return data

    # --- 5. classify ---------------------------------------------------------------------------------

    # If the attempt was asked to stop, the reason counts. After a lost lease there is nothing to settle. A
    # timeout is a failed attempt, which is retried like any other. A cancel and a shutdown count only if the
    # handler raised: a handler that returned has completed its job.

    def _settle_returned(self, value: Any) -> Settlement | None:
        """Settle a handler that returned. That completes the job unless it timed out or lost its lease."""
        match self.stopped_for:
            case None:  # first, because members of an enum are slow to look up
                pass
            case StopReason.LOST:
                return None
            case StopReason.TIMEOUT:
                return self._settle_failed(self._timeout_error())
        return self._settle_completed(value)

    def _settle_completed(self, value: Any) -> Settlement:
        """Complete the job with ``value``. A value that cannot be stored fails the job without a retry."""
        record = self.record
        try:
            data = self._encode(value)
        except ResultError as exc:
            self.error = exc
            return classify.classify(record, exc, rng=self.tools.rng)
        self.result = value
        return Settlement(
            queue=record.queue, id=record.id, token=record.token or "", outcome=_COMPLETE, result=data
        )

    def _settle_raised(self, error: BaseException) -> Settlement | None:
        """Settle a handler that raised ``error``, by itself or because it was cancelled."""
        kind = type(error)  # do not trust ``__class__``, which an exception of the application may override
        match self.stopped_for:
            case StopReason.LOST:
                return None
            case StopReason.CANCEL:
                return classify.end(
                    self.record, Outcome.CANCEL, reason=self.signal.detail or self.record.cancel_reason or ""
                )
            case StopReason.SHUTDOWN if not issubclass(kind, _JOB_SIGNALS):
                return self.release("shutdown")
            case StopReason.TIMEOUT:
                timeout = self._timeout_error()
                timeout.__cause__ = None if issubclass(kind, asyncio.CancelledError) else error
                return self._settle_failed(timeout)
            case None if issubclass(kind, asyncio.CancelledError) and self.tools.stopping():
                return self.release("shutdown")  # all tasks of the loop were cancelled
        return self._settle_failed(error)

    def _settle_failed(self, error: BaseException) -> Settlement:
        self.error = error
        self.error = error = self._check_supported(error)
        return classify.classify(
            self.record,
            error,
            discarded=self._job is not None and self._job.discarded,
            strategies=self.tools.strategies,
            rng=self.tools.rng,
        )

    def _check_supported(self, error: BaseException) -> BaseException:
        """Return ``error``, or ``UnsupportedByBackendError`` for a signal that the store does not support."""
        needs = {WaitForChildren: "flows", Suspend: "signals"}.get(type(error), "")
        store = self.job.queue.store
        if not needs or getattr(store.capabilities, needs):
            return error
        return UnsupportedByBackendError(store.name, needs)

    def _timeout_error(self) -> JobTimeoutError:
        seconds = (self.record.options.timeout_ms or 0) / 1000
        return JobTimeoutError(f"the attempt ran longer than its timeout of {seconds:g} s")

    def release(self, reason: str) -> Settlement:
        """Return the job unfinished to its old place, without using an attempt."""
        return classify.end(self.record, Outcome.RELEASE, reason=reason)

    # --- what the handler sees -----------------------------------------------------------------------

    def get_job(self) -> Job[Any]:
        """Return the job that the handler sees; it is created on first use."""
        if self._job is None:
            tools = self.tools
            self._job = Job(
                self.queue,
                self.record,
                held=True,
                abort_signal=self.signal,
                context=tools.context,
                on_progress=tools.on_progress,
                call=self.call,
            )
        return self._job

    @property
    def job(self) -> Job[Any]:
        return self.get_job()

    @property
    def signal(self) -> AbortSignal:
        """The signal that asks the handler to stop, created on first use."""
        if self._signal is None:
            self._signal = AbortSignal()
        return self._signal

    @property
    def stopped_for(self) -> StopReason | None:
        """Why it was asked to stop; None when it was not."""
        return None if self._signal is None else self._signal.reason

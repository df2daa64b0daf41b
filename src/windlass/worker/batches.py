"""Collects attempts of batch tasks and runs each batch in one call.

Every job of a batch keeps its own attempt with its slot, lease, time limit and settlement; only the call is
shared. A job that is stopped while its batch is being collected leaves the batch. A job that is stopped while
the batch runs is settled at once, and the call is cancelled when no attempt waits for it any more.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from windlass.core.clock import Clock
from windlass.core.job import JobRecord
from windlass.errors import BatchError, ResultError
from windlass.handlers.batch import Batch
from windlass.handlers.registry import Handler
from windlass.jobs.abort import AbortSignal
from windlass.jobs.job import Job


class BatchedAttempt(Protocol):
    """The part of an attempt that a batch uses."""

    handler: Handler
    record: JobRecord
    in_thread: bool

    @property
    def job(self) -> Job[Any]: ...

    @property
    def signal(self) -> AbortSignal: ...

    def start_timer(self) -> None:
        """Start the attempt's time limit."""


class _Member:
    """One job of a batch: its attempt, the handler's argument for it, and the future of its result."""

    __slots__ = ("attempt", "done", "item")

    def __init__(self, attempt: BatchedAttempt, item: Any, done: asyncio.Future[Any]) -> None:
        self.attempt: BatchedAttempt = attempt
        self.item: Any = item
        self.done: asyncio.Future[Any] = done


class Batches:
    """The open batches of one worker, used on its event loop. ``slots`` returns the worker's concurrency."""

    def __init__(
        self, clock: Clock, threads: Callable[[], ThreadPoolExecutor], slots: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._threads = threads
        self._slots = slots
        self._context = contextvars.copy_context()  # a batch must not run in the context of one of its jobs
        self._open: dict[int, _Gathering] = {}
        self._closing = False

    async def join(self, attempt: BatchedAttempt) -> Any:
        """Add ``attempt`` to a batch and wait for its result."""
        handler = attempt.handler
        if handler.takes_job:
            item: Any = attempt.job
        else:
            call = attempt.job.call
            (item,), _ = handler.task.signature.decode(call.args, call.kwargs)
        gathering = self._open.get(id(handler))
        if gathering is None:
            gathering = self._open[id(handler)] = _Gathering(self, handler)
        member = _Member(attempt, item, asyncio.get_running_loop().create_future())
        gathering.members.append(member)
        if self._closing or len(gathering.members) >= min(gathering.batch.size, self._slots()):
            self.close(gathering)
            gathering.full.set()
        try:
            return await member.done
        finally:
            gathering.left(member)

    def flush(self) -> None:
        """Wait for no more jobs from now on, because the worker closes and gets none."""
        self._closing = True
        for gathering in list(self._open.values()):
            self.close(gathering)
            gathering.full.set()

    def start(self, gathering: _Gathering) -> asyncio.Task[None]:
        """Run ``gathering`` as a task with its own context."""
        context = self._context.copy()
        return asyncio.get_running_loop().create_task(gathering.run(), name="windlass-batch", context=context)

    def close(self, gathering: _Gathering) -> None:
        """Accept no more jobs in ``gathering``."""
        if self._open.get(id(gathering.handler)) is gathering:
            del self._open[id(gathering.handler)]

    async def wait(self, full: asyncio.Event, ms: int) -> None:
        """Wait until the batch is full, at most ``ms``."""
        if ms:
            await self._clock.wait(full, ms)
        else:
            await asyncio.sleep(0)  # jobs of one claim join in the same iteration of the loop

    async def in_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``fn`` in one of the worker's threads."""
        return await run_in_thread(self._threads(), fn, *args, **kwargs)


async def run_in_thread(
    threads: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run ``fn`` in one of ``threads`` with a copy of this context. Errors are raised here unchanged.

    The thread returns an error as a value, because its future would change some of them: it cannot carry
    ``StopIteration``, replaces ``TimeoutError`` without its traceback, and a ``CancelledError`` would look
    like a cancel of the waiting task.
    """
    call = functools.partial(_outcome_of, fn, *args, **kwargs)
    context = contextvars.copy_context()
    value, error = await asyncio.get_running_loop().run_in_executor(threads, context.run, call)
    if error is None:
        return value
    try:
        raise error
    finally:
        del error  # breaks the reference cycle of traceback and frame


def _outcome_of(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, BaseException | None]:
    try:
        return fn(*args, **kwargs), None
    except StopIteration as exc:  # a coroutine cannot raise it
        error = RuntimeError("the handler raised StopIteration")
        error.__cause__ = exc
        return None, error
    except BaseException as exc:
        return None, exc


class _Gathering:
    """One batch, from its first job until its handler has returned."""

    def __init__(self, batches: Batches, handler: Handler) -> None:
        assert handler.batch is not None
        self.handler = handler
        self.batch: Batch = handler.batch
        self.members: list[_Member] = []
        self.full: asyncio.Event = asyncio.Event()
        self._batches = batches
        self._running = self._in_thread = False
        self._task = batches.start(self)
        self._task.add_done_callback(self._ended)

    def left(self, member: _Member) -> None:
        """Called when ``member`` has its result or was stopped."""
        if not self._running:
            self.members.remove(member)
            if not self.members:
                self._batches.close(self)
                self._task.cancel()
        elif not self._in_thread and all(one.done.done() for one in self.members):
            self._task.cancel()  # no effect on a call that has ended

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Cancel jobs that have no result, because other code cancelled the task."""
        self._batches.close(self)
        for member in self.members:
            member.done.cancel()  # no effect on those that have one

    async def run(self) -> None:
        """Collect jobs, call the handler, and set the result of each job."""
        await self._batches.wait(self.full, self.batch.timeout_ms)
        self._batches.close(self)
        self._running = True
        for member in self.members:
            if member.attempt.signal.aborted:
                member.done.cancel()
        members = self.members = [one for one in self.members if not one.done.done()]
        if not members:
            return
        try:
            outcome = await self._outcome(members)
        except BaseException as exc:
            outcome = [exc] * len(members)
        for member, value in zip(members, outcome, strict=True):
            _set_outcome(member, value)

    async def _outcome(self, members: list[_Member]) -> Sequence[Any]:
        for member in members:
            member.attempt.start_timer()
        try:
            return _split_results(members, await self._call([member.item for member in members]))
        except BatchError as exc:
            return _partly_failed(members, exc)

    async def _call(self, items: list[Any]) -> Any:
        if self.handler.needs is not None:
            return await self.handler.needs.call(self._invoke, [items], {})
        return await self._invoke([items], {})

    async def _invoke(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        call = self.handler.call
        if self.handler.mode == "loop":
            return await call(*args, **kwargs)
        self._set_in_thread(True)
        try:
            value = await self._batches.in_thread(call, *args, **kwargs)
        finally:
            self._set_in_thread(False)
        if not inspect.isawaitable(value):
            return value
        for member in self.members:
            if member.attempt.signal.aborted:
                member.done.cancel()  # it could not be stopped in the thread
        return await value

    def _set_in_thread(self, value: bool) -> None:
        self._in_thread = value
        for member in self.members:
            member.attempt.in_thread = value


def _split_results(members: list[_Member], results: Any) -> list[Any]:
    """Return each job's part of the handler's return value. Raises ``ResultError`` if they do not match."""
    if results is None:
        return [None] * len(members)
    wanted = f"a batch handler returns None or one result for each of its {len(members)} jobs"
    if not isinstance(results, (list, tuple)):
        raise ResultError(f"{wanted}, not {type(results).__name__}")
    shares = list(results)  # a custom list may report a wrong length
    if len(shares) != len(members):
        raise ResultError(f"{wanted}, not {len(shares)} results")
    return shares


def _partly_failed(members: list[_Member], error: BatchError) -> Sequence[Any]:
    """Return results and errors from a ``BatchError``. If it names an unknown job, all jobs fail."""
    numbers = {member.attempt.record.id: number for number, member in enumerate(members)}
    try:
        outcome = _split_results(members, error.results)
        for name, what in error.errors.items():
            outcome[numbers[name] if isinstance(name, str) else operator.index(name)] = what
    except (KeyError, IndexError, TypeError, ResultError) as exc:
        wrong = ResultError(f"BatchError names a job that is not in the batch, or too few results: {exc}")
        return [wrong] * len(members)
    return outcome


def _set_outcome(member: _Member, value: Any) -> None:
    if member.done.done():
        return  # stopped meanwhile
    kind = type(value)  # the real class: ``__class__`` of a value may raise
    if issubclass(kind, asyncio.CancelledError):
        member.done.cancel()
    elif issubclass(kind, StopIteration):  # a future cannot hold it
        member.done.set_exception(RuntimeError("a batch handler raised StopIteration"))
    elif issubclass(kind, BaseException):
        member.done.set_exception(value)
    else:
        member.done.set_result(value)

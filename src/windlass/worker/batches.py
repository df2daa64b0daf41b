"""Gathers attempts of batch tasks and runs each batch in one call.

Every job of a batch keeps its own attempt: its slot, its lease, its time limit and its settlement. Only the
call is shared. A job that is stopped while its batch is being gathered leaves it; one that is stopped
while the batch runs is settled at once, and the call is cancelled when no attempt waits for it any more.
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


class Joining(Protocol):
    """What a batch needs to know of an attempt."""

    handler: Handler
    record: JobRecord

    @property
    def job(self) -> Job[Any]: ...

    @property
    def signal(self) -> AbortSignal: ...

    def start_timer(self) -> None:
        """Let its time limit begin."""


class _Member:
    """One job of a batch: its attempt, what the handler gets for it, who waits for its result."""

    __slots__ = ("attempt", "done", "item")

    def __init__(self, attempt: Joining, item: Any, done: asyncio.Future[Any]) -> None:
        self.attempt: Joining = attempt
        self.item: Any = item
        self.done: asyncio.Future[Any] = done


class Batches:
    """The batches of one worker. Made on its event loop; ``slots`` says how many jobs can run at once."""

    def __init__(
        self, clock: Clock, threads: Callable[[], ThreadPoolExecutor], slots: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._threads = threads
        self._slots = slots
        self._context = contextvars.copy_context()  # a new context: a batch does not belong to any single job
        self._open: dict[int, _Gathering] = {}

    async def join(self, attempt: Joining) -> Any:
        """Wait for the result of ``attempt`` as part of a batch."""
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
        if len(gathering.members) >= min(gathering.batch.size, self._slots()):
            self.close(gathering)
            gathering.full.set()
        try:
            return await member.done
        finally:
            gathering.left(member)

    def leave(self, attempt: Joining) -> None:
        """Let a stopped attempt go whose batch is still being gathered."""
        gathering = self._open.get(id(attempt.handler))
        for member in gathering.members if gathering is not None else ():
            if member.attempt is attempt:
                member.done.cancel()

    def start(self, gathering: _Gathering) -> asyncio.Task[None]:
        """Run ``gathering`` in a context of its own."""
        return asyncio.get_running_loop().create_task(gathering.run(), context=self._context.copy())

    def close(self, gathering: _Gathering) -> None:
        """Take no more jobs into ``gathering``."""
        if self._open.get(id(gathering.handler)) is gathering:
            del self._open[id(gathering.handler)]

    async def wait(self, full: asyncio.Event, ms: int) -> None:
        """Until the batch is full, at most ``ms``."""
        if ms:
            await self._clock.wait(full, ms)
        else:
            await asyncio.sleep(0)  # jobs of one claim join in the same iteration of the loop

    async def in_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """``fn`` in one of the worker's threads."""
        return await run_in_thread(self._threads(), fn, *args, **kwargs)


async def run_in_thread(
    threads: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """``fn`` in one of ``threads``, in a copy of this context; what it raises is raised here as it is.

    Its error comes as a value: the future of a thread cannot carry ``StopIteration``, makes another
    ``TimeoutError`` without a traceback, and turns a ``CancelledError`` into that of the waiting task.
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
    except StopIteration as exc:  # a coroutine cannot raise it either
        error = RuntimeError("the handler raised StopIteration")
        error.__cause__ = exc
        return None, error
    except BaseException as exc:
        return None, exc


class _Gathering:
    """One batch, from its first job to its end."""

    def __init__(self, batches: Batches, handler: Handler) -> None:
        assert handler.batch is not None
        self.handler = handler
        self.batch: Batch = handler.batch
        self.members: list[_Member] = []
        self.full: asyncio.Event = asyncio.Event()
        self._batches = batches
        self._running = False
        self._task = batches.start(self)

    def left(self, member: _Member) -> None:
        """``member`` has its result, or was stopped."""
        if not self._running:
            self.members.remove(member)
            if not self.members:
                self._batches.close(self)
                self._task.cancel()
        elif self.handler.mode == "loop" and all(one.done.done() for one in self.members):
            self._task.cancel()  # no effect on a call that is over

    async def run(self) -> None:
        """Gather jobs, call the handler, and give each job its result."""
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
            _hand_out(member, value)

    async def _outcome(self, members: list[_Member]) -> Sequence[Any]:
        for member in members:
            member.attempt.start_timer()
        try:
            return _shared_out(members, await self._call([member.item for member in members]))
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
        value = await self._batches.in_thread(call, *args, **kwargs)
        return await value if inspect.isawaitable(value) else value


def _shared_out(members: list[_Member], results: Any) -> list[Any]:
    """Each job's part of what the handler returned."""
    if results is None:
        return [None] * len(members)
    wanted = f"a batch handler returns None or one result for each of its {len(members)} jobs"
    if not isinstance(results, (list, tuple)):
        raise ResultError(f"{wanted}, not {type(results).__name__}")
    shares = list(results)  # a custom kind of list may say one length and give another
    if len(shares) != len(members):
        raise ResultError(f"{wanted}, not {len(shares)} results")
    return shares


def _partly_failed(members: list[_Member], error: BatchError) -> Sequence[Any]:
    """Results and errors of a batch of which some jobs failed; a name that is no job's fails them all."""
    numbers = {member.attempt.record.id: number for number, member in enumerate(members)}
    try:
        outcome = _shared_out(members, error.results)
        for name, what in error.errors.items():
            outcome[numbers[name] if isinstance(name, str) else operator.index(name)] = what
    except (KeyError, IndexError, TypeError, ResultError) as exc:
        wrong = ResultError(f"BatchError names a job that is not in the batch, or too few results: {exc}")
        return [wrong] * len(members)
    return outcome


def _hand_out(member: _Member, value: Any) -> None:
    if member.done.done():
        return  # stopped meanwhile
    kind = type(value)  # its real class: what a value says of itself may raise
    if issubclass(kind, asyncio.CancelledError):
        member.done.cancel()
    elif issubclass(kind, StopIteration):  # which no future may hold
        member.done.set_exception(RuntimeError("a batch handler raised StopIteration"))
    elif issubclass(kind, BaseException):
        member.done.set_exception(value)
    else:
        member.done.set_result(value)

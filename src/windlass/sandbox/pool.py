"""``ProcessPool``: warm child processes that run one job each at a time.

Children start when they are needed and stay for later jobs. A child is replaced when it crashed, ran out of
memory, was ended during a job, or has run ``max_jobs_per_child`` jobs. Each child has one memory limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol, Unpack
from weakref import WeakSet

from windlass.core.options import ChildOptionsDict
from windlass.errors import ConfigError, JobTimeoutError, ResultError, WorkerCrashError
from windlass.jobs.abort import StopReason
from windlass.sandbox import protocol
from windlass.sandbox.limits import MemoryMode, check_memory_limit, check_memory_mode, rss_bytes, show_limit
from windlass.sandbox.process import ChildProcess, Ending, OnRequest, SandboxCall
from windlass.sandbox.protocol import MAX_FRAME_BYTES, JobRequest
from windlass.sandbox.remote import rebuild, rebuild_signal
from windlass.serde import get_codec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from windlass.core.job import LogLevel

#: Seconds between two measurements of a child's memory, in ``rss`` mode.
_RSS_INTERVAL = 0.1


class JobVerbs(Protocol):
    """The methods of a job that a handler in a child can call."""

    async def log(self, line: str, level: LogLevel = "info") -> None: ...
    async def update_progress(self, progress: Any) -> None: ...
    async def update_data(self, data: Any) -> None: ...
    def discard(self) -> None: ...
    async def stream(self, *chunks: Any) -> None: ...
    async def add_child(
        self,
        name: str,
        data: Any = None,
        *,
        queue: str | None = None,
        on_failure: str = "fail",
        **options: Unpack[ChildOptionsDict],
    ) -> Any: ...
    async def get_children_values(self) -> dict[str, Any]: ...
    async def get_failed_children(self) -> dict[str, str]: ...


def requests_to(job: JobVerbs) -> OnRequest:
    """Return an ``on_request`` that executes every request on ``job``."""

    async def perform(request: JobRequest) -> Any:
        match request.verb:
            case "log":
                await job.log(*request.value)
            case "update_progress":
                await job.update_progress(request.value)
            case "update_data":
                await job.update_data(request.value)
            case "discard":
                job.discard()
            case "stream":
                await job.stream(*request.value)
            case "add_child":
                return list((await job.add_child(**request.value)).ref)
            case "get_children_values":
                return await job.get_children_values()
            case "get_failed_children":
                return await job.get_failed_children()
        return None

    return perform


class ProcessPool:
    """At most ``size`` child processes, for one event loop.

    ``memory_limit``: bytes per child, None for no limit; a call may have its own. ``max_jobs_per_child``:
    replace a child after this many jobs. ``grace``: seconds between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        size: int,
        *,
        memory_limit: int | None = None,
        max_jobs_per_child: int | None = None,
        grace: float = 5.0,
        memory_mode: MemoryMode = "rlimit",
        max_bytes: int = MAX_FRAME_BYTES,
        start_timeout: float = 60.0,
    ) -> None:
        if not isinstance(size, int) or size < 1:
            raise ConfigError("size", "at least 1", size)
        if max_jobs_per_child is not None and max_jobs_per_child < 1:
            raise ConfigError("max_jobs_per_child", "at least 1, or None", max_jobs_per_child)
        self.size = size
        self.grace = grace
        self._memory_limit = check_memory_limit(memory_limit)
        self._memory_mode = check_memory_mode(memory_mode)
        self._max_jobs = max_jobs_per_child
        self._max_bytes = max_bytes
        self._start_timeout = start_timeout
        self._slots = asyncio.Semaphore(size)
        #: The newest is last. The oldest are replaced first when a child with another limit is needed.
        self._idle: list[ChildProcess] = []
        self._busy: set[ChildProcess] = set()
        self._starting = 0
        self._endings: set[asyncio.Task[None]] = set()
        #: Every child that was started and has not been seen to end.
        self._alive: WeakSet[ChildProcess] = WeakSet()
        self._closed = False

    async def __aenter__(self) -> ProcessPool:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def pids(self) -> list[int]:
        """The process ids of all children that run jobs, busy or idle."""
        return sorted(child.pid for child in (*self._busy, *self._idle) if not child.exited.is_set())

    @property
    def busy(self) -> int:
        """The number of children that are running a job."""
        return len(self._busy)

    async def start(self, count: int | None = None) -> None:
        """Start ``count`` children (all by default) before the first job."""
        wanted = min(self.size, self.size if count is None else count)
        missing = wanted - len(self._idle) - len(self._busy) - self._starting
        starts = (self._start(self._memory_limit) for _ in range(missing))
        failures = []
        for started in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(started, BaseException):
                failures.append(started)
            else:
                self._idle.append(started)
        if failures:
            raise failures[0]

    async def run(
        self,
        call: SandboxCall,
        on_request: OnRequest | None = None,
        *,
        timeout: float | None = None,
        on_start: Callable[[], None] | None = None,
        why_stopped: Callable[[], StopReason | None] = lambda: None,
    ) -> Any:
        """Run a job and return its result, as plain data. ``on_start`` is called when a child has it.

        Raises the handler's error as ``RemoteError``, or its ``JobSignal``; ``ResultError`` for a result that
        cannot be stored; ``WorkerCrashError`` when the child died; ``JobTimeoutError`` after ``timeout``
        seconds in the child (including the import of the handler).

        When it is cancelled or the time is over, it ends the child and waits for that, so the handler no
        longer runs when this returns. A handler that returns within the grace after a cancel has completed.
        ``why_stopped`` returns the reason of the cancel for the child; after a lost lease there is no grace.
        A second cancel kills the child at once.
        """
        data = await self.run_encoded(
            call, on_request, timeout=timeout, on_start=on_start, why_stopped=why_stopped
        )
        return get_codec(call.record.codec).decode(data)

    async def run_encoded(
        self,
        call: SandboxCall,
        on_request: OnRequest | None = None,
        *,
        timeout: float | None = None,
        on_start: Callable[[], None] | None = None,
        why_stopped: Callable[[], StopReason | None] = lambda: None,
    ) -> bytes:
        """Like ``run``, with the result encoded in the record's codec."""
        limit = self._memory_limit
        if call.memory_limit is not None:
            limit = check_memory_limit(call.memory_limit)
        self._check_open()
        async with self._slots:
            self._check_open()
            child = await self._checkout(limit)
            if on_start is not None:
                on_start()
            try:
                ending = await self._execute(child, call, on_request, timeout, why_stopped)
            finally:
                self._checkin(child)
        return _result(ending, child, call.record.task)

    async def close(self) -> None:
        """End all children and wait until they are gone. Running jobs fail. Idempotent."""
        self._closed = True
        for child in self._idle:
            self._end(child.shutdown(self.grace))
        self._idle.clear()
        for child in list(self._busy):
            self._end(child.terminate(self.grace, StopReason.SHUTDOWN))
        try:
            while self._endings:
                await asyncio.wait(self._endings)
        except asyncio.CancelledError:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill all children at once, without waiting."""
        self._closed = True
        for child in self._alive:
            child.kill()

    # --- a run -------------------------------------------------------------------------------------

    async def _execute(
        self,
        child: ChildProcess,
        call: SandboxCall,
        on_request: OnRequest | None,
        timeout: float | None,
        why_stopped: Callable[[], StopReason | None],
    ) -> Ending:
        running = asyncio.ensure_future(child.execute(call, on_request))
        scope = asyncio.timeout(timeout)
        try:
            async with scope, self._memory_watch(child):
                return await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._end_now(child, why_stopped() or StopReason.CANCEL)
            if (done := _returned(running)) is None:
                raise
            return done  # the handler returned within the grace
        except TimeoutError:
            if not scope.expired():
                raise
            await self._end_now(child, StopReason.TIMEOUT)
            raise JobTimeoutError(
                f"task {call.record.task!r} ran longer than {timeout:g} s; its process was ended"
            ) from None
        finally:
            running.cancel()
            running.add_done_callback(_forget)

    async def _end_now(self, child: ChildProcess, reason: StopReason) -> None:
        """End ``child`` and wait for it. A cancel during that time kills it without further grace."""
        grace = 0 if reason is StopReason.LOST else self.grace  # another worker may start the job soon
        ending = self._end(child.terminate(grace, reason))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            child.kill()
            raise

    @contextlib.asynccontextmanager
    async def _memory_watch(self, child: ChildProcess) -> AsyncIterator[None]:
        """In ``rss`` mode: kill the child when it uses more than its limit."""
        if self._memory_mode != "rss" or child.memory_limit is None:
            yield
            return
        watch = asyncio.create_task(_watch_memory(child, child.memory_limit))
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    # --- children ----------------------------------------------------------------------------------

    async def _checkout(self, limit: int | None) -> ChildProcess:
        for place in range(len(self._idle) - 1, -1, -1):
            child = self._idle[place]
            if not child.is_usable:
                del self._idle[place]
                self._end(child.terminate(0))
            elif child.memory_limit == limit:
                del self._idle[place]
                self._busy.add(child)
                return child
        self._make_room()
        child = await self._start(limit)
        self._busy.add(child)
        return child

    def _make_room(self) -> None:
        """Shut down idle children with other limits when the pool is full."""
        while self._idle and len(self._idle) + len(self._busy) + self._starting >= self.size:
            self._end(self._idle.pop(0).shutdown(self.grace))

    async def _start(self, limit: int | None) -> ChildProcess:
        self._starting += 1
        try:
            child = await ChildProcess.start(
                memory_limit=limit if self._memory_mode == "rlimit" else None,
                max_bytes=self._max_bytes,
                start_timeout=self._start_timeout,
            )
        finally:
            self._starting -= 1
        child.memory_limit = limit
        self._alive.add(child)
        if self._closed:
            await child.terminate(0)
            self._check_open()
        return child

    def _checkin(self, child: ChildProcess) -> None:
        self._busy.discard(child)
        if not child.is_usable:
            self._end(child.terminate(0))
        elif self._closed or (self._max_jobs is not None and child.jobs >= self._max_jobs):
            self._end(child.shutdown(self.grace))
        else:
            self._idle.append(child)

    def _end(self, ending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)
        return task

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerCrashError("the process pool is closed")


def _result(ending: Ending, child: ChildProcess, task: str) -> bytes:
    """Return the encoded result, or raise the error of the ending."""
    if isinstance(ending, protocol.JobDone):
        return ending.result
    if isinstance(ending, protocol.Signalled):
        raise rebuild_signal(ending)
    if ending.kind == "memory" and child.memory_limit is not None:
        limit = show_limit(child.memory_limit)
        raise WorkerCrashError(f"task {task!r} ran out of memory: the limit of its process is {limit}")
    if ending.kind == "result":
        raise ResultError(ending.error.message)
    raise rebuild(ending.error)


def _returned(running: asyncio.Future[Ending]) -> protocol.JobDone | None:
    """Return the message with the handler's result, if it returned."""
    if not running.done() or running.cancelled() or running.exception() is not None:
        return None
    ending = running.result()
    return ending if isinstance(ending, protocol.JobDone) else None


def _forget(running: asyncio.Future[Ending]) -> None:
    """Mark the error of ``running`` as retrieved."""
    if not running.cancelled():
        running.exception()


async def _watch_memory(child: ChildProcess, limit: int) -> None:
    while not child.exited.is_set():
        if (rss_bytes(child.pid) or 0) > limit:
            child.over_limit = True
            child.kill()
            return
        await asyncio.sleep(_RSS_INTERVAL)

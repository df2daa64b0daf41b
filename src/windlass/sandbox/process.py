"""One child process, as the worker's event loop sees it.

The loop never blocks on it. The pipe is an asyncio stream, and its end is reported by a readable pidfd (a
waiting thread where the system has none). The worker starts a guard (see ``_bootstrap``), which starts the
process that runs jobs and ends when no process is left below it. Signals go through the guard. Both are in
their own process groups, so that Ctrl-C in a terminal reaches only the worker.

Children must be started from the thread that runs the loop: on Linux they die with the thread that started
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from windlass.core.job import JobRecord
from windlass.errors import PayloadTooLargeError, WorkerCrashError
from windlass.jobs.abort import StopReason
from windlass.sandbox import _bootstrap, protocol
from windlass.sandbox.interpreter import interpreter_options
from windlass.sandbox.limits import show_limit
from windlass.sandbox.protocol import JobRequest
from windlass.sandbox.remote import report
from windlass.sandbox.target import main_source
from windlass.serde import encode_value, get_codec

OnRequest = Callable[[JobRequest], Awaitable[Any]]
Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Ending = protocol.Ending

#: Seconds after the end of a process until the rest of its pipe is dropped.
_LINGER = 1.0
_STREAM_LIMIT = 1024 * 1024


class SandboxCall(msgspec.Struct, frozen=True, kw_only=True):
    """A job to run in a child.

    ``target`` names the handler (see ``target_of``). ``takes_job``: the handler is called with the job,
    otherwise with the job's arguments. ``memory_limit`` (bytes) overrides the limit of the pool.
    """

    target: str
    record: JobRecord
    takes_job: bool = False
    memory_limit: int | None = None


class ChildProcess:
    """A running child, created by ``start``. It runs one job at a time."""

    def __init__(
        self, process: subprocess.Popen[bytes], pipe: Pipe, memory_limit: int | None, max_bytes: int
    ) -> None:
        self.memory_limit = memory_limit
        #: The number of jobs that it was given.
        self.jobs = 0
        #: Whether it cannot take a job: it runs one, is being ended, or is no longer usable.
        self.spent = False
        #: Set when it is killed for using too much memory.
        self.over_limit = False
        self.exited = asyncio.Event()
        self._stopped: StopReason | None = None
        self._process = process
        self._reader, self._writer = pipe
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._pidfd = -1
        #: The process that runs jobs, once it has reported its pid, and its pidfd.
        self._runner = process.pid
        self._runner_fd = -1

    @classmethod
    async def start(
        cls,
        *,
        memory_limit: int | None = None,
        max_bytes: int = protocol.MAX_FRAME_BYTES,
        start_timeout: float = 60.0,
    ) -> ChildProcess:
        """Start a child and wait until it is ready. Raises ``WorkerCrashError`` when it does not start."""
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            pipe = await asyncio.open_unix_connection(sock=ours, limit=_STREAM_LIMIT)
            try:
                process = _spawn(theirs)
            except BaseException:
                pipe[1].close()
                raise
        child = cls(process, pipe, memory_limit, max_bytes)
        child._watch()
        try:
            await child._boot(start_timeout)
        except BaseException:
            await asyncio.shield(child.terminate(0))
            raise
        return child

    @property
    def pid(self) -> int:
        """The id of the process that runs jobs."""
        return self._runner

    @property
    def is_usable(self) -> bool:
        """Whether it is alive and can run a job."""
        if self.spent or self.exited.is_set() or _has_ended(self._process.pid):
            return False
        return self._runner_fd < 0 or not _is_readable(self._runner_fd)

    async def execute(self, call: SandboxCall, on_request: OnRequest | None) -> Ending:
        """Run one job to its end. Raises ``WorkerCrashError`` when the process dies or sends invalid
        messages.

        Requests of the handler are passed to ``on_request``, one after the other. Its errors are raised in
        the handler.
        """
        self.jobs += 1
        run = self.jobs
        try:
            data = protocol.pack(
                protocol.RunJob(run, call.target, call.record, call.takes_job), self._max_bytes
            )
        except protocol.FrameTooLargeError as exc:
            raise PayloadTooLargeError(exc.size, exc.limit) from None
        self.spent = True
        try:
            self._writer.write(data)
            await self._writer.drain()
            ending = await self._conversation(run, call.record.codec, on_request)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self._closed_pipe()
            raise WorkerCrashError(self._how_it_ended(call.record.task)) from None
        # After a MemoryError its heap is fragmented, and its limit was lifted.
        exhausted = isinstance(ending, protocol.Failed) and ending.kind == "memory"
        self.spent = exhausted or self._stopped is not None
        return ending

    async def _conversation(self, run: int, codec: str, on_request: OnRequest | None) -> Ending:
        while True:
            message = await self._receive()
            if isinstance(message, protocol.VerbRequest):
                current = on_request if message.run == run else None
                await self._perform(message, codec, current)
            elif isinstance(message, protocol.Ready):
                raise WorkerCrashError("malformed message from the child process: it is ready twice")
            elif message.run == run:
                return message

    async def _perform(self, message: protocol.VerbRequest, codec: str, on_request: OnRequest | None) -> None:
        try:
            if on_request is None:
                raise RuntimeError(f"{message.verb}() is not available to this job now")
            value = get_codec(codec).decode(message.value) if message.value else None
            found = await on_request(JobRequest(message.verb, value))
            answer = protocol.VerbAnswer(
                message.id, value=b"" if found is None else encode_value(get_codec(codec), found)
            )
        except Exception as exc:
            answer = protocol.VerbAnswer(message.id, report(exc, skip_module=__name__))
        self._send(answer)

    # --- ending it ---------------------------------------------------------------------------------

    async def shutdown(self, grace: float) -> None:
        """End an idle child, with SIGKILL after ``grace`` seconds. Waits until it is gone."""
        self.spent = True
        self._send(protocol.Shutdown())
        if not await self._ends_within(grace):
            await self.terminate(0)
        await self._gone()

    async def terminate(self, grace: float, reason: StopReason = StopReason.CANCEL) -> None:
        """End a child even during a job: SIGTERM, then SIGKILL after ``grace`` seconds. Waits for it."""
        self.spent = True
        self._stopped = self._stopped or reason
        if grace > 0 and not self.exited.is_set():
            self._send(protocol.StopJob(reason.value))
            self._signal(_bootstrap.STOP)
            await self._ends_within(grace)
        self.kill()
        await self._gone()

    def kill(self) -> None:
        """Send SIGKILL to the child and the processes that it started."""
        if not self.exited.is_set():
            self._signal(_bootstrap.KILL)
            self._loop.call_later(_LINGER, self._signal, signal.SIGKILL)  # in case the guard does not react

    async def _gone(self) -> None:
        await self.exited.wait()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        return self.exited.is_set()

    async def _closed_pipe(self) -> None:
        """Wait for the end after the pipe closed. If only the handler closed it, kill the process."""
        if not await self._ends_within(_LINGER):
            self.kill()
        await self.exited.wait()

    def _how_it_ended(self, task: str) -> str:
        who = f"the child process (pid {self.pid}) of task {task!r}"
        limit = f" (its memory limit is {show_limit(self.memory_limit)})" if self.memory_limit else ""
        if self.over_limit and self.memory_limit:
            return f"{who} was killed: it used more than its memory limit of {show_limit(self.memory_limit)}"
        if self._stopped is not None:
            return f"{who} was ended by its worker: {self._stopped.value}"
        code = self._process.returncode
        if code is None or code >= 0:
            return f"{who} exited with code {code} in the middle of its job{limit}"
        name = _signal_name(-code)
        hint = "; the system may have been out of memory" if -code == signal.SIGKILL else ""
        return f"{who} was killed by signal {-code} ({name}){hint}{limit}"

    # --- the process -------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Arrange for ``_on_exit`` to be called when the process ends."""
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):
            threading.Thread(
                target=self._wait_in_thread, name=f"windlass-child-{self._process.pid}", daemon=True
            ).start()
        else:
            self._loop.add_reader(self._pidfd, self._on_exit)

    def _wait_in_thread(self) -> None:
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop may be closed already
            self._loop.call_soon_threadsafe(self._on_exit)

    def _on_exit(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._runner_fd >= 0:
            os.close(self._runner_fd)
            self._runner_fd = -1
        self._process.wait()
        self.exited.set()
        self._loop.call_later(_LINGER, self._drop_pipe)

    def _drop_pipe(self) -> None:
        self._writer.transport.abort()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the guard."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    # --- the pipe ----------------------------------------------------------------------------------

    async def _boot(self, timeout: float) -> None:
        main_module, main_path = main_source()
        self._writer.write(protocol.frame(json.dumps(_import_path()).encode()))
        self._send(
            protocol.Boot(
                argv=sys.argv,
                main_module=main_module,
                main_path=main_path,
                memory_limit=self.memory_limit,
                max_bytes=self._max_bytes,
            )
        )
        try:
            async with asyncio.timeout(timeout):
                ready = await self._receive()
        except TimeoutError:
            raise WorkerCrashError(f"a child process was not ready within {timeout:g} s") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            await self._closed_pipe()
            code = self._process.returncode
            raise WorkerCrashError(f"a child process did not start: it ended with code {code}") from None
        if not isinstance(ready, protocol.Ready):
            raise WorkerCrashError("malformed message from the child process: it is not ready")
        self._runner = ready.pid
        with contextlib.suppress(AttributeError, OSError):  # no pidfd here, or it has ended again
            self._runner_fd = os.pidfd_open(self._runner)

    def _send(self, message: protocol.FromParent) -> None:
        """Queue a small message. If the child is gone, the reading side reports it."""
        if not self._writer.is_closing():
            self._writer.write(protocol.pack(message, self._max_bytes))

    async def _receive(self) -> protocol.FromChild:
        header = await self._reader.readexactly(protocol.HEADER.size)
        length = protocol.frame_length(header, self._max_bytes)
        return protocol.read_from_child(await self._reader.readexactly(length))


def _spawn(pipe: socket.socket) -> subprocess.Popen[bytes]:
    """Start a new interpreter. A fork of this one would have broken copies of threads and connections."""
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            *interpreter_options(),
            str(_bootstrap.__file__),
            str(pipe.fileno()),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=[pipe.fileno()],
        process_group=0,
    )


def _import_path() -> list[str]:
    """Return ``sys.path`` for another process, with relative entries made absolute."""
    return [os.path.abspath(entry) for entry in sys.path]


def _has_ended(pid: int) -> bool:
    """Whether our child ``pid`` has ended, even if its end was not reported yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _is_readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"

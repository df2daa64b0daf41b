"""The child process: runs one job after another, in its main thread.

A second thread reads the pipe. It passes jobs to the main thread and answers to waiting requests, and ends
the process when the pipe closes, so that a child never outlives its parent. The guard also ensures that, for
handlers that never release the interpreter. Processes that a handler started are killed when its job ends.

All signals have their default handlers, except two. SIGINT is ignored, because the parent decides what an
interrupt means. SIGTERM stops the running handler so that it can clean up: a coroutine is cancelled, a
function gets ``SystemExit``. Then the process exits. If this takes longer than the parent's grace, it is
killed.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import os
import queue
import signal
import sys
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from windlass.core.text import clean_text
from windlass.errors import JobSignal, ResultError, WorkerCrashError
from windlass.handlers.inject import InjectedParameters
from windlass.handlers.signature import ArgumentError, Signature
from windlass.jobs.abort import StopReason
from windlass.sandbox import _tree, protocol
from windlass.sandbox.job import SandboxJob
from windlass.sandbox.limits import limit_memory
from windlass.sandbox.remote import rebuild, report, signal_message
from windlass.sandbox.target import carrier_of, prepare_main, resolve
from windlass.serde import encode_value, get_codec

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from windlass.handlers.propagation import ContextPropagator
    from windlass.jobs.job import Job

#: The exit code of a child that SIGTERM ended, as shells report it.
TERMINATED = 128 + signal.SIGTERM


def main(pipe: socket.socket) -> None:
    """Serve on ``pipe`` until stopped. Called once, by ``_bootstrap``."""
    _default_signals()
    os.set_inheritable(pipe.fileno(), False)
    os.register_at_fork(after_in_child=pipe.close)  # a forked grandchild must not keep the pipe open
    link = _Link(pipe)
    boot = link.receive()
    if not isinstance(boot, protocol.Boot):
        sys.exit("the first message must be a Boot")
    sys.argv[:] = boot.argv  # as in the parent, for scripts that read it when they run again
    link.max_bytes = boot.max_bytes
    Child(link, boot).serve()


def _default_signals() -> None:
    for number in (
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which programs started here would inherit
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class _Link:
    """The pipe: framed messages, written by any thread, read by one."""

    def __init__(self, pipe: socket.socket) -> None:
        self.max_bytes = protocol.MAX_FRAME_BYTES
        self._pipe = pipe
        self._write = threading.Lock()

    def send(self, message: protocol.FromChild) -> None:
        """Send a message. Raises ``FrameTooLargeError``. Ends the process when its parent is gone."""
        data = protocol.pack(message, self.max_bytes)
        try:
            with self._write:
                self._pipe.sendall(data)
        except OSError:
            os._exit(1)

    def receive(self) -> protocol.FromParent:
        """Return the next message. Ends the process when the parent is gone."""
        header = self._exactly(protocol.HEADER.size)
        return protocol.read_from_parent(self._exactly(protocol.frame_length(header, self.max_bytes)))

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view, got = memoryview(data), 0
        while got < count:
            try:
                part = self._pipe.recv_into(view[got:])
            except OSError:
                part = 0
            if not part:
                os._exit(1)
            got += part
        return bytes(data)


class _Requests:
    """Requests of the handler that the parent has not answered yet."""

    def __init__(self, link: _Link) -> None:
        self._link = link
        self._ids = itertools.count(1)
        self._open: dict[int, Future[bytes]] = {}

    def sender(self, run: int) -> Callable[[protocol.Verb, bytes], Future[bytes]]:
        """Return the function with which a job of this run sends its requests."""

        def send(verb: protocol.Verb, value: bytes) -> Future[bytes]:
            number = next(self._ids)
            future = self._open[number] = Future()
            try:
                self._link.send(protocol.VerbRequest(run, number, verb, value))
            except protocol.FrameTooLargeError:
                del self._open[number]
                raise
            return future

        return send

    def answer(self, message: protocol.VerbAnswer) -> None:
        future = self._open.pop(message.id, None)
        if future is None or future.cancelled():
            return
        if message.error is None:
            future.set_result(message.value)
        else:
            future.set_exception(rebuild(message.error))


class _Handler(NamedTuple):
    """A resolved handler."""

    fn: Callable[..., Any]
    signature: Signature
    needs: InjectedParameters | None
    carrier: ContextPropagator | None


class Child:
    """Runs jobs until the parent shuts it down."""

    def __init__(self, link: _Link, boot: protocol.Boot) -> None:
        self._link = link
        self._boot = boot
        self._inbox: queue.SimpleQueue[protocol.RunJob | None] = queue.SimpleQueue()
        self._requests = _Requests(link)
        self._handlers: dict[str, _Handler] = {}
        self._lift = limit_memory(boot.memory_limit) if boot.memory_limit is not None else None
        self._job: SandboxJob | None = None
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopping = False
        #: Processes that were started by importing handlers. They are not killed after a job.
        self._spare: frozenset[int] = frozenset()

    def serve(self) -> None:
        """Run jobs from the pipe until ``Shutdown``, SIGTERM or the end of the parent."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._read, name="windlass-pipe", daemon=True).start()
        self._link.send(protocol.Ready(os.getpid()))
        while (message := self._inbox.get()) is not None:
            ending = self._run(message)
            _tree.sweep(self._spare)  # kill processes that the handler started
            self._send(ending)
            self._job = None
            if self._stopping:
                sys.exit(TERMINATED)
        if self._runner is not None:
            self._runner.close()

    def _send(self, ending: protocol.Ending) -> None:
        """Send how the job ended. If that cannot be encoded, send a failure instead."""
        try:
            self._link.send(ending)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            self._link.send(protocol.Failed(ending.run, report(exc, skip_module=__name__)))

    def _read(self) -> None:
        try:
            while True:
                self._dispatch(self._link.receive())
        except WorkerCrashError as exc:
            sys.stderr.write(f"windlass child process {os.getpid()}: {exc}\n")
            os._exit(1)

    def _dispatch(self, message: protocol.FromParent) -> None:
        match message:
            case protocol.RunJob():
                self._inbox.put(message)
            case protocol.VerbAnswer():
                self._requests.answer(message)
            case protocol.StopJob():
                job = self._job
                if job is not None:
                    job.abort_signal.abort(StopReason(message.reason))
            case protocol.Shutdown():
                self._inbox.put(None)

    def _on_sigterm(self, *_: object) -> None:
        self._stopping = True
        task, runner = self._task, self._runner
        if task is not None and runner is not None:
            runner.get_loop().call_soon_threadsafe(task.cancel)
        else:
            raise SystemExit(TERMINATED)

    # --- one job -----------------------------------------------------------------------------------

    def _run(self, message: protocol.RunJob) -> protocol.Ending:
        """Run the job and return the message that ends it."""
        try:
            done = protocol.JobDone(message.run, self._result_of(message))
            if len(done.result) + 1_000 > self._link.max_bytes:
                raise ResultError(f"the result is {len(done.result)} bytes, too large to leave its process")
        except JobSignal as exc:
            return self._signalled(message.run, exc)
        except BaseException as exc:
            if self._stopping:
                self._exit_stopped()
            return self._failure(message.run, exc)
        finally:
            _flush()
        return done

    def _result_of(self, message: protocol.RunJob) -> bytes:
        record = message.record
        job = self._job = SandboxJob(record, self._requests.sender(message.run))
        handler = self._handler(message)
        args, kwargs = ([job], {}) if message.takes_job else _arguments(job, handler.signature)
        context = contextvars.copy_context()
        context.run(_set_current, job)
        if handler.carrier is not None:
            context.run(handler.carrier.restore, record.options.trace or {})
        if handler.needs is None:
            value = self._call(handler.fn, args, kwargs, context)
        else:
            value = self._call_with_needs(handler.fn, handler.needs, args, kwargs, context)
        return _encoded(record.codec, value)

    def _call_with_needs(
        self,
        fn: Callable[..., Any],
        needs: InjectedParameters,
        args: list[Any],
        kwargs: dict[str, Any],
        context: contextvars.Context,
    ) -> Any:
        """Open the dependencies, call the function and close them. A plain function runs outside the loop."""
        stack = AsyncExitStack()
        try:
            values = self._drive(needs.open(stack), context)
            value = self._call(fn, *needs.merged(args, kwargs, values), context)
        except BaseException as exc:
            if not self._drive(stack.__aexit__(type(exc), exc, exc.__traceback__), context):
                raise
            return None
        self._drive(stack.aclose(), context)
        return value

    def _call(
        self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], context: contextvars.Context
    ) -> Any:
        if inspect.iscoroutinefunction(fn):
            value = self._drive(fn(*args, **kwargs), context)
        else:
            value = context.run(fn, *args, **kwargs)
            if inspect.isawaitable(value):
                value = self._drive(value, context)
        return value

    def _handler(self, message: protocol.RunJob) -> _Handler:
        record = message.record
        key = f"{message.target} {record.queue} {record.task}"
        found = self._handlers.get(key)
        if found is None:
            if message.target.startswith("__main__:"):
                prepare_main(self._boot.main_module, self._boot.main_path)
            fn = resolve(message.target, record)
            needs = InjectedParameters.of(fn)
            without = needs.names if needs else frozenset[str]()
            signature = Signature.of(fn, name=record.task, without=without)
            carrier = carrier_of(message.target)
            self._spare = frozenset(_tree.below())
            found = self._handlers[key] = _Handler(fn, signature, needs, carrier)
        return found

    def _drive(self, awaitable: Awaitable[Any], context: contextvars.Context) -> Any:
        """Run a coroutine on this process's loop. Tasks that it leaves behind are cancelled."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._whole(awaitable), context=context)

    async def _whole(self, awaitable: Awaitable[Any]) -> Any:
        self._task = asyncio.current_task()
        try:
            return await awaitable
        finally:
            self._task = None
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)

    def _signalled(self, run: int, signal: JobSignal) -> protocol.Ending:
        try:
            return signal_message(run, signal) or self._failure(run, signal)
        except BaseException as exc:  # a user's signal class may have attributes that raise
            return self._failure(run, exc)

    def _failure(self, run: int, exc: BaseException) -> protocol.Failed:
        if isinstance(exc, MemoryError):
            self._lift_limit()
            return protocol.Failed(run, report(exc, skip_module=__name__), "memory")
        described = report(exc, skip_module=__name__)
        return protocol.Failed(run, described, "result" if isinstance(exc, ResultError) else "error")

    def _lift_limit(self) -> None:
        """Lift the memory limit, so that the failure can be reported. The parent replaces this process."""
        if self._lift is not None:
            self._lift()
            self._lift = None

    def _exit_stopped(self) -> NoReturn:
        _flush()
        sys.exit(TERMINATED)


def _arguments(job: SandboxJob, signature: Signature) -> tuple[list[Any], dict[str, Any]]:
    try:
        call = job.call
    except ValueError as exc:
        raise ArgumentError(f"the stored arguments cannot be read: {exc}") from exc
    return signature.decode(call.args, call.kwargs)


def _set_current(job: SandboxJob) -> None:
    from windlass.jobs.context import set_current_job

    set_current_job(lambda: cast("Job[Any]", job))


def _encoded(codec: str, value: Any) -> bytes:
    try:
        return encode_value(get_codec(codec), value)
    except Exception as exc:  # a custom codec may raise anything
        what = f"a result of type {type(value).__name__} cannot be stored as {codec}"
        raise ResultError(f"{what}: {clean_text(exc)}") from exc


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue

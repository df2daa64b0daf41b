"""Starts attempts: those that are short one after the other in one task.

**What.** A task costs as much as all the rest of a job that never waits. So handlers that were seen to end in
their first step are called in line, in a task that they share. As soon as one of them waits, the task is its
own until it ends, and those behind it get tasks of theirs.

**Why it is safe.** ``asyncio.current_task()`` is right from the first step of a handler to its last, and each
runs in a context of its own, as in a task of its own. A task that the handler kept (its reference count
tells), cancelled or ended with an error is not used for the next one.

**Its plain twin** is ``PlainStarter``: a task for each attempt.

**What it wins**: see ``docs/benchmarks.md``.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Protocol
from weakref import WeakSet

from windlass.speedups import enabled


class Handler(Protocol):
    """What is looked at of a handler."""

    @property
    def mode(self) -> str: ...

    @property
    def batch(self) -> Any: ...


class Attempt(Protocol):
    """What is started."""

    task: asyncio.Task[None] | None

    @property
    def handler(self) -> Any: ...

    def run(self) -> Coroutine[Any, Any, None]: ...


class Starter(Protocol):
    """Belongs to one worker and its event loop."""

    def start(self, attempts: Iterable[Attempt]) -> None:
        """Begin ``attempts`` with the next turn of the loop, in this order."""
        ...

    def look_back(self) -> None:
        """To be called when all that was started had its first step."""
        ...


class PlainStarter:
    """A task for each attempt."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def start(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            attempt.task = self._loop.create_task(attempt.run())

    def look_back(self) -> None:
        pass


def make_starter(loop: asyncio.AbstractEventLoop) -> Starter:
    """What starts the attempts of one worker."""
    return QuickStarter(loop) if enabled("shared_tasks") else PlainStarter(loop)


class QuickStarter:
    """A task for each attempt, or for many short ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: Handlers that ended without waiting when they were last seen.
        self._quick: WeakSet[Any] = WeakSet()
        #: One attempt each of handlers that may turn out to be quick.
        self._tried: list[Attempt] = []

    def start(self, attempts: Iterable[Attempt]) -> None:
        line: deque[Attempt] = deque()
        handler, quick = None, False
        for attempt in attempts:
            if attempt.handler is not handler:
                handler = attempt.handler
                quick = handler in self._quick
                if not quick and handler.mode == "loop" and handler.batch is None:
                    self._tried.append(attempt)
            if quick:
                line.append(attempt)
                continue
            if line:
                self._start_line(line)
                line = deque()
            self._start_alone(attempt)
        if line:
            self._start_line(line)

    def look_back(self) -> None:
        """Called when all that was started had its first step: who ended in it is quick."""
        for attempt in self._tried:
            if attempt.task is None:
                self._quick.add(attempt.handler)
        self._tried.clear()

    def _start_alone(self, attempt: Attempt) -> None:
        attempt.task = self._loop.create_task(attempt.run())

    def _start_line(self, line: deque[Attempt]) -> None:
        self._loop.create_task(self.run_line(line))  # held by the loop, later by the attempt that waits in it

    async def run_line(self, line: deque[Attempt]) -> None:
        """Run attempts one after the other, until one of them waits."""
        task = asyncio.current_task()
        assert task is not None
        holders = sys.getrefcount(task)
        while line:
            attempt = line.popleft()
            context, run = contextvars.copy_context(), attempt.run()
            attempt.task = task
            try:
                waits_for = context.run(run.send, None)
            except StopIteration:
                # Code that kept the task, or cancelled it, must not meet the next job in it.
                if sys.getrefcount(task) <= holders and not task.cancelling():
                    continue
                self._leave_line(attempt, line)
            except BaseException:
                self._leave_line(attempt, line)
                raise
            else:
                self._leave_line(attempt, line)
                await _Rest(context, run, waits_for)

    def _leave_line(self, attempt: Attempt, line: deque[Attempt]) -> None:
        """Give the attempts behind ``attempt`` tasks of their own."""
        self._quick.discard(attempt.handler)
        while line:
            self._start_alone(line.popleft())


class _Rest:
    """A coroutine that was begun in ``context`` and waits for a future: awaiting it goes on there."""

    __slots__ = ("_context", "_future", "gi_yieldfrom")

    def __init__(
        self, context: contextvars.Context, coroutine: Coroutine[Any, Any, None], future: Any
    ) -> None:
        self._context = context
        self._future = future
        #: Under the name by which those who print stacks look for it.
        self.gi_yieldfrom: Coroutine[Any, Any, None] = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        return self

    def __iter__(self) -> _Rest:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        future, self._future = self._future, None
        if future is not None:
            return future
        return self._context.run(self.gi_yieldfrom.send, value)

    def throw(self, *exc: Any) -> Any:
        return self._context.run(self.gi_yieldfrom.throw, *exc)

    def close(self) -> None:
        self._context.run(self.gi_yieldfrom.close)

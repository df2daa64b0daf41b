"""Finds the handler of a job: by (queue, task name), then by task name, then the fallback.

It is read at every claim, so running workers use handlers that are registered late.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.core.ids import check_queue_name, check_task_name
from windlass.core.option_values import Isolation
from windlass.errors import ConfigError
from windlass.handlers.batch import Batch, to_batch
from windlass.handlers.inject import InjectedParameters, takes_one


@dataclass(eq=False)
class Handler:
    """How to run a job. Never changed.

    ``takes_job``: it is called with the ``Job``, otherwise with the job's arguments.
    """

    call: Callable[..., Any]
    takes_job: bool
    isolation: Isolation = "auto"
    #: Memory limit of an isolated child, in bytes.
    memory_limit: int | None = None
    #: Its task, which decodes arguments (None for plain handlers).
    task: Any = None
    #: Set for handlers that take many jobs in one call.
    batch: Batch | None = None
    #: Parameters that the worker injects besides the job's arguments.
    needs: InjectedParameters | None = None
    #: Where it runs: on the loop, in a thread or in a child process.
    mode: Literal["loop", "thread", "process"] = field(init=False)
    #: Whether it runs on the loop and takes nothing but the job or its arguments.
    is_simple: bool = field(init=False)

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise ConfigError("handler", "callable", self.call)
        inner = _innermost(self.call)
        if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
            want = "a function that returns its result (report parts of it with job.stream), not a generator"
            raise ConfigError("handler", want, self.call)
        self.mode = self._mode(inner)
        self.is_simple = self.mode == "loop" and self.batch is None and self.needs is None

    def _mode(self, inner: Any) -> Literal["loop", "thread", "process"]:
        if self.isolation == "process":
            return "process"
        if self.isolation == "auto" and inspect.iscoroutinefunction(inner):
            return "loop"
        return "thread"


def job_handler(call: Callable[..., Any], batch: Batch | Mapping[str, Any] | int | None = None) -> Handler:
    """Return the handler for a function that takes the ``Job``; with ``batch``, a list of jobs."""
    needs = InjectedParameters.of(call)
    handler = Handler(call, takes_job=True, batch=to_batch(batch), needs=needs)
    if not takes_one(call, needs):
        taken = "the job (its arguments are job.data)" if batch is None else "the list of jobs"
        raise ConfigError("handler", f"a function of one parameter, {taken}", call)
    return handler


def _innermost(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function behind partials and callable objects."""
    while isinstance(call, functools.partial):
        call = call.func
    if not inspect.isroutine(call) and not inspect.isclass(call):
        return type(call).__call__
    return call


def from_callback(fn: Callable[[Any, Callable[..., None]], Any]) -> Callable[[Any], Any]:
    """Return a handler for a callback-style function ``fn(job, done)``, which calls ``done(error, result)``.

    ``done`` may be called later and from any thread; only the first call counts. An ``error`` fails the
    attempt.
    """

    async def handler(job: Any) -> Any:
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()

        def settle(error: BaseException | None, result: Any) -> None:
            if outcome.done():
                return  # the first call counts
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        def done(error: BaseException | None = None, result: Any = None) -> None:
            loop.call_soon_threadsafe(settle, error, result)

        fn(job, done)
        return await outcome

    return handler


class Registry:
    """Handlers by task name, with overrides per queue."""

    def __init__(self, fallback: Handler | None = None) -> None:
        self._handlers: dict[tuple[str | None, str], Handler] = {}
        self.fallback = fallback
        #: A description of what the fallback runs: ``every task of django.tasks``.
        self.others: tuple[str, ...] = ()

    def add(self, name: str, handler: Handler, queue: str | None = None) -> None:
        """Register ``handler`` for ``name``. Registering again replaces it."""
        check_task_name(name)
        if queue is not None:
            check_queue_name(queue)
        self._handlers[queue, name] = handler

    def find(self, queue: str, name: str) -> Handler | None:
        """Return the handler for a job, or None."""
        handlers = self._handlers
        return handlers.get((queue, name)) or handlers.get((None, name)) or self.fallback

    def names(self) -> list[str]:
        """Return all registered task names."""
        return sorted({name for _, name in self._handlers})

    def advice(self, name: str) -> str:
        """Return advice for a task without a handler: a similar name, or the registered names."""
        known = self.names()
        last = name.rpartition(".")[2]
        near = difflib.get_close_matches(name, known, 1) or [one for one in known if one.endswith(f".{last}")]
        if near:
            return (
                f"; did you mean {near[0]!r}? A file that is run as a script names its tasks without its "
                "package: use python -m package.module, or @app.task(name=...)"
            )
        return (
            f"; this worker knows: {', '.join(known[:20])}" if known else "; this worker has no tasks at all"
        )

"""Which code runs a job: by (queue, task name), then by task name, then the fallback.

Read at every claim, so handlers that are registered late are seen by workers that already run.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from windlass.core.ids import check_queue_name, check_task_name
from windlass.core.option_values import Isolation
from windlass.errors import ConfigError
from windlass.handlers.batch import Batch, to_batch
from windlass.handlers.inject import InjectedParameters


@dataclass(frozen=True, eq=False)
class Handler:
    """How to run a job. ``takes_job``: called with the Job, else with the job's arguments."""

    call: Callable[..., Any]
    takes_job: bool
    isolation: Isolation = "auto"
    #: Memory limit of an isolated child, in bytes.
    memory_limit: int | None = None
    #: The task behind it, for argument decoding (None for plain handlers).
    task: Any = None
    #: Set for handlers that take many jobs in one call.
    batch: Batch | None = None
    #: What the worker passes besides the job's arguments.
    needs: InjectedParameters | None = None

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise ConfigError("handler", "callable", self.call)
        inner = _innermost(self.call)
        if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
            want = "a function that returns its result (put out parts of it with job.stream), not a generator"
            raise ConfigError("handler", want, self.call)

    @cached_property
    def mode(self) -> Literal["loop", "thread", "process"]:
        """Where it runs."""
        if self.isolation == "process":
            return "process"
        if self.isolation == "auto" and inspect.iscoroutinefunction(_innermost(self.call)):
            return "loop"
        return "thread"

    @cached_property
    def is_simple(self) -> bool:
        """Whether it is called with the job's arguments, on the loop, and with nothing else."""
        return self.mode == "loop" and not self.takes_job and self.batch is None and self.needs is None


def job_handler(call: Callable[..., Any], batch: Batch | Mapping[str, Any] | int | None = None) -> Handler:
    """How to run a function that receives the ``Job`` (with ``batch`` a list of them)."""
    return Handler(call, takes_job=True, batch=to_batch(batch), needs=InjectedParameters.of(call))


def _innermost(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind partials and callable objects."""
    while isinstance(call, functools.partial):
        call = call.func
    if not inspect.isroutine(call) and not inspect.isclass(call):
        return type(call).__call__
    return call


def from_callback(fn: Callable[[Any, Callable[..., None]], Any]) -> Callable[[Any], Any]:
    """A handler from a callback-style function ``fn(job, done)``, which calls ``done(error, result)`` once.

    ``done`` may be called from any thread, later; an error (first argument) fails the attempt.
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
    """Handlers by task name, with overrides per queue. The key is a tuple, never a joined string."""

    def __init__(self, fallback: Handler | None = None) -> None:
        self._handlers: dict[tuple[str | None, str], Handler] = {}
        self.fallback = fallback
        #: What the fallback runs, for people: ``every task of django.tasks``.
        self.others: tuple[str, ...] = ()

    def add(self, name: str, handler: Handler, queue: str | None = None) -> None:
        """Register ``handler`` for ``name``; registering again replaces it."""
        check_task_name(name)
        if queue is not None:
            check_queue_name(queue)
        self._handlers[queue, name] = handler

    def find(self, queue: str, name: str) -> Handler | None:
        """The handler for a job, or None."""
        handlers = self._handlers
        return handlers.get((queue, name)) or handlers.get((None, name)) or self.fallback

    def names(self) -> list[str]:
        """Every registered task name."""
        return sorted({name for _, name in self._handlers})

    def advice(self, name: str) -> str:
        """Advice for a task without a handler: a similar name, or the names that are registered."""
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

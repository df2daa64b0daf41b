"""What an app runs around enqueues and jobs: middleware, error hooks, context variables, resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from windlass.errors import ConfigError
from windlass.handlers.hooks import Hooks
from windlass.handlers.propagation import ContextPropagator
from windlass.serde.codecs import Codecs

H = TypeVar("H", bound=Callable[..., Any])
L = TypeVar("L", bound=Callable[..., Any])

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class HookVerbs:
    """The part of ``Windlass`` that registers hooks and the resources of workers."""

    def __init__(self, codecs: Codecs) -> None:
        #: What runs around every enqueue and every run; see ``use``.
        self.hooks: Hooks = Hooks(codecs)
        self.carrier: ContextPropagator = ContextPropagator()
        self._lifespan: Lifespan | None = None

    def use(self, middleware: Any) -> None:
        """Add a middleware: an object with ``enqueue``, ``execute``, ``ended`` or ``failed``.

        The first is outermost. ``failed`` is called as a hook of ``on_error`` is.
        """
        self.hooks.use(middleware)

    def around_enqueue(self, hook: H) -> H:
        """Put a function around every enqueue; also a decorator. ``windlass.handlers.hooks`` explains its
        forms."""
        self.hooks.around_enqueue(hook)
        return hook

    def around_execute(self, hook: H) -> H:
        """Put a function around every run of a job; also a decorator. ``windlass.handlers.hooks`` has its
        forms."""
        self.hooks.around_execute(hook)
        return hook

    def on_error(self, hook: H) -> H:
        """Call ``hook(job, error, final)`` when a run failed, for an error tracker; also a decorator.

        ``final`` is false when the job will be retried. Signals like ``Snooze`` are no errors.
        """
        self.hooks.on_error(hook)
        return hook

    def on_death(self, hook: H) -> H:
        """Call ``hook(job, error)`` when a run failed its job for good; also a decorator.

        ``error`` is a ``MaxRetriesError`` when attempts are spent, with the raised error as its cause. It is
        called in the worker of that run; jobs that fail without one (expired, lost too often, a child that
        failed) have the event ``failed``.
        """
        self.hooks.on_death(hook)
        return hook

    def carry(self, variable: ContextVar[Any], name: str | None = None) -> None:
        """Let a context variable (a locale, a tenant, a request id) travel from the producer to the handler.

        Its value must be one that JSON can hold. A variable that is not set is not carried.
        """
        first = not self.carrier
        self.carrier.add(variable, name or variable.name)
        if first:
            self.hooks.use(self.carrier)

    def lifespan(self, resources: L) -> L:
        """Register what a worker opens before its first job and closes after its last; also a decorator.

        ``resources(app)`` is an async generator that yields once. What it yields is every job's ``context``.
        """
        if not inspect.isasyncgenfunction(resources):
            raise ConfigError("lifespan", "an async generator of one parameter, the app", resources)
        if self._lifespan is not None:
            raise ConfigError("lifespan", "given once for an app")
        self._lifespan = asynccontextmanager(resources)
        return resources

    def open_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """The resources of one worker; empty when the app has none."""
        return nullcontext() if self._lifespan is None else self._lifespan(self)

"""Hooks around enqueues and jobs: middleware, error hooks, context variables, resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from windlass.errors import ConfigError
from windlass.handlers.hints import accepts
from windlass.handlers.hooks import Hooks
from windlass.handlers.propagation import ContextPropagator
from windlass.serde.codecs import Codecs

H = TypeVar("H", bound=Callable[..., Any])
L = TypeVar("L", bound=Callable[..., Any])

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class HookVerbs:
    """The part of ``Windlass`` that registers hooks and the resources of workers."""

    def __init__(self, codecs: Codecs) -> None:
        #: The hooks around every enqueue and every run; see ``use``.
        self.hooks: Hooks = Hooks(codecs)
        self.carrier: ContextPropagator = ContextPropagator()
        self._lifespan: Lifespan | None = None

    def use(self, middleware: Any) -> None:
        """Add a middleware: an object with ``enqueue``, ``execute``, ``ended`` or ``failed``.

        The first one added is the outermost. ``failed`` is called like a hook of ``on_error``.
        """
        self.hooks.use(middleware)

    def around_enqueue(self, hook: H) -> H:
        """Run a function around every enqueue. Usable as a decorator; see ``windlass.handlers.hooks``."""
        self.hooks.around_enqueue(hook)
        return hook

    def around_execute(self, hook: H) -> H:
        """Run a function around every run of a job. Usable as a decorator, like ``around_enqueue``."""
        self.hooks.around_execute(hook)
        return hook

    def on_error(self, hook: H) -> H:
        """Call ``hook(job, error, final)`` when a run failed, for error trackers. Usable as a decorator.

        ``final`` is false when the job will be retried. Signals such as ``Snooze`` are not errors.
        """
        self.hooks.on_error(hook)
        return hook

    def on_death(self, hook: H) -> H:
        """Call ``hook(job, error)`` when a run failed its job permanently. Usable as a decorator.

        ``error`` is a ``MaxRetriesError`` when no attempt is left, with the raised error as its cause. The
        hook runs in the worker of that run. Jobs that fail without a run (expired, stalled too often, a
        failed child) only have the event ``failed``.
        """
        self.hooks.on_death(hook)
        return hook

    def carry(self, variable: ContextVar[Any], name: str | None = None) -> None:
        """Pass a context variable (a locale, a tenant, a request id) from the producer to the handler.

        Its value must be serialisable as JSON. A variable that is not set is not passed.
        """
        if not isinstance(variable, ContextVar):
            raise ConfigError("carry", "a context variable, as in tenant = ContextVar('tenant')", variable)
        first = not self.carrier
        self.carrier.add(variable, name or variable.name)
        if first:
            self.hooks.use(self.carrier)

    def lifespan(self, resources: L) -> L:
        """Register resources that a worker opens before its first job and closes after its last.

        ``resources(app)`` is an async generator that yields once; the value becomes ``job.context``. Usable
        as a decorator, once per app.
        """
        if not inspect.isasyncgenfunction(resources) or not accepts(resources, self):
            raise ConfigError("lifespan", "an async generator of one parameter, the app", resources)
        if self._lifespan is not None:
            raise ConfigError("lifespan", message="this app already has a lifespan; an app takes only one")
        self._lifespan = asynccontextmanager(resources)
        return resources

    def open_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Return the context manager of a worker's resources; an empty one when the app has none."""
        return nullcontext() if self._lifespan is None else self._lifespan(self)

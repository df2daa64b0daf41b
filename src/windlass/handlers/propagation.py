"""Context variables that travel with a job: read where it is enqueued, set where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.errors import ConfigError
from windlass.handlers.hooks import Outgoing

if TYPE_CHECKING:
    from windlass.jobs.job import Job

_MISSING: Any = object()


class ContextPropagator:
    """Carries variables as JSON in the job's ``trace``. It is a middleware of apps that carry any."""

    PREFIX = "ctx."

    def __init__(self) -> None:
        self._variables: dict[str, ContextVar[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._variables)

    def add(self, variable: ContextVar[Any], name: str) -> None:
        """Carry ``variable`` under ``name``."""
        known = self._variables.setdefault(self.PREFIX + name, variable)
        if known is not variable:
            raise ConfigError(
                "name", message=f"another context variable is already propagated as {name!r}", got=name
            )

    def values(self) -> dict[str, str]:
        """Return the variables that are set in this context, as JSON texts."""
        found = {}
        for key, variable in self._variables.items():
            value = variable.get(_MISSING)
            if value is not _MISSING:
                try:
                    found[key] = msgspec.json.encode(value).decode()
                except (TypeError, ValueError) as exc:
                    raise ConfigError(
                        f"context variable {variable.name!r}",
                        message=f"context variable {variable.name!r} has a value that JSON cannot hold "
                        f"({exc})",
                        got=value,
                    ) from exc
        return found

    def restore(self, trace: dict[str, str]) -> None:
        """Set the variables that ``trace`` carries, in the calling context."""
        for key, variable in self._variables.items():
            text = trace.get(key)
            if text is not None:
                variable.set(msgspec.json.decode(text))

    def enqueue(self, outgoing: Outgoing) -> Iterator[None]:
        """Middleware for an enqueue: add the variables that are set."""
        values = self.values()
        if values:
            outgoing.carry(values)
        yield

    def execute(self, job: Job[Any]) -> Iterator[None]:
        """Middleware for a run: set the variables. They are local to the context of the run."""
        self.restore(job.trace)
        yield

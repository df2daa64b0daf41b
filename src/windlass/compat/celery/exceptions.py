"""Celery's exceptions. Where Celery has no matching one, ``ConfigError`` of Windlass is raised."""

from __future__ import annotations

import builtins
from datetime import datetime
from typing import Any

from windlass.errors import ConfigError


class CeleryError(Exception):
    """Base of the errors of this API."""


class ImproperlyConfigured(CeleryError):
    """The app cannot be used as it is configured."""


class NotRegistered(CeleryError, KeyError):
    """No task of that name is known in this process."""


class TimeoutError(CeleryError, builtins.TimeoutError):
    """The result was not available in time. The task continues."""


class TaskError(CeleryError):
    """Base of the errors that end tasks."""


class MaxRetriesExceededError(TaskError):
    """The task has used all its retries."""

    def __init__(self, *args: Any, task_args: Any = (), task_kwargs: Any = None) -> None:
        self.task_args = task_args
        self.task_kwargs = task_kwargs or {}
        super().__init__(*args)


class TaskRevokedError(TaskError):
    """The awaited task was revoked, or expired before it started."""


class ChordError(TaskError):
    """A task of the chord's header failed, so its body was not run."""


class TimeLimitExceeded(CeleryError):
    """A run took longer than its ``time_limit``."""


class SoftTimeLimitExceeded(CeleryError):
    """For ``except`` clauses of old code. Never raised here, because a thread cannot be interrupted."""


class TaskPredicate(CeleryError):
    """Base of the exceptions by which a task decides its outcome."""


class Ignore(TaskPredicate):
    """Store no result of this run."""


class Reject(TaskPredicate):
    """Return the message to the queue (``requeue=True``), or drop it."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        self.reason = reason
        self.requeue = requeue
        super().__init__(reason, requeue)


class Retry(TaskPredicate):
    """The task will run again. ``self.retry()`` raises it."""

    def __init__(
        self,
        message: str | None = None,
        exc: BaseException | None = None,
        when: float | datetime | None = None,
        **options: Any,
    ) -> None:
        if options:
            raise ConfigError(
                "Retry",
                message=f"Retry takes message, exc and when, not {', '.join(sorted(options))}",
                got=sorted(options),
            )
        self.message = message
        self.exc = exc
        self.when = when
        super().__init__(message, exc, when)

    def __str__(self) -> str:
        if self.message:
            return self.message
        wait = f" in {self.when}s" if isinstance(self.when, (int, float)) else f" at {self.when}"
        return f"Retry{wait if self.when is not None else ''}" + (f": {self.exc!r}" if self.exc else "")

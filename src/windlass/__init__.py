"""Windlass: background jobs that are never lost, that are fast, and whose history can be queried.

    from windlass import Windlass

    app = Windlass()                       # sqlite:///windlass.db, or $WINDLASS_URL

    @app.task(queue="mail", max_attempts=5)
    async def send_mail(to: str) -> str: ...

    job = await send_mail.enqueue("ada@example.com")

Run it with ``windlass worker module:app``. What is used less often is in the module of its subject:
``windlass.errors``, ``windlass.flows``, ``windlass.handlers``, ``windlass.jobs``, ``windlass.limits``,
``windlass.schedules``, ``windlass.serde``.
"""

from typing import TYPE_CHECKING

from windlass._renamed import install, old_names
from windlass._version import __version__
from windlass.api.app import Windlass
from windlass.api.events import QueueEvents
from windlass.api.queue import Queue
from windlass.api.shutdown import graceful_shutdown
from windlass.api.task import Task
from windlass.errors import (
    BatchError,
    Cancel,
    ClosedError,
    ConfigError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobTimeoutError,
    LeaseLostError,
    RateLimitError,
    Retry,
    Snooze,
    StorageError,
    Suspend,
    UnrecoverableError,
    UnsupportedByBackendError,
    WaitForChildren,
    WaitTimeoutError,
    WindlassError,
)
from windlass.flows import RESULT, FlowProducer, chain, chord, group, step
from windlass.handlers import INJECTED, Batch, Depends
from windlass.jobs import (
    Backoff,
    Event,
    Job,
    JobOptions,
    JobState,
    Keep,
    Priority,
    Unique,
    as_completed,
    current_job,
    gather,
)
from windlass.limits import GroupLimits, Limiter, Rate
from windlass.schedules import Schedule
from windlass.worker import QueueSpec, Worker

install()
if not TYPE_CHECKING:  # type checkers see the names that are here to stay
    __getattr__ = old_names(__name__)

__all__ = [  # noqa: RUF022 - grouped by topic
    # what people start with
    "Windlass",
    "Queue",
    "Job",
    "Worker",
    "Task",
    "QueueEvents",
    "current_job",
    "gather",
    "as_completed",
    "graceful_shutdown",
    # options
    "JobOptions",
    "Unique",
    "Keep",
    "Backoff",
    "Priority",
    "Batch",
    "Schedule",
    "QueueSpec",
    "Depends",
    "INJECTED",
    "RESULT",
    "Rate",
    "GroupLimits",
    "Limiter",
    # flows
    "FlowProducer",
    "chain",
    "group",
    "chord",
    "step",
    # what happened
    "JobState",
    "Event",
    # raised by handlers
    "Snooze",
    "Retry",
    "Cancel",
    "RateLimitError",
    "Suspend",
    "WaitForChildren",
    "UnrecoverableError",
    "BatchError",
    # raised to callers; the others are in windlass.errors
    "WindlassError",
    "ConfigError",
    "JobNotFoundError",
    "JobFailedError",
    "JobCancelledError",
    "JobTimeoutError",
    "WaitTimeoutError",
    "LeaseLostError",
    "StorageError",
    "UnsupportedByBackendError",
    "ClosedError",
    "__version__",
]

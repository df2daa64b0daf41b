"""Windlass: background jobs that are never lost, that are fast, and whose history can be queried.

    from windlass import Windlass

    app = Windlass()                       # sqlite:///windlass.db, or $WINDLASS_URL

    @app.task(queue="mail", max_attempts=5)
    async def send_mail(to: str) -> str: ...

    job = await send_mail.enqueue("ada@example.com")

Run it with ``windlass worker module:app``.
"""

from windlass._version import __version__
from windlass.app import Windlass
from windlass.batch import Batch
from windlass.context import current_job
from windlass.core.backoff import Backoff
from windlass.core.edges import Dependency, Edge, EdgeStatus, OnFailure
from windlass.core.ids import content_id
from windlass.core.job import Event, EventType
from windlass.core.limits import Bucket, GroupInfo, GroupLimits, Rate
from windlass.core.options import JobOptions, Keep, Priority, Unique, UniqueMode
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.core.schedules import Schedule
from windlass.core.states import JobState
from windlass.errors import (
    AbortedError,
    BatchError,
    Cancel,
    ClosedError,
    ConfigError,
    CycleError,
    DependencyError,
    ForkedError,
    GroupFullError,
    HistoryTrimmedError,
    IllegalTransitionError,
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    JobSignal,
    JobTimeoutError,
    LeaseLostError,
    LimiterTimeoutError,
    MaxRetriesError,
    OrderedGroupError,
    PayloadTooLargeError,
    RateLimitError,
    ResultError,
    ResultExpiredError,
    Retry,
    ScheduleNotFoundError,
    SignatureError,
    Snooze,
    StorageError,
    StoreFullError,
    StoreReplacedError,
    Suspend,
    UnrecoverableError,
    UnsupportedByBackendError,
    WaitForChildren,
    WaitTimeoutError,
    WindlassError,
    WorkerCrashError,
)
from windlass.events import QueueEvents
from windlass.flows import FlowProducer
from windlass.flowtree import JobNode
from windlass.gather import as_completed, gather
from windlass.hooks import AttemptEnd, Outgoing
from windlass.inject import Depends
from windlass.job import Job
from windlass.limiter import Limiter
from windlass.output import StreamChunk
from windlass.queue import Queue
from windlass.registry import from_callback
from windlass.serde import Codec, register_codec
from windlass.shutdown import graceful_shutdown
from windlass.steps import Group, Step, chain, chord, group, step
from windlass.task import Task
from windlass.worker import QueueSpec, Worker

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
    "content_id",
    "from_callback",
    "graceful_shutdown",
    # around jobs
    "AttemptEnd",
    "Depends",
    "Outgoing",
    # flows
    "FlowProducer",
    "JobNode",
    "Step",
    "Group",
    "step",
    "chain",
    "group",
    "chord",
    "Dependency",
    "Edge",
    "StreamChunk",
    # options
    "JobOptions",
    "QueueSpec",
    "Batch",
    "Backoff",
    "Keep",
    "Priority",
    "Schedule",
    "Unique",
    "UniqueMode",
    "Limiter",
    "Rate",
    "Bucket",
    "GroupLimits",
    "GroupInfo",
    # words
    "JobState",
    "OnFailure",
    "EdgeStatus",
    "AddOutcome",
    "CancelResult",
    "Event",
    "EventType",
    # raised by handlers
    "JobSignal",
    "Snooze",
    "Retry",
    "Cancel",
    "RateLimitError",
    "WaitForChildren",
    "Suspend",
    "UnrecoverableError",
    "BatchError",
    # raised to callers
    "WindlassError",
    "ConfigError",
    "PayloadTooLargeError",
    "DependencyError",
    "CycleError",
    "GroupFullError",
    "UnsupportedByBackendError",
    "StorageError",
    "StoreFullError",
    "StoreReplacedError",
    "ForkedError",
    "HistoryTrimmedError",
    "AbortedError",
    "ClosedError",
    "JobNotFoundError",
    "ScheduleNotFoundError",
    "IllegalTransitionError",
    "LeaseLostError",
    "OrderedGroupError",
    "JobFailedError",
    "MaxRetriesError",
    "JobCancelledError",
    "JobTimeoutError",
    "WorkerCrashError",
    "WaitTimeoutError",
    "LimiterTimeoutError",
    "ResultError",
    "ResultExpiredError",
    "SignatureError",
    # codecs
    "Codec",
    "register_codec",
    "__version__",
]

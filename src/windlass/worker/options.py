"""The options of a worker. They are checked when they are created."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

import msgspec

from windlass.core.ids import check_queue_name, is_text
from windlass.core.limit_rules import MAX_COUNT, Rate, check_count, to_rate
from windlass.core.option_values import Duration, seconds_to_ms
from windlass.errors import ConfigError

Order = Literal["weighted", "strict"]


#: The maximum weight; larger than any useful ratio between queues.
_MAX_WEIGHT = 1e9
#: The maximum length of a worker's tag and id.
_MAX_LABEL = 256


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class QueueSpec(msgspec.Struct, frozen=True):
    """How much of a worker's pool a queue gets: its weight, its maximum and its reserved slots."""

    #: Its share of the slots while all queues have jobs: 2 gets twice as many as 1.
    weight: float = 1
    #: The maximum number of slots that it may use (None: all).
    cap: int | None = None
    #: The number of slots that no other queue may use.
    reserve: int = 0

    def __post_init__(self) -> None:
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight <= _MAX_WEIGHT:
            raise ConfigError("weight", f"a number above 0, at most {_MAX_WEIGHT:g}", weight)
        if self.cap is not None and (not _is_whole(self.cap) or self.cap < 1):
            raise ConfigError("cap", "a whole number from 1, or None", self.cap)
        if (
            not _is_whole(self.reserve)
            or self.reserve < 0
            or (self.cap is not None and self.reserve > self.cap)
        ):
            raise ConfigError("reserve", "a whole number from 0 to the queue's cap", self.reserve)


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one worker. Durations are seconds or ``timedelta``."""

    #: The maximum number of jobs that run at once, over all queues.
    concurrency: int = 16
    #: ``weighted``: every queue gets its share; ``strict``: earlier queues first, always.
    order: Order = "weighted"
    #: At most this many starts in any window, over all workers: ``{"max": ..., "duration": seconds}`` or
    #: ``(max, seconds)``. Becomes the rate limit of each of these queues when the worker starts.
    limiter: Mapping[str, Any] | tuple[int, float] | Rate | None = None
    #: At most this many jobs of each of these queues at once, over all workers; set in the same way.
    global_concurrency: int | None = None
    #: How long a job stays leased without a renewal. Then another worker may run it.
    lease: Duration = 30
    #: How long running jobs may continue after a stop was requested.
    grace: Duration = 20
    #: How long running jobs may take to stop after a shutdown cancelled them, before they are released.
    cancel_wait: Duration = 5
    #: Look for jobs at least this often, even without a hint.
    poll: Duration = 2
    #: Look for expired leases this often (None: half the lease, at most 15 s).
    recover_every: Duration | None = None
    #: Remove old records this often (one worker does it for all).
    prune_every: Duration = 30
    #: Interval of the heartbeats.
    heartbeat: Duration = 10
    #: The maximum number of child processes for tasks with ``isolation="process"``.
    process_slots: int = msgspec.field(default_factory=lambda: os.cpu_count() or 2)
    #: Replace a child process after this many jobs (None: never).
    max_jobs_per_child: int | None = None
    #: Whether to run the duties of the store (recover, prune, schedules) besides the jobs.
    duties: bool = True
    #: Stop when no job is waiting, active or retrying.
    burst: bool = False
    #: A label that the heartbeat shows.
    tag: str = ""
    #: The worker's id. It must be unique, also after a restart. None: host:pid:random.
    id: str | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "process_slots"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
                raise ConfigError(name, "a whole number from 1 to 10000", value)
        for name in ("burst", "duties"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(name, "True or False", getattr(self, name))
        if self.max_jobs_per_child is not None:
            check_count("max_jobs_per_child", self.max_jobs_per_child, MAX_COUNT)
        to_rate(self.limiter, "limiter")
        if self.global_concurrency is not None:
            check_count("global_concurrency", self.global_concurrency, MAX_COUNT)
        if not is_text(self.tag) or len(self.tag) > _MAX_LABEL:
            raise ConfigError("tag", f"a text of at most {_MAX_LABEL} characters", self.tag)
        if self.id is not None and (not is_text(self.id) or not 1 <= len(self.id) <= _MAX_LABEL):
            raise ConfigError("id", f"a text of 1 to {_MAX_LABEL} characters", self.id)
        if self.order not in ("weighted", "strict"):
            raise ConfigError("order", "weighted or strict", self.order)
        seconds_to_ms(self.lease, "lease", minimum=1)
        for name in ("poll", "prune_every", "heartbeat"):
            seconds_to_ms(getattr(self, name), name, minimum=0.01)
        _ = self.recover_ms
        for name in ("grace", "cancel_wait"):
            seconds_to_ms(getattr(self, name), name)

    @property
    def recover_ms(self) -> int:
        """How often to look for expired leases, in milliseconds."""
        if self.recover_every is None:
            return min(self.ms("lease") // 2, 15_000)
        return seconds_to_ms(self.recover_every, "recover_every", minimum=0.01)

    def ms(self, name: str) -> int:
        """Return a duration option in milliseconds."""
        return seconds_to_ms(getattr(self, name), name)


class WorkerOptionsDict(TypedDict, total=False):
    """The fields of ``WorkerOptions`` as keyword arguments of ``Worker``, for type checkers."""

    concurrency: int
    order: Order
    limiter: Mapping[str, Any] | tuple[int, float] | Rate | None
    global_concurrency: int | None
    lease: Duration
    grace: Duration
    cancel_wait: Duration
    poll: Duration
    recover_every: Duration | None
    prune_every: Duration
    heartbeat: Duration
    process_slots: int
    max_jobs_per_child: int | None
    duties: bool
    burst: bool
    tag: str
    id: str | None


Queues = str | Iterable[str] | Mapping[str, float | QueueSpec]


def to_specs(queues: Queues, concurrency: int) -> dict[str, QueueSpec]:
    """Return queue names with their specs, in order. Reserves must not exceed the pool."""
    if isinstance(queues, str):
        queues = [queues]
    if isinstance(queues, Mapping):
        specs = {
            name: value if isinstance(value, QueueSpec) else QueueSpec(value)
            for name, value in queues.items()
        }
    elif isinstance(queues, Iterable):
        specs = {check_queue_name(name): QueueSpec() for name in queues}
    else:
        raise ConfigError(
            "queues",
            "a name, a list of names, or names with their weights (an app goes into url_or_app=)",
            queues,
        )
    if not specs:
        raise ConfigError("queues", message="queues must name at least one queue")
    for name in specs:
        check_queue_name(name)
    reserved = sum(spec.reserve for spec in specs.values())
    if reserved > concurrency:
        raise ConfigError(
            "reserve", message=f"the queues reserve {reserved} slots, but the worker has only {concurrency}"
        )
    return specs

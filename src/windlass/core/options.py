"""Job options: the form that users write, checked at once, and the compact form that stores keep.

``JobOptions`` has durations in seconds or as ``timedelta``; ``StoredOptions`` has integer milliseconds. More
specific options override general ones, in the order app, queue, task, call. An unknown name is refused, and
the error suggests the nearest known name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

import msgspec

from windlass.core.backoff import DEFAULT_BACKOFF, Backoff
from windlass.core.edges import Dependency, OnFailure, to_dependency, to_on_failure
from windlass.core.ids import JobRef, check_group, check_job_id, is_text
from windlass.core.option_values import (
    KEEP_COMPLETED,
    KEEP_FAILED,
    PRIORITY_MAX,
    PRIORITY_MIN,
    Duration,
    Keep,
    StoredUnique,
    Unique,
    UniqueMode,
    check_fallbacks,
    check_flag,
    check_int,
    check_known,
    check_tags,
    check_trace,
    copied,
    instant_to_ms,
    optional_ms,
    seconds_to_ms,
    to_backoff,
    to_keep,
    to_unique,
)
from windlass.errors import ConfigError

#: Options that a job may leave to the task of the worker that runs it. Their order defines the bits of
#: ``StoredOptions.unsaid`` and must never change.
FILLABLE = ("max_attempts", "backoff", "timeout", "result_ttl", "keep_completed", "keep_failed")
#: The bits of a job for which none of these options is set.
ALL_UNSAID = (1 << len(FILLABLE)) - 1
#: The maximum of ``backtrace``.
MOST_LINES = 1_000


def unsaid_bits(said: Iterable[str]) -> int:
    """The bits of the options of ``FILLABLE`` that are not in ``said``."""
    named = frozenset(said)
    return sum(1 << at for at, name in enumerate(FILLABLE) if name not in named)


class StoredOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that are stored with a job. Defaults are left out, so a plain job stores ``{}``."""

    max_attempts: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    timeout_ms: int | None = None
    #: ``None``: the worker's lease applies.
    lease_ms: int | None = None
    max_stalls: int = 2
    #: A job whose lease expired waits this long before it can start again.
    stall_delay_ms: int = 0
    #: ``None``: ``DEFAULT_RESULT_TTL_MS``, but the count bound of ``keep_completed`` wins.
    result_ttl_ms: int | None = None
    keep_completed: Keep = KEEP_COMPLETED
    keep_failed: Keep = KEEP_FAILED
    tags: tuple[str, ...] = ()
    #: The job is not started any more when this time has passed since its add.
    expires_total_ms: int | None = None
    #: For this long after the add, the id answers ``duplicate``, even if the record is gone.
    keep_id_ms: int | None = None
    #: Lines of traceback to keep per error.
    backtrace: int = 50
    trace: dict[str, str] | None = None
    #: The codec of progress and result, if it differs from the codec of the payload.
    result_codec: str | None = None
    #: A new place in line is at the front of its priority, not at the back.
    lifo: bool = False
    #: The tenant, customer or service that the job belongs to. Groups have limits and take fair turns.
    group: str | None = None
    #: Tokens that a start takes from the group's bucket.
    cost: int = 1
    unique: StoredUnique | None = None
    #: The schedule that added the job, and its slot (None: run by hand).
    schedule: str | None = None
    slot_ms: int | None = None
    #: The parent of the job and the root of its flow, as ``queue/id``, for history records.
    parent: str | None = None
    root: str | None = None
    #: Values for retries: the n-th retry gets the n-th value, later retries the last one.
    fallbacks: tuple[Any, ...] = ()
    #: Bits of the options of ``FILLABLE`` that the caller left out. The worker's task may override the values
    #: of these here. Jobs of earlier releases have no bits set.
    unsaid: int = 0

    def fallback(self, attempts: int) -> Any:
        """The fallback for the run after ``attempts`` failures; None for the first run."""
        if not attempts or not self.fallbacks:
            return None
        return self.fallbacks[min(attempts, len(self.fallbacks)) - 1]

    def keep_for(self, state: str) -> Keep:
        """The retention that applies to a job that ended in ``state``."""
        return self.keep_failed if state == "failed" else self.keep_completed


def placed(options: StoredOptions, parent: JobRef | None, root: JobRef) -> StoredOptions:
    """The options of a job of a flow, with its parent and the root of the flow."""
    above = None if parent is None else "/".join(parent)
    return msgspec.structs.replace(options, parent=above, root="/".join(root))


#: Names that users often pass as job options, and what to write instead.
_ELSEWHERE = {
    "queue": "jobs go to the queue of their task (@app.task(queue=...)); app.queue(NAME).add(task.name, ...) "
    "adds to another one",
    "every": 'a schedule says it, as in @app.task(schedule={"every": 60})',
    "interval": 'a schedule says it, as in @app.task(schedule={"every": 60})',
    "tz": 'write timezone, as in @app.task(cron="0 7 * * *", timezone="Europe/Berlin")',
    "bind": "the task gets no self; current_job() returns the job that runs",
    "autoretry_for": "every exception is retried, except UnrecoverableError; max_attempts= says how often",
    "retry_for": "every exception is retried, except UnrecoverableError; max_attempts= says how often",
    "rate_limit": "a queue has it: await queue.set_global_rate_limit((10, 60)) for 10 starts in 60 s",
    "concurrency": "a queue has it: await queue.set_global_concurrency(5), or a worker: --cap QUEUE=5",
    "ignore_result": "write result_ttl=0",
    "opts": 'each option has its own name, as in add("send", data, delay=5)',
    "options": 'each option has its own name, as in add("send", data, delay=5)',
}


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a job that is added. Durations are seconds or ``timedelta``."""

    #: Start no earlier than this from now.
    delay: Duration = 0
    #: Start no earlier than this time (aware datetime or seconds since 1970). Cannot be used with ``delay``.
    run_at: datetime | float | None = None
    #: Higher runs first. Jobs of equal priority run in the order in which they were added.
    priority: int = 0
    #: The total number of runs, including the first.
    max_attempts: int = 3
    #: A name, a number of seconds (fixed), a ``{"type": ..., "delay": ..., "cap": ..., "jitter": ...}``
    #: mapping, or a ``Backoff``.
    backoff: str | float | Mapping[str, Any] | Backoff = DEFAULT_BACKOFF
    #: The maximum duration of one attempt; ``None`` = no limit.
    timeout: Duration | None = None
    #: How long a worker that stopped responding keeps the job; ``None`` = the worker's setting.
    lease: Duration | None = None
    #: How often the job may lose its worker. After one more time it fails as ``stalled``.
    max_stalls: int = 2
    #: After a worker was lost, wait this long before another worker gets the job.
    stall_delay: Duration = 0
    #: Your own id: a second job with this id is not added while the first is unfinished.
    job_id: str | None = None
    #: How long the record of a completed job stays. True = forever, False = only as long as its result, a
    #: number = that many, timedelta = that long, ``{"age": ..., "count": ...}`` = both.
    keep_completed: bool | int | timedelta | Mapping[str, Any] | Keep = KEEP_COMPLETED
    #: The same for a job that failed.
    keep_failed: bool | int | timedelta | Mapping[str, Any] | Keep = KEEP_FAILED
    #: Keep the result (and the record) this long, even beyond the count of ``keep_completed``.
    result_ttl: Duration | None = None
    #: Labels to find the job by. Windlass does not interpret them.
    tags: tuple[str, ...] | list[str] = ()
    #: Fail as ``expired`` if the job has not started this long after it was added.
    expires_in: Duration | None = None
    #: From this long after the add, fail as ``expired`` instead of starting (again).
    expires_total: Duration | None = None
    #: The id answers ``duplicate`` for this long, even when its record is gone.
    keep_id: Duration | None = None
    #: Lines of traceback kept per error.
    backtrace: int = 50
    #: Text that is stored with the job for tracing and correlation.
    trace: dict[str, str] | None = None
    #: The name of the codec for the result, if it differs from the codec of the payload.
    result_codec: str | None = None
    #: Last in, first out: go to the front of its priority, not to the back.
    lifo: bool = False
    #: The tenant or customer of the job. Groups take turns, and may have limits of their own.
    group: str | None = None
    #: Tokens that a start takes from the bucket of its group.
    cost: int = 1
    #: A ``Unique``; or a key as text; or True for the task's name and all arguments.
    unique: Unique | str | bool | Mapping[str, Any] | None = None
    #: Jobs that must end first: jobs, ``(queue, id)`` pairs, ``{"queue", "id"}``, or ids of the same queue.
    depends_on: Any = ()
    #: A job that will wait for this one.
    parent: Any = None
    #: What the waiting job does when a job that it waits for does not complete: ``fail``, ``ignore`` or
    #: ``continue``.
    on_failure: str = OnFailure.FAIL
    #: JSON values for ``job.fallback``, one for each retry in turn: another model, host or method.
    fallbacks: tuple[Any, ...] | list[Any] = ()
    #: Internal: the options of ``FILLABLE`` that were given. None: those that differ from their defaults.
    said: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.said is None:
            msgspec.structs.force_setattr(self, "said", _unusual(self))
        check_int("priority", self.priority, PRIORITY_MIN, PRIORITY_MAX)
        check_int("max_attempts", self.max_attempts, 1, 1_000_000)
        check_int("max_stalls", self.max_stalls, 0, 1_000)
        check_int("backtrace", self.backtrace, 0, MOST_LINES)
        if self.run_at is not None and self.delay:
            raise ConfigError("run_at", message="give run_at or delay, not both", got=self.run_at)
        if self.job_id is not None:
            check_job_id(self.job_id)
        check_tags(self.tags)
        check_trace(self.trace)
        check_fallbacks(self.fallbacks)
        codec = self.result_codec
        if codec is not None and not (is_text(codec) and 1 <= len(codec) <= 32):
            raise ConfigError("result_codec", "the name of a codec (see register_codec)", codec)
        check_flag("lifo", self.lifo)
        check_int("cost", self.cost, 1, 1_000_000)
        if self.group is not None:
            check_group(self.group)
        unique = to_unique(self.unique)
        if unique is not None and unique.mode == UniqueMode.DEBOUNCE and (self.delay or self.run_at):
            raise ConfigError(
                "delay",
                message="a job with unique mode debounce cannot have a delay or run_at: its ttl says when it "
                "runs",
                got=self.delay,
            )
        if self.on_failure != OnFailure.FAIL:
            to_on_failure(self.on_failure)
        if self.depends_on or self.parent is not None:
            self.dependencies("default")

    @property
    def delay_ms(self) -> int:
        return seconds_to_ms(self.delay, "delay") if self.delay else 0

    @property
    def run_at_ms(self) -> int | None:
        return None if self.run_at is None else instant_to_ms(self.run_at, "run_at")

    @property
    def expires_in_ms(self) -> int | None:
        return optional_ms(self.expires_in, "expires_in", minimum=0.001)

    def dependencies(self, queue: str) -> tuple[list[Dependency], Dependency | None]:
        """The checked dependencies of a job of ``queue``, and its parent."""
        depends_on = self.depends_on
        if not isinstance(depends_on, (list, tuple)) or isinstance(depends_on, JobRef):
            depends_on = [depends_on]
        found = [to_dependency(one, self.on_failure, queue, "depends_on") for one in depends_on]
        if self.parent is None:
            return found, None
        return found, to_dependency(self.parent, self.on_failure, queue, "parent")

    def stored(self) -> StoredOptions:
        """The compact form, checked. The unique key is added later: it may depend on the arguments."""
        return StoredOptions(
            max_attempts=self.max_attempts,
            backoff=to_backoff(self.backoff),
            timeout_ms=optional_ms(self.timeout, "timeout", minimum=0.001),
            lease_ms=optional_ms(self.lease, "lease", minimum=1),
            max_stalls=self.max_stalls,
            stall_delay_ms=seconds_to_ms(self.stall_delay, "stall_delay"),
            result_ttl_ms=optional_ms(self.result_ttl, "result_ttl"),
            keep_completed=to_keep(self.keep_completed, "keep_completed"),
            keep_failed=to_keep(self.keep_failed, "keep_failed"),
            tags=tuple(self.tags),
            expires_total_ms=optional_ms(self.expires_total, "expires_total", minimum=0.001),
            keep_id_ms=optional_ms(self.keep_id, "keep_id", minimum=0.001),
            backtrace=self.backtrace,
            trace=dict(self.trace) if self.trace else None,
            result_codec=self.result_codec,
            lifo=self.lifo,
            group=self.group,
            cost=self.cost,
            fallbacks=tuple(copied(self.fallbacks)) if self.fallbacks else (),
            unsaid=unsaid_bits(self.said or ()),
        )

    def check(self) -> None:
        """Raise the ``ConfigError`` that an add with these options would raise."""
        self.stored()
        _ = (self.delay_ms, self.run_at_ms, self.expires_in_ms)

    def as_defaults(self) -> JobOptions:
        """These options, as defaults of many jobs. An option of a single job is a ``ConfigError``."""
        if self.job_id is not None:
            raise ConfigError(
                "job_id",
                message="each job needs its own id: pass job_id with a single job; to have at most one "
                "at a time, use unique",
                got=self.job_id,
            )
        return self

    def merged(self, given: Mapping[str, Any]) -> JobOptions:
        """These options, overridden by ``given``. An unknown name is a ``ConfigError``."""
        if not given:
            return self
        for name in _ELSEWHERE.keys() & given.keys():
            raise ConfigError(name, message=f"{name} cannot be given here: {_ELSEWHERE[name]}")
        check_known(given, OPTION_NAMES, "job option")
        if "run_at" in given and given["run_at"] is not None and "delay" not in given:
            given = {**given, "delay": 0}  # a more special run_at overrules a general delay
        if given.get("delay") and "run_at" not in given:
            given = {**given, "run_at": None}
        said = (self.said or frozenset()) | {name for name in FILLABLE if name in given}
        return msgspec.structs.replace(self, **given, said=said)

    def as_unsaid(self) -> JobOptions:
        """The same values as defaults that a worker's task may override."""
        return msgspec.structs.replace(self, said=frozenset())


OPTION_NAMES = frozenset(field.name for field in msgspec.structs.fields(JobOptions)) - {"said"}
_USUAL = {field.name: field.default for field in msgspec.structs.fields(JobOptions) if field.name in FILLABLE}


def _unusual(options: JobOptions) -> frozenset[str]:
    return frozenset(name for name, usual in _USUAL.items() if getattr(options, name) != usual)


#: The options that apply if none is given.
DEFAULT_OPTIONS = JobOptions()

# --- options as keyword arguments, for type checkers: ``**options: Unpack[JobOptionsDict]`` ---------------
# A test compares the names with those of ``JobOptions``. A method with a parameter that has the name of an
# option uses a dict without that option.

KeepRule = bool | int | timedelta | Mapping[str, Any] | Keep
FailureRule = Literal["fail", "ignore", "continue"] | OnFailure


class _SharedOptions(TypedDict, total=False):
    delay: Duration
    run_at: datetime | float | None
    priority: int
    max_attempts: int
    backoff: str | float | Mapping[str, Any] | Backoff
    lease: Duration | None
    max_stalls: int
    stall_delay: Duration
    job_id: str | None
    keep_completed: KeepRule
    keep_failed: KeepRule
    result_ttl: Duration | None
    tags: Sequence[str]
    expires_in: Duration | None
    expires_total: Duration | None
    keep_id: Duration | None
    backtrace: int
    trace: dict[str, str] | None
    result_codec: str | None
    lifo: bool
    group: str | None
    cost: int
    unique: Unique | str | bool | Mapping[str, Any] | None
    depends_on: Any
    fallbacks: Sequence[Any]


class ChildOptionsDict(_SharedOptions, total=False):
    """Options of ``Job.add_child``, which sets the parent itself."""

    timeout: Duration | None


class CallOptionsDict(_SharedOptions, total=False):
    """Options of ``Queue.add_and_wait``, whose parameter ``timeout`` is how long the caller waits."""

    parent: Any
    on_failure: FailureRule


class JobOptionsDict(CallOptionsDict, total=False):
    """All job options. ``JobOptions`` explains them."""

    timeout: Duration | None


class AddOptionsDict(JobOptionsDict, total=False):
    """Options of ``Queue.add``, which can also add jobs that run before and after."""

    children: Iterable[Any]
    then: Iterable[Any]

"""Job options: what users set, checked at once, and the compact form that stores keep.

``JobOptions`` speaks seconds and ``timedelta``; ``StoredOptions`` speaks integer milliseconds. Options
merge from the general to the special: app, queue, task, call. An unknown name is refused with the
nearest known one.
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
    check_int,
    check_known,
    check_tags,
    check_trace,
    instant_to_ms,
    optional_ms,
    seconds_to_ms,
    to_backoff,
    to_keep,
    to_unique,
)
from windlass.errors import ConfigError

#: Options that a job may leave to the task of the worker that runs it; their order gives the bits of
#: ``StoredOptions.unsaid`` and never changes.
FILLABLE = ("max_attempts", "backoff", "timeout", "result_ttl", "keep_completed", "keep_failed")
#: Nothing of that is said.
ALL_UNSAID = (1 << len(FILLABLE)) - 1
#: Most lines of a traceback that a job may have kept.
MOST_LINES = 1_000


def unsaid_bits(said: Iterable[str]) -> int:
    """The options of ``FILLABLE`` that are not among ``said``."""
    named = frozenset(said)
    return sum(1 << at for at, name in enumerate(FILLABLE) if name not in named)


class StoredOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options that travel with a job. Defaults are left out, so a plain job stores ``{}``."""

    max_attempts: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    timeout_ms: int | None = None
    #: ``None``: the worker's lease applies.
    lease_ms: int | None = None
    max_stalls: int = 2
    #: A job whose worker went silent rests this long before it can start again.
    stall_delay_ms: int = 0
    #: ``None``: ``DEFAULT_RESULT_TTL_MS``, but the count bound of ``keep_completed`` wins.
    result_ttl_ms: int | None = None
    keep_completed: Keep = KEEP_COMPLETED
    keep_failed: Keep = KEEP_FAILED
    tags: tuple[str, ...] = ()
    #: Once this long after it was added, it is not started any more.
    expires_total_ms: int | None = None
    #: The id answers ``duplicate`` until this long after it was added, record or not.
    keep_id_ms: int | None = None
    #: Lines of traceback to keep per error.
    backtrace: int = 50
    trace: dict[str, str] | None = None
    #: The codec of progress and result, when it is not the payload's.
    result_codec: str | None = None
    #: Whenever it gets a place in line, that is the front of its priority, not the back.
    lifo: bool = False
    #: The tenant, customer or service that the job belongs to; limits and fair turns go by it.
    group: str | None = None
    #: Tokens that a start takes from the group's bucket.
    cost: int = 1
    unique: StoredUnique | None = None
    #: The schedule that made the job, and for which of its slots (None: run by hand).
    schedule: str | None = None
    slot_ms: int | None = None
    #: The job that waits for this one, and the top of the flow, as ``queue/id``: what history says of it.
    parent: str | None = None
    root: str | None = None
    #: What the runs after the first one are to do instead: the n-th retry gets the n-th, later ones the last.
    fallbacks: tuple[Any, ...] = ()
    #: Which of ``FILLABLE`` the caller left out: what stands here holds unless the worker's task says
    #: otherwise. Jobs of earlier releases said all.
    unsaid: int = 0

    def fallback(self, attempts: int) -> Any:
        """What applies to the run after ``attempts`` failures; None for the first run."""
        if not attempts or not self.fallbacks:
            return None
        return self.fallbacks[min(attempts, len(self.fallbacks)) - 1]

    def keep_for(self, state: str) -> Keep:
        """The retention that applies to a job that ended in ``state``."""
        return self.keep_failed if state == "failed" else self.keep_completed


def placed(options: StoredOptions, parent: JobRef | None, root: JobRef) -> StoredOptions:
    """The options of a job of a flow: whom it is a child of, and the top of all."""
    above = None if parent is None else "/".join(parent)
    return msgspec.structs.replace(options, parent=above, root="/".join(root))


#: What is often given as a job option, and where it is said instead.
_ELSEWHERE = {
    "queue": "jobs go to the queue of their task (@app.task(queue=...)); app.queue(NAME).add(task.name, ...) "
    "adds to another one",
    "every": 'a schedule says it, as in @app.task(schedule={"every": 60})',
}


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be said about a job when it is added. Durations are seconds or ``timedelta``."""

    #: Start no earlier than this from now.
    delay: Duration = 0
    #: Start no earlier than this instant (aware datetime or seconds since 1970). Excludes ``delay``.
    run_at: datetime | float | None = None
    #: Higher runs first; ties run in order of arrival.
    priority: int = 0
    #: Total runs, the first included.
    max_attempts: int = 3
    #: A name, a number of seconds (fixed), a ``{"type": ..., "delay": ..., "cap": ..., "jitter": ...}``
    #: mapping, or a ``Backoff``.
    backoff: str | float | Mapping[str, Any] | Backoff = DEFAULT_BACKOFF
    #: Longest run of one attempt; ``None`` = no limit.
    timeout: Duration | None = None
    #: How long a silent worker keeps the job; ``None`` = the worker's setting.
    lease: Duration | None = None
    #: How many lost workers a job survives before it fails as ``stalled``.
    max_stalls: int = 2
    #: Rest this long after a worker was lost, before another one gets the job.
    stall_delay: Duration = 0
    #: Your own id: the same id is not added twice while its job is alive.
    job_id: str | None = None
    #: How long the record of a completed job stays. True = forever, False = only as long as its result, a
    #: number = that many, timedelta = that long, ``{"age": ..., "count": ...}`` = both.
    keep_completed: bool | int | timedelta | Mapping[str, Any] | Keep = KEEP_COMPLETED
    #: The same for a job that failed.
    keep_failed: bool | int | timedelta | Mapping[str, Any] | Keep = KEEP_FAILED
    #: Keep the result (and the record) this long, whatever the count bound says.
    result_ttl: Duration | None = None
    #: Labels to find the job by; they mean nothing to Windlass.
    tags: tuple[str, ...] | list[str] = ()
    #: Fail as ``expired`` when not started this long after being added.
    expires_in: Duration | None = None
    #: Fail as ``expired`` instead of starting (again) this long after being added.
    expires_total: Duration | None = None
    #: The id answers ``duplicate`` for this long, even when its record is gone.
    keep_id: Duration | None = None
    #: Lines of traceback kept per error.
    backtrace: int = 50
    #: Text that travels with the job for tracing and correlation.
    trace: dict[str, str] | None = None
    #: Name of the codec for the result, when it is not the payload's.
    result_codec: str | None = None
    #: Last in, first out: go to the front of its priority, not to the back.
    lifo: bool = False
    #: Whose job it is: groups take turns, and may have limits of their own.
    group: str | None = None
    #: What a start takes from the token bucket of its group.
    cost: int = 1
    #: A ``Unique``; or a key as text; or True for the task's name and all arguments.
    unique: Unique | str | bool | Mapping[str, Any] | None = None
    #: Jobs that must end first: jobs, ``(queue, id)`` pairs, ``{"queue", "id"}``, or ids of the same queue.
    depends_on: Any = ()
    #: A job that is to wait for this one.
    parent: Any = None
    #: What a job does when one that it waits for does not complete: ``fail``, ``ignore`` or ``continue``.
    on_failure: str = OnFailure.FAIL
    #: For ``job.fallback``: another model, host or way for each retry in turn; any JSON values.
    fallbacks: tuple[Any, ...] | list[Any] = ()
    #: Not an option: which of ``FILLABLE`` were said. None: those that differ from what is usual.
    said: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.said is None:
            msgspec.structs.force_setattr(self, "said", _unusual(self))
        check_int("priority", self.priority, PRIORITY_MIN, PRIORITY_MAX)
        check_int("max_attempts", self.max_attempts, 1, 1_000_000)
        check_int("max_stalls", self.max_stalls, 0, 1_000)
        check_int("backtrace", self.backtrace, 0, MOST_LINES)
        if self.run_at is not None and self.delay:
            raise ConfigError("run_at", "given without delay (they exclude each other)", self.run_at)
        if self.job_id is not None:
            check_job_id(self.job_id)
        check_tags(self.tags)
        check_trace(self.trace)
        check_fallbacks(self.fallbacks)
        codec = self.result_codec
        if codec is not None and not (is_text(codec) and 1 <= len(codec) <= 32):
            raise ConfigError("result_codec", "the name of a codec (see register_codec)", codec)
        if not isinstance(self.lifo, bool):
            raise ConfigError("lifo", "True or False", self.lifo)
        check_int("cost", self.cost, 1, 1_000_000)
        if self.group is not None:
            check_group(self.group)
        unique = to_unique(self.unique)
        if unique is not None and unique.mode == UniqueMode.DEBOUNCE and (self.delay or self.run_at):
            raise ConfigError("delay", "left out with mode debounce (its ttl says when)", self.delay)
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
        """What a job of ``queue`` waits for, and who waits for it; checked."""
        depends_on = self.depends_on
        if not isinstance(depends_on, (list, tuple)) or isinstance(depends_on, JobRef):
            depends_on = [depends_on]
        found = [to_dependency(one, self.on_failure, queue, "depends_on") for one in depends_on]
        if self.parent is None:
            return found, None
        return found, to_dependency(self.parent, self.on_failure, queue, "parent")

    def stored(self) -> StoredOptions:
        """The compact form, checked. A unique key is added per job: it may depend on the arguments."""
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
            fallbacks=tuple(self.fallbacks),
            unsaid=unsaid_bits(self.said or ()),
        )

    def check(self) -> None:
        """Raise the ``ConfigError`` that adding a job with these options would."""
        self.stored()
        _ = (self.delay_ms, self.run_at_ms, self.expires_in_ms)

    def merged(self, given: Mapping[str, Any]) -> JobOptions:
        """These options overruled by ``given``; an unknown name is a ``ConfigError``."""
        if not given:
            return self
        for name in _ELSEWHERE.keys() & given.keys():
            raise ConfigError(name, f"left out here: {_ELSEWHERE[name]}")
        check_known(given, OPTION_NAMES, "job option")
        if "run_at" in given and given["run_at"] is not None and "delay" not in given:
            given = {**given, "delay": 0}  # a more special run_at overrules a general delay
        if given.get("delay") and "run_at" not in given:
            given = {**given, "run_at": None}
        said = (self.said or frozenset()) | {name for name in FILLABLE if name in given}
        return msgspec.structs.replace(self, **given, said=said)

    def as_unsaid(self) -> JobOptions:
        """The same values as mere defaults, which a worker's task may overrule."""
        return msgspec.structs.replace(self, said=frozenset())


OPTION_NAMES = frozenset(field.name for field in msgspec.structs.fields(JobOptions)) - {"said"}
_USUAL = {field.name: field.default for field in msgspec.structs.fields(JobOptions) if field.name in FILLABLE}


def _unusual(options: JobOptions) -> frozenset[str]:
    return frozenset(name for name, usual in _USUAL.items() if getattr(options, name) != usual)


#: What applies when no option is given.
DEFAULT_OPTIONS = JobOptions()

# --- options as keyword arguments, for type checkers: ``**options: Unpack[JobOptionsDict]`` ---------------
# A test compares the names with those of ``JobOptions``. A verb that has a parameter of an option's name
# takes a dict without it.

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
    """Options of ``Job.add_child``, which itself says whose child the job is."""

    timeout: Duration | None


class CallOptionsDict(_SharedOptions, total=False):
    """Options of ``Queue.add_and_wait``, whose own ``timeout`` is how long the caller waits."""

    parent: Any
    on_failure: FailureRule


class JobOptionsDict(CallOptionsDict, total=False):
    """Every job option; ``JobOptions`` says what they mean."""

    timeout: Duration | None


class AddOptionsDict(JobOptionsDict, total=False):
    """Options of ``Queue.add``, which also adds jobs that come before and after."""

    children: Iterable[Any]
    then: Iterable[Any]

"""Options as keyword arguments, for type checkers: ``**options: Unpack[JobOptionsDict]``.

``JobOptions`` in ``core.options`` says what each option means, has its default and checks its value; a test
compares the names. A verb that has a parameter of an option's name takes a dict without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from windlass.core.backoff import Backoff
from windlass.core.edges import OnFailure
from windlass.core.options import Duration, Keep, Unique

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

"""Requests that add and change jobs, and their responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from windlass.core.order import Sort
from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Body, IdText, QueueText, Seconds, Shape, ShortText, TaskText


class NewJobBody(Body, rename={"class_": "class"}):
    """A job to add: by ``task`` and ``data``, or as on the wire by ``class``, ``args`` and ``kwargs``."""

    task: TaskText | msgspec.UnsetType = msgspec.UNSET
    class_: TaskText | msgspec.UnsetType = msgspec.UNSET
    data: Any = None
    args: list[Any] | msgspec.UnsetType = msgspec.UNSET
    kwargs: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    #: Job options, as ``queue.add`` takes them: delay, priority, max_attempts, job_id, tags, group, ...
    options: dict[str, Any] = msgspec.field(default_factory=dict)


class WaitBody(NewJobBody):
    """A job to add and wait for."""

    #: Seconds.
    timeout: Annotated[float, msgspec.Meta(gt=0, le=300)] = 30.0


class Added(Shape):
    """A job that was added, or that existed already."""

    queue: str
    id: str
    #: ``queued``, ``duplicate``, ``replaced`` or ``cached``.
    outcome: str
    state: JobState
    #: For ``replaced``: options that the job did not take, because it ran before. Left out if none.
    not_taken: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class AddedMany(Shape):
    """Jobs that were added, in order, and ids of those that a full or an ordered group refused."""

    jobs: list[Added]
    refused: list[str]


class WaitAnswer(Shape):
    """The result of waiting for a job. ``finished`` false (202): it continues; see the job's own route."""

    queue: str
    id: str
    state: JobState
    finished: bool
    result: Any
    #: It completed, and its result has expired.
    result_expired: bool
    error_class: str
    error_message: str


class ReasonBody(Body):
    """Why."""

    reason: ShortText = ""


class ChangeBody(Body):
    """Changes of a pending job. Fields that are left out stay. ``delay`` is in seconds from now."""

    priority: Annotated[int, msgspec.Meta(ge=-1_048_576, le=1_048_575)] | msgspec.UnsetType = msgspec.UNSET
    delay: Seconds | msgspec.UnsetType = msgspec.UNSET
    data: Any | msgspec.UnsetType = msgspec.UNSET


class AgainBody(Body):
    """A new job like a finished one; with ``data``, other arguments."""

    data: Any | msgspec.UnsetType = msgspec.UNSET


class SignalBody(Body):
    """A signal for a suspended job."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    data: Any = None


class CancelAnswer(Shape):
    """``cancelled``, ``cancelling`` (it runs; its worker was notified) or ``finished``."""

    result: str


class Ref(Body):
    """Names one job."""

    queue: QueueText
    id: IdText


class Filter(Body):
    """Selects jobs. Without any field, all jobs."""

    queue: list[QueueText] = msgspec.field(default_factory=list)
    state: list[JobState] = msgspec.field(default_factory=list)
    #: Task name; ``*`` and ``?`` match.
    task: ShortText | None = None
    tag: ShortText | None = None
    #: Class of the last error.
    error: ShortText | None = None
    #: Keyword arguments with these values.
    args: dict[str, Any] | None = None
    #: Part of the id, the task, the last error or the arguments.
    q: ShortText | None = None
    #: Added from (inclusive) to (exclusive), in milliseconds.
    from_ms: int | None = None
    to_ms: int | None = None
    #: A query, such as ``task:charge_card error:Payment* finished:<1h``.
    search: Annotated[str, msgspec.Meta(max_length=2_000)] | None = None


class BulkBody(Body):
    """One bounded step of a change of many jobs. Send the ``next_cursor`` of the answer to continue."""

    action: Literal["retry", "delete", "cancel", "kill", "trigger"]
    #: Either these jobs, or all that match the filter (which must name at least one state).
    refs: Annotated[list[Ref], msgspec.Meta(max_length=1_000)] | None = None
    filter: Filter | None = None
    #: The order in which the jobs of the filter are taken. By due time or end, a job that was started since
    #: the first step is left out.
    sort: Sort = Sort.ADDED
    order: Literal["oldest", "newest"] = "oldest"
    cursor: str | None = None
    #: Maximum number of jobs in this step.
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1_000
    reason: ShortText = ""
    #: Change nothing: only count the jobs that the action would change.
    dry_run: bool = False


class BulkAnswer(Shape):
    """The result of one step: ``done`` were changed, ``failed`` could not be (wrong state, or gone).

    For a dry run: what it would do, according to the current states.
    """

    done: int
    failed: int
    next_cursor: str | None
    #: About how many are left, from the counters; null if only a scan could count them.
    remaining: int | None
    #: Jobs of this step by their state before it.
    states: dict[str, int] = msgspec.field(default_factory=dict)
    dry_run: bool = False


class Changed(Shape):
    """How many jobs were changed. ``more``: there are more, repeat the request."""

    count: int
    more: bool = False


class CleanBody(Body):
    """Remove jobs in ``states`` that are older than ``grace`` seconds, at most ``limit``."""

    states: Annotated[list[JobState], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [JobState.COMPLETED]
    )
    grace: Seconds = 0.0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1_000


class DrainBody(Body):
    """With ``delayed`` also jobs that are due later."""

    delayed: bool = False

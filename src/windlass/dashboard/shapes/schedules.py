"""Recurring schedules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from windlass.dashboard.shapes.base import Body, Shape, ShortText, TaskText


class ScheduleEntry(Shape):
    """A recurring schedule."""

    queue: str
    name: str
    task: str
    #: The rule: a cron text, "every 60 s", or a strategy's name.
    rule: str
    #: The rule in words: "at 09:30, on Monday to Friday".
    words: str
    cron: str | None
    every: float | None
    strategy: str | None
    timezone: str
    paused: bool
    #: The application whose code declares it; empty if it was created manually.
    source: str
    next_ms: int | None
    last_ms: int | None
    last_job_id: str | None
    fired: int
    skipped: int
    limit: int | None
    start_ms: int | None
    end_ms: int | None
    missed: str
    overlap: str
    #: The next slots, at most five.
    upcoming: list[int]
    data: Any


class SchedulePreview(Shape):
    """A rule in words, with its next slots."""

    words: str
    #: The next slots, at most five.
    upcoming: list[int]


class ScheduleBody(Body):
    """A schedule: one of ``cron`` and ``every`` (seconds). The default for ``task`` is the schedule's name.

    For an existing schedule, ``task``, ``data`` and ``options`` may be left out; its jobs stay unchanged.
    """

    cron: ShortText | None = None
    every: Annotated[float, msgspec.Meta(ge=0.1, le=3_155_760_000)] | None = None
    timezone: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] = "UTC"
    #: Seconds since 1970.
    start: Annotated[float, msgspec.Meta(ge=0, le=253_000_000_000)] | None = None
    end: Annotated[float, msgspec.Meta(ge=0, le=253_000_000_000)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    missed: Literal["skip", "once", "all"] = "skip"
    overlap: Literal["allow", "skip"] = "allow"
    task: TaskText | msgspec.UnsetType = msgspec.UNSET
    data: Any | msgspec.UnsetType = msgspec.UNSET
    options: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

"""Limits of queues and groups."""

from __future__ import annotations

from typing import Annotated

import msgspec

from windlass.dashboard.shapes.base import Body, Shape


class RateValue(Shape, forbid_unknown_fields=True):
    """At most ``max`` starts in any ``seconds``."""

    max: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    seconds: Annotated[float, msgspec.Meta(ge=0.001, le=31_622_400)]


class BucketValue(Shape, forbid_unknown_fields=True):
    """A token bucket."""

    capacity: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    refill_per_s: Annotated[float, msgspec.Meta(ge=0.001, le=1_000_000)]


class QueueLimitsBody(Body):
    """Limits of a queue. A field that is left out or null is no limit."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    rate: RateValue | None = None


class GroupLimitsBody(Body):
    """Limits of a group. A field that is left out or null is no limit."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    rate: RateValue | None = None
    bucket: BucketValue | None = None
    ordered: bool = False
    max_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    #: With ``ordered``: a job whose first run is due later does not hold up jobs that were added after it.
    skip_delayed: bool = False


class GroupLimits(Shape):
    """Limits of a group."""

    concurrency: int | None
    rate: RateValue | None
    bucket: BucketValue | None
    ordered: bool
    max_size: int | None
    skip_delayed: bool


class Limits(Shape):
    """Limits of a queue, and the default limits of its groups."""

    queue: str
    concurrency: int | None
    rate: RateValue | None
    #: Nothing starts before this time; null: no hold.
    hold_until_ms: int | None
    every_group: GroupLimits
    #: Current use: running jobs, jobs parked by a group, waiting jobs.
    active: int
    parked: int
    waiting: int
    paused: bool
    #: How long rate and hold prevent further starts; 0: a job may start now.
    opens_in_ms: int


class HoldBody(Body):
    """Start no job for this many seconds; 0 ends the hold."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=31_622_400)]


class Group(Shape):
    """The state of a group."""

    name: str
    size: int
    waiting: int
    parked: int
    active: int
    next_ms: int | None
    paused: bool
    #: Its own limits; null: the default limits of all groups apply.
    limits: GroupLimits | None
    #: None of its jobs starts before this time; null: no hold.
    hold_until_ms: int | None


class Groups(Shape):
    """One page of groups, by name."""

    items: list[Group]
    next_cursor: str | None

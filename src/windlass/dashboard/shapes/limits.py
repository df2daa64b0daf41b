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
    """Limits of a queue; what is left out or null is no limit."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    rate: RateValue | None = None


class GroupLimitsBody(Body):
    """Limits of a group; what is left out or null is no limit."""

    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None
    rate: RateValue | None = None
    bucket: BucketValue | None = None
    ordered: bool = False
    max_size: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)] | None = None
    #: With ``ordered``: a job whose first run is due later holds up none that was added after it.
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
    """Limits of a queue, and of every group that has none of its own."""

    queue: str
    concurrency: int | None
    rate: RateValue | None
    #: Nothing starts before this; null: no hold.
    hold_until_ms: int | None
    every_group: GroupLimits
    #: How much of it is used: jobs that run now, those that a group holds back, those that wait.
    active: int
    parked: int
    waiting: int
    paused: bool
    #: How long rate and hold let nothing more start; 0: something may start now.
    opens_in_ms: int


class HoldBody(Body):
    """Start nothing for so many seconds; 0 ends it."""

    seconds: Annotated[float, msgspec.Meta(ge=0, le=31_622_400)]


class Group(Shape):
    """A group at a glance."""

    name: str
    size: int
    waiting: int
    parked: int
    active: int
    next_ms: int | None
    paused: bool
    #: Its own limits; null: those of every group.
    limits: GroupLimits | None
    #: Nothing of it starts before this; null: no hold.
    hold_until_ms: int | None


class Groups(Shape):
    """One page of groups, by name."""

    items: list[Group]
    next_cursor: str | None

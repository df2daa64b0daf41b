"""Limits of queues and groups, and the groups themselves."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post, put
from litestar.params import JSONBody, QueryParameter

from windlass.backend import limit_requests as lrq
from windlass.core import limit_rules as core
from windlass.core.states import JobState
from windlass.dashboard.access import of_queue
from windlass.dashboard.audit import note
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.params import Limit, PathText, QueueName, unescape, versioned
from windlass.dashboard.shapes.limits import (
    BucketValue,
    Group,
    GroupLimits,
    GroupLimitsBody,
    Groups,
    HoldBody,
    Limits,
    QueueLimitsBody,
    RateValue,
)

Anyone = Request[Any, Any, Any]
GroupCursor = Annotated[str | None, QueryParameter(max_length=1_000)]


def _rate(rate: core.Rate | None) -> RateValue | None:
    return None if rate is None else RateValue(max=rate.max, seconds=rate.per_ms / 1000)


def _given_rate(rate: RateValue | None) -> core.Rate | None:
    return None if rate is None else core.Rate.every(rate.max, rate.seconds)


def _rate_text(rate: RateValue | None) -> str | None:
    """A rate in the form of the audit log."""
    return None if rate is None else f"{rate.max} in {rate.seconds:g} s"


def _group_limits(limits: core.GroupLimits) -> GroupLimits:
    bucket = limits.bucket
    return GroupLimits(
        concurrency=limits.concurrency,
        rate=_rate(limits.rate),
        bucket=None
        if bucket is None
        else BucketValue(capacity=bucket.capacity, refill_per_s=float(bucket.refill_per_s)),
        ordered=limits.ordered,
        max_size=limits.max_size,
        skip_delayed=limits.skip_delayed,
    )


@get(versioned("/api/job-queues/{queue:str}/limits"), tags=["limits"], access=of_queue())
async def get_limits(store_view: TheStoreView, queue: QueueName) -> Limits:
    """Limits of a queue, and the default limits of its groups."""
    store_view.queue(queue)
    found = await store_view.store.execute(lrq.GetLimits(queue=queue))
    infos = [info for info in await store_view.queues() if info.name == queue]
    counts = infos[0].counts if infos else {}
    return Limits(
        queue=queue,
        concurrency=found.queue.concurrency,
        rate=_rate(found.queue.rate),
        hold_until_ms=found.hold_until_ms or None,
        every_group=_group_limits(found.every_group),
        active=counts.get(JobState.ACTIVE.value, 0),
        parked=counts.get(JobState.PARKED.value, 0),
        waiting=counts.get(JobState.WAITING.value, 0),
        paused=bool(infos) and infos[0].paused,
        opens_in_ms=found.opens_in_ms,
    )


@put(
    versioned("/api/job-queues/{queue:str}/limits"),
    status_code=204,
    tags=["limits"],
    access=of_queue("limits"),
)
async def set_limits(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[QueueLimitsBody]
) -> None:
    """Set the limits of a queue, over all workers. Limits that are left out are removed."""
    store_view.queue(queue)
    await store_view.store.execute(
        lrq.SetQueueLimits(
            queue=queue,
            fields=["concurrency", "rate"],
            concurrency=data.concurrency,
            rate=_given_rate(data.rate),
        )
    )
    note(request, concurrency=data.concurrency, rate=_rate_text(data.rate))


@delete(
    versioned("/api/job-queues/{queue:str}/limits"),
    status_code=204,
    tags=["limits"],
    access=of_queue("limits"),
)
async def remove_limits(store_view: TheStoreView, queue: QueueName) -> None:
    """Remove the limits of a queue."""
    store_view.queue(queue)
    await store_view.store.execute(lrq.SetQueueLimits(queue=queue, fields=["concurrency", "rate"]))


@post(
    versioned("/api/job-queues/{queue:str}/hold"), status_code=204, tags=["limits"], access=of_queue("limits")
)
async def hold_queue(
    store_view: TheStoreView, request: Anyone, queue: QueueName, data: JSONBody[HoldBody]
) -> None:
    """Start no job of a queue for this long; 0 ends the hold."""
    await store_view.queue(queue).rate_limit(data.seconds)
    note(request, seconds=data.seconds)


@get(versioned("/api/job-queues/{queue:str}/groups"), tags=["limits"], access=of_queue())
async def list_groups(
    store_view: TheStoreView, queue: QueueName, cursor: GroupCursor = None, limit: Limit = 100
) -> Groups:
    """Groups with unfinished jobs or with their own settings, by name."""
    store_view.queue(queue)
    page = await store_view.store.execute(lrq.ListGroups(queue=queue, cursor=cursor or None, limit=limit))
    names = tuple(info.name for info in page.groups)
    known = (await store_view.store.execute(lrq.GetLimits(queue=queue, groups=names))).groups
    items = [
        Group(
            name=info.name,
            size=info.size,
            waiting=info.waiting,
            parked=info.parked,
            active=info.active,
            next_ms=info.next_ms,
            paused=info.paused,
            limits=None if (own := known[info.name].limits) is None else _group_limits(own),
            hold_until_ms=known[info.name].hold_until_ms or None,
        )
        for info in page.groups
    ]
    return Groups(items=items, next_cursor=page.cursor)


@get(versioned("/api/job-queues/{queue:str}/groups/{group:str}/limits"), tags=["limits"], access=of_queue())
async def get_group_limits(store_view: TheStoreView, queue: QueueName, group: PathText) -> GroupLimits:
    """The limits of a group; ``*``: the default limits of all groups."""
    return _group_limits(await store_view.queue(queue).get_group_limits(_named(group)))


@put(
    versioned("/api/job-queues/{queue:str}/groups/{group:str}/limits"),
    status_code=204,
    tags=["limits"],
    access=of_queue("limits"),
)
async def set_group_limits(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    group: PathText,
    data: JSONBody[GroupLimitsBody],
) -> None:
    """Set the limits of a group; ``*``: the default limits of all groups."""
    bucket = data.bucket
    await store_view.queue(queue).set_group_limits(
        _named(group),
        concurrency=data.concurrency,
        rate=_given_rate(data.rate),
        bucket=None if bucket is None else core.Bucket(bucket.capacity, bucket.refill_per_s),
        ordered=data.ordered,
        max_size=data.max_size,
        skip_delayed=data.skip_delayed,
    )
    note(
        request,
        concurrency=data.concurrency,
        rate=_rate_text(data.rate),
        bucket=None if bucket is None else f"{bucket.capacity}, {bucket.refill_per_s:g} more a second",
        ordered=data.ordered,
        max_size=data.max_size,
        skip_delayed=data.skip_delayed,
    )


@delete(
    versioned("/api/job-queues/{queue:str}/groups/{group:str}/limits"),
    status_code=204,
    tags=["limits"],
    access=of_queue("limits"),
)
async def remove_group_limits(store_view: TheStoreView, queue: QueueName, group: PathText) -> None:
    """Remove the limits of a group; ``*``: the default limits of all groups."""
    await store_view.queue(queue).remove_group_limits(_named(group))


@post(
    versioned("/api/job-queues/{queue:str}/groups/{group:str}/pause"),
    status_code=204,
    tags=["limits"],
    access=of_queue("pause"),
)
async def pause_group(store_view: TheStoreView, queue: QueueName, group: PathText) -> None:
    """Start no more jobs of a group."""
    await store_view.queue(queue).pause_group(unescape(group))


@post(
    versioned("/api/job-queues/{queue:str}/groups/{group:str}/resume"),
    status_code=204,
    tags=["limits"],
    access=of_queue("pause"),
)
async def resume_group(store_view: TheStoreView, queue: QueueName, group: PathText) -> None:
    """Undo pause."""
    await store_view.queue(queue).resume_group(unescape(group))


def _named(group: str) -> str | None:
    name = unescape(group)
    return None if name == core.EVERY_GROUP else name


HANDLERS = [
    get_limits,
    set_limits,
    remove_limits,
    hold_queue,
    list_groups,
    get_group_limits,
    set_group_limits,
    remove_group_limits,
    pause_group,
    resume_group,
]

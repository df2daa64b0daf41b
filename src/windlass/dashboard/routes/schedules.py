"""Recurring schedules."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.params import JSONBody, QueryParameter

from windlass.api.search import Search
from windlass.core.schedule_rules import next_slot, to_schedule
from windlass.dashboard import views
from windlass.dashboard.access import of_queue, of_queues
from windlass.dashboard.audit import note
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import listing
from windlass.dashboard.params import Cursor, Limit, OptionalQueue, PathText, QueueName, unescape, versioned
from windlass.dashboard.problems import not_found
from windlass.dashboard.shapes.changes import Added
from windlass.dashboard.shapes.jobs import Items
from windlass.dashboard.shapes.schedules import ScheduleBody, ScheduleEntry, SchedulePreview
from windlass.dashboard.store_view import StoreView
from windlass.errors import ConfigError
from windlass.schedules.cron_text import in_words
from windlass.schedules.verbs import ScheduleInfo, list_schedules

_UPCOMING = 5
Anyone = Request[Any, Any, Any]


def _entry(store_view: StoreView, info: ScheduleInfo) -> ScheduleEntry:
    record = info.record
    rule = record.rule
    words = rule.cron or (
        f"every {info.every:g} s" if info.every is not None else f"strategy {rule.strategy}"
    )
    template = record.template
    try:
        data = views.plain(ScheduleInfo(record, store_view.mask.codecs).data)
    except (ValueError, TypeError, ConfigError):
        data = views.raw(template.codec, template.payload, store_view.mask)
    return ScheduleEntry(
        queue=info.queue,
        name=info.name,
        task=info.task,
        rule=words,
        words=in_words(rule.cron) if rule.cron is not None else words,
        cron=info.cron,
        every=info.every,
        strategy=rule.strategy,
        timezone=info.timezone,
        paused=info.paused,
        source=info.source,
        next_ms=record.next_ms,
        last_ms=record.last_ms,
        last_job_id=record.last_job_id,
        fired=record.fired,
        skipped=record.skipped,
        limit=record.limit,
        start_ms=rule.start_ms,
        end_ms=record.end_ms,
        missed=record.missed,
        overlap=record.overlap,
        upcoming=_upcoming(store_view, info),
        data=store_view.mask.hide(data),
    )


def _upcoming(store_view: StoreView, info: ScheduleInfo) -> list[int]:
    """The next slots, if the rule can be computed here."""
    record = info.record
    slot = record.next_ms
    found: list[int] = []
    strategies = store_view.app.schedule_strategies
    while slot is not None and len(found) < _UPCOMING and (record.end_ms is None or slot <= record.end_ms):
        found.append(slot)
        if record.rule.strategy is not None and record.rule.strategy not in strategies:
            break
        try:
            slot = next_slot(record.rule, slot, grid_ms=slot, strategies=strategies)
        except Exception:  # a damaged rule, or a strategy that raises: the list shows the other schedules
            break
    return found


@get(versioned("/api/schedules"), tags=["schedules"], access=of_queues())
async def list_all_schedules(store_view: TheStoreView, queue: OptionalQueue = None) -> list[ScheduleEntry]:
    """All schedules, by queue and name."""
    if queue is not None:
        store_view.queue(queue)
    found = await list_schedules(store_view.app, queue=queue)
    return [_entry(store_view, info) for info in found if store_view.shows(info.queue)]


@get("/api/v1/schedules/preview", tags=["schedules"], access=of_queues())
async def preview_schedule(
    store_view: TheStoreView,
    cron: Annotated[str | None, QueryParameter(max_length=200, description="Five fields.")] = None,
    every: Annotated[float | None, QueryParameter(ge=0.1, le=3_155_760_000, description="Seconds.")] = None,
    timezone: Annotated[str, QueryParameter(max_length=64, description="Of the fields.")] = "UTC",
) -> SchedulePreview:
    """A rule in words, and its next times: one of ``cron`` and ``every``."""
    given = {"cron": cron, "every": every, "timezone": timezone}
    rule = to_schedule({key: value for key, value in given.items() if value is not None}).rule
    slots: list[int] = []
    slot = next_slot(rule, store_view.now_ms())
    while slot is not None and len(slots) < _UPCOMING:
        slots.append(slot)
        slot = next_slot(rule, slot, grid_ms=slot)
    return SchedulePreview(words=in_words(cron) if cron is not None else f"every {every:g} s", upcoming=slots)


@get("/api/v1/schedules/{queue:str}/{name:str}/runs", tags=["schedules"], access=of_queue())
async def list_schedule_runs(
    store_view: TheStoreView, queue: QueueName, name: PathText, cursor: Cursor = None, limit: Limit = 20
) -> Items:
    """The jobs of a schedule that are still kept, newest first."""
    real = (await _get(store_view, queue, unescape(name))).name
    listed = listing(store_view, Search(), keep=lambda record: record.options.schedule == real)
    found = await listed.page([queue], cursor, limit)
    return Items(
        items=await views.each(found.records, views.item, store_view.mask),
        next_cursor=found.cursor,
        total=None,
        scanned=found.scanned,
        to_scan=sum((await store_view.info(queue)).counts.values()),
        done=found.cursor is None,
    )


async def _get(store_view: StoreView, queue: str, name: str) -> ScheduleInfo:
    info = await store_view.queue(queue).get_job_scheduler(name)
    if info is None:
        raise not_found(f"queue {queue!r} has no schedule {name!r}", "Look at /api/schedules.")
    return info


@get(versioned("/api/schedules/{queue:str}/{name:str}"), tags=["schedules"], access=of_queue())
async def get_schedule(store_view: TheStoreView, queue: QueueName, name: PathText) -> ScheduleEntry:
    """One schedule."""
    return _entry(store_view, await _get(store_view, queue, unescape(name)))


@put(versioned("/api/schedules/{queue:str}/{name:str}"), tags=["schedules"], access=of_queue("schedules"))
async def put_schedule(
    store_view: TheStoreView, request: Anyone, queue: QueueName, name: PathText, data: JSONBody[ScheduleBody]
) -> ScheduleEntry:
    """Create or change a schedule. If its rule is unchanged, it keeps its next slot.

    Without ``task``, ``data`` and ``options``, the jobs of an existing schedule stay unchanged.
    """
    real = unescape(name)
    rule = {
        key: value
        for key, value in {
            "cron": data.cron,
            "every": data.every,
            "timezone": data.timezone,
            "start": data.start,
            "end": data.end,
            "limit": data.limit,
            "missed": data.missed,
            "overlap": data.overlap,
        }.items()
        if value is not None
    }
    if data.options is not msgspec.UNSET:
        store_view.check_links(queue, data.options)
    known = await store_view.queue(queue).get_job_scheduler(real)
    given = {"name": data.task, "data": data.data, "opts": data.options}
    given = {key: value for key, value in given.items() if value is not msgspec.UNSET}
    template = known if known is not None and not given else {"name": known.task if known else real, **given}
    info = await store_view.queue(queue).upsert_job_scheduler(real, rule, template)
    note(request, task=info.task, cron=data.cron, every=data.every)
    return _entry(store_view, info)


@delete(
    versioned("/api/schedules/{queue:str}/{name:str}"),
    status_code=204,
    tags=["schedules"],
    access=of_queue("schedules"),
)
async def remove_schedule(store_view: TheStoreView, queue: QueueName, name: PathText) -> None:
    """Remove a schedule. Jobs that it added stay."""
    real = unescape(name)
    if not await store_view.queue(queue).remove_job_scheduler(real):
        raise not_found(f"queue {queue!r} has no schedule {real!r}", "Look at /api/schedules.")


@post(
    versioned("/api/schedules/{queue:str}/{name:str}/pause"),
    status_code=204,
    tags=["schedules"],
    access=of_queue("schedules"),
)
async def pause_schedule(store_view: TheStoreView, queue: QueueName, name: PathText) -> None:
    """Skip the slots of a schedule until it is resumed."""
    await store_view.queue(queue).pause_job_scheduler(unescape(name))


@post(
    versioned("/api/schedules/{queue:str}/{name:str}/resume"),
    status_code=204,
    tags=["schedules"],
    access=of_queue("schedules"),
)
async def resume_schedule(store_view: TheStoreView, queue: QueueName, name: PathText) -> None:
    """Continue with the next slot."""
    await store_view.queue(queue).resume_job_scheduler(unescape(name))


@post(
    versioned("/api/schedules/{queue:str}/{name:str}/run"),
    status_code=201,
    tags=["schedules"],
    access=of_queue("schedules"),
)
async def run_schedule(store_view: TheStoreView, request: Anyone, queue: QueueName, name: PathText) -> Added:
    """Add the schedule's job now, in addition to its slots."""
    job = await store_view.queue(queue).run_job_scheduler(unescape(name))
    note(request, id=job.id)
    return Added(queue=queue, id=job.id, outcome="queued", state=job.state)


HANDLERS = [
    list_all_schedules,
    preview_schedule,
    list_schedule_runs,
    get_schedule,
    put_schedule,
    remove_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
]

"""Changes of many jobs, one bounded step per request.

The caller sends the cursor of each answer with the next request. It can show progress and stop at any time,
and the server keeps no state. A job is processed once, even if the change moves it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec
from litestar import Request, post
from litestar.params import JSONBody

from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.order import Sort
from windlass.core.outcome import CancelResult, Changed, to_reason
from windlass.dashboard import views
from windlass.dashboard.access import of_queues
from windlass.dashboard.audit import named, note
from windlass.dashboard.filters import RequestFilter, exact_page, listing_of, names_of, understand
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import counted
from windlass.dashboard.paging import Listing
from windlass.dashboard.params import versioned
from windlass.dashboard.shapes.changes import BulkAnswer, BulkBody, Filter
from windlass.dashboard.store_view import StoreView
from windlass.errors import ConfigError

_AT_ONCE = 100


@post(
    versioned("/api/jobs/bulk"),
    status_code=200,
    tags=["jobs"],
    access=of_queues("retry", "delete", "cancel", "trigger"),
)
async def change_many(
    store_view: TheStoreView, request: Request[Any, Any, Any], data: JSONBody[BulkBody]
) -> BulkAnswer:
    """Retry, delete, cancel, kill or trigger many jobs: those named, or all that match a filter.

    Jobs of a filter are taken in the order of ``sort``. With ``dry_run`` the answer only counts the jobs.
    """
    if (data.refs is None) == (data.filter is None):
        raise ConfigError("filter", message="give exactly one of refs and filter")
    store_view = store_view.with_action("cancel" if data.action == "kill" else data.action)
    wanted = understand(store_view, data.filter or Filter())
    if data.refs is not None:
        records, cursor = await _named(store_view, [JobRef(ref.queue, ref.id) for ref in data.refs]), None
        asked = len(data.refs)
    else:
        records, cursor = await _meant(store_view, wanted, data)
        asked = len(records)
    refs = [record.ref for record in records]
    note(
        request,
        action=data.action,
        reason=data.reason,
        filter=_filter_text(store_view, data.filter),
        jobs=named(refs),
    )
    if data.dry_run:
        note(request, dry_run=True)
        done = sum(data.action in views.actions_of(record) for record in records)
    else:
        done = await _change(store_view, data.action, refs, data.reason) if refs else 0
    note(request, done=done, failed=asked - done, more=cursor is not None)
    remaining = 0 if cursor is None else await _remaining(store_view, wanted)
    return BulkAnswer(
        done=done,
        failed=asked - done,
        next_cursor=cursor,
        remaining=remaining,
        states=dict(Counter(record.state.value for record in records)),
        dry_run=data.dry_run,
    )


def _filter_text(store_view: StoreView, given: Filter | None) -> str | None:
    """A filter in the form of the audit log."""
    if given is None:
        return None
    said = {name: value for name, value in msgspec.to_builtins(given).items() if value not in (None, [])}
    if "args" in said:
        said["args"] = store_view.mask.hide(said["args"])
    return msgspec.json.encode(said).decode()


async def _named(store_view: StoreView, refs: list[JobRef]) -> list[JobRecord]:
    """The jobs among ``refs`` that exist."""
    for ref in refs:
        store_view.queue(ref.queue)
    answers = await store_view.store.execute(rq.GetJobs(refs=refs)) if refs else []
    return [record for record in answers if record is not None]


async def _meant(
    store_view: StoreView, wanted: RequestFilter, data: BulkBody
) -> tuple[list[JobRecord], str | None]:
    queues = wanted.filter.queue
    if not wanted.filter.state:
        raise ConfigError("filter.state", message="filter.state is missing: name one or more states")
    for name in queues:
        store_view.queue(name)
    names = queues or [info.name for info in await store_view.queues() if store_view.may(info.name)]
    listed = listing_of(store_view, wanted, sort=data.sort, newest_first=data.order == "newest")
    if wanted.query.ids:
        exact = await exact_page(store_view, wanted, names, listed)
        return (exact.records if exact is not None else []), None
    if data.sort is Sort.ADDED:
        found = await listed.page(names, data.cursor, data.limit)
        return found.records, found.cursor
    began_ms, cursor = _begun(store_view, data.cursor)
    found = await _untouched(listed, began_ms).page(names, cursor, data.limit)
    return found.records, None if found.cursor is None else f"{began_ms}.{found.cursor}"


def _begun(store_view: StoreView, cursor: str | None) -> tuple[int, str | None]:
    """When the first step was made (the first part of cursors by time), and where the listing continues."""
    if cursor is None:
        return store_view.now_ms(), None
    began, _, rest = cursor.partition(".")
    return (int(began), rest) if began.isascii() and began.isdecimal() and len(began) < 16 else (0, cursor)


def _untouched(listed: Listing, began_ms: int) -> Listing:
    """Without jobs that ran since the first step: the change may have moved them ahead in the listing."""
    keep = listed.keep

    def stays(record: JobRecord) -> bool:
        return (record.started_ms or 0) < began_ms and (keep is None or keep(record))

    return replace(listed, keep=stays)


async def _remaining(store_view: StoreView, wanted: RequestFilter) -> int | None:
    """How many jobs are left, if the counters know."""
    if not wanted.simple:
        return None
    infos = [info for info in await store_view.queues() if store_view.may(info.name)]
    names = names_of(store_view, wanted, infos)
    return counted([info for info in infos if info.name in names], wanted.filter.state)


async def _change(store_view: StoreView, action: str, refs: list[JobRef], reason: str) -> int:
    """Change jobs; returns how many were changed."""
    store = store_view.store
    if action in ("cancel", "kill"):
        dead = action == "kill"
        request = rq.CancelJobs(refs=refs, reason=to_reason(reason) or ("killed" if dead else ""), dead=dead)
        told = await store.execute(request)
        return sum(one in (CancelResult.CANCELLED, CancelResult.CANCELLING) for one in told)
    if action == "trigger":
        return await _trigger(store_view, refs)
    change = rq.RetryJobs(refs=refs) if action == "retry" else rq.RemoveJobs(refs=refs)
    return sum(answer.status is Changed.OK for answer in await store.execute(change))


async def _trigger(store_view: StoreView, refs: list[JobRef]) -> int:
    done = 0
    for start in range(0, len(refs), _AT_ONCE):
        part = refs[start : start + _AT_ONCE]
        answers = await asyncio.gather(
            *(store_view.store.execute(rq.ChangeJob(ref=ref, delay_ms=0)) for ref in part)
        )
        done += sum(answer.status is Changed.OK for answer in answers)
    return done


HANDLERS = [change_many]

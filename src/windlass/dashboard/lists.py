"""Lists as responses: a plain array, with the cursor of the next page in the headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, TypeVar, Unpack

from litestar import Response

from windlass.api.search import Search
from windlass.core.job import JobRecord, QueueInfo
from windlass.core.order import Sort
from windlass.core.states import JobState
from windlass.dashboard.paging import Found, Keep, Listing
from windlass.dashboard.store_view import StoreView

T = TypeVar("T")


class How(TypedDict, total=False):
    """See ``Listing``."""

    sort: Sort
    newest_first: bool
    keep: Keep | None
    past: Keep | None


def holding(infos: Sequence[QueueInfo], states: Sequence[JobState]) -> list[str]:
    """Names of queues that have jobs in one of ``states`` (in any state, if none is given)."""
    wanted = [state.value for state in states or JobState]
    return [info.name for info in infos if any(info.counts.get(state, 0) for state in wanted)]


def counted(infos: Sequence[QueueInfo], states: Sequence[JobState]) -> int:
    """The number of jobs in ``states``, from the counters."""
    wanted = [state.value for state in states or JobState]
    return sum(info.counts.get(state, 0) for info in infos for state in wanted)


def listing(store_view: StoreView, search: Search, **how: Unpack[How]) -> Listing:
    """A listing with the store and clock of a store view."""
    clock, codecs = store_view.app.clock.monotonic_ms, store_view.mask.codecs
    return Listing(store=store_view.store, codecs=codecs, search=search, clock=clock, **how)


#: The order of the lists of one state: the next due first, or the last ended first.
_ORDERS: dict[JobState, How] = {
    JobState.SCHEDULED: {"sort": Sort.DUE, "newest_first": False},
    JobState.RETRYING: {"sort": Sort.DUE, "newest_first": False},
    JobState.FAILED: {"sort": Sort.FINISHED},
}


async def page_of_state(
    store_view: StoreView, state: JobState, queue: str | None, cursor: str | None, limit: int, offset: int
) -> tuple[list[JobRecord], dict[str, str]]:
    """Jobs of all queues (or one) in a state, the next due or the last ended first, and the headers."""
    infos = await store_view.queues()
    if queue is not None:
        store_view.queue(queue)
        infos = [info for info in infos if info.name == queue]
    found = await listing(store_view, Search(state=state), **_ORDERS.get(state, {})).page(
        holding(infos, [state]), cursor, limit, offset
    )
    return found.records, page_headers(found, counted(infos, [state]))


def page_headers(found: Found, total: int | None) -> dict[str, str]:
    """Headers with the cursor of the next page and the total number of entries."""
    headers = {} if total is None else {"X-Total-Count": str(total)}
    if found.cursor is not None:
        headers["X-Next-Cursor"] = found.cursor
    return headers


def answer(content: list[T], headers: dict[str, str]) -> Response[list[T]]:
    return Response(content, headers=headers)

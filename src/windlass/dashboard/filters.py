"""What a filter of the API means: what the store looks for, and what is compared here."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from windlass.api.search import Search
from windlass.core.job import JobRecord, QueueInfo
from windlass.dashboard import views
from windlass.dashboard.lists import holding
from windlass.dashboard.paging import Keep, Listing
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.changes import Filter
from windlass.dashboard.store_view import StoreView


def names_of(store_view: StoreView, wanted: Filter, infos: Sequence[QueueInfo]) -> list[str]:
    """The queues that hold something of what is wanted."""
    for name in wanted.queue:
        store_view.queue(name)
    among = [info for info in infos if not wanted.queue or info.name in wanted.queue]
    return holding(among, wanted.state)


def listing_of(store_view: StoreView, wanted: Filter, *, newest_first: bool = True) -> Listing:
    """How to list what is wanted."""
    if wanted.args and store_view.mask.hides(wanted.args):
        raise ApiError(
            403, "masked", "jobs cannot be searched by a field that is masked", "Its values are not shown."
        )
    search = Search(
        name=wanted.task or None,
        state=wanted.state,
        tag=wanted.tag or None,
        error=wanted.error or None,
        data=wanted.args or None,
    )
    return Listing(
        store=store_view.store,
        codecs=store_view.app.codecs,
        search=search,
        newest_first=newest_first,
        keep=_keeps(store_view, wanted),
        past=_passes(wanted, newest_first),
    )


def _keeps(store_view: StoreView, wanted: Filter) -> Keep | None:
    """The part of a filter that no store answers."""
    text = (wanted.q or "").strip().lower()
    low, high = wanted.from_ms, wanted.to_ms
    if not text and low is None and high is None:
        return None

    def keep(record: JobRecord) -> bool:
        if (low is not None and record.enqueued_ms < low) or (
            high is not None and record.enqueued_ms >= high
        ):
            return False
        return not text or _holds(store_view, record, text)

    return keep


def _holds(store_view: StoreView, record: JobRecord, text: str) -> bool:
    """Whether a job holds a text, in what is shown of it."""
    last = record.errors[-1] if record.errors else None
    words = [record.id, record.task, record.reason, record.options.group or "", *record.options.tags]
    if last is not None:
        words += [last.error_class, store_view.mask.text(last.message)]
    if any(text in word.lower() for word in words):
        return True
    shown = msgspec.json.encode(views.data_of(record, store_view.mask), enc_hook=str)
    return text in shown.decode().lower()


def _passes(wanted: Filter, newest_first: bool) -> Keep | None:
    """Whether a listing by time has left the wanted span. A little slack: adds of one queue are in order,
    times of several nodes nearly so."""
    slack_ms = 60_000
    if newest_first and wanted.from_ms is not None:
        low = wanted.from_ms - slack_ms
        return lambda record: record.enqueued_ms < low
    if not newest_first and wanted.to_ms is not None:
        high = wanted.to_ms + slack_ms
        return lambda record: record.enqueued_ms >= high
    return None

"""Converts a filter of the API to a search of the store and a check of what the store cannot search for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from windlass.api.query import Query, for_words, parse
from windlass.api.search import to_states
from windlass.backend import requests as rq
from windlass.core.ids import is_text
from windlass.core.job import JobRecord, JobRef, QueueInfo
from windlass.core.order import Sort, states_of
from windlass.dashboard import views
from windlass.dashboard.lists import holding, listing
from windlass.dashboard.masking import Mask
from windlass.dashboard.paging import Found, Keep, Listing, Position, encode_cursor
from windlass.dashboard.problems import ApiError
from windlass.dashboard.shapes.changes import Filter
from windlass.dashboard.store_view import StoreView

_BATCH = 500
_LONGEST_ID = 512


class MaskedReader:
    """Reads the values of jobs as a caller sees them."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask

    def call(self, record: JobRecord) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, masked."""
        call = views.call_of(record, self._mask.codecs)
        if call is None or self._mask.everything:
            return [], {}
        args, kwargs = call.args, call.kwargs
        if record.codec != "json":  # other codecs have values that JSON lacks
            args, kwargs = views.plain(args), views.plain(kwargs)
        return self._mask.hide(args), self._mask.hide(kwargs)

    def text(self, value: str) -> str:
        """A message, masked."""
        return self._mask.text(value)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """A parsed filter of a request."""

    filter: Filter
    query: Query
    words: Query | None

    @property
    def simple(self) -> bool:
        """Whether it contains only states and queues, so that the counters give the total."""
        said = self.filter
        fields = {term.field for term in self.query.terms}
        more = (said.task, said.tag, said.error, said.args, said.q)
        return not any(more) and said.from_ms is None and said.to_ms is None and fields <= {"state", "queue"}


def understand(store_view: StoreView, given: Filter) -> RequestFilter:
    """Parse a filter and its query. Refuses conditions on masked fields."""
    query = parse(given.search or "")
    asked: list[Any] = [given.args or {}, *(dict.fromkeys(path) for path in query.arguments)]
    if store_view.mask.hides(asked) and (given.args or query.arguments):
        raise ApiError(
            403, "masked", "jobs cannot be searched by a field that is masked", "Its values are not shown."
        )
    states = to_states(query.search.state)
    if states and given.state:
        states = [state for state in states if state in given.state]
    both = Filter(**{name: getattr(given, name) for name in Filter.__struct_fields__})
    both.state = states or given.state
    both.queue = [*given.queue, *(name for name in query.queues if name not in given.queue)]
    text = (given.q or "").strip()
    return RequestFilter(both, query, for_words(text) if text else None)


def names_of(store_view: StoreView, wanted: RequestFilter, infos: Sequence[QueueInfo]) -> list[str]:
    """The queues that may hold matching jobs."""
    queues = wanted.filter.queue
    for name in queues:
        store_view.queue(name)
    among = [info for info in infos if not queues or info.name in queues]
    return holding(among, wanted.filter.state)


def listing_of(
    store_view: StoreView, wanted: RequestFilter, *, sort: Sort = Sort.ADDED, newest_first: bool = True
) -> Listing:
    """The listing of matching jobs."""
    said = wanted.filter
    states_of(said.state, sort)
    search = wanted.query.narrowed(store_view.now_ms(), store_view.mask.keeps)
    more = () if wanted.words is None else wanted.words.narrowed(0, store_view.mask.keeps).hints
    search = replace(
        search,
        name=said.task or search.name,
        state=said.state,
        tag=said.tag or search.tag,
        error=said.error or None,
        data=said.args or None,
        hints=(*search.hints, *more),
    )
    past = _passes(said, newest_first) if sort is Sort.ADDED else None
    keep = _keeps(store_view, wanted)
    return listing(store_view, search, sort=sort, newest_first=newest_first, keep=keep, past=past)


async def exact_page(
    store_view: StoreView, wanted: RequestFilter, names: list[str], listed: Listing
) -> Found | None:
    """Jobs with exactly the id that was given, by ``id:`` or as the only word.

    Returns None if no id was given, or no job has it. With ``id:`` these are all results. With a word, the
    search continues from the cursor of the answer and leaves these jobs out.
    """
    ids = wanted.query.ids or _lone_word(wanted)
    found: list[JobRecord] = []
    refs = [JobRef(name, job_id) for job_id in ids for name in names]
    for start in range(0, len(refs), _BATCH):
        part = await store_view.store.execute(rq.GetJobs(refs=refs[start : start + _BATCH]))
        found += [record for record in part if record is not None and listed.fits(record)]
    if wanted.query.ids:
        return Found(found, None, len(found))
    return Found(found, encode_cursor(Position()), len(found)) if found else None


def _lone_word(wanted: RequestFilter) -> tuple[str, ...]:
    """The text that may be an id: the only condition besides states and queues."""
    text = (wanted.filter.q or "").strip()
    words = [text, *wanted.query.words] if text else wanted.query.words
    lone = len(words) == 1 and len(words[0]) <= _LONGEST_ID and is_text(words[0])
    return (words[0],) if lone else ()


def without_exact(listed: Listing, wanted: RequestFilter) -> Listing:
    """The search that continues after ``exact_page``, without the jobs of that id."""
    ids = _lone_word(wanted)
    keep = listed.keep
    if not ids or keep is None:
        return listed
    return replace(listed, keep=lambda record: record.id not in ids and keep(record))


def _keeps(store_view: StoreView, wanted: RequestFilter) -> Keep | None:
    """A check for the conditions that no store supports."""
    said, queries = wanted.filter, [query for query in (wanted.query, wanted.words) if query is not None]
    low, high = said.from_ms, said.to_ms
    if not any(query.tests for query in queries) and low is None and high is None:
        return None
    reader, now_ms = MaskedReader(store_view.mask), store_view.now_ms()

    def keep(record: JobRecord) -> bool:
        if (low is not None and record.enqueued_ms < low) or (
            high is not None and record.enqueued_ms >= high
        ):
            return False
        return all(query.fits(record, reader, now_ms) for query in queries)

    return keep


def _passes(wanted: Filter, newest_first: bool) -> Keep | None:
    """A check whether a listing by time has left the requested period. It allows some slack, because the
    times of several nodes are only nearly in order."""
    slack_ms = 60_000
    if newest_first and wanted.from_ms is not None:
        low = wanted.from_ms - slack_ms
        return lambda record: record.enqueued_ms < low
    if not newest_first and wanted.to_ms is not None:
        high = wanted.to_ms + slack_ms
        return lambda record: record.enqueued_ms >= high
    return None

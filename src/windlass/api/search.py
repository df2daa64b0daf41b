"""Selects jobs by task name, state, tag, last error and arguments, for reading and for bulk changes.

The store filters by everything except the arguments, which only their codec can read. Those are compared
here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from windlass.backend import requests as rq
from windlass.core.ids import is_text
from windlass.core.job import JobRecord, JobRef
from windlass.core.option_values import check_known
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.jobs.payload import read_call

if TYPE_CHECKING:
    from windlass.backend.store import Store
    from windlass.serde.codecs import Codecs

#: Jobs per step of a bulk change.
CHUNK = 1_000
#: The maximum length of a search text. No name is longer, and stores compile it to a pattern.
_TEXT_CHARS = 1_000

States = Iterable[JobState | str] | JobState | str


class SearchOptions(TypedDict, total=False):
    """Filters for jobs in a state; see ``Search``."""

    name: str | None
    tag: str | None
    error: str | None
    data: Mapping[str, Any] | None
    #: A text such as ``error:Timeout* args.customer.id:42`` (see ``windlass.api.query``).
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Conditions that a job must meet. A condition that is not given matches every job."""

    #: The task's name; ``*`` and ``?`` match.
    name: str | None = None
    state: States = ()
    #: One of its tags.
    tag: str | None = None
    #: The class of its last error.
    error: str | None = None
    #: Keyword arguments with these values.
    data: Mapping[str, Any] | None = None
    #: Its group, the worker that runs or ran it, the fingerprint of its last error.
    group: str | None = None
    worker: str | None = None
    fingerprint: str | None = None
    #: When it ended: at or after the first, before the second.
    finished_from_ms: int | None = None
    finished_to_ms: int | None = None
    #: Whether only the last jobs of flows match.
    tops: bool = False
    #: Texts that it must contain, so that the store can skip most other jobs.
    hints: tuple[rq.Hint, ...] = ()

    def __post_init__(self) -> None:
        to_states(self.state)
        for option in ("name", "tag", "error", "group", "worker", "fingerprint"):
            value = getattr(self, option)
            if value is not None and (not is_text(value) or len(value) > _TEXT_CHARS):
                raise ConfigError(option, f"a text of at most {_TEXT_CHARS:,} characters", value)
        if self.data is not None and not isinstance(self.data, Mapping):
            raise ConfigError("data", "keyword arguments, such as {'user': 7}", self.data)

    def request(self, queue: str, *, cursor: str | None, limit: int, newest_first: bool) -> rq.ListJobs:
        """Return the request for the conditions that the store can check."""
        return rq.ListJobs(
            queue=queue,
            states=to_states(self.state),
            task=self.name,
            tag=self.tag,
            error_class=self.error,
            fingerprint=self.fingerprint,
            group=self.group,
            worker=self.worker,
            finished_from_ms=self.finished_from_ms,
            finished_to_ms=self.finished_to_ms,
            tops=self.tops,
            hints=list(self.hints),
            newest_first=newest_first,
            cursor=cursor,
            limit=limit,
        )

    def has(self, record: JobRecord, codecs: Codecs) -> bool:
        """Whether the job's arguments match."""
        if not self.data:
            return True
        try:
            kwargs = read_call(codecs, record).kwargs
        except (ValueError, ConfigError):
            return False  # bytes that are not arguments match nothing
        return all(key in kwargs and are_equal(kwargs[key], value) for key, value in self.data.items())


def are_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal. A signalling NaN raises when it is compared, and equals nothing."""
    try:
        return bool(one == other)
    except ArithmeticError:
        return False


async def find_page(
    store: Store,
    queue: str,
    search: Search,
    codecs: Codecs,
    *,
    cursor: str | None,
    limit: int,
    scan: int,
    newest_first: bool = True,
    keep: Callable[[JobRecord], bool] | None = None,
) -> rq.Page:
    """Return a page of matching jobs, ordered by when they were added. Reads about ``scan`` records at most.

    ``keep`` is a further condition.
    """
    if isinstance(scan, bool) or not isinstance(scan, int) or scan < 1:
        raise ConfigError("scan", "a whole number above 0", scan)
    found: list[JobRecord] = []
    looked = 0
    while looked < scan and len(found) < limit:
        step = min(limit - len(found), CHUNK) if not search.data and keep is None else CHUNK
        page = await store.execute(
            search.request(queue, cursor=cursor, limit=step, newest_first=newest_first)
        )
        looked += max(len(page.jobs), 1)
        cursor = page.cursor
        for record in page.jobs:
            if search.has(record, codecs) and (keep is None or keep(record)):
                found.append(record)
                if len(found) == limit and record is not page.jobs[-1]:
                    cursor = str(record.seq)
                    break
        if cursor is None:
            break
    return rq.Page(found, cursor)


async def find_chunks(
    store: Store,
    queue: str,
    search: Search,
    codecs: Codecs,
    count: int | None,
    keep: Callable[[JobRecord], bool] | None = None,
) -> AsyncIterator[list[JobRef]]:
    """Iterate over all matching jobs, oldest first, in chunks for bulk changes; at most ``count`` jobs.

    ``keep`` is a further condition. Each job is returned once, even if the change moves it in the list.
    """
    left = count
    cursor: str | None = None
    while left is None or left > 0:
        step = CHUNK if left is None or search.data or keep is not None else min(CHUNK, left)
        page = await store.execute(search.request(queue, cursor=cursor, limit=step, newest_first=False))
        meant = (record for record in page.jobs if search.has(record, codecs))
        refs = [record.ref for record in meant if keep is None or keep(record)][:left]
        if refs:
            yield refs
        if left is not None:
            left -= len(refs)
        cursor = page.cursor
        if cursor is None:
            return


def to_states(value: States) -> list[JobState]:
    """Return a list of states for any accepted spelling. Raises ``ConfigError`` for unknown states."""
    given = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    if not all(isinstance(state, str) for state in given):
        raise ConfigError("state", "one or more job states", value)
    check_known(given, [state.value for state in JobState], "job state")
    return [JobState(state) for state in given]

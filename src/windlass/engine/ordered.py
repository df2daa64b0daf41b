"""Sorted lists of a store as one request sees them: the loaded part with the request's own changes on top."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Generic, Protocol, TypeVar

from windlass.core.job import JobRecord
from windlass.core.options import StoredOptions

T = TypeVar("T")

#: Shared empty values. They are never changed.
_NO_BASE: Iterator[Any] = iter(())
_NO_NAMES: set[str] = set()
_NO_OWN: dict[str, Any] = {}
_NO_HEAP: list[Any] = []


class Sorted(Protocol[T]):
    """What ``Ordered`` and the lists of stores have in common: items sorted by key, each with a name."""

    def head(self) -> T | None: ...

    def put(self, key: Any, name: str, item: T) -> None: ...

    def remove(self, name: str) -> None: ...


class Ordered(Generic[T]):
    """Items sorted by key, each with a name: the loaded items, with the request's own changes on top.

    ``whole``: the store has no items after the loaded ones. If False, the order is known only up to the last
    loaded key.
    """

    __slots__ = ("_base", "_ended", "_gone", "_heap", "_last_key", "_near", "_next", "_own", "whole")

    def __init__(self, base: Iterable[tuple[Any, str, T]] = (), whole: bool = True) -> None:
        if base:
            self._base, self._ended = iter(base), False
        else:
            self._base, self._ended = _NO_BASE, True
        self.whole = whole
        #: Entries that were read from ``base`` and are still in the list: the first one, then the others.
        self._next: tuple[Any, str, T] | None = None
        self._near: deque[tuple[Any, str, T]] | None = None
        self._last_key: Any = None
        #: Names of loaded items that were removed, or moved to another key.
        self._gone: set[str] = _NO_NAMES
        self._own: dict[str, tuple[Any, T]] = _NO_OWN
        self._heap: list[tuple[Any, str]] = _NO_HEAP

    def head(self) -> T | None:
        """The first item, which stays in the list. None if the list is empty or ``is_cut``."""
        base = self._next
        if not self._ended if base is None else base[1] in self._gone:
            base = self._base_head()
        if not self._heap:
            return None if base is None else base[2]
        own = self._own_head()
        if base is None:
            if own is None or (self.is_cut and (self._last_key is None or own[0] > self._last_key)):
                return None
            return self._own[own[1]][1]
        return base[2] if own is None or base[0] < own[0] else self._own[own[1]][1]

    @property
    def is_cut(self) -> bool:
        """Whether all loaded items are used up and the store may have more."""
        return not self.whole and self._ended and self._next is None

    def ahead(self, count: int) -> Iterator[T]:
        """At least the next ``count`` items, as far as they are loaded, unsorted. They stay in the list."""
        if self._next is None:
            self._next = self._pull()
        near = self._near = self._near or deque()
        while len(near) < count - 1 and (entry := self._pull()) is not None:
            near.append(entry)
        known = () if self._next is None else (self._next,)
        for _, name, item in islice(chain(known, near), count):
            if name not in self._gone:
                yield item
        for _, item in self._own.values():
            yield item

    def put(self, key: Any, name: str, item: T) -> None:
        """Insert ``item``, or move it to another key."""
        if self._own is _NO_OWN:
            self._own, self._heap = {}, []
        self.remove(name)
        self._own[name] = (key, item)
        heapq.heappush(self._heap, (key, name))

    def remove(self, name: str) -> None:
        """Remove an item, if it is in the list."""
        if self._gone is _NO_NAMES:
            self._gone = {name}
        else:
            self._gone.add(name)
        if self._own:
            self._own.pop(name, None)

    def _pull(self) -> tuple[Any, str, T] | None:
        if self._ended:
            return None
        entry = next(self._base, None)
        if entry is None:
            self._ended = True
        else:
            self._last_key = entry[0]
        return entry

    def _base_head(self) -> tuple[Any, str, T] | None:
        entry, gone = self._next, self._gone
        while entry is None or entry[1] in gone:
            entry = self._near.popleft() if self._near else self._pull()
            if entry is None:
                break
        self._next = entry
        return entry

    def _own_head(self) -> tuple[Any, str] | None:
        heap = self._heap
        while heap:
            known = self._own.get(heap[0][1])
            if known is not None and known[0] == heap[0][0]:
                return heap[0]
            heapq.heappop(heap)
        return None


class StoredWaiting(Protocol):
    """The waiting jobs of a queue as they are stored. ``engine.saving`` explains turns."""

    def front(self) -> Iterable[tuple[tuple[int, int, int], str, JobRecord]]:
        """Jobs in the order in which they start, as ``((-priority, turn, place), id, job)``."""

    def served(self, priority: int, gone: set[str]) -> int | None:
        """The first turn at a priority, ignoring the jobs ``gone``."""

    def last(self, priority: int, group: str, gone: set[str]) -> int | None:
        """The last turn of a group ("": jobs without one) at a priority, ignoring the jobs ``gone``."""


class WaitingView(Ordered[JobRecord]):
    """The waiting jobs of one queue."""

    __slots__ = ("_stored", "_turns")

    def __init__(self, stored: StoredWaiting, whole: bool = True) -> None:
        super().__init__(stored.front(), whole)
        self._stored = stored
        #: Heaps of the turns of jobs that joined in this request: for a priority (group None) with the lowest
        #: turn first, and for a group at a priority with the highest turn first.
        self._turns: dict[tuple[int, str | None], list[tuple[int, str]]] | None = None

    def join(self, job: JobRecord) -> None:
        """Insert a waiting job."""
        self.put((-job.priority, job.turn, job.place), job.id, job)
        if self._turns is None:
            self._turns = {}
        heapq.heappush(self._turns.setdefault((job.priority, None), []), (job.turn, job.id))
        last = self._turns.setdefault((job.priority, job.options.group or ""), [])
        heapq.heappush(last, (-job.turn, job.id))

    def take_plain(self, count: int) -> list[JobRecord]:
        """Remove and return up to ``count`` jobs from the front, until one is not plain or can expire.

        Only for queues that have never had a group. Returns no job if this request has inserted jobs itself.
        """
        found: list[JobRecord] = []
        first = None if self._heap or self._near else self._next or self._base_head()
        if first is None:
            return found
        gone, options, entry = self._gone, None, first
        for entry in chain((first,), self._base):
            job = entry[2]
            if entry[1] in gone:
                continue
            if len(found) >= count or job.expires_ms is not None:
                break
            if job.options is not options and not is_plain(job.options):
                break
            options = job.options
            found.append(job)
        else:
            self._next, self._ended, self._last_key = None, True, entry[0]
            return found
        self._next, self._last_key = entry, entry[0]
        return found

    def served(self, priority: int) -> int | None:
        """The turn that is being served at a priority."""
        own = self._first_of(priority, None, 1)
        stored = self._stored.served(priority, self._gone)
        return stored if own is None else own if stored is None else min(own, stored)

    def last(self, priority: int, group: str) -> int | None:
        """The last turn of a group's jobs that wait at a priority."""
        own = self._first_of(priority, group, -1)
        stored = self._stored.last(priority, group, self._gone)
        return stored if own is None else own if stored is None else max(own, stored)

    def _first_of(self, priority: int, group: str | None, sign: int) -> int | None:
        heap = self._turns.get((priority, group)) if self._turns else None
        while heap:
            turn, name = heap[0]
            known = self._own.get(name)
            if known is not None and known[0][:2] == (-priority, sign * turn):
                return sign * turn
            heapq.heappop(heap)
        return None


def is_plain(options: StoredOptions) -> bool:
    """Whether these options have neither a group nor a unique key."""
    return options.group is None and options.unique is None

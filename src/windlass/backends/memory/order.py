"""A sorted list of entries with lazy removal: removed entries are skipped, and dropped later."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")
#: The sort key, the name and the value of an entry, as ``engine.ordered.Ordered`` expects them.
Entry = tuple[Any, str, T]

_key_of = itemgetter(0)


class Order(Generic[T]):
    """Values ordered by key. ``counted`` has the valid entry of each name; several orders may share it."""

    __slots__ = ("_entries", "_start", "counted")

    def __init__(self, counted: dict[str, Entry[T]] | None = None) -> None:
        self.counted: dict[str, Entry[T]] = {} if counted is None else counted
        self._entries: list[Entry[T]] = []
        self._start = 0

    def put(self, key: Any, name: str, item: T) -> None:
        """Add a value, or move it to another key."""
        entry = self.counted[name] = (key, name, item)
        entries = self._entries
        if not entries or key > entries[-1][0]:  # the usual case
            entries.append(entry)
        else:
            insort(entries, entry, lo=self._start, key=_key_of)
        if len(entries) > 64 + 4 * len(self.counted):
            self._entries = [entry for entry in entries if self.counted.get(entry[1]) is entry]
            self._start = 0

    def remove(self, name: str) -> None:
        """Remove a value, if it exists."""
        self.counted.pop(name, None)

    def __bool__(self) -> bool:
        """Whether there are entries."""
        return bool(self.counted)

    def __iter__(self) -> Iterator[Entry[T]]:
        """Iterate over valid entries, first to last. The caller must not call ``put`` meanwhile."""
        self._skip_removed()
        entries, counted = self._entries, self.counted
        for at in range(self._start, len(entries)):
            entry = entries[at]
            if counted.get(entry[1]) is entry:
                yield entry

    def head(self) -> T | None:
        """The first value."""
        self._skip_removed()
        return self._entries[self._start][2] if self._start < len(self._entries) else None

    def backwards(self) -> Iterator[Entry[T]]:
        """Iterate over valid entries, last to first."""
        entries, counted = self._entries, self.counted
        while len(entries) > self._start and counted.get(entries[-1][1]) is not entries[-1]:
            entries.pop()
        for at in range(len(entries) - 1, self._start - 1, -1):
            if counted.get(entries[at][1]) is entries[at]:
                yield entries[at]

    def _skip_removed(self) -> None:
        """Move ``_start`` to the first valid entry."""
        entries, counted, start = self._entries, self.counted, self._start
        while start < len(entries) and counted.get(entries[start][1]) is not entries[start]:
            start += 1
        if start > 1_000 and start * 2 > len(entries):
            del entries[:start]
            start = 0
        self._start = start

"""Entries in order, where those that no longer count stay until they are passed."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

E = TypeVar("E", bound=tuple[Any, ...])


class Order(Generic[E]):
    """Sorted entries. ``counts`` tells whether an entry still stands for something."""

    def __init__(self, counts: Callable[[E], bool]) -> None:
        self._counts = counts
        self._entries: list[E] = []
        self._start = 0

    def add(self, entry: E) -> None:
        """Enter one; most come at the end. The same entry may be there twice for a while."""
        entries = self._entries
        if not entries or entry > entries[-1]:
            entries.append(entry)
        else:
            insort(entries, entry, lo=self._start)

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self._entries)

    def __iter__(self) -> Iterator[E]:
        """Those that count, first to last. Nothing may be added meanwhile."""
        self._pass_front()
        entries, counts = self._entries, self._counts
        at, last = self._start, None
        while at < len(entries):
            entry = entries[at]
            if entry != last and counts(entry):
                last = entry
                yield entry
            at += 1

    def head(self) -> E | None:
        """The first that counts."""
        self._pass_front()
        return self._entries[self._start] if self._start < len(self._entries) else None

    def backwards(self) -> Iterator[E]:
        """Those that count, last to first."""
        entries, counts = self._entries, self._counts
        while len(entries) > self._start and not counts(entries[-1]):
            entries.pop()
        return filter(counts, (entries[at] for at in range(len(entries) - 1, self._start - 1, -1)))

    def shrink(self, size: int) -> None:
        """Forget what does not count, when that is most of what is there; ``size`` entries count."""
        if len(self._entries) > 64 + 4 * size:
            self._entries = [entry for entry in self._entries if self._counts(entry)]
            self._start = 0

    def _pass_front(self) -> None:
        entries, counts, start = self._entries, self._counts, self._start
        while start < len(entries) and not counts(entries[start]):
            start += 1
        if start > 1_000 and start * 2 > len(entries):
            del entries[:start]
            start = 0
        self._start = start

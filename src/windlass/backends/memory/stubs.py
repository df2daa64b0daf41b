"""Stubs in memory: see ``core.stubs``."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from windlass.core.job import JobRecord, JobRef
from windlass.core.stubs import STUBS_KEPT, is_over


class Stubs:
    """The stubs of one store, in the order in which their jobs ended."""

    def __init__(self) -> None:
        self._stubs: OrderedDict[JobRef, JobRecord] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether there are stubs."""
        return bool(self._stubs)

    def put(self, ref: JobRef, stub: JobRecord | None) -> None:
        """Store a stub (None: remove it). Drops the oldest stub if there are too many."""
        self._stubs.pop(ref, None)
        if stub is not None:
            self._stubs[ref] = stub
            if len(self._stubs) > STUBS_KEPT:
                self._stubs.popitem(last=False)

    def find(self, ref: JobRef, now_ms: int = 0) -> JobRecord | None:
        """The stub of a job, if it has not expired."""
        found = self._stubs.get(ref)
        return None if found is None or is_over(found, now_ms) else found

    def past(self, now_ms: int, limit: int) -> list[JobRef]:
        """The refs of up to ``limit`` expired stubs, oldest first."""
        over = takewhile(lambda item: is_over(item[1], now_ms), self._stubs.items())
        return [ref for _, (ref, _) in zip(range(limit), over, strict=False)]

    def refs(self) -> list[JobRef]:
        """The refs of all stubs."""
        return list(self._stubs)

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
        """Whether there is any."""
        return bool(self._stubs)

    def put(self, ref: JobRef, stub: JobRecord | None) -> None:
        """Keep a stub (None: forget it); the oldest makes way when there are too many."""
        self._stubs.pop(ref, None)
        if stub is not None:
            self._stubs[ref] = stub
            if len(self._stubs) > STUBS_KEPT:
                self._stubs.popitem(last=False)

    def find(self, ref: JobRef, now_ms: int = 0) -> JobRecord | None:
        """The stub that a job left, if its time has not passed."""
        found = self._stubs.get(ref)
        return None if found is None or is_over(found, now_ms) else found

    def past(self, now_ms: int, limit: int) -> list[JobRef]:
        """Those whose time has passed, the oldest first."""
        over = takewhile(lambda item: is_over(item[1], now_ms), self._stubs.items())
        return [ref for _, (ref, _) in zip(range(limit), over, strict=False)]

    def refs(self) -> list[JobRef]:
        """The jobs that left one."""
        return list(self._stubs)

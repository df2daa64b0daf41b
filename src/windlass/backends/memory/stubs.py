"""Stubs in memory: see ``core.stubs``."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy

from windlass.core.job import JobRecord, JobRef
from windlass.core.stubs import STUBS_KEPT, is_over


class Stubs:
    """The stubs of one store, in the order in which their jobs ended."""

    def __init__(self) -> None:
        self._stubs: OrderedDict[JobRef, JobRecord] = OrderedDict()

    def put(self, stub: JobRecord) -> list[JobRef]:
        """Keep a stub; the oldest make way when there are too many: which did."""
        self._stubs[stub.ref] = stub
        self._stubs.move_to_end(stub.ref)
        return [self._stubs.popitem(last=False)[0] for _ in range(len(self._stubs) - STUBS_KEPT)]

    def find(self, ref: JobRef, now_ms: int) -> JobRecord | None:
        """The stub that a job left, if its time has not passed."""
        found = self._stubs.get(ref)
        return None if found is None or is_over(found, now_ms) else copy(found)

    def remove(self, ref: JobRef) -> None:
        self._stubs.pop(ref, None)

    def prune(self, now_ms: int) -> list[JobRef]:
        """Forget those whose time has passed: which did."""
        gone = []
        while self._stubs and is_over(next(iter(self._stubs.values())), now_ms):
            gone.append(self._stubs.popitem(last=False)[0])
        return gone

    def refs(self) -> list[JobRef]:
        """The jobs that left one."""
        return list(self._stubs)

"""The live output of jobs, in memory."""

from __future__ import annotations

from collections import deque
from itertools import islice

from windlass.core.job import JobRef
from windlass.core.streams import Chunk, StreamHead, accept, too_much


class Streams:
    """What running jobs have put out so far."""

    def __init__(self) -> None:
        self._heads: dict[JobRef, StreamHead] = {}
        self._chunks: dict[JobRef, deque[Chunk]] = {}

    def append(self, ref: JobRef, delivery: int, first: int, chunks: list[bytes]) -> None:
        """Add what is new, and let the oldest go over the bounds."""
        head = self._heads.get(ref) or StreamHead()
        new = accept(head, delivery, first, chunks)
        self._heads[ref] = head
        kept = self._chunks.setdefault(ref, deque())
        kept.extend(new)
        while too_much(head):
            head.size -= len(kept.popleft().data)
            head.oldest += 1

    def read(self, ref: JobRef, after: int, limit: int) -> tuple[StreamHead, list[Chunk]]:
        """Where the stream stands, and chunks after ``after``."""
        head = self._heads.get(ref) or StreamHead()
        start = max(after + 1 - head.oldest, 0)
        return head, list(islice(self._chunks.get(ref, ()), start, start + limit))

    def forget(self, ref: JobRef) -> None:
        """The job's record goes."""
        self._heads.pop(ref, None)
        self._chunks.pop(ref, None)

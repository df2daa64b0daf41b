"""The live output of jobs, in memory."""

from __future__ import annotations

from collections import deque
from itertools import islice

from windlass.core.job import JobRef
from windlass.core.stream_rules import Chunk, StreamHead, too_much


class StoredStreams:
    """What running jobs have put out so far."""

    def __init__(self) -> None:
        self.heads: dict[JobRef, StreamHead] = {}
        self.chunks: dict[JobRef, deque[Chunk]] = {}

    def append(self, ref: JobRef, head: StreamHead, chunks: list[Chunk]) -> None:
        """Add what is new, and let the oldest go over the bounds."""
        self.heads[ref] = head
        kept = self.chunks.setdefault(ref, deque())
        kept.extend(chunks)
        while too_much(head):
            head.size -= len(kept.popleft().data)
            head.oldest += 1

    def keep(self, ref: JobRef, head: StreamHead, chunks: list[Chunk]) -> None:
        """Take over where a stream stands, with what is new to it."""
        known = self.heads.get(ref)
        last = known.last if known is not None else 0
        if head.last < last:
            return
        self.heads[ref] = head
        kept = self.chunks.setdefault(ref, deque())
        kept.extend(chunk for chunk in chunks if chunk.index > last)
        while kept and kept[0].index < head.oldest:
            kept.popleft()

    def read(self, ref: JobRef, after: int, limit: int) -> tuple[StreamHead, list[Chunk]]:
        """Where the stream stands, and chunks after ``after``."""
        head = self.heads.get(ref) or StreamHead()
        start = max(after + 1 - head.oldest, 0)
        return head, list(islice(self.chunks.get(ref, ()), start, start + limit))

    def forget(self, ref: JobRef) -> None:
        """The job's record goes."""
        self.heads.pop(ref, None)
        self.chunks.pop(ref, None)

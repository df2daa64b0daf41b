"""The live output of jobs, in memory."""

from __future__ import annotations

from collections import deque
from itertools import islice

from windlass.core.job import JobRef
from windlass.core.stream_rules import Chunk, StreamHead, too_much


class StoredStreams:
    """The live output of all jobs of a store."""

    def __init__(self) -> None:
        self.heads: dict[JobRef, StreamHead] = {}
        self.chunks: dict[JobRef, deque[Chunk]] = {}

    def append(self, ref: JobRef, head: StreamHead, chunks: list[Chunk]) -> None:
        """Append chunks, and drop the oldest chunks beyond the limits."""
        self.heads[ref] = head
        kept = self.chunks.setdefault(ref, deque())
        kept.extend(chunks)
        while too_much(head):
            head.size -= len(kept.popleft().data)
            head.oldest += 1

    def keep(self, ref: JobRef, head: StreamHead, chunks: list[Chunk]) -> None:
        """Apply an append of another process: set the head, and add the chunks that are new."""
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
        """The head of a stream, and up to ``limit`` chunks after number ``after``."""
        head = self.heads.get(ref) or StreamHead()
        start = max(after + 1 - head.oldest, 0)
        return head, list(islice(self.chunks.get(ref, ()), start, start + limit))

    def forget(self, ref: JobRef) -> None:
        """Remove the output of a removed job."""
        self.heads.pop(ref, None)
        self.chunks.pop(ref, None)

"""Live output of a job: a bounded sequence of numbered chunks.

Chunks are numbered from 1, without gaps, over all attempts. An attempt also numbers its own chunks from 1.
The store adds the number of the last chunk before that attempt, so a repeated request does not add a chunk
twice, and a new attempt does not overwrite chunks of an old one.
"""

from __future__ import annotations

import msgspec

#: Chunks and bytes kept per job. The oldest chunks are dropped first, and readers receive a gap.
STREAM_CHUNKS = 10_000
STREAM_BYTES = 16 * 1024 * 1024


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """One piece of output. ``delivery`` is the run that wrote it."""

    index: int
    delivery: int
    data: bytes


class StreamHead(msgspec.Struct):
    """The position of a job's live output."""

    #: Number of the newest and of the oldest kept chunk (``last`` 0: none yet).
    last: int = 0
    oldest: int = 1
    size: int = 0
    #: The run that wrote last, and the number of the last chunk before it.
    delivery: int = 0
    base: int = 0


def accept(head: StreamHead, delivery: int, first: int, chunks: list[bytes]) -> list[Chunk]:
    """The new chunks with their numbers. ``first`` is the attempt's own number of the first of ``chunks``.

    Chunks that are stored already are left out. Updates ``head``. Raises ``ValueError`` for a gap.
    """
    if delivery != head.delivery:
        head.delivery, head.base = delivery, head.last
    at = head.base + first
    if at > head.last + 1:
        raise ValueError(f"chunk {first} would leave a gap: the attempt wrote {head.last - head.base}")
    new = [Chunk(index, delivery, data) for index, data in enumerate(chunks, at) if index > head.last]
    if new:
        head.last = new[-1].index
        head.size += sum(len(chunk.data) for chunk in new)
    return new


def too_much(head: StreamHead) -> bool:
    """Whether the oldest chunk must be dropped. The newest is always kept."""
    kept = head.last - head.oldest + 1
    return kept > STREAM_CHUNKS or (head.size > STREAM_BYTES and kept > 1)

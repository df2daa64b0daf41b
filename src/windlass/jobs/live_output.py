"""Reading the live output of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windlass.backend import stream_requests as sm
from windlass.core.job import JobRef
from windlass.core.states import FINISHED
from windlass.errors import HistoryTrimmedError, JobNotFoundError, StorageError

if TYPE_CHECKING:
    from windlass.backend.closing import Closing
    from windlass.backend.store import Store
    from windlass.serde.codecs import Codecs

#: Poll at least this often, even without hints and after errors.
_RECHECK_MS = 1_000


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One chunk of a job's live output."""

    #: Its number, from 1, over all runs. Pass the last one as ``after`` to continue from there.
    index: int
    #: The run that wrote it, from 1. A new number means that the job started again.
    delivery: int
    value: Any


async def read_stream(
    store: Store, codecs: Codecs, ref: JobRef, after: int = 0, *, closing: Closing, skip_gap: bool = False
) -> AsyncGenerator[StreamChunk, None]:
    """Iterate over chunks until the job has ended; see ``Queue.read_stream``."""
    known = False
    closing.check()
    listener = await store.listen([f"stream:{ref.queue}", f"done:{ref.queue}"])
    closing.watch(listener)
    try:
        while True:
            closing.check()
            try:
                page = await store.execute(sm.ReadStream(ref=ref, after=after))
            except StorageError:
                await store.clock.wait(asyncio.Event(), _RECHECK_MS)
                continue
            if page.state is None and not known:
                raise JobNotFoundError(ref.queue, ref.id)
            known = True
            if page.oldest > after + 1 and page.last > after and not skip_gap:
                raise HistoryTrimmedError("output", ref.queue, after, page.oldest)
            for chunk in page.chunks:
                after = chunk.index
                yield StreamChunk(chunk.index, chunk.delivery, codecs.read_chunk(ref, page.codec, chunk.data))
            if after < page.last:
                continue
            if page.state is None or page.state in FINISHED:
                return
            await listener.wait(_RECHECK_MS, store.clock)
    finally:
        listener.close()

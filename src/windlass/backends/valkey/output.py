"""The live output of jobs: append chunks and read them."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.backends.valkey.codes import CHANGED, STATES
from windlass.backends.valkey.session import ValkeySession
from windlass.core.stream_rules import STREAM_BYTES, STREAM_CHUNKS, Chunk


async def append(session: ValkeySession, request: sm.AppendStream, now: str) -> rq.ChangeResult:
    root = session.keys.queue(request.ref.queue)
    what = (request.ref.id, request.token, request.first, STREAM_CHUNKS, STREAM_BYTES)
    status, state = await session.functions.stream_append(root, now, what, request.chunks)
    if status < 0:
        raise ValueError(f"chunk {request.first} would leave a gap")
    return rq.ChangeResult(CHANGED[status], STATES.get(state))


async def read(session: ValkeySession, request: sm.ReadStream, now: str) -> sm.StreamPage:
    root = session.keys.queue(request.ref.queue)
    state, codec, last, oldest, *found = await session.functions.stream_read(
        root, request.ref.id, max(request.after, 0), request.limit
    )
    chunks = [Chunk(*found[at : at + 3]) for at in range(0, len(found), 3)]
    return sm.StreamPage(chunks, last, oldest, STATES.get(state), codec.decode())

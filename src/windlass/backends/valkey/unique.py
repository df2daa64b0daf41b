"""Read and free unique keys. ``lua/includes/57_unique.lua`` has the rules for adds."""

from __future__ import annotations

from windlass.backend import limit_requests as lrq
from windlass.backends.valkey.session import ValkeySession
from windlass.core.unique_rules import UniqueHolder


def _holder(key: str, job_id: bytes, until_ms: int) -> UniqueHolder:
    return UniqueHolder(key, job_id.decode(), None if until_ms < 0 else until_ms)


async def get(session: ValkeySession, request: lrq.GetUniqueKey, now: str) -> UniqueHolder | None:
    found = await session.functions.unique_get(session.keys.queue(request.queue), now, request.key)
    return None if found is None else _holder(request.key, *found)


async def free(session: ValkeySession, request: lrq.FreeUniqueKey, now: str) -> bool:
    return await session.functions.unique_free(session.keys.queue(request.queue), now, request.key)


async def list_keys(session: ValkeySession, request: lrq.ListUniqueKeys, now: str) -> lrq.KeyPage:
    root = session.keys.queue(request.queue)
    more, last, *found = await session.functions.unique_list(root, now, request.limit, request.cursor)
    keys = [_holder(found[at].decode(), *found[at + 1 : at + 3]) for at in range(0, len(found), 3)]
    return lrq.KeyPage(keys, last.decode() if more else None)

"""Persistence, memory and version of the servers, for ``windlass doctor``."""

from __future__ import annotations

from redis.exceptions import RedisError

from windlass.backends.valkey.errors import NotSentError, storage_error
from windlass.backends.valkey.node import ServerNode
from windlass.backends.valkey.session import ValkeySession
from windlass.speedups.valkey import pack_command

#: Settings that INFO does not contain. Managed servers may refuse CONFIG GET.
_SETTINGS = ("appendfsync", "save")
_FACTS = (
    "aof_enabled",
    "aof_last_write_status",
    "loading",
    "maxmemory",
    "maxmemory_policy",
    "rdb_last_bgsave_status",
    "redis_version",
    "used_memory",
    "valkey_version",
)


async def server_settings(session: ValkeySession) -> list[dict[str, str]]:
    """One entry for each server that is known to hold jobs."""
    topology = session.client.topology
    await topology.node(0)  # makes a cluster read its slots
    return [await _ask(node) for node in topology.nodes()]


async def _ask(node: ServerNode) -> dict[str, str]:
    found = {"server": node.where}
    try:
        answer = await node.request(pack_command("INFO"))
    except (RedisError, OSError, NotSentError) as exc:
        raise storage_error(exc, node.where) from exc
    for line in _text(answer).splitlines():
        name, colon, value = line.partition(":")
        if colon and name in _FACTS:
            found[name] = value
    for name in _SETTINGS:
        try:
            pair = await node.request(pack_command("CONFIG", "GET", name))
        except RedisError:
            continue
        if isinstance(pair, dict):
            pair = [word for item in pair.items() for word in item]
        if len(pair) == 2:
            found[name] = _text(pair[1])
    return found


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

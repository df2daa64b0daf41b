"""The commands that readers send to a Redis or Valkey server, and the atomic step that takes entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.backend.urls import hide_secrets, parse_url
from windlass.errors import ConfigError, StorageError, not_installed
from windlass.importing.model import ForeignJob, Kind, Shelf

#: Removes entries from a shelf and stores each that was still there in the holding hash, in one step.
_TAKE = """
local taken = {}
for at = 4, #ARGV, 3 do
  local removed
  if ARGV[1] == 'list' then
    removed = redis.call('LREM', KEYS[1], ARGV[2], ARGV[at])
  else
    removed = redis.call('ZREM', KEYS[1], ARGV[at])
  end
  if removed == 1 then
    redis.call('HSET', KEYS[2], ARGV[at + 1], ARGV[at + 2])
  end
  taken[#taken + 1] = removed
end
return taken
"""


class SourceClient:
    """A connection to the server of the other system."""

    def __init__(self, url: str) -> None:
        try:
            from redis import asyncio as redis
            from redis.exceptions import RedisError
        except ImportError as exc:
            raise not_installed("import", "the client of Redis", "windlass[valkey]") from exc
        self._errors: type[Exception] = RedisError
        parse_url(url)  # refuses an invalid URL without showing it
        given = url.replace("valkey://", "redis://", 1).replace("valkeys://", "rediss://", 1)
        try:
            self._redis: Any = redis.Redis.from_url(given, socket_timeout=30, socket_connect_timeout=5)
        except ValueError:
            raise ConfigError("source", "a URL like redis://localhost:6379/0", hide_secrets(url)) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._redis.aclose()

    async def _ask(self, question: Any) -> Any:
        try:
            return await question
        except (self._errors, OSError) as exc:
            raise StorageError(f"the server to import from did not answer: {exc}; check its URL") from exc

    async def scan(self, pattern: str, kind: str | None = None) -> list[bytes]:
        """The distinct keys that match a pattern; with ``kind``, only those of this Redis type."""

        async def walk() -> list[bytes]:
            keys = self._redis.scan_iter(match=pattern, count=1_000, _type=kind)
            return sorted({key async for key in keys})

        found: list[bytes] = await self._ask(walk())
        return found

    async def members(self, key: str) -> list[bytes]:
        """The members of a set."""
        return sorted(await self._ask(self._redis.smembers(key)))

    async def hash_size(self, key: str) -> int:
        """How many fields a hash has."""
        return int(await self._ask(self._redis.hlen(key)))

    async def size(self, key: str | bytes, kind: Kind | str) -> int:
        """The number of entries of a list or sorted set."""
        verb = self._redis.llen if kind == "list" else self._redis.zcard
        return int(await self._ask(verb(key)))

    async def count(self, shelf: Shelf) -> int:
        """The number of entries of a shelf."""
        if shelf.least is None:
            return await self.size(shelf.key, shelf.kind)
        return int(await self._ask(self._redis.zcount(shelf.key, shelf.least, "+inf")))

    async def window(self, shelf: Shelf, skip: int, count: int) -> list[tuple[bytes, float]]:
        """Entries of a shelf, oldest first, after the first ``skip``, with their scores (0 in a list)."""
        if shelf.kind == "zset":
            least = "-inf" if shelf.least is None else shelf.least
            query = self._redis.zrangebyscore(
                shelf.key, least, "+inf", start=skip, num=count, withscores=True
            )
            pairs = await self._ask(query)
            return [(member, float(score)) for member, score in pairs]
        if shelf.oldest == "left":
            found = await self._ask(self._redis.lrange(shelf.key, skip, skip + count - 1))
        else:
            found = await self._ask(self._redis.lrange(shelf.key, -skip - count, -skip - 1))
            found = found[::-1]
        return [(member, 0.0) for member in found]

    async def hashes(self, keys: Sequence[str]) -> list[dict[bytes, bytes]]:
        """Several hashes in one round trip."""
        pipe = self._redis.pipeline(transaction=False)
        for key in keys:
            pipe.hgetall(key)
        found: list[dict[bytes, bytes]] = await self._ask(pipe.execute())
        return found

    async def texts(self, keys: Sequence[str]) -> list[bytes | None]:
        """Several texts in one round trip; None for missing ones."""
        found: list[bytes | None] = await self._ask(self._redis.mget(keys)) if keys else []
        return found

    async def fields(self, key: str, names: Sequence[str]) -> list[bytes | None]:
        """Some fields of a hash; None for missing ones."""
        found: list[bytes | None] = await self._ask(self._redis.hmget(key, names)) if names else []
        return found

    async def take(self, shelf: Shelf, holding: str, items: Sequence[tuple[bytes, str, bytes]]) -> list[bool]:
        """Move entries (member, id, text) to the holding hash. False for entries that were already taken."""
        words: list[Any] = [shelf.kind, -1 if shelf.oldest == "right" else 1, ""]
        for item in items:
            words += item
        answer = await self._ask(self._redis.eval(_TAKE, 2, shelf.key, holding, *words))
        return [bool(one) for one in answer]

    async def held_count(self, holding: str) -> int:
        """The number of entries in the holding hash."""
        return await self.hash_size(holding)

    async def held(self, holding: str, count: int) -> list[tuple[bytes, bytes]]:
        """Some entries of the holding hash."""

        async def walk() -> list[tuple[bytes, bytes]]:
            found: list[tuple[bytes, bytes]] = []
            async for pair in self._redis.hscan_iter(holding, count=count):
                found.append(pair)
                if len(found) >= count:
                    break
            return found

        answer: list[tuple[bytes, bytes]] = await self._ask(walk())
        return answer

    async def release(self, holding: str, jobs: Sequence[ForeignJob]) -> None:
        """Delete held entries, with the keys and parts that belong to them."""
        pipe = self._redis.pipeline(transaction=True)
        pipe.hdel(holding, *(job.job_id for job in jobs))
        keys = [key for job in jobs for key in job.keys]
        if keys:
            pipe.unlink(*keys)
        for kind, key, member in (part for job in jobs for part in job.parts):
            (pipe.hdel if kind == "hash" else pipe.zrem)(key, member)
        await self._ask(pipe.execute())

"""Calls of server functions: found, sent, repeated where that is safe, and ended in time.

A request is repeated only when it surely was not carried out: no server was reached, it refused (loading,
replica, moved), or it does not have our library yet, which is then loaded. Any other loss of a connection is
told to the caller, who knows how to repeat the verb.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import AskError, AuthenticationError, MovedError, RedisError, ResponseError

from windlass.backends.valkey import loader
from windlass.backends.valkey.errors import (
    NotSentError,
    is_function_missing,
    is_refused_for_now,
    storage_error,
)
from windlass.backends.valkey.node import Node, pack_command
from windlass.backends.valkey.settings import Settings
from windlass.backends.valkey.topology import make_topology

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.5
#: Requests that may be sent again although the first one may have been carried out.
_READS = frozenset(function.name for function in loader.function_files() if "no-writes" in function.flags)


class Client:
    """Talks to the servers from one event loop."""

    def __init__(self, settings: Settings, version: int = loader.VERSION) -> None:
        self.settings = settings
        self.topology = make_topology(settings)
        self._names = {
            f.name: loader.function_name(f.name, version).encode() for f in loader.function_files()
        }
        self._version = version

    async def call(self, name: str, roots: list[str], *arguments: str | bytes | int) -> Any:
        """Call a function on the server that holds ``roots`` (which share a slot)."""
        packed = pack_command("FCALL", self._names[name], len(roots), *roots, *arguments)
        return await self._send(packed, self.topology.slot(roots[0]), repeat=name in _READS)

    async def command(self, key: str, *parts: str | bytes | int) -> Any:
        """One plain command about ``key`` that may be repeated."""
        return await self._send(pack_command(*parts), self.topology.slot(key), repeat=True)

    async def close(self) -> None:
        for node in self.topology.nodes():
            await node.close()

    def abandon(self) -> None:
        """Close although the event loop of this client is gone."""
        for node in self.topology.nodes():
            node.abandon()

    # --- sending ---------------------------------------------------------------------------------

    async def _send(self, packed: bytes, slot: int, *, repeat: bool) -> Any:
        where = "the server"
        last: BaseException | None = None
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                pause_s = _FIRST_PAUSE_S
                while True:
                    try:
                        node = await self.topology.node(slot)
                        where = node.where
                        return await node.request(packed)
                    except (RedisError, OSError, NotSentError) as exc:
                        last = exc
                        await self._mend(exc, packed, slot, repeat=repeat)
                    if not isinstance(last, MovedError):
                        await asyncio.sleep(pause_s)
                        pause_s = min(pause_s * 2, _LAST_PAUSE_S)
        except TimeoutError as exc:
            raise storage_error(last or exc, where) from last or exc
        except (RedisError, OSError, NotSentError) as exc:
            raise storage_error(exc, where) from exc

    async def _mend(self, error: BaseException, packed: bytes, slot: int, *, repeat: bool) -> None:
        """Do what makes a second try worth while, or raise ``error``."""
        if is_function_missing(error):
            await self._load(await self.topology.node(slot))
            return
        lost = repeat and not isinstance(error, (ResponseError, AuthenticationError))
        if not lost and not is_refused_for_now(error):
            raise error
        if not isinstance(error, AskError) or isinstance(error, MovedError):
            await self.topology.learn(error)

    async def _load(self, node: Node) -> None:
        name = loader.library_name(self._version)
        listed = await node.request(pack_command("FUNCTION", "LIST", "LIBRARYNAME", name))
        if listed:
            return
        source = loader.library_source(self._version)
        try:
            await node.request(pack_command("FUNCTION", "LOAD", source))
        except ResponseError as exc:
            if "already exists" not in str(exc):  # somebody else was quicker
                raise

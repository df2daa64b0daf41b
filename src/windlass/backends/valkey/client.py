"""Calls of server functions: found, sent, repeated where that is safe, and ended in time.

A request is repeated only when it surely was not carried out: no server was reached, it refused (loading,
replica, moved), or it does not have our library yet, which is then loaded. Any other loss of a connection is
raised to the caller, who knows how to repeat the verb. Whatever happens, the caller is answered in time: a
server that does not answer costs ``timeout_s``, and its connections are not trusted any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from redis.exceptions import AskError, AuthenticationError, MovedError, RedisError, ResponseError

from windlass.backends.valkey import loader
from windlass.backends.valkey.errors import (
    NotSentError,
    TlsError,
    is_function_missing,
    is_refused_for_now,
    is_wrong_type,
    storage_error,
)
from windlass.backends.valkey.keys import DAMAGED, KINDS
from windlass.backends.valkey.node import ASKING, ServerNode
from windlass.backends.valkey.settings import ValkeySettings
from windlass.backends.valkey.topology import make_topology
from windlass.core import bad_records
from windlass.speedups.valkey import pack_command

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 0.5
#: Requests that may be sent again although the first one may have been carried out.
_READS = frozenset(function.name for function in loader.function_files() if "no-writes" in function.flags)


class ValkeyClient:
    """Talks to the servers from one event loop."""

    def __init__(self, settings: ValkeySettings, version: int = loader.VERSION) -> None:
        self.settings = settings
        self.topology = make_topology(settings)
        self._names = {
            f.name: loader.function_name(f.name, version).encode() for f in loader.function_files()
        }
        self._version = version
        self._guarded = settings.kind == "cluster"

    def call(self, name: str, roots: list[str], *arguments: str | bytes | int) -> Coroutine[Any, Any, Any]:
        """Call a function on the server that holds ``roots`` (which share a slot)."""
        keys = [*roots, loader.guard_key(roots[0])] if self._guarded else roots
        packed = pack_command("FCALL", self._names[name], len(keys), *keys, *arguments)
        return self._send(packed, self.topology.slot(roots[0]), repeat=name in _READS, roots=roots)

    async def command(self, key: str, *parts: str | bytes | int) -> Any:
        """One plain command about ``key`` that may be repeated."""
        return await self._send(pack_command(*parts), self.topology.slot(key), repeat=True)

    def explain(self, begun: bool) -> str:
        """What a call says that waited for others until its time was over."""
        why = TimeoutError() if begun else NotSentError(TimeoutError("it is busy"))
        return str(storage_error(why, self.topology.where))

    async def close(self) -> None:
        for node in self.topology.nodes():
            await node.close()

    # --- sending ---------------------------------------------------------------------------------

    async def _send(self, packed: bytes, slot: int, *, repeat: bool, roots: Sequence[str] = ()) -> Any:
        last: BaseException | None = None
        node = self.topology.known(slot)
        sent = node.send_now(packed) if node is not None else None  # the server works while we set our clock
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                pause_s = _FIRST_PAUSE_S
                asked: ServerNode | None = None
                while True:
                    try:
                        if sent is None or node is None:
                            node = asked or await self.topology.node(slot)
                            sent = await node.reach()  # what is cut short from here on may arrive
                            await node.send(sent, ASKING + packed if asked else packed)
                        return await node.answer(sent, asked=asked is not None)
                    except (RedisError, OSError, NotSentError) as exc:
                        sent = None
                        asked, known = await self._recover_or_raise(exc, node, roots, repeat=repeat), last
                        last = exc
                    if not isinstance(last, AskError) or isinstance(known, AskError):  # MOVED is one of them
                        await asyncio.sleep(pause_s)
                        pause_s = min(pause_s * 2, _LAST_PAUSE_S)
        except TimeoutError as exc:
            if node is not None:
                await self.topology.suspect(node)
            why = exc if sent is not None else last or NotSentError(OSError("it took too long to connect"))
            raise storage_error(why, (node or self.topology).where) from why
        except (RedisError, OSError, NotSentError, TlsError) as exc:
            raise storage_error(exc, (node or self.topology).where) from exc

    async def _recover_or_raise(
        self, error: BaseException, node: ServerNode | None, roots: Sequence[str], *, repeat: bool
    ) -> ServerNode | None:
        """Do what makes a second try worth while, or raise ``error``. Returns whom to ask this once."""
        if node is not None and is_function_missing(error):
            await self._load(node)
            return None
        if node is not None and is_wrong_type(error) and await self._move_aside(node, roots) and repeat:
            return None
        lost = repeat and not isinstance(error, (ResponseError, AuthenticationError))
        if not lost and not is_refused_for_now(error):
            raise error
        if isinstance(error, AskError) and not self._guarded:
            raise error  # the server is part of a cluster, which the URL does not say
        if isinstance(error, AskError) and not isinstance(error, MovedError):
            return self.topology.at(error.host, error.port)
        await self.topology.learn(error)
        return None

    async def _move_aside(self, node: ServerNode, roots: Sequence[str]) -> bool:
        """Move keys of these queues aside that hold what they should not; whether there were any.

        The call that met one may have done its part for other queues: unless it only looked, the caller
        learns of it and does what a lost reply asks for.
        """
        moved = False
        for root in roots:
            for suffix, kind in KINDS.items():
                key = root + suffix
                found = await node.request(pack_command("TYPE", key))
                if found.decode() not in (kind, "none"):
                    await node.request(pack_command("RENAME", key, key + DAMAGED))
                    bad_records.log_once(
                        f"key {key}", f"it holds a {found.decode()}, and was moved to {key}{DAMAGED}"
                    )
                    moved = True
        return moved

    async def _load(self, node: ServerNode) -> None:
        name = loader.library_name(self._version)
        listed = await node.request(pack_command("FUNCTION", "LIST", "LIBRARYNAME", name))
        if listed:
            return
        source = loader.library_source(self._version)
        try:
            await node.request(pack_command("FUNCTION", "LOAD", source))
        except ResponseError as exc:
            if "already exists" not in str(exc):  # another client was quicker
                raise

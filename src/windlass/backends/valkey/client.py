"""Calls of server functions, with repeats where they are safe and a timeout.

A write is repeated only if it was certainly not carried out: no server was reached, the server refused it
(loading, replica, moved), or the server did not have our library, which is then loaded. Any other lost
connection is raised to the caller, which knows how to repeat the verb. No call takes longer than
``timeout_s``; after a timeout the idle connections to that server are closed.
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
#: Functions that only read: they may be repeated even if the first call may have been carried out.
_READS = frozenset(function.name for function in loader.function_files() if "no-writes" in function.flags)


class ValkeyClient:
    """The connections to all servers from one event loop."""

    def __init__(self, settings: ValkeySettings, version: int = loader.VERSION) -> None:
        self.settings = settings
        self.topology = make_topology(settings)
        self._names = {
            f.name: loader.function_name(f.name, version).encode() for f in loader.function_files()
        }
        self._version = version
        self._guarded = settings.kind == "cluster"

    def call(self, name: str, roots: list[str], *arguments: str | bytes | int) -> Coroutine[Any, Any, Any]:
        """Call a function on the server that holds ``roots``, which must share a slot."""
        keys = [*roots, loader.guard_key(roots[0])] if self._guarded else roots
        packed = pack_command("FCALL", self._names[name], len(keys), *keys, *arguments)
        return self._send(packed, self.topology.slot(roots[0]), repeat=name in _READS, roots=roots)

    async def command(self, key: str, *parts: str | bytes | int) -> Any:
        """Send a plain command to the server that holds ``key``. The command must be safe to repeat."""
        return await self._send(pack_command(*parts), self.topology.slot(key), repeat=True)

    def explain(self, begun: bool) -> str:
        """The error text for a call that timed out in a batch, whether it was sent (``begun``) or not."""
        why = TimeoutError() if begun else NotSentError(TimeoutError("it is busy"))
        return str(storage_error(why, self.topology.where))

    async def close(self) -> None:
        for node in self.topology.nodes():
            await node.close()

    # --- sending ---------------------------------------------------------------------------------

    async def _send(self, packed: bytes, slot: int, *, repeat: bool, roots: Sequence[str] = ()) -> Any:
        last: BaseException | None = None
        node = self.topology.known(slot)
        # Sent first, so that the server works while we set the timeout.
        sent = node.send_now(packed) if node is not None else None
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                pause_s = _FIRST_PAUSE_S
                asked: ServerNode | None = None
                while True:
                    try:
                        if sent is None or node is None:
                            node = asked or await self.topology.node(slot)
                            sent = await node.reach()  # from here on the server may have received it
                            await node.send(sent, ASKING + packed if asked else packed)
                        return await node.answer(sent, asked=asked is not None)
                    except (RedisError, OSError, NotSentError) as exc:
                        sent = None
                        asked, known = await self._recover_or_raise(exc, node, roots, repeat=repeat), last
                        last = exc
                    if not isinstance(last, AskError) or isinstance(known, AskError):  # or a MovedError
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
        """Prepare a second try, or raise ``error``. Returns the server to use once instead (ASK)."""
        if node is not None and is_function_missing(error):
            await self._load(node)
            return None
        if node is not None and is_wrong_type(error) and await self._move_aside(node, roots) and repeat:
            return None
        lost = repeat and not isinstance(error, (ResponseError, AuthenticationError))
        if not lost and not is_refused_for_now(error):
            raise error
        if isinstance(error, AskError) and not self._guarded:
            raise error  # the server is part of a cluster, but the URL names a single server
        if isinstance(error, AskError) and not isinstance(error, MovedError):
            return self.topology.at(error.host, error.port)
        await self.topology.learn(error)
        return None

    async def _move_aside(self, node: ServerNode, roots: Sequence[str]) -> bool:
        """Rename keys of these queues that have the wrong type; return whether there were any.

        The call that found one may already have changed other queues. So a write is not repeated here: its
        caller gets the error and treats it as a lost reply.
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
        """Load the library unless the server has it. An existing one is never replaced."""
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

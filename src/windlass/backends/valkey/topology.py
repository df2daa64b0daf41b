"""Which server holds what: one for all, the one that Sentinel names, or by slot in a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from redis.crc import key_slot
from redis.exceptions import MovedError, RedisError

from windlass.backends.valkey.errors import NotSentError
from windlass.backends.valkey.node import Node, ask_once, new_connection, pack_command
from windlass.backends.valkey.settings import Settings


class Topology(Protocol):
    """Where requests go. Belongs to one event loop."""

    def slot(self, root: str) -> int:
        """Roots of equal slot may share one call."""
        ...

    async def node(self, slot: int) -> Node:
        """The primary that serves ``slot``."""
        ...

    async def primaries(self) -> list[Node]:
        """Every primary."""
        ...

    async def learn(self, error: BaseException) -> None:
        """Look again where things are, after ``error``."""
        ...

    def nodes(self) -> list[Node]:
        """All servers that were ever spoken to."""
        ...


class Single:
    """One server, or the primary that Sentinel names."""

    def __init__(self, settings: Settings) -> None:
        if settings.kind == "sentinel":
            self._node = Node(settings, resolve=lambda: _ask_sentinels(settings))
        else:
            self._node = Node(settings, *settings.addresses[0])

    def slot(self, root: str) -> int:
        return 0

    async def node(self, slot: int) -> Node:
        return self._node

    async def primaries(self) -> list[Node]:
        return [self._node]

    async def learn(self, error: BaseException) -> None:
        await self._node.hang_up()

    def nodes(self) -> list[Node]:
        return [self._node]


async def _ask_sentinels(settings: Settings) -> tuple[str, int]:
    last: BaseException = OSError("no sentinel in the URL")
    for host, port in settings.addresses:
        connection = new_connection(settings, host, port, sentinel=True)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
            found = await ask_once(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.primary)
            if found:
                return found[0].decode(), int(found[1])
            last = OSError(f"the sentinel at {host}:{port} does not know {settings.primary!r}")
        except (RedisError, OSError) as exc:
            last = exc
        finally:
            with contextlib.suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)
    raise NotSentError(last)


class Cluster:
    """Primaries by slot, learned from any node and again whenever one says that things have moved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._nodes: dict[tuple[str, int], Node] = {}
        self._slots: dict[int, Node] = {}
        self._primaries: list[tuple[str, int]] = []
        self._lock = asyncio.Lock()
        self._roots: dict[str, int] = {}

    def slot(self, root: str) -> int:
        found = self._roots.get(root)
        if found is None:
            found = self._roots[root] = key_slot(root.encode())
        return found

    async def node(self, slot: int) -> Node:
        if not self._slots:
            await self._look()
        found = self._slots.get(slot)
        if found is None:
            raise NotSentError(OSError(f"no server of the cluster serves slot {slot}"))
        return found

    async def primaries(self) -> list[Node]:
        if not self._slots:
            await self._look()
        return [self._nodes[address] for address in self._primaries]

    async def learn(self, error: BaseException) -> None:
        if isinstance(error, MovedError) and not getattr(error, "host", ""):
            return
        with contextlib.suppress(NotSentError):
            await self._look()

    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    async def _look(self) -> None:
        """Read the map of slots from the first node that answers."""
        async with self._lock:
            last: BaseException = OSError("no address in the URL")
            for address in dict.fromkeys([*self._primaries, *self._nodes, *self._settings.addresses]):
                try:
                    async with asyncio.timeout(max(self._settings.timeout_s / 4, 0.2)):
                        rows = await self._at(address).request(pack_command("CLUSTER", "SLOTS"))
                except (RedisError, OSError, TimeoutError, NotSentError) as exc:
                    last = exc
                    continue
                self._remember(rows, address)
                return
            raise last if isinstance(last, NotSentError) else NotSentError(last)

    def _remember(self, rows: list[Any], asked: tuple[str, int]) -> None:
        slots: dict[int, Node] = {}
        primaries: dict[tuple[str, int], None] = {}
        for first, last, primary, *_ in rows:
            address = ((primary[0] or b"").decode() or asked[0], int(primary[1]))
            primaries[address] = None
            slots |= dict.fromkeys(range(first, last + 1), self._at(address))
        self._slots, self._primaries = slots, list(primaries)

    def _at(self, address: tuple[str, int]) -> Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = Node(self._settings, *address)
        return node


def make_topology(settings: Settings) -> Topology:
    """The topology that the URL asks for, for the running event loop."""
    return Cluster(settings) if settings.kind == "cluster" else Single(settings)

"""Which server serves a slot: the only one, the primary that Sentinel names, or a node of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, MovedError, RedisError, ResponseError

from windlass.backends.valkey.errors import NotSentError, TlsError
from windlass.backends.valkey.node import ServerNode, open_connection
from windlass.backends.valkey.settings import ValkeySettings
from windlass.speedups.valkey import ask, pack_command

Address = tuple[str, int]


class ServerTopology(Protocol):
    """Finds the server for a request. Belongs to one event loop."""

    @property
    def where(self) -> str:
        """Where requests go, for error messages about a request that no server was found for."""
        ...

    def slot(self, root: str) -> int:
        """The slot of a root. Roots of one slot may share a call."""
        ...

    def known(self, slot: int) -> ServerNode | None:
        """The primary that serves ``slot``, if that is known without a request."""
        ...

    async def node(self, slot: int) -> ServerNode:
        """The primary that serves ``slot``. ``NotSentError`` if there is none."""
        ...

    def at(self, host: str, port: int) -> ServerNode:
        """The server at an address from an ASK or MOVED reply."""
        ...

    async def learn(self, error: BaseException) -> None:
        """Update what is known of the servers after ``error``. Never raises ``NotSentError``."""
        ...

    async def suspect(self, node: ServerNode) -> None:
        """``node`` did not answer in time: close its idle connections, and distrust its slots."""
        ...

    def nodes(self) -> list[ServerNode]:
        """All servers that a request was ever sent to."""
        ...


class Single:
    """One server, or the primary that Sentinel names."""

    def __init__(self, settings: ValkeySettings) -> None:
        if settings.kind == "sentinel":
            self._node = ServerNode(settings, resolve=lambda: _ask_sentinels(settings))
        else:
            self._node = ServerNode(settings, *settings.addresses[0])

    @property
    def where(self) -> str:
        return self._node.where

    def slot(self, root: str) -> int:
        return 0

    def known(self, slot: int) -> ServerNode | None:
        return self._node

    async def node(self, slot: int) -> ServerNode:
        return self._node

    def at(self, host: str, port: int) -> ServerNode:
        return self._node

    async def learn(self, error: BaseException) -> None:
        await self._node.close_idle()

    async def suspect(self, node: ServerNode) -> None:
        await node.close_idle()

    def nodes(self) -> list[ServerNode]:
        return [self._node]


async def _ask_sentinels(settings: ValkeySettings) -> tuple[str, int]:
    """The address of the primary, from the first sentinel that knows it."""
    last: Exception = OSError("no sentinel in the URL")
    for address in settings.addresses:
        try:
            async with asyncio.timeout(max(settings.timeout_s / 4, 0.2)):
                found = await _ask_sentinel(settings, *address)
        except (RedisError, OSError, TimeoutError, NotSentError, TlsError) as exc:
            last = exc
            continue
        if found:
            return found[0].decode(), int(found[1])
        last = OSError(f"the sentinel at {address[0]}:{address[1]} does not know {settings.primary!r}")
    if isinstance(last, (ResponseError, AuthenticationError, TlsError, NotSentError)):
        raise last
    raise NotSentError(last)


async def _ask_sentinel(settings: ValkeySettings, host: str, port: int) -> Any:
    connection = await open_connection(settings, host, port, sentinel=True)
    try:
        return await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.primary)
    finally:
        await connection.close()


class Cluster:
    """Primaries by slot, read from any node, and read again after a MOVED reply."""

    def __init__(self, settings: ValkeySettings) -> None:
        self._settings = settings
        self._nodes: dict[Address, ServerNode] = {}
        self._slots: dict[int, ServerNode] = {}
        #: Known servers of the cluster, in the order in which they are asked for the slots.
        self._members: list[Address] = list(settings.addresses)
        self._lock = asyncio.Lock()
        self._slot_reads = 0
        self._roots: dict[str, int] = {}

    @property
    def where(self) -> str:
        return "the servers in the URL"

    def slot(self, root: str) -> int:
        found = self._roots.get(root)
        if found is None:
            found = self._roots[root] = key_slot(root.encode())
        return found

    def known(self, slot: int) -> ServerNode | None:
        return self._slots.get(slot)

    async def node(self, slot: int) -> ServerNode:
        if not self._slots:
            await self._read_slots()
        found = self._slots.get(slot)
        if found is None:
            raise NotSentError(OSError(f"no server of the cluster serves slot {slot}"))
        return found

    def at(self, host: str, port: int) -> ServerNode:
        node = self._nodes.get((host, port))
        if node is None:
            node = self._nodes[host, port] = ServerNode(self._settings, host, port)
        return node

    async def learn(self, error: BaseException) -> None:
        if isinstance(error, MovedError):
            host = error.host or self._members[0][0]
            self._ask_first((host, error.port))
            self._slots[error.slot_id] = self.at(host, error.port)
        with contextlib.suppress(NotSentError):
            await self._read_slots()

    async def suspect(self, node: ServerNode) -> None:
        await node.close_idle()
        address = next((at for at, known in self._nodes.items() if known is node), None)
        if address in self._members:
            self._members.remove(address)
            self._members.append(address)
        self._slots = {}

    def nodes(self) -> list[ServerNode]:
        return list(self._nodes.values())

    def _ask_first(self, address: Address) -> None:
        self._members = list(dict.fromkeys([address, *self._members]))

    async def _read_slots(self) -> None:
        """Read the slots from the first server that answers. Concurrent callers share one read."""
        reads = self._slot_reads
        async with self._lock:
            if self._slot_reads != reads:
                return
            last: BaseException = OSError("no address in the URL")
            for address in dict.fromkeys([*self._members, *self._settings.addresses]):
                try:
                    async with asyncio.timeout(max(self._settings.timeout_s / 4, 0.2)):
                        rows = await self.at(*address).request(pack_command("CLUSTER", "SLOTS"))
                except (RedisError, OSError, TimeoutError, NotSentError) as exc:
                    last = exc
                    continue
                if rows:  # a server that has just joined has none yet
                    self._store_slots(rows, address)
                    self._slot_reads += 1
                    return
            if isinstance(last, (AuthenticationError, ResponseError)):
                raise last
            raise last if isinstance(last, NotSentError) else NotSentError(last)

    def _store_slots(self, rows: list[Any], asked: Address) -> None:
        slots: dict[int, ServerNode] = {}
        primaries: dict[Address, None] = {}
        replicas: dict[Address, None] = {}
        for first, last, *servers in rows:
            addresses = [((server[0] or b"").decode() or asked[0], int(server[1])) for server in servers]
            primaries[addresses[0]] = None
            replicas |= dict.fromkeys(addresses[1:])
            slots |= dict.fromkeys(range(first, last + 1), self.at(*addresses[0]))
        self._slots, self._members = slots, list(primaries | replicas)


def make_topology(settings: ValkeySettings) -> ServerTopology:
    """The topology for the kind of URL. Call it on the event loop that will use it."""
    return Cluster(settings) if settings.kind == "cluster" else Single(settings)

"""Rate limits: token buckets for a bounded number of clients."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

#: Maximum number of clients. The one that was idle longest is forgotten first.
CLIENTS = 10_000


def network_of(address: str) -> str:
    """The addresses that one client can choose from: the address itself, or in IPv6 its /64 network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) or found.is_loopback:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class Buckets:
    """One bucket per client: ``burst`` requests at once, ``per_second`` more each second."""

    def __init__(self, burst: float, per_second: float, clients: int = CLIENTS) -> None:
        self._burst = burst
        self._per_ms = per_second / 1000
        self._clients = clients
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def level(self, client: str, now_ms: float) -> float:
        """How many requests the client has left."""
        level, at_ms = self._levels.get(client, (self._burst, now_ms))
        return min(self._burst, level + (now_ms - at_ms) * self._per_ms)

    def wait(self, client: str, now_ms: float) -> float:
        """How many milliseconds until the client's next request is allowed; 0 if it is now."""
        level = self.level(client, now_ms)
        return 0.0 if level >= 1 else (1 - level) / self._per_ms

    def take(self, client: str, now_ms: float) -> float:
        """Count one request. Returns 0 if it is allowed, else how many milliseconds until the next one is."""
        wait_ms = self.wait(client, now_ms)
        self._set(client, self.level(client, now_ms) - (0 if wait_ms else 1), now_ms)
        return wait_ms

    def give(self, client: str, now_ms: float) -> None:
        """Undo the count of one request."""
        self._set(client, min(self.level(client, now_ms) + 1, self._burst), now_ms)

    def _set(self, client: str, level: float, now_ms: float) -> None:
        self._levels[client] = (level, now_ms)
        self._levels.move_to_end(client)
        while len(self._levels) > self._clients:
            self._levels.popitem(last=False)

"""Reserve ports of the loopback address for servers that are stopped and started again."""

from __future__ import annotations

import contextlib
import random
import socket
import weakref

#: Below the range of outgoing connections, so that none of those takes a port while its server is down.
FIRST, LAST = 10_000, 32_000
_random = random.SystemRandom()  # tests seed the default generator, which would give equal ports


class ReservedPorts:
    """Ports that are reserved as long as this object exists, whether a server listens on them or not.

    The ports are bound with ``SO_REUSEADDR`` and without listening: other processes find them in use, but our
    server can still listen on them. So a server that is killed gets its port again when it is restarted.
    """

    def __init__(self, *ports: int) -> None:
        self.ports = ports
        with contextlib.ExitStack() as bound:
            for port in ports:
                held = bound.enter_context(socket.socket())
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", port))
            weakref.finalize(self, bound.pop_all().close)


def reserve_ports(count: int = 1, *, also: int | None = None) -> ReservedPorts:
    """Reserve ``count`` free ports. With ``also``, also the port that is this much above the first."""
    while True:
        ports = _random.sample(range(FIRST, LAST - (also or 0)), count)
        if also is not None:
            ports.append(ports[0] + also)
        if all(map(is_free, ports)):
            with contextlib.suppress(OSError):
                return ReservedPorts(*ports)


def is_free(port: int) -> bool:
    """Whether no process uses the port."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""Ports of the loopback address for servers that are stopped and started again."""

from __future__ import annotations

import contextlib
import random
import socket
import weakref

#: Below the range of outgoing connections: none of those can take a port while its server is away.
FIRST, LAST = 10_000, 32_000
_random = random.SystemRandom()  # tests seed the other one


class Place:
    """Ports that are ours for as long as this object lives, whether a server of ours listens there or not.

    They are bound, so that nobody else finds them free, and shared with the server (which may listen where we
    do not): a server that is killed finds its port again when it comes back, and not somebody else's server.
    """

    def __init__(self, *ports: int) -> None:
        self.ports = ports
        with contextlib.ExitStack() as bound:
            for port in ports:
                held = bound.enter_context(socket.socket())
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(("127.0.0.1", port))
            weakref.finalize(self, bound.pop_all().close)


def find_place(count: int = 1, *, also: int | None = None) -> Place:
    """``count`` ports that nobody uses. ``also``: with the port that is so much higher than the first."""
    while True:
        ports = _random.sample(range(FIRST, LAST - (also or 0)), count)
        if also is not None:
            ports.append(ports[0] + also)
        if all(map(is_free, ports)):
            with contextlib.suppress(OSError):
                return Place(*ports)


def is_free(port: int) -> bool:
    """Whether nobody has taken the port."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

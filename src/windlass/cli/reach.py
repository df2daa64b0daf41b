"""Checks once, before a command starts, whether the store's server accepts connections.

Stores retry a failed connection for several seconds, as a worker must. A user who mistyped a port should get
the error at once.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Final

from windlass.backend.urls import BackendUrl, parse_url
from windlass.errors import StorageError

#: How long a server may take to accept a connection, unless the URL has ``?timeout=``.
CONNECT_TIMEOUT_S: Final = 1.5
_PORTS: Final = {"amqp": 5672, "amqps": 5671, "valkey": 6379, "valkeys": 6379, "redis": 6379, "rediss": 6379}


def check_reachable(url: str) -> None:
    """Raise ``StorageError`` if no server of ``url`` accepts a connection. Other kinds of stores pass."""
    parsed = parse_url(url)
    addresses = _addresses(parsed)
    if not addresses:
        return
    answers: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
    for address in addresses:  # on other threads, because name lookup has no timeout
        threading.Thread(target=_connect, args=(address, answers), daemon=True, name="windlass-reach").start()
    timeout_s = parsed.timeout() if "timeout" in parsed.options else CONNECT_TIMEOUT_S
    why: OSError = TimeoutError(f"it did not answer within {timeout_s:g} s")
    for _ in addresses:
        try:
            answer = answers.get(timeout=timeout_s)
        except queue.Empty:
            break
        if answer is None:
            return
        why = answer
    where = " and ".join(f"{host}:{port}" for host, port in addresses)
    raise StorageError(
        f"no server accepts connections at {where} ({why}): start it, or check --url and $WINDLASS_URL"
    )


def _addresses(url: BackendUrl) -> list[tuple[str, int]]:
    base, _, kind = url.scheme.partition("+")
    if base not in _PORTS:
        return []
    usual = 26379 if kind == "sentinel" else _PORTS[base]
    found = []
    for text in url.host.split(","):
        bare = text.split("]")[-1]
        host, port = (text.rpartition(":")[0], text.rpartition(":")[2]) if ":" in bare else (text, "")
        found.append((host.strip("[]") or "127.0.0.1", int(port) if port else usual))
    return found


def _connect(address: tuple[str, int], answers: queue.SimpleQueue[OSError | None]) -> None:
    try:
        socket.create_connection(address, timeout=60).close()
    except OSError as exc:
        answers.put(exc)
    else:
        answers.put(None)

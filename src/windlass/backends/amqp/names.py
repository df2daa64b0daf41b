"""What the broker's parts are called. In the default namespace: the names that every client knows."""

from __future__ import annotations

from windlass.backend.urls import DEFAULT_NAMESPACE

DAY_S = 86_400
#: The exclusive queue that the coordinator of a namespace holds.
COORDINATOR_QUEUE = "windlass.coordinator"
CLASSIC, QUORUM = "classic", "quorum"
#: How often a quorum queue may return a message before the broker drops it; RabbitMQ 4 would do so after 20
#: times. Messages are returned when a worker or a coordinator ends, also when no job ran: it is for
#: ``max_stalls`` to count lost runs. Later brokers keep the place of what is returned only with a limit.
_MOST_RETURNS = 1_000_000_000

Arguments = dict[str, str | int]


class Names:
    """Exchanges, queues and streams of one namespace; others than the default put its name before theirs."""

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
        #: What Windlass keeps for itself: requests and facts in order; records that must not get lost; the
        #: mark up to which all is done; the seat of the coordinator; news for all clients.
        self.log = f"{prefix}windlass.log"
        self.kept = f"{prefix}windlass.kept"
        self.mark = f"{prefix}windlass.mark"
        self.coordinator = f"{prefix}{COORDINATOR_QUEUE}"
        self.news = f"{prefix}windlass.news"
        #: Messages of quorum queues that were returned too often for the limit of an operator's policy.
        self.returned = f"{prefix}windlass.returned"
        #: The beginning of the names of queues that are deleted at once (see ``Topology``).
        self.spare = f"{prefix}windlass.spare"

    def queue_arguments(self, queue_type: str = "") -> Arguments:
        """How a job queue is declared. Its type is named, for a broker may have another default."""
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
        """Our own queues that are no streams, with the arguments of their declarations."""
        kind = queue_type or self.queue_type
        queues: dict[str, Arguments] = {
            self.kept: _plain(kind),
            self.mark: {**_plain(kind), "x-max-length": 1},
        }
        if kind == QUORUM:
            queues[self.returned] = _plain(kind)
        return queues

    def spare_arguments(self) -> Arguments:
        """How a queue is declared that is deleted at once; or by the broker, if we cannot."""
        return {"x-queue-type": QUORUM, "x-expires": 60_000}

    def other_arguments(self, queue: str) -> list[Arguments]:
        """How a queue of jobs, or of ours, may be declared that has the other type."""
        other = CLASSIC if self.queue_type == QUORUM else QUORUM
        return [self.own_queues(other).get(queue) or self.queue_arguments(other), {"x-queue-type": other}]

    def queue(self, name: str) -> str:
        """The AMQP queue of a job queue."""
        return self._queue + name

    def job_queue(self, queue: str) -> str:
        """The job queue of an AMQP queue."""
        return queue.removeprefix(self._queue)

    def streams(self) -> dict[str, Arguments]:
        """Every stream with the arguments of its declaration."""
        return {
            self.scheduled_jobs: _stream(30 * DAY_S),
            self.retries: _stream(30 * DAY_S),
            self.dead_jobs: _stream(180 * DAY_S),
            self.heartbeats: _stream(300),
            self.job_metrics: _stream(5 * 365 * DAY_S),
            self.log: {**_stream(7 * DAY_S), "x-max-length-bytes": 64_000_000},
        }

    def all_queues(self) -> list[str]:
        """Every queue that is always there."""
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

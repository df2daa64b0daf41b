"""What the broker's parts are called. In the default namespace: the names that every client knows."""

from __future__ import annotations

from windlass.backend.urls import DEFAULT_NAMESPACE

DAY_S = 86_400
#: The exclusive queue that the coordinator of a namespace holds.
SEAT = "windlass.coordinator"


class Names:
    """Exchanges, queues and streams of one namespace; others than the default put its name before theirs."""

    def __init__(self, namespace: str) -> None:
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
        self.seat = f"{prefix}{SEAT}"
        self.news = f"{prefix}windlass.news"

    @property
    def queue_arguments(self) -> dict[str, str | int]:
        """How a job queue is declared. Its type is named, for a broker may have another default."""
        return {"x-queue-type": "classic", "x-max-priority": 10}

    def own_queues(self) -> dict[str, dict[str, str | int]]:
        """Our own queues that are no streams, with the arguments of their declarations."""
        return {
            self.kept: {"x-queue-type": "classic"},
            self.mark: {"x-queue-type": "classic", "x-max-length": 1},
        }

    def queue(self, name: str) -> str:
        """The AMQP queue of a job queue."""
        return self._queue + name

    def streams(self) -> dict[str, dict[str, str | int]]:
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


def _stream(seconds: int) -> dict[str, str | int]:
    """Retention acts on whole segments, so segments are small."""
    return {
        "x-queue-type": "stream",
        "x-max-age": f"{seconds}s",
        "x-stream-max-segment-size-bytes": 8_000_000,
    }

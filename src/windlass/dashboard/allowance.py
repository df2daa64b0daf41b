"""How much the clients of one server may ask: rates, failed sign-ins, open event streams."""

from __future__ import annotations

from collections.abc import Callable

from windlass.dashboard.problems import ApiError
from windlass.dashboard.settings import ServerLimits
from windlass.dashboard.throttle import Buckets


class StreamPlace:
    """A place among the open event streams."""

    def __init__(self, streams: dict[str, int], client: str) -> None:
        self._streams = streams
        self._client = client
        self._open = True
        streams[client] = streams.get(client, 0) + 1

    def free(self) -> None:
        """Give it back. Idempotent."""
        if self._open:
            self._open = False
            self._streams[self._client] -= 1
            if not self._streams[self._client]:
                del self._streams[self._client]


class Allowance:
    """Counts what each client asks, and refuses what is too much with 429."""

    def __init__(self, limits: ServerLimits, now_ms: Callable[[], float]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        #: Open event streams by client.
        self.streams: dict[str, int] = {}
        self._requests = Buckets(limits.burst, limits.per_second)
        self._changes = Buckets(limits.change_burst, limits.changes_per_second)
        self._refusals = Buckets(limits.refusal_burst, limits.refusals_per_second)

    def request(self, client: str) -> None:
        """Count a request."""
        self._take(self._requests, client, "requests")

    def change(self, client: str) -> None:
        """Count a request that changes something."""
        self._take(self._changes, client, "changes")

    def check_refusals(self, client: str) -> None:
        """Refuse to look at the secret of a client that failed too often."""
        if self._refusals.level(client, self._now_ms()) < 1:
            raise ApiError(429, "too_many_refusals", "too many failed sign-ins", "Wait a minute.")

    def refusal(self, client: str) -> None:
        """Count a failed sign-in; too many of them are refused unseen."""
        self._take(self._refusals, client, "failed sign-ins")

    def stream(self, client: str) -> StreamPlace:
        """A place for one more event stream."""
        limits = self._limits
        mine = self.streams.get(client, 0)
        if mine >= limits.streams_per_client or sum(self.streams.values()) >= limits.streams:
            raise too_many("open event streams", 5_000)
        return StreamPlace(self.streams, client)

    def _take(self, buckets: Buckets, client: str, what: str) -> None:
        wait_ms = buckets.take(client, self._now_ms())
        if wait_ms:
            raise too_many(what, wait_ms)


def too_many(what: str, wait_ms: float) -> ApiError:
    """The refusal of a client that asks too much."""
    seconds = max(round(wait_ms / 1000 + 0.5), 1)
    advice = f"Wait {seconds} s; lists and bulk changes take many jobs at once."
    return ApiError(429, "too_many", f"too many {what}", advice, {"Retry-After": str(seconds)})

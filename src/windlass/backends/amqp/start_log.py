"""Logs the starts of attempts, together with the next settlements where possible.

If the connection's thread answers a claim, the starts are published before the answer. The start of an
offered job (``offers``), or of one that was claimed from prefetched messages, waits up to ``_PAUSE_S`` for
settlements to be logged with. A job that has ended by then needs no entry for its start. While settlements
are being confirmed, starts wait for the next ones, for at most two checks. Requests that this process sends
to the coordinator come after its starts in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backends.amqp import verbs

if TYPE_CHECKING:
    from threading import RLock

    from windlass.backends.amqp.client import AmqpClient

#: How long a start waits for settlements.
_PAUSE_S = 0.01
#: How often we check, while settlements are being confirmed, for starts that wait since the last check.
_CHECK_S = 0.025


class StartLog:
    """The starts of one connection that are not in the log yet."""

    def __init__(self, client: AmqpClient, lock: RLock) -> None:
        self._client = client
        self._lock = lock
        #: By the time that their requests carry.
        self._waiting: dict[int | None, list[verbs.Start]] = {}
        #: How many settlements are being confirmed, and whether the timer of ``_PAUSE_S`` runs.
        self._settling = 0
        self._timed = False
        #: Whether checks run, and the start that had waited longest at the last check.
        self._checking = False
        self._oldest: verbs.Start | None = None

    def add(self, starts: list[verbs.Start], now_ms: int | None) -> None:
        """Log starts in this turn of the loop: with settlements of the same turn, or at its end."""
        if starts:
            with self._lock:
                self._waiting.setdefault(now_ms, []).extend(starts)
            self._client.connection.at_end(self._client.guarded(self.flush))

    def add_deferred(self, starts: list[verbs.Start], now_ms: int | None = None) -> None:
        """Log starts with the next settlements, or after ``_PAUSE_S``. Usable from any thread."""
        with self._lock:
            self._waiting.setdefault(now_ms, []).extend(starts)
            wake = not self._timed and not self._settling
            self._timed = self._timed or wake
        if wake:
            self._client.call_soon_threadsafe(self._set_timer)

    def _set_timer(self) -> None:
        self._client.call_later(_PAUSE_S, self._tick)

    def _tick(self) -> None:
        with self._lock:
            self._timed = False
            settling = self._settling > 0
        if not settling:  # otherwise ``end_settling`` sets the timer again
            self.flush()

    def flush(self) -> None:
        """Log all pending starts now."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for now_ms, starts in waiting.items():
            if self._client.usable:  # otherwise the next connection reports them
                self._client.append_fact(verbs.Started(starts=starts, now_ms=now_ms))

    def take(self, now_ms: int | None) -> list[verbs.Start]:
        """Remove and return pending starts, to be logged with settlements that carry the same time."""
        with self._lock:
            return self._waiting.pop(now_ms, [])

    def begin_settling(self) -> None:
        """Note that a settlement is being confirmed. More may follow, with which starts can be logged."""
        with self._lock:
            self._settling += 1
            begin, self._checking = not self._checking, True
        if begin:
            self._client.call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        """Log starts that wait since the last check. Until then their jobs look as if they were waiting."""
        with self._lock:
            oldest = next((start for starts in self._waiting.values() for start in starts), None)
            late, self._oldest = oldest is not None and oldest is self._oldest, oldest
            self._checking = again = self._settling > 0
        if again:
            self._client.call_later(_CHECK_S, self._check)
        if late:
            self.flush()

    def end_settling(self) -> None:
        """Note that a settlement is confirmed, or failed."""
        with self._lock:
            self._settling -= 1
            wait = bool(self._waiting) and not self._timed
            self._timed = self._timed or wait
        if wait:
            self._set_timer()

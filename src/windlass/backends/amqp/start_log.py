"""Starts on their way into the log: with the ends that follow soon, else alone.

A claim that the connection's thread answers has its starts published before the answer. The start of a job
that began as its message came (``offers``), or that was claimed from prefetched messages, waits up to
``_PAUSE_S`` for ends to be logged with: a job that is over by then needs no entry for its start. While ends
are being settled it waits for the next ones, but not longer than two looks. What this process asks the
coordinator comes after its starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backends.amqp import verbs

if TYPE_CHECKING:
    from threading import RLock

    from windlass.backends.amqp.client import AmqpClient

#: How long a start waits for ends.
_PAUSE_S = 0.01
#: How often we look, while ends are being settled, for starts that wait since the last look.
_CHECK_S = 0.025


class StartLog:
    """The starts of one connection that are not in the log yet."""

    def __init__(self, client: AmqpClient, lock: RLock) -> None:
        self._client = client
        self._lock = lock
        #: By the time that their requests say.
        self._waiting: dict[int | None, list[verbs.Start]] = {}
        #: Settlements under way; whether a timer runs.
        self._settling = 0
        self._timed = False
        #: Whether we look from time to time; the start that had waited longest at the last look.
        self._checking = False
        self._oldest: verbs.Start | None = None

    def add(self, starts: list[verbs.Start], now_ms: int | None) -> None:
        """Log starts in this turn of the connection: with the ends of the same turn, else at its end."""
        if starts:
            with self._lock:
                self._waiting.setdefault(now_ms, []).extend(starts)
            self._client.connection.at_end(self._client.guarded(self.flush))

    def add_deferred(self, starts: list[verbs.Start], now_ms: int | None = None) -> None:
        """Log starts with the next ends, or soon; from any thread."""
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
        if not settling:  # else ``settled`` sees to it
            self.flush()

    def flush(self) -> None:
        """Put into the log what began and is not there yet."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for now_ms, starts in waiting.items():
            if self._client.usable:  # else they are reported when the connection is back
                self._client.append_fact(verbs.Started(starts=starts, now_ms=now_ms))

    def take(self, now_ms: int | None) -> list[verbs.Start]:
        """What began, to be logged with ends that say the same time."""
        with self._lock:
            return self._waiting.pop(now_ms, [])

    def begin_settling(self) -> None:
        """Ends are being settled: more may follow, with which starts can be logged."""
        with self._lock:
            self._settling += 1
            begin, self._checking = not self._checking, True
        if begin:
            self._client.call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        """Log what waits since the last look: until then its job may be cancelled as one that waits."""
        with self._lock:
            oldest = next((start for starts in self._waiting.values() for start in starts), None)
            late, self._oldest = oldest is not None and oldest is self._oldest, oldest
            self._checking = again = self._settling > 0
        if again:
            self._client.call_later(_CHECK_S, self._check)
        if late:
            self.flush()

    def end_settling(self) -> None:
        """They are settled."""
        with self._lock:
            self._settling -= 1
            wait = bool(self._waiting) and not self._timed
            self._timed = self._timed or wait
        if wait:
            self._set_timer()

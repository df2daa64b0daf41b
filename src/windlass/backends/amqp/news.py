"""Batches the coordinator's notifications (``verbs.News``).

Each job causes three log entries, and each entry a notification. Those of added, started and completed jobs
are only hints: workers get the messages themselves, and most waiters get their results directly. On a busy
broker they wait up to ``WINDOW_S`` for others, so that they do not compete with the jobs. The first hint
after a pause of that length is sent at once. So are all other notifications (pauses, lost leases, void
messages, due times, effects of a request), together with the hints that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs

#: How long a hint may wait for others.
WINDOW_S = 0.01
_FACTS = (verbs.Born, verbs.Started, verbs.Ended)


class NewsWindow:
    """The notifications of one coordinator that wait to be sent."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._call_later = call_later
        self._waiting: verbs.News | None = None
        #: Whether a notification was sent within the last ``WINDOW_S``, so that hints wait.
        self._closed = False
        #: Whether a batch of entries is being applied. Their hints share a notification.
        self._batch = False
        #: Sends a delayed notification. Set by the coordinator.
        self.send: Callable[[verbs.News], None] = lambda news: None

    def pass_on(self, request: rq.Request[Any], news: verbs.News | None) -> verbs.News | None:
        """The notification to send now, given the one that ``request`` caused; None if it waits."""
        if news is None:
            return None
        if (self._closed or self._batch) and isinstance(request, _FACTS) and _is_hint(news):
            self._waiting = news if self._waiting is None else _joined(self._waiting, news)
            return None
        if self._waiting is not None:
            news, self._waiting = _joined(self._waiting, news), None
        self._close()
        return news

    def begin_batch(self) -> None:
        """Collect the hints of the entries that follow."""
        self._batch = True

    def end_batch(self) -> None:
        """Send the hints of the batch, unless they wait for others."""
        self._batch = False
        if self._waiting is not None and not self._closed:
            self._close()
            self.flush()

    def flush(self) -> None:
        """Send the hints that wait."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.send(waiting)

    def _close(self) -> None:
        """Let hints wait for ``WINDOW_S``, because a notification is sent now."""
        if not self._closed:
            self._closed = True
            self._call_later(WINDOW_S, self._open)

    def _open(self) -> None:
        if self._waiting is None:
            self._closed = False
            return
        self._call_later(WINDOW_S, self._open)
        self.flush()


def _is_hint(news: verbs.News) -> bool:
    """Whether nothing depends on this notification."""
    return not (news.paused or news.resumed or news.void or news.lost or news.due)


def _joined(first: verbs.News, then: verbs.News) -> verbs.News:
    """Merge two notifications. ``first`` is only a hint (see ``_is_hint``)."""
    told: dict[str, list[str]] = {}
    for queue in {*first.told, *then.told}:
        parts = [news for news in (first, then) if f"done:{queue}" in news.topics]
        if all(queue in news.told for news in parts):
            told[queue] = [job_id for news in parts for job_id in news.told[queue]]
    return verbs.News(
        topics=sorted({*first.topics, *then.topics}),
        arrived=sorted({*first.arrived, *then.arrived}),
        paused=then.paused,
        resumed=then.resumed,
        void=then.void,
        doubled=then.doubled,
        lost=then.lost,
        due=then.due,
        told=told,
    )

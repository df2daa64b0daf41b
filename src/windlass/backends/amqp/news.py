"""When the coordinator's news go out: at once, or together with what follows within a moment.

Each job makes three entries of the log, and each entry is news. Those of added, started and completed jobs
are hints: workers get the messages themselves, and most waiters get their results directly. On a busy broker
they wait up to ``WINDOW_S`` for others, so that they do not compete with the jobs. The first ones after a
pause of that length go out at once, and so do all others (pauses, lost leases, void messages, due times, what
a request caused), together with those that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs

#: How long news of facts may wait for others.
WINDOW_S = 0.01
_FACTS = (verbs.Born, verbs.Started, verbs.Ended)


class NewsWindow:
    """The news of one coordinator that wait."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._call_later = call_later
        self._waiting: verbs.News | None = None
        #: Whether news went out within the last ``WINDOW_S``.
        self._closed = False
        #: Sends news that waited; set by the coordinator.
        self.send: Callable[[verbs.News], None] = lambda news: None

    def pass_on(self, request: rq.Request[Any], news: verbs.News | None) -> verbs.News | None:
        """The news to send now, of what ``request`` caused; None when there are none, or they wait."""
        if news is None:
            return None
        if self._closed and isinstance(request, _FACTS) and _is_hint(news):
            self._waiting = news if self._waiting is None else _joined(self._waiting, news)
            return None
        if self._waiting is not None:
            news, self._waiting = _joined(self._waiting, news), None
        if not self._closed:
            self._closed = True
            self._call_later(WINDOW_S, self._open)
        return news

    def flush(self) -> None:
        """Send what waits."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.send(waiting)

    def _open(self) -> None:
        if self._waiting is None:
            self._closed = False
            return
        self._call_later(WINDOW_S, self._open)
        self.flush()


def _is_hint(news: verbs.News) -> bool:
    """Whether these only say where to look."""
    return not (news.paused or news.resumed or news.void or news.lost or news.due)


def _joined(first: verbs.News, then: verbs.News) -> verbs.News:
    """One piece of news for two: ``first`` is only a hint (see ``_is_hint``)."""
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

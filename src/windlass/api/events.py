"""``QueueEvents``: receive the events of a queue in any process."""

from __future__ import annotations

from windlass.api.app import Windlass, as_app
from windlass.api.event_feed import EventFeed
from windlass.api.event_values import EventValues
from windlass.core.ids import check_queue_name


class QueueEvents(EventFeed):
    """The events of one queue: ``on(name, callback)`` or ``async for event in events``.

    ``after`` an event id replays from there; 0 replays all events that are kept.
    """

    def __init__(
        self, name: str, url_or_app: str | Windlass | None = None, *, after: int | None = None
    ) -> None:
        self._app = as_app(url_or_app)
        self._owns_app = self._app is not url_or_app
        values = EventValues(self._app.store, self._app.codecs, check_queue_name(name))
        super().__init__(self._app.store, name, values, after)

    async def __aenter__(self) -> QueueEvents:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening, and disconnect if it was created from a URL. Idempotent.

        Running and later loops over the events raise ``ClosedError``.
        """
        self._closing.close()
        await self.stop()
        if self._owns_app:
            await self._app.close()

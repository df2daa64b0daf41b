"""Hints across processes (to come): for now only within this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.backend.hub import Hub


class Wake:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def announce(self, topics: set[str]) -> None:
        self._hub.publish(topics)

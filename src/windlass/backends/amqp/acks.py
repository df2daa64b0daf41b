"""Batched acknowledgements for stream consumers.

A stream keeps its messages; an acknowledgement only lets the broker push more. So one for many messages is
enough, if it comes before the prefetch count is reached and well before the broker's ``consumer_timeout``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: How long messages may stay unacknowledged, and how many of them.
_PAUSE_S = 0.05
_MOST = 50


class StreamAcks:
    """The acknowledgements of one channel that reads streams."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._call_later = call_later
        self._channel: Any = None
        self._last = 0
        self._count = 0
        self._timed = False

    def add(self, channel: Any, tag: int) -> None:
        """Acknowledge the message ``tag`` and all before it, soon."""
        self._channel, self._last = channel, tag
        self._count += 1
        if self._count >= _MOST:
            self._send()
        elif not self._timed:
            self._timed = True
            self._call_later(_PAUSE_S, self._tick)

    def _tick(self) -> None:
        self._timed = False
        if self._count:
            self._send()

    def _send(self) -> None:
        self._count = 0
        if self._channel.is_open:
            self._channel.basic_ack(self._last, multiple=True)

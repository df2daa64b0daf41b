"""When entries of the log were decided, so that whoever reads the log again decides alike.

Between the writing of an entry and the coordinator's decision pass milliseconds, in which a delay may end or
a lease run out. A later coordinator that took the writer's time instead would promote or recover other jobs
than were promoted or recovered, and miss attempts that did happen. So the coordinator notes its times: a
``Decided`` entry of the log tells those of the entries before it.

It also tells how long the histories were by then. When the log has forgotten how a job began, the attempts
of that job are missing when it is read again; by the note that is noticed, and readers are told of a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from pika import BasicProperties

from windlass.backends.amqp import verbs, wire

#: A note is written at the latest after so many decisions.
NOTE_AFTER = 5_000


class Heard(NamedTuple):
    """A message of the log. One without a body says that somebody took over."""

    offset: int
    properties: BasicProperties
    body: bytes


class Diary:
    """The times of decisions that are in no note yet."""

    def __init__(self) -> None:
        self._times: list[tuple[int, int]] = []
        self._ends: dict[str, int] = {}

    def note(self, offset: int, now_ms: int) -> None:
        """Remember a decision."""
        self._times.append((offset, now_ms))

    @property
    def is_full(self) -> bool:
        """Whether it is time to write a note: after a decision is carried out in the ledger, not before."""
        return len(self._times) >= NOTE_AFTER

    def take(self, ends: dict[str, int]) -> verbs.Decided | None:
        """The note to write, if there is anything to tell; told once. ``ends``: where histories end now."""
        if not self._times:
            return None
        first = last = self._times[0]
        steps = []
        for offset, now_ms in self._times:
            steps.append((offset - last[0], now_ms - last[1]))
            last = (offset, now_ms)
        self._times.clear()
        changed = {queue: end for queue, end in ends.items() if self._ends.get(queue) != end}
        self._ends = ends
        return verbs.Decided(first=first, steps=steps, history=changed)


class Recall:
    """Messages of the log that are read again: each waits for the note that tells its time."""

    def __init__(self) -> None:
        self._waiting: deque[Heard] = deque()

    def add(self, heard: Heard) -> None:
        """Take in the next message."""
        self._waiting.append(heard)

    def told_by(self, note: verbs.Decided) -> Iterator[tuple[Heard, int | None]]:
        """Those that a note is about, in order, with their times; None for one that needed no decision.

        Messages that were written before the note, and decided after it, wait for the next one.
        """
        times = _times(note)
        last = max(times, default=-1)
        while self._waiting and self._waiting[0].offset <= last:
            first = self._waiting.popleft()
            yield first, times.get(first.offset)

    def rest(self) -> Iterator[Heard]:
        """Those that no note tells of."""
        while self._waiting:
            yield self._waiting.popleft()


def read_note(body: bytes) -> verbs.Decided | None:
    """The note that a message of the log is, if it is one."""
    if not body:
        return None
    try:
        entry = wire.read_entry(body)
        if entry.name != verbs.Decided.__name__:
            return None
        note = verbs.decode_request(entry.name, entry.request)
    except msgspec.DecodeError:
        return None
    assert isinstance(note, verbs.Decided)
    return note


def _times(note: verbs.Decided) -> dict[int, int]:
    """Offset -> time of a note."""
    offset, now_ms = note.first
    times = {}
    for step, passed in note.steps:
        offset, now_ms = offset + step, now_ms + passed
        times[offset] = now_ms
    return times

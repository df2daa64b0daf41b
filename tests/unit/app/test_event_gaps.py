"""A reader of events whose next event is gone: trimmed, or lost with the store's data."""

from __future__ import annotations

from typing import Any

from windlass import Event
from windlass.api.event_feed import EventCursor
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.jobs import EventType


class Log:
    """A store that holds nothing but one queue's events."""

    clock = SYSTEM_CLOCK

    def __init__(self) -> None:
        self.events: list[Event] = []

    def write(self, *job_ids: str, first: int | None = None, at_ms: int = 1_000) -> None:
        """Append events; ``first``: after everything that was there is gone."""
        if first is not None:
            self.events = []
        number = self.events[-1].id + 1 if self.events else first or 1
        kind = EventType.ENQUEUED
        self.events += [Event(number + n, at_ms, kind, job_id) for n, job_id in enumerate(job_ids)]

    def trim(self, kept: int) -> None:
        del self.events[:-kept]

    async def execute(self, request: rq.ReadEvents) -> rq.EventPage:
        found = [event for event in self.events if event.id > request.after][: request.limit]
        if not self.events:
            return rq.EventPage([], 0, 1)
        return rq.EventPage(found, self.events[-1].id, self.events[0].id)


def cursor(log: Any, after: int = 0) -> EventCursor:
    return EventCursor(log, "q", after)


async def read(cursor: EventCursor) -> list[tuple[str, int, str]]:
    return [(event.type.value, event.id, event.job_id) for event in await cursor.read()]


async def test_nothing_is_told_twice_and_nothing_is_missing_while_the_log_goes_on() -> None:
    log = Log()
    reader = cursor(log)
    assert await read(reader) == []
    log.write("a", "b")
    assert await read(reader) == [("enqueued", 1, "a"), ("enqueued", 2, "b")]
    assert await read(reader) == []
    log.write("c")
    assert await read(reader) == [("enqueued", 3, "c")]


async def test_a_reader_that_was_too_slow_is_told_of_the_gap() -> None:
    log = Log()
    reader = cursor(log)
    log.write("a", "b")
    await reader.read()
    log.write("c", "d", "e")
    log.trim(1)
    gap, event = await reader.read()
    assert (gap.type, gap.id, gap.data) == (EventType.GAP, 4, {"oldest": 5, "reason": "trimmed"})
    assert event.job_id == "e"


async def test_who_asks_for_all_that_is_kept_hears_of_no_gap() -> None:
    log = Log()
    log.write("a", "b", "c")
    log.trim(1)
    assert await read(cursor(log)) == [("enqueued", 3, "c")]


async def test_a_log_that_began_anew_is_read_from_its_start() -> None:
    log = Log()
    log.write("a", "b", "c")
    reader = cursor(log)
    await reader.read()
    log.write("new", first=1, at_ms=2_000)
    assert await read(reader) == [("gap", 0, ""), ("enqueued", 1, "new")]
    assert await read(reader) == []


async def test_a_log_that_began_anew_and_went_past_the_reader_is_noticed() -> None:
    log = Log()
    log.write("a", "b")
    reader = cursor(log)
    await reader.read()
    log.write("v", "w", "x", first=1, at_ms=2_000)
    expected = [("gap", 0, ""), ("enqueued", 1, "v"), ("enqueued", 2, "w"), ("enqueued", 3, "x")]
    assert await read(reader) == expected


async def test_an_empty_log_in_the_place_of_a_full_one_is_told_once() -> None:
    log = Log()
    log.write("a", "b")
    reader = cursor(log)
    await reader.read()
    log.events = []
    assert await read(reader) == [("gap", 0, "")]
    assert await read(reader) == []
    log.write("new")
    assert await read(reader) == [("enqueued", 1, "new")]


async def test_a_reader_that_comes_back_with_a_number_of_the_old_log_starts_over() -> None:
    log = Log()
    log.write("new")
    assert await read(cursor(log, after=7)) == [("gap", 0, ""), ("enqueued", 1, "new")]


async def test_a_log_that_was_only_numbered_again_is_not_read_twice() -> None:
    """A new coordinator on AMQP may give events other numbers; it still has the old ones."""
    log = Log()
    log.write("a", at_ms=1_000)
    log.write("b", at_ms=2_000)
    reader = cursor(log)
    await reader.read()
    log.events = [Event(1, 900, EventType.ENQUEUED, "z"), *(_moved(event) for event in log.events)]
    assert await read(reader) == [("enqueued", 3, "b")]


def _moved(event: Event) -> Event:
    return Event(event.id + 1, event.at_ms, event.type, event.job_id)

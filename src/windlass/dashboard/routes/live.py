"""Server-sent events: figures of all queues, events of one queue, changes of one job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from litestar import Request, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from windlass.api.event_feed import EventCursor
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.core.job import LOGS_KEPT, EventType, JobRecord, LogLine
from windlass.core.states import FINISHED
from windlass.dashboard import views
from windlass.dashboard.access import of_queue, of_queues
from windlass.dashboard.guard import Guard
from windlass.dashboard.injected import TheGuard, TheStoreView, TheTickers
from windlass.dashboard.params import JobId, QueueName, StreamSeconds
from windlass.dashboard.shapes.server import Tick, WorkerLoad
from windlass.dashboard.shapes.wire import Queue
from windlass.dashboard.store_view import StoreView
from windlass.dashboard.timeline import event_entry

Anyone = Request[Any, Any, Any]
L = TypeVar("L")
T = TypeVar("T")
#: Interval of comments on an idle stream, so that proxies keep it open.
_KEEPALIVE_MS = 15_000
#: How often a job is read without hints, and the minimum time between reads.
_LOOK_MS = 1_000
_GAP_MS = 400
#: Chunks of a job's output that are sent at once; of longer output, the newest.
_CHUNKS = 200
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_SPEC = {
    200: ResponseSpec(
        str, media_type="text/event-stream", description="Server-sent events", generate_examples=False
    )
}
LastEventId = Annotated[
    int | None,
    HeaderParameter(name="Last-Event-ID", ge=0, le=2**53, required=False, description="Continue from here."),
]
Changes = Annotated[
    bool, QueryParameter(description="Of queues and workers, only what changed since the last tick.")
]
After = Annotated[
    int | None, QueryParameter(ge=0, le=2**53, description="Replay after this event id; 0: all kept.")
]


def frame(event: str, data: Any, event_id: int | None = None) -> bytes:
    """One event of a stream."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


class Until:
    """The end of a stream: after ``seconds``, by the server's monotonic clock."""

    def __init__(self, store_view: StoreView, seconds: float) -> None:
        self._clock = store_view.app.clock
        self._end_ms = self._clock.monotonic_ms() + seconds * 1000

    def left_ms(self, most_ms: float) -> float:
        """How long to wait, at most ``most_ms``; 0 if the time is over."""
        return max(min(self._end_ms - self._clock.monotonic_ms(), most_ms), 0)


def _stream(guard: Guard, request: Anyone, make: Callable[[], AsyncGenerator[bytes, None]]) -> Stream:
    """A stream that counts towards the limit of open streams. It ends with the session of its caller."""
    guard.count_stream(request.scope)

    async def content() -> AsyncGenerator[bytes, None]:
        frames = make()
        try:
            yield b"retry: 2000\n\n"
            async for piece in frames:
                if not await guard.authenticator.still_knows(request.scope):
                    return
                yield piece
        finally:
            await frames.aclose()

    return Stream(content(), media_type="text/event-stream", headers=_HEADERS)


@get("/api/live", tags=["live"], responses=_SPEC, streamed=True, access=of_queues())
async def live_figures(
    store_view: TheStoreView,
    tickers: TheTickers,
    guard: TheGuard,
    request: Anyone,
    changes: Changes = False,
    seconds: StreamSeconds = 3_600,
) -> Stream:
    """Counts, rates and workers about once a second, as complete ``tick`` events.

    With ``changes``, only the first tick has all queues and workers. Later ticks have those that changed or
    are new; one that ``names`` or ``worker_ids`` no longer lists is gone. The event ``store_unreachable``
    means that the store does not answer; ticks continue when it does.
    """
    until = Until(store_view, seconds)
    ticker = tickers.of(store_view)
    differences = Differences() if changes else None

    async def frames() -> AsyncGenerator[bytes, None]:
        yield _tick(await ticker.tick(), differences)
        ticks = ticker.listen()
        try:
            while wait_ms := until.left_ms(_KEEPALIVE_MS):
                try:
                    async with asyncio.timeout(wait_ms / 1000):
                        tick = await ticks.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                yield _tick(tick, differences) if tick is not None else frame("store_unreachable", {})
        finally:
            await ticker.leave(ticks)

    return _stream(guard, request, frames)


class Differences:
    """Reduces each tick to what a listener does not know yet."""

    def __init__(self) -> None:
        self._queues: Difference[Queue] = Difference()
        self._workers: Difference[WorkerLoad] = Difference()

    def of(self, tick: Tick) -> Tick:
        """The tick with only changed queues and workers. It has all names if one was added or removed."""
        queues, names = self._queues.of({queue.name: queue for queue in tick.queues})
        workers, ids = self._workers.of({worker.id: worker for worker in tick.workers})
        return msgspec.structs.replace(tick, queues=queues, names=names, workers=workers, worker_ids=ids)


class Difference(Generic[T]):
    """Items of one kind by name, as the listener knows them."""

    def __init__(self) -> None:
        self._known: dict[str, T] | None = None

    def of(self, now: dict[str, T]) -> tuple[list[T], list[str] | None]:
        """The changed items, and the names of all if one was added or removed."""
        known, self._known = self._known, now
        names = list(now) if known is None or list(known) != list(now) else None
        before = known or {}
        return [one for name, one in now.items() if before.get(name) != one], names


def _tick(tick: Tick, differences: Differences | None) -> bytes:
    return frame("tick", tick if differences is None else differences.of(tick))


@get("/api/job-queues/{queue:str}/events", tags=["live"], responses=_SPEC, streamed=True, access=of_queue())
async def queue_events(
    store_view: TheStoreView,
    guard: TheGuard,
    request: Anyone,
    queue: QueueName,
    after: After = None,
    last_event_id: LastEventId = None,
    seconds: StreamSeconds = 3_600,
) -> Stream:
    """Events of a queue as they happen, each with its id. ``Last-Event-ID`` continues without a gap.

    The event ``gap`` means that events before its ``oldest`` are no longer kept or, with the reason ``lost``,
    that the store lost its data: what follows is all that exists.
    """
    store_view.queue(queue)
    until = Until(store_view, seconds)
    start = last_event_id if last_event_id is not None else after

    async def frames() -> AsyncGenerator[bytes, None]:
        listener = await store_view.store.listen([f"event:{queue}"])
        try:
            at = start
            if at is None:
                at = (await store_view.store.execute(rq.ReadEvents(queue=queue, limit=1))).last_id
            cursor = EventCursor(store_view.store, queue, at)
            while True:
                events = await cursor.read()
                for event in events:
                    told = (
                        event.data
                        if event.type is EventType.GAP
                        else event_entry(event, queue, store_view.mask)
                    )
                    yield frame(event.type.value, told, event.id)
                wait_ms = until.left_ms(_KEEPALIVE_MS)
                if not wait_ms:
                    return
                if not events and not await listener.wait(min(wait_ms, _LOOK_MS), store_view.app.clock):
                    yield b": still here\n\n"
        finally:
            listener.close()

    return _stream(guard, request, frames)


@get(
    "/api/jobs/{queue:str}/{jid:str}/events", tags=["live"], responses=_SPEC, streamed=True, access=of_queue()
)
async def job_events(
    store_view: TheStoreView,
    guard: TheGuard,
    request: Anyone,
    queue: QueueName,
    jid: JobId,
    seconds: StreamSeconds = 3_600,
) -> Stream:
    """Changes of one job: ``job`` (as in lists) when it changes, ``log`` with new lines, ``output`` with new
    output of ``job.stream``, ``end`` when it has finished (the stream ends), ``gone`` when its record was
    removed. The stream begins with the current state, and with the newest part of the output."""
    job = await store_view.job(queue, jid)
    until = Until(store_view, seconds)

    async def frames() -> AsyncGenerator[bytes, None]:
        listener = await store_view.store.listen([f"event:{queue}", f"stream:{queue}"])
        follower = JobFollower(store_view, job.record)
        clock = store_view.app.clock
        try:
            while True:
                for piece in await follower.look():
                    yield piece
                if follower.ended or not until.left_ms(_LOOK_MS):
                    return
                await clock.wait(asyncio.Event(), until.left_ms(_GAP_MS))
                await listener.wait(until.left_ms(_LOOK_MS - _GAP_MS), clock)
        finally:
            listener.close()

    return _stream(guard, request, frames)


class JobFollower:
    """Sends the changes of one job."""

    def __init__(self, store_view: StoreView, record: JobRecord) -> None:
        self._view = store_view
        self._ref = record.ref
        self._brief = store_view.mask.brief()
        self._shown: bytes | None = None
        self._lines: list[LogLine] = []
        self._after: int | None = None
        self.ended = False

    async def look(self) -> list[bytes]:
        """Frames of what changed since the last call."""
        record = await self._view.store.get(self._ref)
        if record is None:
            self.ended = True
            return [frame("gone", {"queue": self._ref.queue, "id": self._ref.id})]
        frames = []
        view = views.item(record, self._brief)
        shown = msgspec.json.encode(view)
        if shown != self._shown:
            self._shown = shown
            frames.append(frame("job", view))
        frames += await self._new_lines()
        frames += await self._new_output()
        if record.state in FINISHED:
            self.ended = True
            frames.append(frame("end", view))
        return frames

    async def _new_lines(self) -> list[bytes]:
        page = await self._view.store.execute(rq.GetLogs(ref=self._ref, limit=LOGS_KEPT))
        if page.entries == self._lines:
            return []
        fresh = new_lines(self._lines, page.entries)
        self._lines = page.entries
        first = page.count - len(fresh)
        entries = [views.log_line(number, line, self._view.mask) for number, line in enumerate(fresh, first)]
        lines = [entry.text for entry in entries]
        return [frame("log", {"lines": lines, "entries": entries, "total": page.count})]

    async def _new_output(self) -> list[bytes]:
        store = self._view.store
        if not store.capabilities.streams:
            return []
        if self._after is None:
            last = (await store.execute(sm.ReadStream(ref=self._ref, limit=1))).last
            self._after = max(last - _CHUNKS, 0)
        page = await store.execute(sm.ReadStream(ref=self._ref, after=self._after, limit=_CHUNKS))
        if not page.chunks:
            return []
        self._after = page.chunks[-1].index
        shown = [views.output_chunk(self._ref, page.codec, chunk, self._brief) for chunk in page.chunks]
        return [frame("output", {"chunks": shown, "last": page.last})]


def new_lines(before: list[L], now: list[L]) -> list[L]:
    """Lines that are new: ``now`` without the longest end of ``before`` with which it begins."""
    for start in range(len(before) + 1):
        known = before[start:]
        if now[: len(known)] == known:
            return now[len(known) :]
    return now


HANDLERS = [live_figures, queue_events, job_events]

"""The AMQP backend: sends some requests directly to the broker, and all others to the coordinator."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

import pika

from windlass.backend import requests as rq
from windlass.backend.calls import UNKNOWN, StoreCall, size_of
from windlass.backend.hub import Hub, HubListener
from windlass.backend.urls import BackendUrl
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.consumer import Consumer
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.counting import count_jobs
from windlass.backends.amqp.direct_replies import Receive, ReplyListener, ReplyListeners
from windlass.backends.amqp.limits import CAPABILITIES, QUORUM_CAPABILITIES
from windlass.backends.amqp.link import Link
from windlass.backends.amqp.names import CLASSIC, QUORUM, Names
from windlass.backends.amqp.offers import Offers, WorkerListener
from windlass.backends.amqp.plain_adds import PlainAdds
from windlass.backends.amqp.report import heartbeat_message
from windlass.core.clock import SYSTEM_CLOCK, SteadyClock, moment
from windlass.core.job import NewJob
from windlass.core.outcome import AddOutcome
from windlass.core.paths import took
from windlass.core.states import JobState
from windlass.errors import ConfigError, StorageError

R = TypeVar("R")

#: Requests with more jobs, or with more bytes in payloads and results, are never carried out on the thread of
#: their caller, whose event loop would stand meanwhile.
_MOST_JOBS, _MOST_BYTES = 100, 100_000
#: Most queues that one call declares: a slow broker takes a while for each.
_DECLARED_AT_ONCE = 100
#: Matches ids that Windlass generated. No job can have such an id already.
_FRESH_ID = re.compile(r"[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}\Z")


class _SharedConnection:
    """The connection and the listeners that a backend shares with its clones."""

    def __init__(self, url: BackendUrl) -> None:
        self.names = Names(url.namespace, _queue_type(url))
        self.namespace = url.namespace
        self.open_s = _seconds(url, "open", 10)
        self.timeout_s = _seconds(url, "timeout", 30)
        self.hold_s = _seconds(url, "consumer_timeout", 1_800, most=864_000)
        self.shown = url.shown
        self.hub = Hub()
        self.reply_listeners = ReplyListeners()
        self.offers = Offers()
        self.clock = SteadyClock()
        #: The consumer of the newest connection.
        self._consumer: Consumer | None = None
        self.link = Link(_parameters(url), self._session)

    def claim_prefetched(self, request: rq.Claim) -> rq.Claimed | None:
        """Answer a claim on the caller's thread, or return None when the connection's thread must do it."""
        consumer = self._consumer
        return None if consumer is None else consumer.claim_prefetched(request)

    def kind_for_caller(self, request: rq.Request[Any]) -> type[Any] | None:
        """The type of a request if the caller's thread may carry it out (see ``Link.run``), else None.

        Not those of a busy worker: the connection's thread sends what its jobs request at about the same time
        together.
        """
        if not _is_small(request):
            return None
        kind = type(request)
        if kind in _LEASING and self._consumer is not None and self._consumer.intake.is_busy:
            return None
        return kind

    def _session(self, link: Link, connection: Any) -> AmqpClient:
        client = AmqpClient(
            connection,
            self.names,
            self.hub,
            self.reply_listeners,
            self.clock,
            Coordinator,
            link.call_soon_threadsafe,
        )
        left = self._consumer.unsettled() if self._consumer is not None else None
        client.consumer = self._consumer = Consumer(client, self.offers, self.hold_s, left)
        client.plain_adds = PlainAdds(client)
        return client


class AmqpBackend:
    """A client of a broker."""

    name = "amqp"
    claims_separately: Literal[True] = True

    def __init__(self, shared: _SharedConnection) -> None:
        self._shared = shared
        self.capabilities = QUORUM_CAPABILITIES if shared.names.queue_type == QUORUM else CAPABILITIES
        self._opened = False

    @property
    def names(self) -> Names:
        """The names of exchanges, queues and streams in this namespace."""
        return self._shared.names

    @property
    def namespace(self) -> str:
        return self._shared.namespace

    async def open(self) -> None:
        if self._opened:
            return
        ending = self._shared.link.start()
        if ending is not None:
            await asyncio.to_thread(ending.join)
            return await self.open()
        self._opened = True
        try:
            await self._run(_connected, self._shared.open_s)
        except (StorageError, ConfigError):
            await self.close()
            raise

    async def close(self) -> None:
        if not self._opened:
            return
        self._opened = False
        thread = self._shared.link.stop()
        if thread is not None:
            await asyncio.to_thread(thread.join)

    async def execute(self, request: rq.Request[R]) -> R:
        kind, sent_ms = type(request), SYSTEM_CLOCK.monotonic_ms()
        if type(request) is rq.Claim and self._opened:
            claimed: Any = self._shared.claim_prefetched(request)
            if claimed is not None:
                return claimed  # type: ignore[no-any-return]  # the answer of a Claim
        answer: R
        small = self._shared.kind_for_caller(request)
        if kind in _LEASING:
            answer = await self._run(lambda client: _LEASING[kind](client, request, sent_ms), kind=small)
        else:
            answer = await self._run(lambda client: _VERBS.get(kind, _ask)(client, request), kind=small)
        return answer

    async def _run(self, make: Any, limit_s: float | None = None, kind: type[Any] | None = None) -> Any:
        """Run ``make(client)`` on the connection's thread and return its result. ``kind``: see ``Link.run``.

        A call that has begun when its time is over still continues. A call that gets no connection in time
        never begins. Both raise ``StorageError``.
        """
        if not self._opened:
            raise StorageError("the client is not open")
        call: StoreCall[Any] = StoreCall(limit_s or self._shared.timeout_s, self._explain)
        call.watch()
        self._shared.link.run(make, call, kind)
        return await call.future

    def _explain(self, begun: bool) -> str:
        late = f"{self._shared.shown} did not answer in time"
        if begun:
            return f"{late}: {UNKNOWN}. If it is only slow, raise ?timeout="
        return f"{late} ({self._shared.link.last_error}). Nothing was changed; is it up?"

    def listen(self, topics: Iterable[str]) -> HubListener | WorkerListener:
        return self._shared.offers.listen(self._shared.hub, topics)

    def listen_completed(self, queue: str, receive: Receive) -> ReplyListener:
        return self._shared.reply_listeners.listen(self._shared.hub, queue, receive)

    def clone(self) -> AmqpBackend:
        return AmqpBackend(self._shared)

    async def prepare(self, queues: Iterable[str]) -> None:
        """Declare and bind the job queues."""
        names = list(queues)
        for at in range(0, len(names), _DECLARED_AT_ONCE):  # each call has its own timeout
            some = names[at : at + _DECLARED_AT_ONCE]
            await self._run(lambda client, some=some: client.need_queues(some))

    async def coordinate(self) -> None:
        """Try to become the coordinator, now and whenever there is none."""
        await self._run(lambda client: client.coordinate())

    async def remove_all(self) -> None:
        """Delete this namespace from the broker, with all jobs. Job queues that only other processes used
        remain."""
        await self._run(_remove_all)


def _is_small(request: rq.Request[Any]) -> bool:
    """Whether it takes little time to send a request. Only adds, claims and settlements may be small: others
    wait for the coordinator, which takes longer than to wake the connection's thread."""
    if type(request) is rq.Add:
        size = sum(len(new.payload) for new in request.jobs)
    elif type(request) is rq.Settle:
        size = sum(len(item.result or b"") for item in request.items)
    else:
        size = 0 if type(request) is rq.Claim else sys.maxsize
    return size <= _MOST_BYTES and size_of(request) <= _MOST_JOBS


async def _connected(client: AmqpClient) -> None:
    """Do nothing: that this runs shows that there is a connection."""


async def _ask(client: AmqpClient, request: rq.Request[Any]) -> Any:
    return await client.ask(request)


# --- add -------------------------------------------------------------------------------------------------


def _is_plain(new: NewJob, now_ms: int) -> bool:
    """Whether a job can be added without the coordinator."""
    return (
        not new.delay_ms
        and (new.run_at_ms is None or new.run_at_ms <= now_ms)
        and new.options.unique is None
        and new.options.keep_id_ms is None
        and _FRESH_ID.match(new.id) is not None
    )


async def _add(client: AmqpClient, request: rq.Add) -> list[rq.Added]:
    now_ms = moment(request.now_ms, client.clock.now_ms)
    if not all(_is_plain(new, now_ms) for new in request.jobs):
        answers: list[rq.Added] = await client.ask(request)
        return answers
    took("amqp.add_plain")
    await client.need_queues(list({new.queue for new in request.jobs}))
    confirmed = client.plain_adds.publish(request, now_ms)
    refs = [(new.queue, new.id) for new in request.jobs]
    if len(refs) == 1 and client.reply_listeners.awaits(*refs[0]):
        await client.until_ended(*refs[0], confirmed)
    else:
        await confirmed
    return [rq.Added(AddOutcome.QUEUED, JobState.WAITING, now_ms) for _ in request.jobs]


# --- requests that the consumer carries out --------------------------------------------------------------


async def _claim(client: AmqpClient, request: rq.Claim, sent_ms: float) -> rq.Claimed:
    return await client.consumer.claim(request, sent_ms)


async def _end(client: AmqpClient, request: rq.Settle, sent_ms: float) -> rq.SettleResult:
    return await client.consumer.settle(request, sent_ms)


async def _extend(client: AmqpClient, request: rq.Extend) -> Any:
    return await client.consumer.extend(request)


async def _reconcile(client: AmqpClient, request: rq.Reconcile) -> int:
    return await client.consumer.reconcile(request)


async def _beat(client: AmqpClient, request: rq.Beat) -> Any:
    if not request.gone:
        now_ms = moment(request.now_ms, client.clock.now_ms)
        client.publish([heartbeat_message(client.names, request.worker, now_ms)])
    return await client.ask(request)


async def _remove_all(client: AmqpClient) -> None:
    if client.coordinator is not None:
        await client.taking_over
        await client.coordinator.retire()
    names, channel = client.names, await client.open_channel()
    for name in [*names.all_queues(), *(names.queue(queue) for queue in names.used)]:
        channel.queue_delete(name)
    for exchange in (names.direct, names.dead):
        channel.exchange_delete(exchange)
    await client.call(channel.exchange_delete, names.news)


#: Requests that may lease jobs. They are also given the time at which they were sent.
_LEASING: dict[type[Any], Any] = {rq.Claim: _claim, rq.Settle: _end}
_VERBS: dict[type[Any], Any] = {
    rq.Add: _add,
    rq.Extend: _extend,
    rq.Reconcile: _reconcile,
    rq.Beat: _beat,
    rq.CountJobs: count_jobs,
}


def _parameters(url: BackendUrl) -> pika.URLParameters:
    """The connection parameters of a URL for pika, without our own options."""
    url.check_options({"consumer_timeout", "heartbeat", "open", "queue_type", "timeout"})
    place, _, _ = url.text.partition("://")[2].partition("?")
    server, _, host = place.rpartition("@")[2].partition("/")
    login = ""
    if url.username is not None or url.password is not None:  # pika wants both or none
        login = f"{quote(url.username or '', safe='')}:{quote(url.password or '', safe='')}@"
    vhost = quote(unquote(host) or "/", safe="")  # also for ``amqp://server//``, as other programs write it
    parameters = pika.URLParameters(f"{url.scheme}://{login}{server}/{vhost}")
    parameters.heartbeat = round(_seconds(url, "heartbeat", 20))
    parameters.blocked_connection_timeout = 60
    parameters.socket_timeout = 5
    return parameters


def _queue_type(url: BackendUrl) -> str:
    kind = url.options.get("queue_type", CLASSIC)
    if kind not in (CLASSIC, QUORUM):
        raise ConfigError("queue_type", f"{CLASSIC} or {QUORUM}", kind)
    return kind


def _seconds(url: BackendUrl, name: str, otherwise: float, most: float = 3_600) -> float:
    """An option of the URL, in seconds. Raises ``ConfigError`` if it is not between 0 and ``most``."""
    text = url.options.get(name, f"{otherwise}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= most:
        raise ConfigError(name, f"a number of seconds above 0, at most {most:g}", text)
    return seconds


def from_url(url: BackendUrl) -> AmqpBackend:
    """A client of the broker that ``url`` names."""
    return AmqpBackend(_SharedConnection(url))

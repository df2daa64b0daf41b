"""One claim: which messages it takes, and what it starts.

A claim takes exactly as many messages as it may start, from what the broker pushed (see ``intake``) or by
pulling them: the broker's order is kept. A message that was delivered before, or that counts no more, is
asked about before its job starts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import Incoming, MessageError, read_message
from windlass.backends.amqp.start_log import StartLog
from windlass.backends.amqp.unreadable import MOST_KEPT
from windlass.core import transitions
from windlass.core.job import JobRecord
from windlass.speedups.amqp_frames import Delivery

#: Most messages of a queue that one round of a claim passes over, and how many at a time at most.
_MOST_SKIPPED = 1_000
_LARGEST_STEP = 200


class Held(msgspec.Struct):
    """A job that runs here: its message, and how it began."""

    tag: int
    start: verbs.Start
    body: bytes
    header: bytes | None
    priority: int
    #: Until then no other worker can have the job.
    until_ms: int
    #: The inbox of the client that waits for the result, if one does.
    reply: str = ""
    #: The coordinator has taken it from us.
    lost: bool = False
    #: The coordinator keeps the job while it runs: its message is acknowledged.
    kept_by_lease: bool = False

    def whole_start(self) -> verbs.Start:
        """The start with all that is needed to know the job by it."""
        return msgspec.structs.replace(self.start, body=self.body, header=self.header, priority=self.priority)


class JobConsumer(Protocol):
    """The consumer for which a claim picks."""

    intake: Intake
    starts: StartLog

    @property
    def client(self) -> AmqpClient:
        """Its connection."""

    def now_ms(self, request: rq.Request[Any]) -> int:
        """When ``request`` counts."""

    def is_suspect(self, delivery: Delivery, incoming: Incoming) -> bool:
        """Whether the coordinator must be asked before this starts."""

    def hold(self, held: Held, key: tuple[str, str, int]) -> None:
        """The job of a message runs here from now on."""


class Picker:
    """One claim under way."""

    def __init__(self, consumer: JobConsumer, request: rq.Claim) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._request = request
        self.now_ms = consumer.now_ms(request)
        self.jobs: list[JobRecord] = []
        self._starts: list[verbs.Start] = []
        self.taken: Counter[str] = Counter()
        #: Queues that had fewer messages than were wanted.
        self.empty: set[str] = set()
        #: Tags of messages that were fetched and are neither started nor dropped yet.
        self._unresolved: dict[int, None] = {}
        self._failed = False

    async def run(self) -> None:
        """First the shares of all queues, then up to their caps: an empty one must not keep others back."""
        await self._fetch_all("share", set())
        asked: set[str] = set()
        while await self._fetch_all("cap", asked):
            pass

    async def _fetch_all(self, bound: str, asked: set[str]) -> bool:
        """Ask queues that were not ``asked`` yet for as much as there is room; False when that is none."""
        fetching = []
        intake, room = self._consumer.intake, self._request.limit - len(self.jobs)
        for item in self._request.queues:
            if item.name in self._client.paused or item.name in self.empty or item.name in asked:
                continue
            wanted = min(getattr(item, bound) - self.taken[item.name], room)
            if wanted <= 0:
                continue
            room -= wanted
            asked.add(item.name)
            before, turn = intake.next_turn(item.name)
            fetching.append((item.name, wanted, turn, spawn(self._fetch_after(before, item.name, wanted))))
        try:
            for queue, wanted, turn, fetched in fetching:
                await self._begin(queue, wanted, fetched)
                turn.set(None)
        finally:
            for _, _, turn, _ in fetching:
                turn.set(None)
        return bool(fetching)

    async def _fetch_after(self, before: IoFuture[None], queue: str, wanted: int) -> list[Delivery]:
        """What another claim fetched begins first, also when it must be asked about."""
        await before
        return await self._fetch(queue, wanted)

    async def _fetch(self, queue: str, wanted: int) -> list[Delivery]:
        """Up to ``wanted`` messages; fewer when the queue has no more, which is noted."""
        intake, client = self._consumer.intake, self._client
        await intake.finish_idle_consumer(queue)
        if intake.is_prefetching(queue):
            found = await intake.take_prefetched(queue, wanted)
        else:
            found = intake.take(queue, wanted)
        while len(found) < wanted and queue not in client.paused:
            step = intake.pull_size(queue, wanted - len(found))
            more = await client.pull(client.names.queue(queue), step)
            found = found + intake.take(queue, wanted) + more  # what was pushed meanwhile is older
            intake.note_drained(queue, len(more) < step)
            if len(more) < step:
                break
        if len(found) < wanted:
            self.empty.add(queue)
        self._unresolved.update(dict.fromkeys(delivery.tag for delivery in found))
        if self._failed:  # another queue's part of this claim failed meanwhile
            self.give_up()
        return found

    def give_up(self) -> None:
        """The claim failed: what was fetched for it goes back, so that it does not wait for our end."""
        self._failed = True
        if self._client.usable:
            self._client.requeue(self._unresolved)
        self._unresolved.clear()

    async def _begin(self, queue: str, wanted: int, fetched: IoFuture[list[Delivery]]) -> None:
        passed = 0
        while True:
            found = await fetched
            started = await self._start_jobs(queue, found, wanted)
            wanted -= started
            passed += len(found) - started
            if wanted <= 0 or queue in self.empty or passed >= _MOST_SKIPPED:
                return
            # Some were no jobs, or count no more: look further, in larger steps; what is too much goes back.
            asked = min(_MOST_SKIPPED - passed, max(wanted, min(passed, _LARGEST_STEP)))
            fetched = spawn(self._fetch(queue, asked))

    async def _start_jobs(self, queue: str, found: list[Delivery], room: int) -> int:
        """Start what can be started, up to ``room``; returns how many that were."""
        good: list[tuple[Delivery, Incoming]] = []
        for delivery in found:
            try:
                incoming = read_message(queue, delivery.body, delivery.header, delivery.priority, self.now_ms)
            except MessageError as exc:
                await self._bury(queue, delivery, str(exc))
            else:
                good.append((delivery, incoming))
        good = await self._resolve(queue, good)
        late = [(d, i) for d, i in good if transitions.is_expired(i.job, self.now_ms)]
        if late:
            starts = [self._start(d, i) for d, i in late]
            await self._client.ask(verbs.Expire(starts=starts, now_ms=self._request.now_ms))
            self._ack(*(delivery.tag for delivery, _ in late))
            good = [pair for pair in good if pair not in late]
        if queue in self._client.paused:  # since these were fetched
            room = 0
        self.now_ms = self._consumer.now_ms(self._request)  # they start now, not when the claim began
        for delivery, incoming in good[:room]:
            self._lease(queue, delivery, incoming)
        if good[room:]:
            self.empty.discard(queue)
            for delivery, _ in good[room:]:
                self._unresolved.pop(delivery.tag, None)
            self._consumer.intake.put_back(queue, [delivery for delivery, _ in good[room:]])
        return min(len(good), room)

    def start_plain(self, queue: str, found: list[Delivery]) -> bool:
        """Start the jobs of messages if all can start without asking; else none, and False."""
        good = [(delivery, self.read_plain(queue, delivery)) for delivery in found]
        keys = {incoming.key for _, incoming in good if incoming is not None}
        if not found or len(keys) < len(found):
            return False
        for delivery, incoming in good:
            assert incoming is not None
            self._lease(queue, delivery, incoming)
        return True

    def read_plain(self, queue: str, delivery: Delivery) -> Incoming | None:
        """The job of a message that can start without asking; None for any other message."""
        try:
            incoming = read_message(queue, delivery.body, delivery.header, delivery.priority, self.now_ms)
        except MessageError:
            return None
        if self._consumer.is_suspect(delivery, incoming) or transitions.is_expired(incoming.job, self.now_ms):
            return None
        return incoming

    async def _bury(self, queue: str, delivery: Delivery, problem: str) -> None:
        """What is no job goes to the dead set; only then is it acknowledged."""
        body = delivery.body[:MOST_KEPT]  # a larger one would push others out of the log
        request = verbs.Poison(queue=queue, body=body, problem=problem, now_ms=self._request.now_ms)
        await self._client.ask(request)
        self._ack(delivery.tag)

    async def _resolve(
        self, queue: str, good: list[tuple[Delivery, Incoming]]
    ) -> list[tuple[Delivery, Incoming]]:
        """Ask about messages that may be repeats or void; drop those that are. Others may be void by then."""
        met, asked = Counter(incoming.key for _, incoming in good), set[int]()
        while suspects := [
            n
            for n, (delivery, incoming) in enumerate(good)
            if delivery.tag not in asked
            and (met[incoming.key] > 1 or self._consumer.is_suspect(delivery, incoming))
        ]:
            asked.update(good[n][0].tag for n in suspects)
            good = await self._verify(good, suspects)
        return good

    async def _verify(
        self, good: list[tuple[Delivery, Incoming]], suspects: list[int]
    ) -> list[tuple[Delivery, Incoming]]:
        client = self._client
        # First: what started in this claim decides about other messages of the same job.
        self._consumer.starts.add(self.take_starts(), self._request.now_ms)
        self._consumer.starts.flush()
        starts = [self._start(*good[n]) for n in suspects]
        answers = await client.ask(verbs.Doubt(starts=starts, now_ms=self._request.now_ms))
        dropped = set()
        for n, job in zip(suspects, answers, strict=True):
            delivery, incoming = good[n]
            if job is None:
                dropped.add(n)
                self._ack(delivery.tag)
                client.void.discard(incoming.key)
            else:
                incoming.job = job
        return [pair for n, pair in enumerate(good) if n not in dropped]

    def take_starts(self) -> list[verbs.Start]:
        """What started and is not in the log yet."""
        starts, self._starts = self._starts, []
        return starts

    def _ack(self, *tags: int) -> None:
        for tag in tags:
            self._unresolved.pop(tag, None)
        self._client.ack(tags)

    def _start(self, delivery: Delivery, incoming: Incoming) -> verbs.Start:
        return verbs.Start(
            queue=incoming.job.queue,
            id=incoming.job.id,
            token=f"{self._request.claim_id}.{len(self.jobs)}",
            worker=self._request.worker,
            lease_ms=incoming.job.options.lease_ms or self._request.lease_ms,
            at_ms=self.now_ms,
            task=incoming.job.task,
            gen=incoming.gen,
            body=delivery.body,
            header=delivery.header,
            priority=delivery.priority,
            again=incoming.again and not delivery.redelivered,
            copy=incoming.copy,
        )

    def _lease(self, queue: str, delivery: Delivery, incoming: Incoming) -> None:
        """Start a job."""
        held, job = self.lease(delivery, incoming), incoming.job
        self._consumer.hold(held, incoming.key)
        self._unresolved.pop(delivery.tag, None)
        self._starts.append(held.start)
        self.jobs.append(job)
        self.taken[queue] += 1

    def lease(self, delivery: Delivery, incoming: Incoming) -> Held:
        """The job of a message belongs to the worker from now on."""
        job = incoming.job
        start = self._start(delivery, incoming)
        until_ms = self.now_ms + start.lease_ms
        held = Held(delivery.tag, start, delivery.body, start.header, start.priority, until_ms)
        if not job.deliveries:  # a direct reply does not mention earlier starts
            held.reply = incoming.reply
        start.told = bool(held.reply)
        if not incoming.foreign:
            start.body = start.header = None
        recorder = transitions.ChangeRecorder(self.now_ms, _no_place)
        transitions.lease(job, recorder, token=start.token, worker=start.worker, lease_ms=start.lease_ms)
        return held


def _no_place() -> int:
    """A job that starts needs no place; the coordinator records the rest when it folds the log."""
    return 0

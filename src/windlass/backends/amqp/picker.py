"""One claim: fetches messages and starts their jobs.

A claim takes only as many messages as it can start: first those that the broker pushed (see ``intake``), then
by pulling. So jobs start in the order of the broker. A message that is void or was delivered before is
verified with the coordinator before its job starts.

The worker renews the leases of a claim when it has the answer. So a claim that has started jobs does not wait
long for the coordinator: it ends with these jobs and returns its other messages.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.client import ANSWER_S, AmqpClient, NoAnswerError
from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import Incoming, MessageError, read_message
from windlass.backends.amqp.offers import OfferedSlot
from windlass.backends.amqp.start_log import StartLog
from windlass.backends.amqp.timing import says_time
from windlass.backends.amqp.unreadable import MOST_KEPT
from windlass.core import transitions
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRecord
from windlass.speedups.amqp_frames import Delivery

#: Most messages of a queue that one claim skips because they are not jobs or do not count, and how many more
#: it fetches at a time.
_MOST_SKIPPED = 1_000
_LARGEST_STEP = 200
#: Which part of a lease may be over before the worker gets the job.
_MOST_WAITED = 1 / 4


class Held(msgspec.Struct):
    """A job that runs here, with its unacknowledged message and its start."""

    tag: int
    start: verbs.Start
    body: bytes
    header: bytes | None
    priority: int
    #: The end of the lease. Until then no other worker can have the job.
    until_ms: int
    #: The inbox of the client that waits for the result, if one does.
    reply: str = ""
    #: The slot of the worker, if the job was offered to it.
    slot: OfferedSlot | None = None
    #: Whether the coordinator has taken the job from the worker.
    lost: bool = False
    #: Whether only the lease counts, and the message is acknowledged (see ``verbs.Lend``).
    kept_by_lease: bool = False

    def whole_start(self) -> verbs.Start:
        """The start with the message, from which a coordinator can restore the job."""
        return msgspec.structs.replace(self.start, body=self.body, header=self.header, priority=self.priority)


class JobConsumer(Protocol):
    """The consumer on whose connection the claim runs."""

    intake: Intake
    starts: StartLog

    @property
    def client(self) -> AmqpClient:
        """The connection."""

    def now_ms(self, request: rq.Request[Any]) -> int:
        """The time that ``request`` carries, or else the present time."""

    def is_suspect(self, delivery: Delivery, incoming: Incoming) -> bool:
        """Whether the coordinator must verify a message before its job starts."""

    def hold(self, held: Held, key: tuple[str, str, int]) -> None:
        """Note that the job of a message runs here."""


class Picker:
    """One running claim."""

    def __init__(self, consumer: JobConsumer, request: rq.Claim) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._request = request
        self.now_ms = consumer.now_ms(request)
        self.jobs: list[JobRecord] = []
        self._starts: list[verbs.Start] = []
        self.taken: Counter[str] = Counter()
        #: Queues that had fewer messages than wanted.
        self.empty: set[str] = set()
        #: Tags of messages that were fetched and are neither started nor dropped yet.
        self._unresolved: dict[int, None] = {}
        self._failed = False
        #: When the first lease began (0: none has), and when the worker should have the jobs (monotonic).
        self._leased_ms = 0.0
        self._answer_by_ms = float("inf")

    def held_ms(self, sent_ms: float) -> int:
        """``Claimed.held_ms`` of a claim that was sent at ``sent_ms`` (monotonic)."""
        return -max(int(self._leased_ms - sent_ms), 0)

    async def run(self) -> None:
        """Fetch messages and start their jobs. Without an answer of the coordinator, end with the jobs that
        have started, and raise ``NoAnswerError`` if there are none."""
        try:
            await self._run()
        except NoAnswerError:
            if not self.jobs:
                raise
            self.give_up()

    async def _run(self) -> None:
        """Fetch the share of each queue, then fill up to the caps, so that empty queues waste no slots."""
        await self._fetch_all("share", set())
        asked: set[str] = set()
        while await self._fetch_all("cap", asked):
            pass

    async def _fetch_all(self, bound: str, asked: set[str]) -> bool:
        """Fetch messages for the free slots from queues that are not in ``asked``, and start their jobs.

        ``bound`` is the limit of each queue, ``share`` or ``cap``. Returns False when nothing was fetched.
        """
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
        """Fetch after the previous claim of the queue has started its jobs, so that the order is kept."""
        await before
        return await self._fetch(queue, wanted)

    async def _fetch(self, queue: str, wanted: int) -> list[Delivery]:
        """Fetch up to ``wanted`` messages. If the queue has fewer, it is added to ``empty``."""
        intake, client = self._consumer.intake, self._client
        await intake.finish_idle_consumer(queue)
        if intake.is_prefetching(queue):
            found = await intake.take_prefetched(queue, wanted)
        else:
            found = intake.take(queue, wanted)
        while len(found) < wanted and queue not in client.paused:
            step = intake.pull_size(queue, wanted - len(found))
            more = await client.pull(client.names.queue(queue), step)
            found = found + intake.take(queue, wanted) + more  # messages that were pushed meanwhile are older
            intake.note_drained(queue, len(more) < step)
            if len(more) < step:
                break
        if len(found) < wanted:
            self.empty.add(queue)
        self._unresolved.update(dict.fromkeys(delivery.tag for delivery in found))
        if self._failed:  # the claim has ended meanwhile, at another queue
            self.give_up()
        return found

    def give_up(self) -> None:
        """Return the messages that were fetched and not started, so that other workers get them now."""
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
            # Some messages were not jobs, or did not count. Fetch more, in larger steps; surplus is returned.
            asked = min(_MOST_SKIPPED - passed, max(wanted, min(passed, _LARGEST_STEP)))
            fetched = spawn(self._fetch(queue, asked))

    async def _start_jobs(self, queue: str, found: list[Delivery], room: int) -> int:
        """Start the jobs of up to ``room`` messages, and put the others back; returns how many started."""
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
            await self._ask(verbs.Expire(starts=starts, now_ms=self._request.now_ms))
            self._ack(*(delivery.tag for delivery, _ in late))
            good = [pair for pair in good if pair not in late]
        if queue in self._client.paused:  # it was paused after the fetch
            room = 0
        since_ms = SYSTEM_CLOCK.monotonic_ms()
        self.now_ms = self._consumer.now_ms(self._request)  # they start now, not when the claim began
        for delivery, incoming in good[:room]:
            self._lease(queue, delivery, incoming)
        self._note_leases(since_ms, [incoming.job for _, incoming in good[:room]])
        if good[room:]:
            self.empty.discard(queue)
            for delivery, _ in good[room:]:
                self._unresolved.pop(delivery.tag, None)
            self._consumer.intake.put_back(queue, [delivery for delivery, _ in good[room:]])
        return min(len(good), room)

    def start_plain(self, queue: str, found: list[Delivery]) -> bool:
        """Start the jobs of all messages if none must be verified. Otherwise start none and return False."""
        good = [(delivery, self.read_plain(queue, delivery)) for delivery in found]
        keys = {incoming.key for _, incoming in good if incoming is not None}
        if not found or len(keys) < len(found):
            return False
        for delivery, incoming in good:
            assert incoming is not None
            self._lease(queue, delivery, incoming)
        return True

    def read_plain(self, queue: str, delivery: Delivery) -> Incoming | None:
        """The job of a message that can start without being verified; None for any other message."""
        try:
            incoming = read_message(queue, delivery.body, delivery.header, delivery.priority, self.now_ms)
        except MessageError:
            return None
        if self._consumer.is_suspect(delivery, incoming) or transitions.is_expired(incoming.job, self.now_ms):
            return None
        return incoming

    async def _bury(self, queue: str, delivery: Delivery, problem: str) -> None:
        """Put a message that is not a job into the dead set, then acknowledge it."""
        body = delivery.body[:MOST_KEPT]  # a larger entry would push others out of the log
        request = verbs.Poison(queue=queue, body=body, problem=problem, now_ms=self._request.now_ms)
        await self._ask(request)
        self._ack(delivery.tag)

    async def _resolve(
        self, queue: str, good: list[tuple[Delivery, Incoming]]
    ) -> list[tuple[Delivery, Incoming]]:
        """Verify messages that may be repeats or void, and drop those that are.

        Messages can become void while we wait for the answer, so this repeats until none is left to verify.
        """
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
        # Log the starts of this claim first: they decide about other messages of the same jobs.
        self._consumer.starts.add(self.take_starts(), self._request.now_ms)
        self._consumer.starts.flush()
        starts = [self._start(*good[n]) for n in suspects]
        answers = await self._ask(verbs.Doubt(starts=starts, now_ms=self._request.now_ms))
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

    async def _ask(self, request: rq.Request[Any]) -> Any:
        """Ask the coordinator, and wait only until the worker should have the jobs that have started."""
        left_ms = self._answer_by_ms - SYSTEM_CLOCK.monotonic_ms()
        return await self._client.ask(request, min(max(left_ms, 0) / 1_000, ANSWER_S))

    def _note_leases(self, since_ms: float, jobs: list[JobRecord]) -> None:
        """Note that the leases of ``jobs`` began at ``since_ms`` (monotonic)."""
        if jobs and not says_time(self._request):  # by a time that a test controls, no lease runs meanwhile
            self._leased_ms = self._leased_ms or since_ms
            shortest_ms = min(job.options.lease_ms or self._request.lease_ms for job in jobs)
            self._answer_by_ms = min(self._answer_by_ms, since_ms + shortest_ms * _MOST_WAITED)

    def take_starts(self) -> list[verbs.Start]:
        """Remove and return the starts that are not in the log yet."""
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
        """Start a job and add it to the answer of the claim."""
        held, job = self.lease(delivery, incoming), incoming.job
        self._consumer.hold(held, incoming.key)
        self._unresolved.pop(delivery.tag, None)
        self._starts.append(held.start)
        self.jobs.append(job)
        self.taken[queue] += 1

    def lease(self, delivery: Delivery, incoming: Incoming) -> Held:
        """Lease the job of a message to the worker."""
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
    """0: a job that starts needs no place. The coordinator records the change when it reads the log."""
    return 0

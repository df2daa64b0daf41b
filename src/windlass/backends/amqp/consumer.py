"""Where jobs are taken from the broker and their ends handed in: claim, settle, extend, reconcile.

A claim takes exactly as many messages as it may start, from what the broker pushed (see ``intake``) or by
pulling them: the broker's order is kept. A message that was delivered before, or that counts no more, is
asked about before its job starts.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from typing import Any

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import direct_replies, verbs
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.intake import PATIENCE_S, Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import Incoming, MessageError, read_message
from windlass.backends.amqp.offers import Offers
from windlass.backends.amqp.report import metrics_message
from windlass.core import transitions
from windlass.core.clock import moment
from windlass.core.ids import new_id
from windlass.core.job import Completed, JobRecord
from windlass.core.outcome import Extended, Outcome, Settled, Settlement
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.errors import StorageError
from windlass.speedups.amqp_frames import Delivery

log = logging.getLogger("windlass.amqp")

#: How often we look, within the time that a message may be held, for jobs that run for long.
_LOOKS = 4
#: Starts and ends that are remembered to recognise repeats.
_REMEMBERED = 20_000
#: Most messages of a queue that one round of a claim passes over, and how many at a time at most.
_STEP = 1_000
_LOOK = 200


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
    lent: bool = False

    def whole_start(self) -> verbs.Start:
        """The start with all that is needed to know the job by it."""
        return msgspec.structs.replace(self.start, body=self.body, header=self.header, priority=self.priority)


class Consumer:
    """The jobs that one connection holds."""

    def __init__(
        self, client: AmqpClient, offers: Offers, hold_s: float, left: dict[str, Held] | None = None
    ) -> None:
        self._client = client
        #: What began on an earlier connection of this process and has not ended (see ``_rejoin``).
        self._left = left or {}
        self._rejoined: IoFuture[None] | None = None
        #: How long the broker lets us hold a message; and what was held when we last looked.
        self._hold_s = hold_s
        self._held_long: set[str] = set()
        client.later(hold_s / _LOOKS, self._look_for_long)
        self._offers = offers
        self._held: dict[str, Held] = {}
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        for held in self._left.values():
            _remember(self._seen, held.start.key)
        self.intake = Intake(client)
        self.intake.show = self._offer

    # --- claim -------------------------------------------------------------------------------------------

    async def claim(self, request: rq.Claim) -> rq.Claimed:
        client = self._client
        await client.know_rules()
        await self._rejoin()
        names = [item.name for item in request.queues]
        self.intake.begin(names)
        try:
            return await self._claim(request, names)
        finally:
            self.intake.end(names)

    async def _claim(self, request: rq.Claim, names: list[str]) -> rq.Claimed:
        client = self._client
        await client.need_queues(names)
        next_due_in_ms = await self._promote(request, names)
        picker = _Picker(self, request)
        try:
            await picker.run()
        except BaseException:
            picker.give_up()
            raise
        picker.log_starts()
        self._offers.claimed(request, len(picker.jobs))
        if len(picker.jobs) < request.limit:
            self.intake.was_short(names)
        for name, count in picker.taken.items():
            if name not in picker.empty:
                self.intake.was_full(name, count)
        return rq.Claimed(picker.jobs, picker.now_ms, next_due_in_ms)

    def _offer(self, queue: str, delivery: Delivery) -> bool:
        """Show an idle worker the job of a message that came; False when nothing is to be shown."""
        worker = self._offers.find(queue)
        if worker is None or queue in self._client.paused:
            return False
        claim = rq.Claim(
            worker=worker.worker, queues=[], limit=1, claim_id=new_id(), lease_ms=worker.lease_ms
        )
        picker = _Picker(self, claim)
        due_ms = self._client.due.get(queue)
        if due_ms is not None and due_ms <= picker.now_ms:
            return False
        try:
            incoming = read_message(queue, delivery.body, delivery.header, delivery.priority, picker.now_ms)
        except MessageError:
            return False
        key = incoming.key
        if self.is_suspect(delivery, incoming) or transitions.is_expired(incoming.job, picker.now_ms):
            return False
        held, showing = picker.lease(delivery, incoming), self.intake.showing(queue)

        def answered(began: bool) -> None:
            self._client.soon(lambda: self._offered(delivery, held, key, showing, began=began))

        offer = worker.offer(incoming.job, answered)
        self._client.later(PATIENCE_S, lambda: answered(False) if offer.take() else None)
        return True

    def _offered(
        self,
        delivery: Delivery,
        held: Held,
        key: tuple[str, str, int],
        showing: IoFuture[None],
        *,
        began: bool,
    ) -> None:
        """A worker was shown a job: if it began, its start is logged."""
        if began and self._client.usable:
            took("amqp.offered")
            self.hold(held, key)
            self._client.append_fact(verbs.Started(starts=[held.start]))
        queue = held.start.queue
        more = self._offers.find(queue) is not None
        self.intake.shown(queue, delivery, showing, began=began, more=more)

    async def _promote(self, request: rq.Claim, names: list[str]) -> int | None:
        """Have what is due promoted; answers how long until the next job is due.

        As a rule the coordinator did it when it was time, and need not be asked.
        """
        client = self._client
        first_ms = min((ms for name in names if (ms := client.due.get(name)) is not None), default=None)
        if first_ms is None:
            return None
        due_in_ms = first_ms - self.now_ms(request)
        if due_in_ms > 0:
            return due_in_ms
        answer: int | None = await client.ask(verbs.PromoteFor(queues=names, now_ms=request.now_ms))
        return answer

    def now_ms(self, request: rq.Request[Any]) -> int:
        """When ``request`` counts."""
        return moment(request.now_ms, self._client.clock.now_ms)

    def listens(self, queue: str) -> bool:
        """Whether a message of ``queue`` is noticed here without news of it."""
        return self.intake.listens(queue)

    def is_suspect(self, delivery: Delivery, incoming: Incoming) -> bool:
        """Whether the coordinator must be asked before this starts."""
        key = incoming.key
        return delivery.redelivered or incoming.again or key in self._client.void or key in self._seen

    def hold(self, held: Held, key: tuple[str, str, int]) -> None:
        self._held[held.start.token] = held
        _remember(self._seen, key)

    @property
    def client(self) -> AmqpClient:
        return self._client

    # --- settle ------------------------------------------------------------------------------------------

    async def settle(self, request: rq.Settle) -> rq.SettleResult:
        items, claim, now_ms = request.items, request.claim, self.now_ms(request)
        if claim is not None:
            claim.now_ms = request.now_ms
        quick = len({end.token for end in items}) == len(items)  # one that comes twice is for the coordinator
        if not quick or not all(
            end.outcome is Outcome.COMPLETE and self._surely_holds(end, now_ms) for end in items
        ):
            answers = await self._close(request)
            return rq.SettleResult(answers, None if claim is None else await self.claim(claim))
        # The slots are free already: the next jobs may come while the broker records the last ones.
        coming = None if claim is None else spawn(self.claim(claim))
        answers = await self._complete(request) if items else []
        return rq.SettleResult(answers, None if coming is None else await coming)

    async def _complete(self, request: rq.Settle) -> list[Settled]:
        """The quick way, for completions: log them, then acknowledge."""
        took("amqp.complete")
        items, client = request.items, self._client
        held = [self._held[end.token] for end in items]
        starts = [one.start for one in held]
        told = client.append_fact(verbs.Ended(items=items, starts=starts, now_ms=request.now_ms))
        client.publish([metrics_message(client.names, items, starts, self.now_ms(request))])
        await told
        reach("amqp.ended", count=len(items))
        self._reply_to_waiters(request, held)
        client.ack(one.tag for one in held)
        for end in items:
            self._let_go(end.token)
        return [Settled.OK] * len(items)

    def _reply_to_waiters(self, request: rq.Settle, held: list[Held]) -> None:
        """The ends are safe: send them to the clients that wait."""
        now_ms, told = self.now_ms(request), list[tuple[str, str, Completed]]()
        for end, one in zip(request.items, held, strict=True):
            if one.reply and len(end.result or b"") <= direct_replies.MOST_RESULT:
                start = one.start
                ended = Completed(end.id, end.result, start.at_ms, now_ms, start.worker)
                told.append((one.reply, end.queue, ended))
        if told:
            took("amqp.direct_reply")
            self._client.publish(direct_replies.messages(told))

    async def _close(self, request: rq.Settle) -> list[Settled]:
        """Any other end: what follows is safe before the message is acknowledged."""
        items, client = request.items, self._client
        held = [self._holding(end) for end in items]
        known = [one or self._left.get(end.token) for one, end in zip(held, items, strict=True)]
        starts = [one.whole_start() for one in known if one is not None]
        closing = await client.ask(verbs.Close(items=items, starts=starts, now_ms=request.now_ms))
        reach("amqp.closed", count=len(items))
        done: list[int] = []
        back: list[int] = []
        told: list[tuple[Settlement, verbs.Start]] = []
        for end, one, again, status in zip(items, held, closing.requeue, closing.items, strict=True):
            self._left.pop(end.token, None)
            if one is None or self._held.get(end.token) is not one:
                continue
            (back if again else done).append(one.tag)
            self._let_go(end.token)
            if status is Settled.OK:
                told.append((end, one.start))
        client.ack(done)
        client.requeue(back)
        if told:
            ends, begun = [end for end, _ in told], [start for _, start in told]
            client.publish([metrics_message(client.names, ends, begun, self.now_ms(request))])
        return list(closing.items)

    def _holding(self, end: Settlement) -> Held | None:
        """The message of the attempt that ``end`` ends, if it is here."""
        held = self._held.get(end.token)
        return held if held is not None and (held.start.queue, held.start.id) == (end.queue, end.id) else None

    def _surely_holds(self, end: Settlement, now_ms: int) -> bool:
        """Whether no other worker can have the job of the attempt that ``end`` ends."""
        held = self._holding(end)
        return held is not None and not held.lost and now_ms < held.until_ms

    def lose(self, tokens: list[str]) -> None:
        """The coordinator took these attempts from their workers: it decides how they end."""
        for token in tokens:
            held = self._held.get(token) or self._left.pop(token, None)
            if held is not None:
                held.lost = True

    def _let_go(self, token: str) -> None:
        held = self._held.pop(token, None)
        if held is not None:
            self._seen.pop(held.start.key, None)
        _remember(self._settled, token)

    # --- a connection after another ----------------------------------------------------------------------

    def unsettled(self) -> dict[str, Held]:
        """What runs here: on this connection, or since an earlier one."""
        return {**self._left, **{token: held for token, held in self._held.items() if not held.lost}}

    async def _rejoin(self) -> None:
        """Say what still runs here since an earlier connection, before anything is taken; once.

        The broker gives its messages out again. The coordinator lets the leases count instead, so that other
        workers leave these jobs alone.
        """
        if not self._left and self._rejoined is None:
            return
        if self._rejoined is None or self._rejoined.failed:
            self._rejoined = spawn(self._keep_left())
        await self._rejoined

    async def _keep_left(self) -> None:
        left = list(self._left.values())
        starts = [held.whole_start() for held in left]
        kept = await self._client.ask(verbs.Lend(starts=starts, left=True))
        for held, safe in zip(left, kept, strict=True):
            held.lent = safe
            if not safe:
                self._left.pop(held.start.token, None)
        reach("amqp.rejoined", count=len(left))

    # --- leases ------------------------------------------------------------------------------------------

    def _look_for_long(self) -> None:
        """From time to time: what runs since the last look need not keep its message."""
        client = self._client
        if client.closed:
            return
        long = [held for token, held in self._held.items() if token in self._held_long and not held.lent]
        self._held_long = set(self._held)
        client.later(self._hold_s / _LOOKS, self._look_for_long)
        if long and client.usable:
            spawn(self._lend(long))

    async def _lend(self, long: list[Held]) -> None:
        """Have jobs that run for long kept by their leases, before the broker takes their messages back."""
        starts = [held.whole_start() for held in long]
        try:
            kept = await self._client.ask(verbs.Lend(starts=starts))
        except StorageError as exc:
            log.warning("jobs that run for long could not be moved to their leases, trying again: %s", exc)
            return
        lent = [held for held, safe in zip(long, kept, strict=True) if safe]
        for held in lent:
            held.lent = True
        self._client.ack(held.tag for held in lent)
        reach("amqp.lent", count=len(lent))

    async def extend(self, request: rq.Extend) -> list[Extended]:
        """The connection is the lease: what is held here is ours until the coordinator has taken it from us.

        It also knows who was cancelled; but it may have forgotten a job, or not be there just now.
        """
        now_ms = self.now_ms(request)
        try:
            await self._rejoin()
            answers = await self._client.ask(request)
        except StorageError:
            if self._client.closed:
                raise
            return [Extended.LOST if self._has_lost(lease) else Extended.OK for lease in request.leases]
        return [
            self._extended(lease, answer, now_ms)
            for lease, answer in zip(request.leases, answers, strict=True)
        ]

    def _has_lost(self, lease: rq.LeaseRef) -> bool:
        held = self._held.get(lease.token)
        return held is not None and held.lost

    def _extended(self, lease: rq.LeaseRef, answer: Extended, now_ms: int) -> Extended:
        held = self._held.get(lease.token)
        if held is None or held.lost:
            return answer
        if answer is Extended.LOST:
            return Extended.OK
        held.until_ms = now_ms + lease.lease_ms
        return answer

    async def reconcile(self, request: rq.Reconcile) -> int:
        """Give back what we hold for a worker that does not know of it."""
        known = set(request.held)
        for token, held in list(self._left.items()):
            if held.start.worker == request.worker and token not in known:
                del self._left[token]
        lost = [
            held
            for token, held in self._held.items()
            if held.start.worker == request.worker and token not in known
        ]
        count = await self._client.ask(request)
        for held in lost:
            if self._held.pop(held.start.token, None) is not None:
                self._seen.pop(held.start.key, None)
                self._client.requeue([held.tag])
        return int(count)


class _Picker:
    """One claim under way."""

    def __init__(self, desk: Consumer, request: rq.Claim) -> None:
        self._desk = desk
        self._client = desk.client
        self._request = request
        self.now_ms = desk.now_ms(request)
        self.jobs: list[JobRecord] = []
        self.starts: list[verbs.Start] = []
        self.taken: Counter[str] = Counter()
        #: Queues that had fewer messages than were wanted.
        self.empty: set[str] = set()
        #: Tags of messages that were fetched and are neither started nor dropped yet.
        self._in_hand: dict[int, None] = {}
        self._failed = False

    async def run(self) -> None:
        """First the shares of all queues, then up to their caps: an empty one must not keep others back."""
        await self._ask_all("share", set())
        asked: set[str] = set()
        while await self._ask_all("cap", asked):
            pass

    async def _ask_all(self, bound: str, asked: set[str]) -> bool:
        """Ask queues that were not ``asked`` yet for as much as there is room; False when that is none."""
        fetching = []
        intake, room = self._desk.intake, self._request.limit - len(self.jobs)
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
        intake, client = self._desk.intake, self._client
        await intake.hush(queue)
        if intake.has_tap(queue):
            found = await intake.draw(queue, wanted)
        else:
            found = intake.take(queue, wanted)
        while len(found) < wanted and queue not in client.paused:
            step = intake.step(queue, wanted - len(found))
            more = await client.pull(client.names.queue(queue), step)
            found = found + intake.take(queue, wanted) + more  # what was pushed meanwhile is older
            intake.met_end(queue, len(more) < step)
            if len(more) < step:
                break
        if len(found) < wanted:
            self.empty.add(queue)
        self._in_hand.update(dict.fromkeys(delivery.tag for delivery in found))
        if self._failed:  # another queue's part of this claim failed meanwhile
            self.give_up()
        return found

    def give_up(self) -> None:
        """The claim failed: what was fetched for it goes back, so that it does not wait for our end."""
        self._failed = True
        if self._client.usable:
            self._client.requeue(self._in_hand)
        self._in_hand.clear()

    async def _begin(self, queue: str, wanted: int, fetched: IoFuture[list[Delivery]]) -> None:
        passed = 0
        while True:
            found = await fetched
            started = await self._sort(queue, found, wanted)
            wanted -= started
            passed += len(found) - started
            if wanted <= 0 or queue in self.empty or passed >= _STEP:
                return
            # Some were no jobs, or count no more: look further, in larger steps; what is too much goes back.
            asked = min(_STEP - passed, max(wanted, min(passed, _LOOK)))
            fetched = spawn(self._fetch(queue, asked))

    async def _sort(self, queue: str, found: list[Delivery], room: int) -> int:
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
        self.now_ms = self._desk.now_ms(self._request)  # they start now, not when the claim began
        for delivery, incoming in good[:room]:
            self._lease(queue, delivery, incoming)
        if good[room:]:
            self.empty.discard(queue)
            for delivery, _ in good[room:]:
                self._in_hand.pop(delivery.tag, None)
            self._desk.intake.put_back(queue, [delivery for delivery, _ in good[room:]])
        return min(len(good), room)

    async def _bury(self, queue: str, delivery: Delivery, problem: str) -> None:
        """What is no job goes to the dead set; only then is it acknowledged."""
        request = verbs.Poison(queue=queue, body=delivery.body, problem=problem, now_ms=self._request.now_ms)
        await self._client.ask(request)
        self._ack(delivery.tag)

    async def _resolve(
        self, queue: str, good: list[tuple[Delivery, Incoming]]
    ) -> list[tuple[Delivery, Incoming]]:
        """Ask about messages that may be repeats or void; drop those that are."""
        client = self._client
        met = Counter(incoming.key for _, incoming in good)
        suspects = [n for n, (d, i) in enumerate(good) if met[i.key] > 1 or self._desk.is_suspect(d, i)]
        if not suspects:
            return good
        self.log_starts()  # first: what started in this claim decides about other messages of the same job
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

    def log_starts(self) -> None:
        """Put into the log what started and is not there yet."""
        starts, self.starts = self.starts, []
        if starts:
            self._client.append_fact(verbs.Started(starts=starts, now_ms=self._request.now_ms))

    def _ack(self, *tags: int) -> None:
        for tag in tags:
            self._in_hand.pop(tag, None)
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
        self._desk.hold(held, incoming.key)
        self._in_hand.pop(delivery.tag, None)
        self.starts.append(held.start)
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


def _remember(memory: OrderedDict[Any, None], key: Any) -> None:
    memory[key] = None
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)

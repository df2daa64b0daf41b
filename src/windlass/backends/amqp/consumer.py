"""The jobs that one connection holds: claim, settle, extend and reconcile.

``picker`` chooses the messages of a claim, ``intake`` receives messages that the broker pushes.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import direct_replies, verbs
from windlass.backends.amqp.client import AmqpClient, NoAnswerError
from windlass.backends.amqp.intake import UNCLAIMED_TIMEOUT_S, Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import Incoming
from windlass.backends.amqp.offers import OfferedSlot, Offers, OfferTimeouts
from windlass.backends.amqp.picker import Held, Picker
from windlass.backends.amqp.report import Metrics
from windlass.backends.amqp.start_log import StartLog
from windlass.backends.amqp.timing import says_time
from windlass.core.clock import moment
from windlass.core.ids import new_id
from windlass.core.job import Completed
from windlass.core.outcome import Extended, Outcome, Settled, Settlement
from windlass.core.paths import took
from windlass.core.probe import reach
from windlass.errors import StorageError
from windlass.speedups.amqp_frames import Delivery

log = logging.getLogger("windlass.amqp")

#: How often we check for long-running jobs within the time that the broker lets us hold a message.
_CHECKS = 4
#: How long a renewal waits for its answer at most; a sixth of the lease if that is shorter. A lease is
#: renewed after a third of its time, so the next renewal can be late as well before the handler is stopped.
_MOST_RENEWING_S = 10.0
#: Most jobs of a claim that is answered from prefetched messages on the thread of the worker.
_MOST_PREFETCHED = 16
#: How many messages and tokens are remembered to recognise repeats.
_REMEMBERED = 20_000


class Consumer:
    """The jobs that one connection holds."""

    def __init__(
        self, client: AmqpClient, offers: Offers, hold_s: float, left: dict[str, Held] | None = None
    ) -> None:
        self._client = client
        #: Attempts that started on an earlier connection of this process and still run (see ``_rejoin``).
        self._carried_over = left or {}
        self._rejoined: IoFuture[None] | None = None
        #: How long the broker lets us hold a message, and the tokens that were held at the last check.
        self._hold_s = hold_s
        self._held_at_check: set[str] = set()
        client.call_later(hold_s / _CHECKS, self._check_long_jobs)
        self._offers = offers
        self._offer_timeouts = OfferTimeouts(client.call_later, UNCLAIMED_TIMEOUT_S)
        self._held: dict[str, Held] = {}
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str, int], None] = OrderedDict()
        for held in self._carried_over.values():
            _remember(self._seen, held.start.key)
        self._metrics = Metrics(client)
        self.intake = Intake(client)
        self.intake.offer = self._offer
        self.intake.free_slots = offers.free_slots
        self.starts = StartLog(client, self.intake.lock)

    # --- claim -------------------------------------------------------------------------------------------

    async def claim(self, request: rq.Claim, sent_ms: float) -> rq.Claimed:
        client = self._client
        await client.load_rules()
        await self._rejoin()
        names = [item.name for item in request.queues]
        self.intake.begin_claim(names)
        try:
            return await self._claim(request, names, sent_ms)
        finally:
            self.intake.end_claim(names)

    async def _claim(self, request: rq.Claim, names: list[str], sent_ms: float) -> rq.Claimed:
        client = self._client
        await client.need_queues(names)
        next_due_in_ms = await self._promote(request, names)
        picker = Picker(self, request)
        try:
            await picker.run()
        except BaseException:
            picker.give_up()
            raise
        self.starts.add(picker.take_starts(), request.now_ms)
        self._offers.claimed(request, len(picker.jobs))
        if len(picker.jobs) < request.limit:
            self.intake.on_short_claim(names)
        for name, count in picker.taken.items():
            if name not in picker.empty:
                self.intake.on_full_claim(name, count)
        return rq.Claimed(picker.jobs, picker.now_ms, next_due_in_ms, picker.held_ms(sent_ms))

    def claim_prefetched(self, request: rq.Claim) -> rq.Claimed | None:
        """Answer a claim from prefetched messages, on the thread of the caller.

        None when the connection's thread must answer: too few messages are here, one of them must be
        verified, or the claim is for several queues. That thread also answers claims that carry a time,
        because their starts must be logged before the answer, and claims for many jobs, where the exchange
        with the thread costs little per job.
        """
        client = self._client
        if len(request.queues) != 1 or says_time(request):
            return None
        (item,) = request.queues
        queue, wanted = item.name, min(item.cap, request.limit)
        due_in_ms = self._due_in_ms(request, [queue])
        if (
            not 0 < wanted <= _MOST_PREFETCHED
            or queue in client.paused
            or (due_in_ms is not None and due_in_ms <= 0)
        ):
            return None
        with self.intake.lock:
            found = self.intake.peek(queue, wanted) if client.usable else []
            picker = Picker(self, request)
            if not picker.start_plain(queue, found):
                return None
            self.intake.take(queue, wanted)
            self.starts.add_deferred(picker.take_starts())
        took("amqp.prefetched")
        self._offers.claimed(request, wanted)
        return rq.Claimed(picker.jobs, picker.now_ms, due_in_ms)

    def _offer(self, queue: str, delivery: Delivery) -> bool:
        """Offer the job of a message to an idle worker. False when no worker can start it now."""
        worker = self._offers.find(queue)
        if worker is None or queue in self._client.paused:
            return False
        claim = rq.Claim(
            worker=worker.worker, queues=[], limit=1, claim_id=new_id(), lease_ms=worker.lease_ms
        )
        picker = Picker(self, claim)
        due_ms = self._client.due.get(queue)
        if due_ms is not None and due_ms <= picker.now_ms:
            return False
        incoming = picker.read_plain(queue, delivery)
        if incoming is None:
            return False
        key = incoming.key
        held, open_offer = picker.lease(delivery, incoming), self.intake.begin_offer(queue)
        held.slot = OfferedSlot(worker)

        def answered(began: bool) -> None:
            self._client.call_soon_threadsafe(
                lambda: self._offer_answered(delivery, held, key, open_offer, began=began)
            )

        self._offer_timeouts.add(worker.offer(incoming.job, answered))
        return True

    def _offer_answered(
        self,
        delivery: Delivery,
        held: Held,
        key: tuple[str, str, int],
        open_offer: IoFuture[None],
        *,
        began: bool,
    ) -> None:
        """Handle the answer to an offer: if the worker ``began`` the job, log its start."""
        if began and self._client.usable:
            took("amqp.offered")
            self.hold(held, key)
            self.starts.add_deferred([held.start])
            if key in self._client.void:  # it became void during the offer
                self.mark_lost([held.start.token])
        queue = held.start.queue
        more = self._offers.find(queue) is not None
        self.intake.end_offer(queue, delivery, open_offer, began=began, more=more)

    async def _promote(self, request: rq.Claim, names: list[str]) -> int | None:
        """Have due jobs promoted; returns the ms until the next job is due.

        Normally the coordinator has promoted them by itself, and this sends no request.
        """
        due_in_ms = self._due_in_ms(request, names)
        if due_in_ms is None or due_in_ms > 0:
            return due_in_ms
        answer: int | None = await self._client.ask(verbs.PromoteFor(queues=names, now_ms=request.now_ms))
        return answer

    def _due_in_ms(self, request: rq.Claim, names: list[str]) -> int | None:
        """The ms until the first job of some queues is due; 0 or less when it should be promoted."""
        due = self._client.due
        first_ms = min((ms for name in names if (ms := due.get(name)) is not None), default=None)
        return None if first_ms is None else first_ms - self.now_ms(request)

    def now_ms(self, request: rq.Request[Any]) -> int:
        """The time that ``request`` carries, or else the present time."""
        return moment(request.now_ms, self._client.clock.now_ms)

    def listens(self, queue: str) -> bool:
        """Whether this connection notices a new message of ``queue`` without a hint of the coordinator."""
        return self.intake.listens(queue)

    def is_suspect(self, delivery: Delivery, incoming: Incoming) -> bool:
        """Whether the coordinator must verify a message before its job starts."""
        key = incoming.key
        return delivery.redelivered or incoming.again or key in self._client.void or key in self._seen

    def hold(self, held: Held, key: tuple[str, str, int]) -> None:
        self._held[held.start.token] = held
        _remember(self._seen, key)

    @property
    def client(self) -> AmqpClient:
        return self._client

    def flush_starts(self) -> None:
        self.starts.flush()

    # --- settle ------------------------------------------------------------------------------------------

    async def settle(self, request: rq.Settle, sent_ms: float) -> rq.SettleResult:
        items, claim, now_ms = request.items, request.claim, self.now_ms(request)
        if claim is not None:
            claim.now_ms = request.now_ms
        quick = len({end.token for end in items}) == len(items)  # the coordinator handles repeats
        if not quick or not all(
            end.outcome is Outcome.COMPLETE and self._surely_holds(end, now_ms) for end in items
        ):
            answers = await self._close(request)
            return rq.SettleResult(answers, None if claim is None else await self.claim(claim, sent_ms))
        # The slots are free already: claim the next jobs while the broker confirms the settlement.
        coming = None if claim is None else spawn(self.claim(claim, sent_ms))
        answers = await self._complete(request) if items else []
        return rq.SettleResult(answers, None if coming is None else await coming)

    async def _complete(self, request: rq.Settle) -> list[Settled]:
        """Settle completed attempts without the coordinator: log them, then acknowledge their messages."""
        took("amqp.complete")
        items, client = request.items, self._client
        held = [self._held[end.token] for end in items]
        starts = [one.start for one in held]
        ending = {end.token for end in items}
        taken = self.starts.take(request.now_ms)
        began = [start for start in taken if start.token not in ending]
        logged = client.append_fact(
            verbs.Ended(items=items, starts=starts, began=began, now_ms=request.now_ms)
        )
        self._metrics.add(items, starts, self.now_ms(request))
        self.starts.begin_settling()
        try:
            await logged
        except StorageError:
            if taken and client.usable:  # otherwise the next connection reports these starts
                self.starts.add_deferred(taken, request.now_ms)
            raise
        finally:
            self.starts.end_settling()
        reach("amqp.ended", count=len(items))
        self._reply_to_waiters(request, held)
        client.ack(one.tag for one in held)
        for end in items:
            self._forget(end.token)
        return [Settled.OK] * len(items)

    def _reply_to_waiters(self, request: rq.Settle, held: list[Held]) -> None:
        """Send results, which the broker has confirmed, to the clients that wait for them."""
        now_ms, replies = self.now_ms(request), list[tuple[str, str, Completed]]()
        for end, one in zip(request.items, held, strict=True):
            if one.reply and len(end.result or b"") <= direct_replies.MOST_RESULT:
                start = one.start
                ended = Completed(end.id, end.result, start.at_ms, now_ms, start.worker)
                replies.append((one.reply, end.queue, ended))
        if replies:
            took("amqp.direct_reply")
            self._client.send(direct_replies.messages(replies))

    async def _close(self, request: rq.Settle) -> list[Settled]:
        """Settle attempts through the coordinator.

        The broker has confirmed the consequences before a message is acknowledged.
        """
        self.starts.flush()  # a start must be in the log before its end
        items, client = request.items, self._client
        held = [self._holding(end) for end in items]
        known = [one or self._carried_over.get(end.token) for one, end in zip(held, items, strict=True)]
        starts = [one.whole_start() for one in known if one is not None]
        closing = await client.ask(verbs.Close(items=items, starts=starts, now_ms=request.now_ms))
        reach("amqp.closed", count=len(items))
        done: list[int] = []
        back: list[int] = []
        settled: list[tuple[Settlement, verbs.Start]] = []
        for end, one, again, status in zip(items, held, closing.requeue, closing.items, strict=True):
            self._carried_over.pop(end.token, None)
            if one is None or self._held.get(end.token) is not one:
                continue
            (back if again else done).append(one.tag)
            self._forget(end.token)
            if status is Settled.OK:
                settled.append((end, one.start))
        client.ack(done)
        client.requeue(back)
        if settled:
            ends, begun = [end for end, _ in settled], [start for _, start in settled]
            self._metrics.add(ends, begun, self.now_ms(request))
        return list(closing.items)

    def _holding(self, end: Settlement) -> Held | None:
        """The held message of the attempt that ``end`` settles, or None."""
        held = self._held.get(end.token)
        return held if held is not None and (held.start.queue, held.start.id) == (end.queue, end.id) else None

    def _surely_holds(self, end: Settlement, now_ms: int) -> bool:
        """Whether no other worker can have the job of the attempt that ``end`` settles."""
        held = self._holding(end)
        return held is not None and not held.lost and now_ms < held.until_ms

    def mark_lost(self, tokens: list[str]) -> None:
        """Note that the coordinator has taken these attempts from their workers, and drop their messages."""
        here = [self._held[token] for token in tokens if token in self._held]
        for held in here:
            held.lost = True
        for token in tokens:
            self._carried_over.pop(token, None)
        if here and self._client.usable:
            spawn(self._drop_lost_messages(here))

    def mark_void_lost(self, keys: set[tuple[str, str, int]]) -> None:
        """Note that the jobs of these messages were cancelled, removed or changed while they waited.

        An attempt that started from such a message was not logged in time, so it does not count.
        """
        with self.intake.lock:
            tokens = [token for token, held in self._held.items() if held.start.key in keys]
        self.mark_lost(tokens)

    async def _drop_lost_messages(self, lost: list[Held]) -> None:
        """Drop the messages of lost attempts, which their workers will not settle.

        Otherwise the broker would redeliver them when the connection ends, or close the connection because
        they are held for too long.
        """
        starts = [msgspec.structs.replace(held.start, again=True, body=None, header=None) for held in lost]
        try:
            answers = await self._client.ask(verbs.Doubt(starts=starts))
        except StorageError as exc:
            log.warning("messages of lost attempts could not be dropped, trying again: %s", exc)
            return
        done = [held.tag for held, job in zip(lost, answers, strict=True) if job is None]
        self._client.ack(done)
        self._client.requeue(held.tag for held in lost)  # the others: their jobs wait on these messages
        for held in lost:
            self._forget(held.start.token)
            self._client.void.discard(held.start.key)
        reach("amqp.dropped_lost", count=len(lost))

    def _forget(self, token: str) -> None:
        held = self._held.pop(token, None)
        if held is not None:
            self._seen.pop(held.start.key, None)
            if held.slot is not None:
                held.slot.release()
                self.intake.end_offered(held.start.queue, held.tag)
        _remember(self._settled, token)

    def prepare_close(self) -> None:
        """Publish the starts and metrics that are still pending, before the connection is closed."""
        self.starts.flush()
        self._metrics.flush()

    # --- reconnecting --------------------------------------------------------------------------------------

    def unsettled(self) -> dict[str, Held]:
        """Attempts that run here, started on this connection or on an earlier one, by token."""
        with self.intake.lock:
            return {
                **self._carried_over,
                **{token: held for token, held in self._held.items() if not held.lost},
            }

    async def _rejoin(self) -> None:
        """Report the attempts of an earlier connection that still run, once, before the first claim.

        The broker redelivers their messages. After the report the leases count instead, so that other workers
        drop these messages.
        """
        if not self._carried_over and self._rejoined is None:
            return
        if self._rejoined is None or self._rejoined.failed:
            self._rejoined = spawn(self._keep_carried_over())
        await self._rejoined

    async def _keep_carried_over(self) -> None:
        left = list(self._carried_over.values())
        starts = [held.whole_start() for held in left]
        kept = await self._client.ask(verbs.Lend(starts=starts, left=True))
        for held, safe in zip(left, kept, strict=True):
            held.kept_by_lease = safe
            if not safe:
                self._carried_over.pop(held.start.token, None)
        reach("amqp.rejoined", count=len(left))

    # --- leases ------------------------------------------------------------------------------------------

    def _check_long_jobs(self) -> None:
        """Hand over attempts that ran at the last check to their leases; drop the messages of lost ones."""
        client = self._client
        if client.closed:
            return
        with self.intake.lock:
            since = [held for token, held in self._held.items() if token in self._held_at_check]
            self._held_at_check = set(self._held)
        client.call_later(self._hold_s / _CHECKS, self._check_long_jobs)
        if not client.usable:
            return
        if long := [held for held in since if not held.kept_by_lease and not held.lost]:
            spawn(self._move_to_leases(long))
        if lost := [held for held in since if held.lost]:
            spawn(self._drop_lost_messages(lost))

    async def _move_to_leases(self, long: list[Held]) -> None:
        """Hand over long-running attempts to their leases, before the broker takes their messages back."""
        starts = [held.whole_start() for held in long]
        try:
            kept = await self._client.ask(verbs.Lend(starts=starts))
        except StorageError as exc:
            log.warning("long-running jobs could not be handed over to their leases, trying again: %s", exc)
            return
        moved = [held for held, safe in zip(long, kept, strict=True) if safe]
        for held in moved:
            held.kept_by_lease = True
        self._client.ack(held.tag for held in moved)
        reach("amqp.kept_by_lease", count=len(moved))

    async def extend(self, request: rq.Extend) -> list[Extended]:
        """Renew leases.

        The connection is the lease: a worker keeps its jobs until the coordinator takes them from it. The
        coordinator also knows which jobs were cancelled, but it may have forgotten a job, or there may be no
        coordinator just now. A renewal counts once it is in the log. So it does not wait long for an answer,
        because other leases are due meanwhile. A renewal that did not reach the log fails.
        """
        now_ms = self.now_ms(request)
        shortest_ms = min((lease.lease_ms for lease in request.leases), default=0)
        answer_s = min(shortest_ms / 6_000, _MOST_RENEWING_S)
        await self._client.within(2 * answer_s, spawn(self._rejoin()))
        try:
            answers = await self._client.ask(request, answer_s)
        except NoAnswerError:
            return [Extended.LOST if self._has_lost(lease) else Extended.OK for lease in request.leases]
        return [
            self._extended(lease, answer, now_ms)
            for lease, answer in zip(request.leases, answers, strict=True)
        ]

    def _has_lost(self, lease: rq.LeaseRef) -> bool:
        held = self._held.get(lease.token)
        return lease.token in self._settled if held is None else held.lost

    def _extended(self, lease: rq.LeaseRef, answer: Extended, now_ms: int) -> Extended:
        held = self._held.get(lease.token)
        if held is None or held.lost:
            return answer
        if answer is Extended.LOST:
            return Extended.OK
        held.until_ms = now_ms + lease.lease_ms
        return answer

    async def reconcile(self, request: rq.Reconcile) -> int:
        """Return the messages of jobs that the worker does not know of, as after a lost answer."""
        self.starts.flush()
        known = set(request.held)
        for token, held in list(self._carried_over.items()):
            if held.start.worker == request.worker and token not in known:
                del self._carried_over[token]
        with self.intake.lock:
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


def _remember(memory: OrderedDict[Any, None], key: Any) -> None:
    memory[key] = None
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)

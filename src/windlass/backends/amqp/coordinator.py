"""The coordinator: reads the log, decides, publishes the consequences, and answers requests.

There is one coordinator at a time: the client that declared the exclusive queue ``windlass.coordinator``
first, until its connection ends. It publishes only on that connection, so a client that has lost the queue
cannot act as the coordinator any more.

Taking over: the mark says up to which entry the log has been carried out. Earlier entries only restore the
state. Later entries are carried out, perhaps for the second time; generations show which messages are
repeats. Records that the log no longer has are read from ``windlass.kept``, which holds each scheduled,
retrying or dead job for as long as it is in that state.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from pika import BasicProperties

from windlass.backend import requests as rq
from windlass.backends.amqp import inbox, returned, verbs, wire
from windlass.backends.amqp.acks import StreamAcks
from windlass.backends.amqp.counts import Counts, counts_of, set_counts
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.kept import KeptRecords
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.messages import entry_message, to_message
from windlass.backends.amqp.names import Names
from windlass.backends.amqp.news import NewsWindow
from windlass.backends.amqp.placing import BrokerPlan
from windlass.backends.amqp.timing import EntryTime, OwnTime, is_later, says_time
from windlass.backends.amqp.unreadable import queue_of
from windlass.core import bad_records
from windlass.core.clock import SYSTEM_CLOCK, moment
from windlass.core.job import JobRecord
from windlass.core.probe import reach
from windlass.core.states import JobState
from windlass.errors import StorageError
from windlass.speedups import amqp_frames as frames
from windlass.speedups.amqp import Outgoing

if TYPE_CHECKING:
    from windlass.backends.amqp.client import AmqpClient

log = logging.getLogger("windlass.amqp")

_MARK_EVERY_S = 0.5
#: A large mark is written less often: once in ``_MARK_EVERY_S`` for each of this many bytes.
_MARK_BYTES = 50_000
_LOG_WINDOW = 500
#: How long small facts wait for others before they are applied, and the least time between two such batches.
_FACTS_S, _BATCHES_S = 0.002, 0.01
#: How large a small fact may be, in bytes.
_SMALL_FACT = 2_000
_DUE_STEP = 1_000
_NEWS = frames.properties(type="news")
_NO_NEWS, _NO_PLAN = verbs.News(), BrokerPlan()
_read_counts = msgspec.msgpack.Decoder(Counts).decode


class _PendingEntry:
    """A log entry whose effects are being published."""

    __slots__ = ("done", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.done = False


class Coordinator:
    """The coordinator of a namespace, on the session that holds its exclusive queue."""

    def __init__(self, session: AmqpClient) -> None:
        self._session = session
        self._names = session.names
        self.ledger = Ledger()
        self._time: OwnTime | EntryTime = OwnTime()
        #: Set when this coordinator has read the log up to its own ``TakeOver``.
        self.live: IoFuture[None] = IoFuture()
        #: When the first job of a queue is due, as it was last sent to the clients.
        self._due_sent: dict[str, int | None] = {}
        self._retired = False
        #: Identifies messages that we publish again after taking over (see ``messages.Carried``).
        self._copy = 1 + secrets.randbelow(2**32 - 1)
        self._mark = Counts()
        self._mark_pause_s = _MARK_EVERY_S
        #: Whether a mark must be written as soon as all effects are published.
        self._mark_overdue = False
        #: Not None while we stop. Set when all effects are published.
        self._stopping: IoFuture[None] | None = None
        self._counted = True
        self._work: deque[_PendingEntry] = deque()
        #: Set when the effects of the previous entry are sent: entries take turns.
        self._sent: IoFuture[None] = resolved(None)
        self._log_channel: Any = None
        #: Entries that were delivered and are not applied yet.
        self._unread: list[tuple[BasicProperties, bytes]] = []
        #: When the last batch of entries was applied, by the monotonic clock.
        self._last_batch_ms = 0.0
        self._last_offset = -1
        #: The first entry up to the offset of the mark that is later than the mark (see ``_lower_mark``).
        self._later: int | None = None
        self._timer: Any = None
        self._mark_timer: Any = None
        self._acks = StreamAcks(session.call_later)
        self._news_window = NewsWindow(session.call_later)
        self._news_window.send = self._send_news
        self._streams = inbox.ForeignStreams(session, self)
        self._returned = returned.ReturnedJobs(session)
        self._kept = KeptRecords(session, self.ledger, self._set_aside)
        self._kept.on_late = self._plan_timer

    # --- taking over -------------------------------------------------------------------------------------

    async def take_over(self) -> None:
        """Restore the state from the mark, the kept records and the log. Returns when the end of the log is
        reached."""
        session = self._session
        await self._read_mark()
        await self._kept.open()
        self._log_channel = channel = await session.open_channel()
        await session.call(channel.basic_qos, prefetch_count=_LOG_WINDOW)
        taken = verbs.TakeOver(holder=session.inbox)
        await session.publish([wire.log_entry(self._names.log, taken, self._time.now_ms())])
        session.consume(channel, self._names.log, self._on_log, arguments={"x-stream-offset": "first"})
        await session.expect(self.live)
        await self._streams.start()
        await self._returned.start()

    async def _read_mark(self) -> None:
        channel = await self._session.open_channel()
        answer = await self._session.get_one(channel, self._names.mark)
        mark = None if answer is None else bad_records.read_or_none(answer.body, _read_counts, "the mark")
        if mark is not None:  # without a mark, the whole log is carried out again
            self._mark = mark
            self._counted = False
        channel.close()  # returns the message to its queue

    def _set_aside(self, where: str, body: bytes, why: Exception) -> IoFuture[None] | None:
        """Have an entry that cannot be read put into the dead set with its bytes, through the log."""
        problem = f"an entry of {where}: {why}"
        return self.append(verbs.Poison(queue=queue_of(body), body=body, problem=problem))

    # --- the log -----------------------------------------------------------------------------------------

    def _on_log(self, channel: Any, method: Any, properties: BasicProperties, body: bytes) -> None:
        if self._stopping is not None:
            return  # the next coordinator reads it
        self._acks.add(channel, method.delivery_tag)
        self._unread.append((properties, body))
        if properties.reply_to or len(body) > _SMALL_FACT or not self.live.done:
            self._read_all()
        elif len(self._unread) == 1:
            since_s = (SYSTEM_CLOCK.monotonic_ms() - self._last_batch_ms) / 1_000
            self._session.call_later(max(_FACTS_S, _BATCHES_S - since_s), self._read_all)

    def _read_all(self) -> None:
        """Apply the entries that were delivered.

        Small facts wait a moment (see ``_on_log``), so that messages of jobs and settlements on the same
        connection go first. Large facts are applied at once, while their jobs run. The hints of a batch share
        a notification.
        """
        unread, self._unread = self._unread, []
        self._news_window.begin_batch()
        for properties, body in unread if self._session.usable else ():
            offset = int((properties.headers or {})["x-stream-offset"])
            if offset > self._mark.offset:
                self._reach_mark()
            self._last_offset = offset  # first: the entry may cause a mark
            self._read(offset, properties, body)
        self._news_window.end_batch()
        self._last_batch_ms = SYSTEM_CLOCK.monotonic_ms()

    def _reach_mark(self) -> None:
        if not self._counted:
            self._counted = True
            set_counts(self.ledger, self._mark)
            self._kept.adopt(self._mark.gen)
            self._time.resume(self._mark)

    def _go_live(self) -> None:
        self._reach_mark()
        self._kept.adopt(None)
        self._kept.live = True
        self.live.set(None)
        self._mark_replayed_work()
        self._plan_timer()
        log.info("this process is now the coordinator of %s", self._names.log)

    def _mark_replayed_work(self) -> None:
        """Write a mark as soon as possible, so that the next coordinator does not repeat this work."""
        if self._work:
            self._mark_overdue = True
        elif self._mark_timer is not None:
            self._session.cancel_timer(self._mark_timer)
            self._write_mark()

    def _read(self, offset: int, properties: BasicProperties, body: bytes) -> None:
        try:
            entry = wire.read_entry(body)
            request = verbs.decode_request(entry.name, entry.request)
        except bad_records.UNREADABLE as exc:
            if offset > self._mark.offset:
                self._set_aside(self._names.log, body, exc)
            return
        now_ms = self._now_ms(offset, request, entry)
        if isinstance(request, verbs.TakeOver):
            self._taken_over(request.holder, now_ms, offset)
            return
        again = offset <= self._mark.offset
        try:
            answer, topics = self.ledger.apply(request, now_ms)
        except Exception as exc:
            if not again:
                if not properties.reply_to or not isinstance(exc, StorageError | ValueError):
                    log.exception("a request failed in the coordinator")
                self._answer(properties, wire.error_reply(properties, exc))
            return
        plan = self.ledger.plan()
        if not self.live.done:
            for ref, gen in plan.drop:
                self._kept.withdraw(ref, gen, now_ms)
        if again:
            return
        work = _PendingEntry(offset)
        self._work.append(work)
        back = wire.reply(properties, answer) if properties.reply_to else None
        news = self._news_window.pass_on(request, self._news(request, plan, topics))
        if news is None and back is None and plan == _NO_PLAN:  # most facts: nothing to publish
            reach("amqp.carried_out", published=0, kept=0)
            self._done(work)
            return
        carried = spawn(self._carry_out(plan, news, back))
        carried.then(lambda: self._carried_out(work, carried))
        if plan.keep or isinstance(request, rq.Promote):
            self._plan_timer()

    def _now_ms(self, offset: int, request: rq.Request[Any], entry: wire.LogEntry) -> int:
        """The time at which an entry counts. A request that carries a time also sets the clock."""
        if says_time(request):
            self._time = EntryTime(moment(request.now_ms, self._time.now_ms))
        last_ms = self._time.last_ms
        if offset <= self._mark.offset:
            now_ms = self._time.replayed(offset, entry.at_ms, self._mark)
            if self._later is None and is_later(offset, entry.at_ms, self._mark):
                self._later = offset
        else:
            now_ms = self._time.of(offset, entry.at_ms, live=self.live.done)
        if last_ms is not None and now_ms < last_ms:
            self.ledger.set_back(last_ms, now_ms)
        return now_ms

    def _taken_over(self, holder: str, now_ms: int, offset: int) -> None:
        """Restart all leases, which could not be renewed while there was no coordinator.

        Every coordinator that reads the log does this at the same entry.
        """
        self.ledger.trust_leases(now_ms)
        if holder != self._session.inbox or self.live.done:
            return
        if offset > self._mark.offset:
            self._go_live()
        else:
            self._lower_mark(offset if self._later is None else self._later)

    def _lower_mark(self, first: int) -> None:
        """Take over again, with the entries from ``first`` on as new ones.

        We have just written our entry, but its offset is not above that of the mark. So the stream was
        deleted and declared again, or it lost its end in a power failure: a broker does not flush each entry.
        What is later than the mark was not carried out. The rest of the mark is valid.
        """
        log.warning("%s was replaced or lost its end; the entries from %d on are new", self._names.log, first)
        body = verbs.encode(msgspec.structs.replace(self._mark, offset=first - 1))
        written = self._session.publish([Outgoing("", self._names.mark, body)])
        written.then(self._session.reconnect)

    def _news(self, request: rq.Request[Any], plan: BrokerPlan, topics: set[str]) -> verbs.News | None:
        arrived = {job.queue for job, _ in plan.publish}
        if isinstance(request, verbs.Born):
            arrived.update(new.queue for new in request.add.jobs)
        timed = {job.queue for job, _ in plan.keep}
        topics -= {f"ready:{queue}" for queue in arrived - timed}
        news = verbs.News(
            topics=sorted(topics),
            arrived=sorted(arrived),
            void=plan.void,
            doubled=plan.doubled,
            lost=plan.lost,
            due=self._due_changed(timed | {ref.queue for ref, _ in plan.drop}),
        )
        if isinstance(request, verbs.Ended):
            news.told = _ended_ids(request)
        elif isinstance(request, rq.PauseQueue):
            (news.paused if request.paused else news.resumed).append(request.queue)
        elif isinstance(request, rq.Purge) and request.forget:
            news.resumed.append(request.queue)
        return news if news != _NO_NEWS else None

    def _send_news(self, news: verbs.News) -> None:
        """Send a delayed notification."""
        if self._session.usable and not self._retired:
            self._session.send([self._news_message(news)])

    def _news_message(self, news: verbs.News) -> Outgoing:
        return Outgoing(self._names.news, "", verbs.encode(news), _NEWS, mandatory=False)

    def _due_changed(self, queues: set[str]) -> dict[str, int | None]:
        """When the first job of each queue is due, for queues where that differs from what was last sent."""
        due = {queue: self.ledger.due_ms(queue) for queue in queues}
        changed = {queue: due_ms for queue, due_ms in due.items() if self._due_sent.get(queue) != due_ms}
        self._due_sent.update(changed)
        return changed

    async def _carry_out(self, plan: BrokerPlan, news: verbs.News | None, back: Outgoing | None) -> None:
        """Publish the messages of ``plan``, then drop records that are no longer needed, and reply."""
        session, names = self._session, self._names
        out: list[Outgoing] = []
        copy = 0 if self.live.done else self._copy  # the previous coordinator may have published it
        # Encode everything before the first await: the jobs keep changing meanwhile.
        for job, gen in plan.publish:
            body, properties = to_message(job, gen, copy=copy)
            out.append(Outgoing(names.direct, job.queue, body, properties))
        for job, gen in plan.keep:
            out.append(wire.kept_record(names.kept, job, gen))
            out += _copies(names, job, self._time.now_ms())
        at_once = None if news is None else msgspec.structs.replace(news, lost=[])
        if at_once is not None and at_once != _NO_NEWS:
            out.append(self._news_message(at_once))
        before, self._sent = self._sent, IoFuture()
        sent = self._sent
        try:
            await before
            await session.need_queues(list({job.queue for job, _ in plan.publish}))
            promise = session.publish(out)
        finally:
            sent.set(None)
        if plan.publish or plan.keep or plan.void or (news is not None and (news.paused or news.resumed)):
            await session.until_confirmed(promise)
        if plan.lost:  # last: a worker that gets it drops the message that was replaced
            await session.until_confirmed(session.publish([self._news_message(verbs.News(lost=plan.lost))]))
        reach("amqp.carried_out", published=len(plan.publish), kept=len(plan.keep))
        for ref, gen in plan.drop:
            self._kept.drop(ref, gen)
        if back is not None:
            session.publish([back])

    def _answer(self, properties: BasicProperties, back: Outgoing) -> None:
        if properties.reply_to:
            self._session.publish([back])

    def _carried_out(self, work: _PendingEntry, carried: IoFuture[None]) -> None:
        try:
            carried.result()
        except Exception as exc:
            if self._session.usable:
                log.warning("could not carry out an entry of the log, reconnecting: %s", exc)
            self._session.reconnect()
            return
        self._done(work)

    def _done(self, work: _PendingEntry) -> None:
        """Note that the effects of an entry are published, and have the mark written."""
        work.done = True
        moved = False
        while self._work and self._work[0].done:
            self._work.popleft()
            moved = True
        if self._stopping is not None and not self._work:
            self._mark_overdue = True
            self._stopping.set(None)
        elif self._mark_overdue and not self._work:
            self._write_mark()
        elif moved and self._mark_timer is None and not self._mark_overdue and not self._session.closed:
            self._mark_timer = self._session.call_later(self._mark_pause_s, self._write_mark)

    async def retire(self) -> None:
        """Stop reading. No other client can take over until the connection ends."""
        self._read_all()
        self._retired = self._kept.retired = True
        for channel in (self._log_channel, self._kept.channel, self._streams.channel, self._returned.channel):
            if channel is not None and channel.is_open:
                closed: IoFuture[Any] = IoFuture()
                channel.add_on_close_callback(lambda _, reason, closed=closed: closed.set(reason))
                channel.close()
                await self._session.expect(closed)

    async def prepare_close(self) -> None:
        """Stop reading, finish the entries that are being carried out, and write the mark.

        The next coordinator then repeats nothing.
        """
        if not self.live.done or self._retired or self._stopping is not None:
            return
        self._read_all()
        self._stopping = IoFuture()
        self._news_window.flush()
        if self._work:
            await self._session.expect(self._stopping)
        written = self._write_mark() if self._mark_timer is not None or self._mark_overdue else None
        if written is not None:
            await written

    def _write_mark(self) -> IoFuture[None] | None:
        """Write how far the log is carried out.

        Not while effects are being published: the counters of the mark must match its offset.
        """
        self._mark_timer = None
        if self._retired or not self._session.usable:
            return None
        self._mark_overdue = bool(self._work)
        if self._mark_overdue:
            return None
        body = verbs.encode(counts_of(self.ledger, self._last_offset, self._time))
        self._mark_pause_s = _MARK_EVERY_S * max(1.0, len(body) / _MARK_BYTES)
        written = self._session.publish([Outgoing("", self._names.mark, body)])
        written.then(lambda: reach("amqp.marked"))
        return written

    # --- time --------------------------------------------------------------------------------------------

    def _plan_timer(self) -> None:
        """Set the timer to the time at which the next job is due."""
        if not self.live.done or not self._session.usable:
            return
        alarm_s = self._time.alarm_s(self.ledger.next_due_in(self._time.now_ms()))
        if self._timer is not None:
            self._session.cancel_timer(self._timer)
            self._timer = None
        if alarm_s is not None:
            self._timer = self._session.call_later(alarm_s, self._promote)

    def _promote(self) -> None:
        self._timer = None
        self.append(rq.Promote(limit=_DUE_STEP))

    def append(self, request: rq.Request[Any]) -> IoFuture[None] | None:
        """Append an entry to the log. It is carried out when we read it. None if the connection is lost."""
        if not self._session.usable:
            return None
        return self._session.publish([wire.log_entry(self._names.log, request, self._time.now_ms())])

    def beat(self, request: rq.Beat) -> None:
        """Note the heartbeat of a worker in another language."""
        _, topics = self.ledger.apply(request, self._time.now_ms())
        del topics

    def now_ms(self) -> int:
        """The coordinator's time, which is the store's."""
        return self._time.now_ms()


def _ended_ids(request: verbs.Ended) -> dict[str, list[str]]:
    """The ids of the ended jobs of each queue for which direct replies were sent for all of them."""
    ends: dict[str, list[str]] = {}
    for end in request.items:
        ends.setdefault(end.queue, []).append(end.id)
    for start in request.starts:
        if not start.told:
            ends.pop(start.queue, None)
    return ends


def _copies(names: Names, job: JobRecord, now_ms: int) -> list[Outgoing]:
    """The copy of a job for the public stream of its state, if there is one. We skip it when we read that."""
    found = entry_message(job, now_ms)
    if found is None:
        return []
    kind, body = found
    if kind == "dead_job":
        return [Outgoing(names.dead, "", body, wire.COPIED)]
    key = names.retries if job.state is JobState.RETRYING else names.scheduled_jobs
    return [Outgoing("", key, body, wire.COPIED)]

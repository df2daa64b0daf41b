"""The records of ``windlass.kept``, which the coordinator holds.

There is one for each job that is scheduled, retrying or dead, or whose run is kept by its lease alone. The
coordinator leaves the message unacknowledged for as long as it is needed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windlass.backends.amqp import wire
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.names import QUORUM
from windlass.core import bad_records
from windlass.core.job import JobRef
from windlass.core.probe import reach

if TYPE_CHECKING:
    from windlass.backends.amqp.client import AmqpClient
    from windlass.backends.amqp.ledger import Ledger

log = logging.getLogger("windlass.amqp")

#: How many records that were dropped before their messages arrived are remembered.
_REMEMBERED = 1_000_000
#: A coordinator that takes over stops waiting when no record came for this long.
_QUIET_S = 5.0

#: Puts an unreadable entry into the dead set, through the log. None when the connection is lost.
SetAside = Callable[[str, bytes, Exception], IoFuture[None] | None]


class KeptRecords:
    """Reads ``windlass.kept``, and acknowledges each record when it is no longer needed."""

    def __init__(self, session: AmqpClient, ledger: Ledger, set_aside: SetAside) -> None:
        self._session = session
        self._names = session.names
        self._ledger = ledger
        self._set_aside = set_aside
        self.channel: Any = None
        #: Whether the coordinator has read the whole log.
        self.live = False
        #: Called when a record arrives only after that.
        self.on_late: Callable[[], None] = lambda: None
        #: Whether the coordinator has stopped reading.
        self.retired = False
        #: The delivery tags of records, by job and generation.
        self._tags: dict[tuple[JobRef, int], int] = {}
        #: Records that were dropped before their messages arrived.
        self._dropped_early: OrderedDict[tuple[JobRef, int], None] = OrderedDict()
        #: Records that were read before the log, with their delivery tags; their jobs; and those of these
        #: jobs that the log then moves to a state in which no record is kept, with the time of that.
        self._loading: list[tuple[wire.KeptRecord, int]] = []
        self._loaded_jobs: set[JobRef] = set()
        self._withdrawn: dict[JobRef, int] = {}
        #: Whether records may still arrive after all were read. A quorum queue may return messages of the
        #: last coordinator after it has delivered the others.
        self._may_be_late = session.names.queue_type == QUORUM

    async def open(self) -> None:
        """Read all records that the broker counts. Records that come too late are added when they arrive."""
        session = self._session
        channel = self.channel = await session.open_channel(self._on_channel_closed)
        answer = await session.call(channel.queue_declare, self._names.kept, passive=True)
        count = answer.method.message_count
        loaded: IoFuture[None] = IoFuture()
        seen = 0

        def on_kept(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
            nonlocal seen
            seen += 1
            self._on_record(channel, method.delivery_tag, body)
            if seen >= count:
                loaded.set(None)

        def check(before: int) -> None:
            if loaded.done:
                return
            if seen > before:
                session.call_later(_QUIET_S, lambda before=seen: check(before))
                return
            log.warning("only %s of %s kept records came, continuing without the others", seen, count)
            self._may_be_late = True
            loaded.set(None)

        session.consume(channel, self._names.kept, on_kept)
        if count:
            session.call_later(_QUIET_S, lambda: check(0))
            await session.expect(loaded)
        reach("amqp.kept_read", count=count)

    def _on_record(self, channel: Any, tag: int, body: bytes) -> None:
        try:
            record = wire.read_kept(body)
        except bad_records.UNREADABLE as exc:
            spawn(self._bury(channel, tag, body, exc))
        else:
            if self.live:
                self._hold(record, tag)
            else:
                self._loading.append((record, tag))
                self._loaded_jobs.add(record.job.ref)

    async def _bury(self, channel: Any, tag: int, body: bytes, why: Exception) -> None:
        """Put a record that cannot be read into the dead set, then acknowledge it."""
        recorded = self._set_aside(self._names.kept, body, why)
        if recorded is None:
            return
        await recorded
        if channel is self.channel and channel.is_open:
            channel.basic_ack(tag)

    def _on_channel_closed(self, reason: Exception) -> None:
        """Read all records again on a new channel: the broker closes one that holds messages too long."""
        if self.retired or not self._session.usable or not self.live:
            return
        log.info("reading the kept records again: %s", reason)
        self._tags.clear()
        spawn(self.open())

    def adopt(self, upto: int | None) -> None:
        """Add the loaded records up to a generation to the ledger; None means all."""
        left = []
        for record, tag in self._loading:
            if upto is not None and record.gen > upto:
                left.append((record, tag))
            elif not self._is_outdated(record) and self._ledger.adopt(record.job, record.gen):
                self._hold(record, tag)
            else:
                self.channel.basic_ack(tag)
        self._loading = left
        if upto is None:
            self._loaded_jobs, self._withdrawn = set(), {}

    def _hold(self, record: wire.KeptRecord, tag: int) -> None:
        key = (record.job.ref, record.gen)
        gone = self._dropped_early.pop(key, True) is None
        unknown = self.live and not gone and record.job.ref not in self._ledger.placed
        if unknown and self._may_be_late:
            self._ledger.adopt(record.job, record.gen)
            self.on_late()
        placed = self._ledger.placed.get(record.job.ref)
        needed = placed is not None and placed.where == "kept" and placed.gen == record.gen
        if not needed or key in self._tags:
            self.channel.basic_ack(tag)
        else:
            self._tags[key] = tag

    def withdraw(self, ref: JobRef, gen: int, now_ms: int) -> None:
        """Note, while we read the log, that a record is no longer needed from ``now_ms`` on.

        An earlier coordinator may have acknowledged it. But a broker that is killed forgets its newest
        acknowledgements, and the record is in its queue again. It must not bring back a job that was
        cancelled, removed or has ended.
        """
        if ref in self._loaded_jobs:
            self._withdrawn[ref] = now_ms
        if self._may_be_late:
            self._note_dropped(ref, gen)

    def _is_outdated(self, record: wire.KeptRecord) -> bool:
        """Whether the log has a later state of the job, in which no record is kept.

        Not if the record is of a later run, or of a job that was added later: the log lost its end in a power
        failure.
        """
        kept, known = record.job, self._ledger.find(record.job.ref)
        placed, withdrawn_ms = self._ledger.placed.get(kept.ref), self._withdrawn.get(kept.ref)
        if withdrawn_ms is None or kept.enqueued_ms > withdrawn_ms:
            return False
        later = known is not None and (
            (kept.enqueued_ms, kept.deliveries) > (known.enqueued_ms, known.deliveries)
        )
        return not later and (placed is None or placed.where == "queue")

    def drop(self, ref: JobRef, gen: int) -> None:
        """Acknowledge a record that is no longer needed."""
        tag = self._tags.pop((ref, gen), None)
        if tag is not None:
            self.channel.basic_ack(tag)
        else:
            self._note_dropped(ref, gen)  # its message has not arrived yet

    def _note_dropped(self, ref: JobRef, gen: int) -> None:
        self._dropped_early[ref, gen] = None
        if len(self._dropped_early) > _REMEMBERED:
            self._dropped_early.popitem(last=False)

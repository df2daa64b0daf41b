"""The records of ``windlass.kept`` in the hands of the coordinator.

There is one for each job that is scheduled, retrying or dead, or that runs for long. Its message stays
unacknowledged for as long as it is needed.
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

#: Most dropped records whose messages are still to come.
_REMEMBERED = 1_000_000
#: A take-over continues when no record came for this long, whatever the broker had counted.
_QUIET_S = 5.0

#: Records an entry that cannot be read in the log; None when that is not possible any more.
SetAside = Callable[[str, bytes, Exception], IoFuture[None] | None]


class KeptRecords:
    """Reads ``windlass.kept``, and acknowledges each record when it has served."""

    def __init__(self, session: AmqpClient, ledger: Ledger, set_aside: SetAside) -> None:
        self._session = session
        self._names = session.names
        self._ledger = ledger
        self._set_aside = set_aside
        self.channel: Any = None
        #: Whether the coordinator has read all of the log; called when a record came only after that.
        self.live = False
        self.on_late: Callable[[], None] = lambda: None
        #: Set when the coordinator reads nothing more.
        self.retired = False
        #: Tags of records by job and generation.
        self._tags: dict[tuple[JobRef, int], int] = {}
        #: Records that were dropped before their messages came to us.
        self._dropped_early: OrderedDict[tuple[JobRef, int], None] = OrderedDict()
        self._loading: list[tuple[wire.KeptRecord, int]] = []
        #: Whether records of jobs may come when all should have been read. A quorum queue may give back what
        #: the last coordinator held after we have read the others.
        self._may_be_late = session.names.queue_type == QUORUM

    async def open(self) -> None:
        """Read every record. Those that come too late are taken in when they come."""
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

    async def _bury(self, channel: Any, tag: int, body: bytes, why: Exception) -> None:
        """Set a record aside that cannot be read; only then is it acknowledged."""
        recorded = self._set_aside(self._names.kept, body, why)
        if recorded is None:
            return
        await recorded
        if channel is self.channel and channel.is_open:
            channel.basic_ack(tag)

    def _on_channel_closed(self, reason: Exception) -> None:
        """The broker closes a channel that holds messages for long: all come again on a new one."""
        if self.retired or not self._session.usable or not self.live:
            return
        log.info("reading the kept records again: %s", reason)
        self._tags.clear()
        spawn(self.open())

    def adopt(self, upto: int | None) -> None:
        """Let the ledger take in what was loaded, up to a generation."""
        left = []
        for record, tag in self._loading:
            if upto is not None and record.gen > upto:
                left.append((record, tag))
            elif self._ledger.adopt(record.job, record.gen):
                self._hold(record, tag)
            else:
                self.channel.basic_ack(tag)
        self._loading = left

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

    def drop(self, ref: JobRef, gen: int) -> None:
        """A record has served."""
        tag = self._tags.pop((ref, gen), None)
        if tag is not None:
            self.channel.basic_ack(tag)
            return
        self._dropped_early[ref, gen] = None  # its message is on its way to us
        if len(self._dropped_early) > _REMEMBERED:
            self._dropped_early.popitem(last=False)

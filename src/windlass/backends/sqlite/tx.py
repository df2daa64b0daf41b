"""One transaction: the requests that share it, and what they write in addition to jobs.

Events, history and counts are collected while requests run and written once, before the commit: one chunk
per queue and log. A chunk of events also holds the changes of the queue's job counts and lifetime counters.
From time to time ``fold`` adds these to the tables that hold the totals. If a request fails, only what
it collected itself is dropped (see ``request``).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from windlass.backends.sqlite.connection import Executor
from windlass.backends.sqlite.limits import GROUPED, LIMITED, read_limits
from windlass.backends.sqlite.logs import EventRun, event_chunks, history_chunks
from windlass.backends.sqlite.rows import LOG_KEY, Deltas, Row, pack, unpack_deltas
from windlass.backends.sqlite.statements import Statements
from windlass.core import bad_records
from windlass.core.job import EVENTS_KEPT, AlikeAttempts, JobRecord
from windlass.core.states import JobState
from windlass.engine.effects import QueueRow

#: The number of chunks, and of events in them, after which their counts are added to the totals.
FOLD_CHUNKS = 64
FOLD_EVENTS = 2_000

_STATES = tuple(JobState)


class Meta(NamedTuple):
    """The state of the whole store: the newest place, the clock, and a number that grows with notifications.

    A transaction of plain adds does not update the row of the store table, to save writing a page. If the
    newest job has a higher number than the row's ``last_place``, place and clock are taken from that job.
    """

    last_place: int
    clock_ms: int
    serial: int

    @property
    def activity(self) -> int:
        """A number that grows with every change that listeners are notified of."""
        return self.last_place + self.serial


def read_meta(conn: Executor, sql: Statements) -> Meta:
    return Meta(*conn.execute(sql["meta"]).fetchone())


class QueueState:
    """The cached state of one queue: its row, the ends of its logs, and how far its counts are folded."""

    __slots__ = (
        *("folded", "last_event", "last_history", "num", "row", "special", "starts", "totals", "unfolded"),
        "untimed",
    )

    def __init__(self, num: int, row: Row) -> None:
        known, last_event, last_history, newest_event, newest_history, *counts, paused = row
        self.folded: int = counts[0]
        self.unfolded: int = counts[1]
        #: Which other tables have data of the queue: the bits ``GROUPED`` and ``LIMITED``.
        self.special: int = counts[2]
        self.num = num
        self.last_event: int = max(last_event, (newest_event or 0) % LOG_KEY)
        self.last_history: int = max(last_history, (newest_history or 0) % LOG_KEY)
        self.row = QueueRow(bool(paused), bool(known), grouped=bool(self.special & GROUPED))
        self.starts: list[int] = []
        #: Jobs by state without the changes of this transaction. None: not counted yet.
        self.totals: dict[JobState, int] | None = None
        #: Whether it is known that no job has a due time.
        self.untimed = False


class Queues:
    """One connection's cache of queues. Numbers and names stay valid; ``forget`` drops everything else."""

    def __init__(self, conn: Executor, sql: Statements) -> None:
        self._conn = conn
        self._sql = sql
        self._nums: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._queues: dict[str, QueueState] = {}
        #: Whether the store has no tombstones (ids that outlive their records). None: not known.
        self.no_kept_ids: bool | None = None
        #: Whether the store has no stubs. None: not known.
        self.no_stubs: bool | None = None
        #: Jobs that this connection leased, by queue and id; empty after another connection has written.
        #: A caller may change a record that it uses, so it must pop the record.
        self.leased: dict[tuple[str, str], JobRecord] = {}
        #: By queue and state: the (finished_ms, seq) up to which all finished jobs outlive the default age.
        self.kept_longer: dict[tuple[int, JobState], tuple[int, int]] = {}
        #: The number of the last job whose state was checked in this round.
        self.last_checked = 0
        #: The number of the last queue that a prune checked in this round.
        self.pruned = 0
        #: The last group (queue number, name) that a prune checked in this round.
        self.groups_checked: tuple[int, str] = (0, "")

    def num(self, name: str) -> int | None:
        """Return the number of a queue, or None if it does not exist."""
        found = self._nums.get(name)
        if found is None:
            row = self._conn.execute(self._sql["queue_num"], (name,)).fetchone()
            if row is None:
                return None
            found = self._learn(row[0], name)
        return found

    def name(self, num: int) -> str:
        found = self._names.get(num)
        if found is None:
            (found,) = self._conn.execute(self._sql["queue_name"], (num,)).fetchone()
            self._learn(num, found)
        return found

    def make(self, name: str) -> int:
        """Insert a new queue and return its number."""
        (num,) = self._conn.execute(self._sql["queue_insert"], (name,)).fetchone()
        return self._learn(num, name)

    def get(self, name: str) -> QueueState:
        """Return an existing queue. Changes to it must be written in the same transaction."""
        found = self._queues.get(name)
        if found is None:
            num = self.num(name)
            assert num is not None
            first, last = num * LOG_KEY, num * LOG_KEY + LOG_KEY - 1
            row = self._conn.execute(self._sql["queue"], (first, last, num)).fetchone()
            found = self._queues[name] = QueueState(num, row)
            if found.special & LIMITED:
                limits = self._conn.execute(self._sql["limits"], (num,)).fetchone()
                read_limits(found.row, found.starts, limits, name)
        return found

    def find(self, name: str) -> QueueState | None:
        """Return a queue, or None if it does not exist."""
        found = self._queues.get(name)
        if found is None and self.num(name) is not None:
            found = self.get(name)
        return found

    def nothing_kept(self) -> bool:
        """Whether the store has neither tombstones nor stubs, so that only records can hold an id."""
        if self.no_stubs is None:
            self.no_stubs = not self._conn.execute(self._sql["stub_any"]).fetchall()
        if self.no_kept_ids is None:
            self.no_kept_ids = not self._conn.execute(self._sql["kept_id_any"]).fetchall()
        return self.no_stubs and self.no_kept_ids

    def forget(self) -> None:
        """Drop what another connection may have changed, or what this one rolled back."""
        self._queues.clear()
        self.leased.clear()
        self.no_kept_ids = self.no_stubs = None

    def start_over(self) -> None:
        """Drop everything, because commits may have been lost: numbers and names may be wrong, too."""
        self.forget()
        self.kept_longer.clear()
        self._nums.clear()
        self._names.clear()

    def rolled_back(self, made: list[str]) -> None:
        """Drop what was cached in a transaction that was rolled back, and the queues that it created."""
        self.forget()
        self.kept_longer.clear()
        for name in made:
            self._names.pop(self._nums.pop(name, 0), None)

    def _learn(self, num: int, name: str) -> int:
        self._nums[name] = num
        self._names[num] = name
        return num


class Tx:
    """One transaction. It collects what its requests did, and ``flush`` writes it."""

    def __init__(self, conn: Executor, sql: Statements, queues: Queues, meta: Meta, now_ms: int) -> None:
        self.conn = conn
        self.sql = sql
        self.queues = queues
        self.meta = meta
        self.now_ms = now_ms
        self.last_place = meta.last_place
        #: What ``flush`` will write, by queue.
        self.queue_logs: collections.defaultdict[str, QueueLog] = collections.defaultdict(QueueLog)
        self.topics: set[str] = set()
        self.made: list[str] = []
        #: Whether all requests only added jobs (see ``Meta``).
        self.plain = True
        #: Rows that this transaction changed. Valid after ``flush``, which adds the new ``total_changes``.
        self._changes = -conn.total_changes

    @property
    def pages(self) -> float:
        """Approximate number of database pages that this transaction changed. Valid after ``flush``."""
        return 4 + 0.4 * self._changes

    def queue_log(self, queue: str) -> QueueLog:
        """Return what has been collected for a queue so far."""
        return self.queue_logs.get(queue) or QueueLog()

    # --- writing ------------------------------------------------------------------------------------

    def flush(self) -> Meta:
        """Write everything that was collected. Returns the new state of the store."""
        for name, log in self.queue_logs.items():
            queue = self.queues.find(name)
            if queue is None:
                self.queues.make(name)
                self.made.append(name)
                queue = self.queues.get(name)
            log.write(self.conn, self.sql, queue)
        return self._flush_meta()

    def _flush_meta(self) -> Meta:
        self._changes += self.conn.total_changes
        if not self._changes:
            return self.meta  # nothing was written
        if self.plain:
            return Meta(self.last_place, self.now_ms, self.meta.serial)
        meta = Meta(self.last_place, self.now_ms, self.meta.serial + bool(self.topics))
        self.conn.execute(self.sql["meta_save"], meta)
        return meta


class QueueLog:
    """The events, history and counts that one transaction writes for one queue."""

    __slots__ = ("at_ms", "counts", "events", "history", "noted", "tallies")

    def __init__(self) -> None:
        #: Events as runs, the number of events in them, and the time of the newest event.
        self.events: list[EventRun] = []
        self.noted = 0
        self.at_ms = 0
        self.history: list[AlikeAttempts] = []
        #: Changes of the lifetime counters (by task and outcome) and of the job counts (by state).
        self.counts: dict[tuple[str, str], int] = {}
        self.tallies: dict[JobState, int] = {}

    def write(self, conn: Executor, sql: Statements, queue: QueueState) -> None:
        base = queue.num * LOG_KEY
        if queue.totals is not None:
            for state, by in self.tallies.items():
                queue.totals[state] += by
        deltas = pack(([*self.tallies.items()], [(*key, by) for key, by in self.counts.items()]))
        if self.history:
            at_ms = max([alike.first.finished_ms for alike in self.history])
            for count, records in history_chunks(self.history):
                last = queue.last_history
                queue.last_history = last + count
                chunk = bytearray(records)  # see ``rows.plain_row``
                conn.execute(sql["history_insert"], (base + last + count, last + 1, at_ms, chunk))
        if not self.events:
            fold(conn, sql, queue, [deltas])
            return
        mine: bytearray | None = bytearray(deltas)
        for count, records in event_chunks(self.events, self.noted):
            last = queue.last_event
            queue.last_event = last + count
            chunk = bytearray(records)
            conn.execute(sql["event_insert"], (base + last + count, last + 1, self.at_ms, mine, chunk))
            mine = None  # only the first chunk carries the counts
            queue.unfolded += 1
        if queue.unfolded >= FOLD_CHUNKS or queue.last_event - queue.folded >= FOLD_EVENTS:
            fold(conn, sql, queue)


def fold(conn: Executor, sql: Statements, queue: QueueState, more: Iterable[bytes] = ()) -> None:
    """Add the counts of event chunks and of ``more`` to the totals. Delete events beyond ``EVENTS_KEPT``."""
    base = queue.num * LOG_KEY
    rows = conn.execute(sql["event_deltas"], (base + queue.folded, base + queue.last_event)).fetchall()
    tallies, counts = add_up([row[0] for row in rows] + [*more])
    by_state = [tallies.get(state, 0) for state in _STATES]
    folded = (queue.last_event, queue.last_event, queue.last_history)
    conn.execute(sql["queue_fold"], (*folded, *by_state, queue.num))
    conn.executemany(
        sql["counter_add"], [(queue.num, task, outcome, by) for (task, outcome), by in counts.items()]
    )
    conn.execute(sql["event_trim"], (base, base + max(queue.last_event - EVENTS_KEPT, 0)))
    queue.folded, queue.unfolded = queue.last_event, 0


def add_up(deltas: Iterable[bytes]) -> tuple[dict[JobState, int], dict[tuple[str, str], int]]:
    """Add up packed counts: jobs by state, and lifetime counters by (task, outcome)."""
    tallies: dict[JobState, int] = {}
    counts: dict[tuple[str, str], int] = {}
    for packed, times in collections.Counter(deltas).items():  # many transactions did the same
        found: Deltas | None = bad_records.read_or_none(
            packed, unpack_deltas, "the counts of a chunk of events"
        )
        if found is None:
            continue
        for state, by in found[0]:
            tallies[state] = tallies.get(state, 0) + by * times
        for task, outcome, by in found[1]:
            counts[task, outcome] = counts.get((task, outcome), 0) + by * times
    return tallies, counts


def tally_of(conn: Executor, sql: Statements, num: int) -> dict[JobState, int]:
    """Count the jobs of a queue by state: the totals, plus the counts that are not folded yet."""
    folded, *totals = conn.execute(sql["queue_tally"], (num,)).fetchone()
    tallies, _ = _unfolded(conn, sql, num, folded)
    return {state: total + tallies.get(state, 0) for state, total in zip(_STATES, totals, strict=True)}


def unfolded_counts(conn: Executor, sql: Statements, num: int) -> dict[tuple[str, str], int]:
    """Return the changes of a queue's lifetime counters that are not folded yet."""
    folded, *_ = conn.execute(sql["queue_tally"], (num,)).fetchone()
    return _unfolded(conn, sql, num, folded)[1]


def _unfolded(
    conn: Executor, sql: Statements, num: int, folded: int
) -> tuple[dict[JobState, int], dict[tuple[str, str], int]]:
    first, last = num * LOG_KEY + folded, num * LOG_KEY + LOG_KEY - 1
    return add_up(row[0] for row in conn.execute(sql["event_deltas"], (first, last)).fetchall())

"""One transaction: the requests that share it, and what they write besides jobs.

Events, history and counts are gathered while requests run and written once, before the commit: one chunk
per queue and log. A chunk of events also carries by how much it changed the queue's job counts and lifetime
counters; every so often these are added up in the tables that hold the totals (``fold``). A request that
fails takes back its own share only.
"""

from __future__ import annotations

import collections
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from windlass.backends.sqlite.limits import GROUPED, LIMITED, read_limits
from windlass.backends.sqlite.logs import EventRun, event_chunks, history_chunks
from windlass.backends.sqlite.rows import LOG_KEY, Deltas, Row, pack, unpack_deltas
from windlass.core import bad_records
from windlass.core.job import EVENTS_KEPT
from windlass.core.states import JobState
from windlass.engine.effects import QueueRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backends.sqlite.connection import Executor
    from windlass.backends.sqlite.statements import Statements
    from windlass.core.job import AttemptRecord, JobRecord
    from windlass.engine.effects import Effects

#: Chunks, and events in them, whose counts may stand outside the totals.
FOLD_CHUNKS = 64
FOLD_EVENTS = 2_000

_STATES = tuple(JobState)

_queue = attrgetter("queue")


class Meta(NamedTuple):
    """The state of the whole store: newest place given out, its clock, and a number that others watch.

    A transaction of plain adds leaves the row of the store table alone, which saves it a page: the newest
    job, when its number is above the row's ``last_place``, gives place and clock as well.
    """

    last_place: int
    clock_ms: int
    serial: int

    @property
    def activity(self) -> int:
        """Grows with everything that listeners may want to know."""
        return self.last_place + self.serial


def read_meta(conn: Executor, sql: Statements) -> Meta:
    return Meta(*conn.execute(sql["meta"]).fetchone())


class QueueState:
    """What is known of one queue: its row, where its logs end and how far its counts are folded."""

    __slots__ = (
        *("folded", "last_event", "last_history", "num", "row", "special", "starts", "totals", "unfolded"),
        "untimed",
    )

    def __init__(self, num: int, row: Row) -> None:
        known, last_event, last_history, newest_event, newest_history, *counts, paused = row
        self.folded: int = counts[0]
        self.unfolded: int = counts[1]
        #: What of it is in other tables: ``GROUPED``, ``LIMITED``.
        self.special: int = counts[2]
        self.num = num
        self.last_event: int = max(last_event, (newest_event or 0) % LOG_KEY)
        self.last_history: int = max(last_history, (newest_history or 0) % LOG_KEY)
        self.row = QueueRow(bool(paused), bool(known), grouped=bool(self.special & GROUPED))
        self.starts: list[int] = []
        #: How many jobs are in each state (None: not counted yet), except for this transaction.
        self.totals: dict[JobState, int] | None = None
        #: Whether it is known that no job has a due time.
        self.untimed = False


class Queues:
    """The queues as one connection knows them: numbers and names forever, the rest until ``forget``."""

    def __init__(self, conn: Executor, sql: Statements) -> None:
        self._conn = conn
        self._sql = sql
        self._nums: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._queues: dict[str, QueueState] = {}
        #: Whether no id is kept without its record; None: not known.
        self.no_kept_ids: bool | None = None
        #: The same of stubs.
        self.no_stubs: bool | None = None
        #: Jobs that this connection leased and no other wrote since, by queue and id. The caller that
        #: takes a record may change it, and so takes it out.
        self.leased: dict[tuple[str, str], JobRecord] = {}
        #: By queue and state: (finished_ms, seq) up to which all that finished outlive the default age.
        self.kept_longer: dict[tuple[int, JobState], tuple[int, int]] = {}
        #: The job up to which states were looked at, in this round.
        self.last_checked = 0

    def num(self, name: str) -> int | None:
        """The number of a queue; None when it does not exist."""
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
        """Enter a new queue."""
        (num,) = self._conn.execute(self._sql["queue_insert"], (name,)).fetchone()
        return self._learn(num, name)

    def get(self, name: str) -> QueueState:
        """A queue that exists. What the caller changes in it must become true with this transaction."""
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
        """A queue; None when it does not exist."""
        found = self._queues.get(name)
        if found is None and self.num(name) is not None:
            found = self.get(name)
        return found

    def nothing_kept(self) -> bool:
        """Whether no id is known without its record: neither kept, nor in a stub."""
        if self.no_stubs is None:
            self.no_stubs = not self._conn.execute(self._sql["stub_any"]).fetchall()
        if self.no_kept_ids is None:
            self.no_kept_ids = not self._conn.execute(self._sql["kept_id_any"]).fetchall()
        return self.no_stubs and self.no_kept_ids

    def forget(self) -> None:
        """Another connection has written, or what this one wrote was rolled back."""
        self._queues.clear()
        self.leased.clear()
        self.no_kept_ids = self.no_stubs = None

    def start_over(self) -> None:
        """Commits may have been taken back: numbers and names may be wrong, too."""
        self.forget()
        self.kept_longer.clear()
        self._nums.clear()
        self._names.clear()

    def rolled_back(self, made: list[str]) -> None:
        """Discard what was cached in a transaction that was rolled back, and the queues that it made."""
        self.forget()
        self.kept_longer.clear()
        for name in made:
            self._names.pop(self._nums.pop(name, 0), None)

    def _learn(self, num: int, name: str) -> int:
        self._nums[name] = num
        self._names[num] = name
        return num


class Share:
    """What one request gathers. Absorbed by the ``Tx`` when it succeeds."""

    def __init__(self, tx: Tx, now_ms: int) -> None:
        self.now_ms = now_ms
        self.last_place = tx.last_place
        #: What its verbs did: the transaction writes the logs and counts of all of its requests together.
        self.gathered: list[Effects] = []
        #: By queue: by how much the numbers of its jobs in each state change.
        self.tallies: dict[str, dict[JobState, int]] = {}
        self.made: list[str] = []
        #: Whether all that it did was to add new jobs, the last of which has the newest place and the time.
        self.plain = True


class Tx:
    """What the requests of one transaction have in common."""

    def __init__(self, conn: Executor, sql: Statements, queues: Queues, meta: Meta, now_ms: int) -> None:
        self.conn = conn
        self.sql = sql
        self.queues = queues
        self.meta = meta
        self.now_ms = now_ms
        self.last_place = meta.last_place
        #: What is not written yet, by queue.
        self._queue_logs: collections.defaultdict[str, _QueueLog] = collections.defaultdict(_QueueLog)
        self.topics: set[str] = set()
        self.made: list[str] = []
        self._plain = True
        self._changes = -conn.total_changes

    def absorb(self, share: Share) -> None:
        """Keep what a successful request did."""
        self.last_place = share.last_place
        self._plain = self._plain and share.plain and share.now_ms == self.now_ms
        now_ms, logs = share.now_ms, self._queue_logs
        for effects in share.gathered:
            for note in effects.pending_events:
                log, ids = logs[note.queue], note.job_ids
                log.events.append((now_ms, note.type, ids[0] if len(ids) == 1 else ids, note.task, note.data))
                log.noted += len(ids)
                if now_ms > log.at_ms:
                    log.at_ms = now_ms
            for name, records in groupby(effects.history, _queue):
                logs[name].history += records
            for (name, task, outcome), by in effects.counts.items():
                counts = logs[name].counts
                counts[task, outcome] = counts.get((task, outcome), 0) + by
            self.topics |= effects.topics
        for name, moved in share.tallies.items():
            tallies = logs[name].tallies
            for state, by in moved.items():
                tallies[state] = tallies.get(state, 0) + by
        self.made += share.made

    @property
    def pages(self) -> float:
        """About how many pages of the database this transaction changed. It is flushed."""
        return 4 + 0.4 * self._changes

    def queue_log(self, queue: str) -> _QueueLog:
        """What is to be written about a queue so far."""
        return self._queue_logs.get(queue) or _QueueLog()

    # --- writing it down ----------------------------------------------------------------------------

    def flush(self) -> Meta:
        """Write everything that was gathered; returns the store's row as it is now."""
        for name, log in self._queue_logs.items():
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
            return self.meta  # nothing was written, so there is nothing to stamp
        if self._plain:
            return Meta(self.last_place, self.now_ms, self.meta.serial)
        meta = Meta(self.last_place, self.now_ms, self.meta.serial + bool(self.topics))
        self.conn.execute(self.sql["meta_save"], meta)
        return meta


class _QueueLog:
    """What one transaction writes about one queue."""

    __slots__ = ("at_ms", "counts", "events", "history", "noted", "tallies")

    def __init__(self) -> None:
        #: Events as runs, how many they are, and the newest one's time.
        self.events: list[EventRun] = []
        self.noted = 0
        self.at_ms = 0
        self.history: list[AttemptRecord] = []
        #: Lifetime counters by task and outcome, and jobs by state: by how much they change.
        self.counts: dict[tuple[str, str], int] = {}
        self.tallies: dict[JobState, int] = {}

    def write(self, conn: Executor, sql: Statements, queue: QueueState) -> None:
        base = queue.num * LOG_KEY
        if queue.totals is not None:
            for state, by in self.tallies.items():
                queue.totals[state] += by
        deltas = pack(([*self.tallies.items()], [(*key, by) for key, by in self.counts.items()]))
        if self.history:
            at_ms = max([ended.finished_ms for ended in self.history])
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
            mine = None  # once is enough
            queue.unfolded += 1
        if queue.unfolded >= FOLD_CHUNKS or queue.last_event - queue.folded >= FOLD_EVENTS:
            fold(conn, sql, queue)


def fold(conn: Executor, sql: Statements, queue: QueueState, more: Iterable[bytes] = ()) -> None:
    """Add the counts of chunks to the totals, and delete events that are past their bound."""
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
    """The sums of packed counts: jobs by state, and lifetime counters by (task, outcome)."""
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
    """How many jobs of a queue are in each state: the totals and what is not folded yet."""
    folded, *totals = conn.execute(sql["queue_tally"], (num,)).fetchone()
    tallies, _ = _unfolded(conn, sql, num, folded)
    return {state: total + tallies.get(state, 0) for state, total in zip(_STATES, totals, strict=True)}


def unfolded_counts(conn: Executor, sql: Statements, num: int) -> dict[tuple[str, str], int]:
    """What is to be added to a queue's lifetime counters."""
    folded, *_ = conn.execute(sql["queue_tally"], (num,)).fetchone()
    return _unfolded(conn, sql, num, folded)[1]


def _unfolded(
    conn: Executor, sql: Statements, num: int, folded: int
) -> tuple[dict[JobState, int], dict[tuple[str, str], int]]:
    first, last = num * LOG_KEY + folded, num * LOG_KEY + LOG_KEY - 1
    return add_up(row[0] for row in conn.execute(sql["event_deltas"], (first, last)).fetchall())

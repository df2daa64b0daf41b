"""One transaction: the requests that share it, and what they write besides jobs.

Events, history and counts are gathered while requests run and written once, before the commit: one chunk
per queue and log. A chunk of events also carries by how much it changed the queue's job counts and lifetime
counters; every so often these are added up in the tables that hold the totals (``fold``). A request that
fails takes back its own share only.
"""

from __future__ import annotations

import collections
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.backends.sqlite import keys
from windlass.backends.sqlite.flows import Flows
from windlass.backends.sqlite.gates import GROUPED, LIMITED, Gates
from windlass.backends.sqlite.logs import (
    AttemptRun,
    EventRun,
    NoteRun,
    count_notes,
    event_chunks,
    history_chunks,
    run_of,
)
from windlass.backends.sqlite.rows import (
    IDLE,
    INLINE_PAYLOAD,
    LOG_KEY,
    STATES,
    Deltas,
    Row,
    changed_row,
    pack,
    readable_options,
    record,
    storable,
    unpack_deltas,
)
from windlass.backends.sqlite.statements import SPAN
from windlass.core import damage, transitions
from windlass.core.clock import moment
from windlass.core.job import EVENTS_KEPT, JobRecord, JobRef
from windlass.core.states import FINISHED, TIMED, JobState
from windlass.core.transitions import NO_TURN, EventData, Scribe

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from windlass.backends.sqlite.connection import Executor
    from windlass.backends.sqlite.statements import Statements
    from windlass.core.job import AttemptRecord, EventType

#: Chunks, and events in them, whose counts may stand outside the totals.
FOLD_CHUNKS = 64
FOLD_EVENTS = 2_000

_STATES = tuple(JobState)

_first = itemgetter(0)
_queue = attrgetter("queue")

Counter = tuple[str, str, str]
Tally = tuple[str, JobState]


class Meta(NamedTuple):
    """The state of the whole store: newest place given out, its clock, and a number that others watch.

    A transaction of plain adds leaves the row of the store table alone, which saves it a page: the newest
    job, when its number is above the row's ``last_place``, tells place and clock just as well.
    """

    last_place: int
    clock_ms: int
    serial: int

    @property
    def activity(self) -> int:
        """Grows with everything that listeners may want to hear of."""
        return self.last_place + self.serial


def read_meta(conn: Executor, sql: Statements) -> Meta:
    return Meta(*conn.execute(sql["meta"]).fetchone())


class Queue:
    """What is known of one queue: where its logs end and how far its counts are folded."""

    __slots__ = ("folded", "known", "last_event", "last_history", "num", "special", "unfolded")

    def __init__(self, num: int, row: Row) -> None:
        known, last_event, last_history, newest_event, newest_history, *counts = row
        self.folded: int = counts[0]
        self.unfolded: int = counts[1]
        self.special: int = counts[2]
        self.num = num
        self.known = bool(known)
        self.last_event: int = max(last_event, (newest_event or 0) % LOG_KEY)
        self.last_history: int = max(last_history, (newest_history or 0) % LOG_KEY)


class Queues:
    """The queues as one connection knows them: numbers and names for ever, the rest until ``forget``."""

    def __init__(self, conn: Executor, sql: Statements) -> None:
        self._conn = conn
        self._sql = sql
        self._nums: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._queues: dict[str, Queue] = {}
        #: Whether no id is kept without its record; None: not known.
        self.no_kept_ids: bool | None = None
        #: The same of stubs.
        self.no_stubs: bool | None = None
        #: Jobs that this connection leased and nobody wrote since, by seq: columns of ``job_leased``, from
        #: ``queue`` on in a tuple of their own, since jobs of one claim often have these in common.
        self.leased: dict[int, Row] = {}
        #: By queue and state: (finished_ms, seq) up to which all that finished outlive the default age.
        self.kept_longer: dict[tuple[int, JobState], tuple[int, int]] = {}
        #: The job up to which states were looked at, in this round.
        self.patrolled = 0

    def num(self, name: str) -> int | None:
        """The number of a queue; None when it was never heard of."""
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

    def get(self, name: str) -> Queue:
        """A queue that exists. What the caller changes in it must become true with this transaction."""
        found = self._queues.get(name)
        if found is None:
            num = self.num(name)
            assert num is not None
            first, last = num * LOG_KEY, num * LOG_KEY + LOG_KEY - 1
            row = self._conn.execute(self._sql["queue"], (first, last, num)).fetchone()
            found = self._queues[name] = Queue(num, row)
        return found

    def cached(self, name: str) -> Queue | None:
        """What ``get`` would answer, if that is known already."""
        return self._queues.get(name)

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
        """Forget what was not to be, and the queues that were made in it."""
        self.forget()
        self.kept_longer.clear()
        for name in made:
            self._names.pop(self._nums.pop(name, 0), None)

    def _learn(self, num: int, name: str) -> int:
        self._nums[name] = num
        self._names[num] = name
        return num


class Step(Scribe):
    """One request at work inside a transaction. Absorbed by the ``Tx`` when it succeeds."""

    notes: list[NoteRun]  # type: ignore[assignment]
    history: list[AttemptRecord | AttemptRun]  # type: ignore[assignment]

    def __init__(self, tx: Tx, now_ms: int) -> None:
        super().__init__(now_ms, self._fresh_place)
        self.tx = tx
        self.conn = tx.conn
        self.sql = tx.sql
        self.queues = tx.queues
        self.last_place = tx.last_place
        self.counts: dict[Counter, int] = {}
        self.tallies: dict[Tally, int] = {}
        self.known: dict[str, bool] = {}
        self.topics: set[str] = set()
        self.made: list[str] = []
        self._gates: Gates | None = None
        #: Whether all that it did was to add new jobs, at the store's time.
        self.plain = False
        self._flows: Flows | None = None

    @property
    def flows(self) -> Flows:
        """The edges between jobs, for requests that have to do with them."""
        if self._flows is None:
            self._flows = Flows(self)
        return self._flows

    def tell(self) -> bool:
        """Tell those who wait for what this request ended; whether some are left to ``Relay``."""
        if self._flows is None:
            return False
        self._flows.tell(self)
        return self._flows.left

    def _fresh_place(self) -> int:
        self.last_place += 1
        return self.last_place

    @property
    def gates(self) -> Gates:
        """The groups that this request deals with."""
        if self._gates is None:
            self._gates = Gates(self)
        return self._gates

    def special(self, queue: str) -> int:
        """Whether a queue saw groups (``GROUPED``) or has limits (``LIMITED``)."""
        if (cached := self.queues.cached(queue)) is not None:
            return cached.special
        return 0 if self.queues.num(queue) is None else self.queues.get(queue).special

    def mark(self, queue: str, bit: int) -> None:
        """Remember that a queue is special."""
        found = self.queues.get(queue)
        if not found.special & bit:
            found.special |= bit
            self.run("queue_special", found.special, found.num)

    def all(self, name: str, *params: Any) -> list[Row]:
        """Every row of a named statement."""
        return self.conn.execute(self.sql[name], params).fetchall()

    def one(self, name: str, *params: Any) -> Row | None:
        """The first row of a named statement."""
        row: Row | None = self.conn.execute(self.sql[name], params).fetchone()
        return row

    def run(self, name: str, *params: Any) -> int:
        """Execute a named statement; returns how many rows it changed."""
        try:
            return self.conn.execute(self.sql[name], params).rowcount
        except UnicodeEncodeError:
            return self.conn.execute(self.sql[name], tuple(storable(params))).rowcount

    def many(self, name: str, rows: list[Row]) -> int:
        """Execute a named statement once for each row; returns how many rows it changed in all."""
        try:
            return self.conn.executemany(self.sql[name], rows).rowcount
        except UnicodeEncodeError:
            return self.conn.executemany(self.sql[name], storable(rows)).rowcount

    def among(self, name: str, seqs: list[int], *params: Any) -> sqlite3.Cursor:
        """Execute a statement about the jobs numbered ``seqs``, which are different numbers.

        Jobs that were added one after the other, the common case, are found twice as fast by a range.
        """
        first, last = min(seqs), max(seqs)
        if last - first == len(seqs) - 1:
            return self.conn.execute(self.sql[name + SPAN], (*params, first, last))
        return self.conn.execute(self.sql[name], (*params, str(seqs)))

    def note_run(self, queue: str, event: EventType, task: str, data: EventData) -> list[str]:
        """Take down that ``event`` happened to jobs whose ids the caller puts into the list that it gets."""
        ids: list[str] = []
        self.notes.append((queue, event, ids, task, data))
        return ids

    def queue(self, name: str) -> int:
        """The number of a queue, which is made when it is new."""
        num = self.queues.num(name)
        if num is None:
            num = self.queues.make(name)
            self.made.append(name)
        return num

    def find(self, ref: JobRef) -> JobRecord | None:
        """The job under ``ref``."""
        num = self.queues.num(ref.queue)
        row = None if num is None else self.one("job_by_id", num, ref.id)
        return None if row is None else self.job(row, ref.queue)

    def job(self, row: Row, queue: str) -> JobRecord:
        """The job of a row, to be changed. One that cannot be read has failed: it is set aside here."""
        job = record(row, queue)
        if damage.is_lost(job):
            self.lose(job)
        return job

    def records(self, rows: list[Row]) -> list[JobRecord]:
        """Jobs of any queue, as ``job`` gives them."""
        name = self.queues.name
        return [self.job(row, name(row[1])) for row in rows]

    def lose(self, job: JobRecord) -> None:
        """Set a job aside; its group has room for another."""
        self.set_aside(job)
        for (group,) in self.all("job_grp", job.seq):
            self.gates.advance(self.queue(job.queue), group)

    def set_aside(self, job: JobRecord) -> None:
        """Write what stands in for a job over the record that cannot be read, whose bytes it carries."""
        before = job.state
        if any(seq != job.seq for (seq,) in self.all("job_seq", self.queue(job.queue), job.id)):
            job.id += f"~{job.seq}"  # what can be read of its id is another job's
        self.queues.leased.pop(job.seq, None)
        transitions.set_aside(job, self)
        inline = len(job.payload) <= INLINE_PAYLOAD
        whole = (job.id, job.task, job.payload if inline else None, job.codec, job.enqueued_ms)
        self.run("job_rewrite", *whole, *changed_row(job))
        if inline:
            self.run("payload_delete", f"[{job.seq}]")
        else:
            self.run("payload_insert", job.seq, job.payload)
        self.run("unique_key_free_job", self.queue(job.queue), job.id)
        self.moved(job, before)

    def count(self, queue: str, task: str, outcome: str, by: int = 1) -> None:
        """Raise a lifetime counter."""
        key = (queue, task, outcome)
        self.counts[key] = self.counts.get(key, 0) + by

    def tally(self, queue: str, state: JobState, by: int) -> None:
        """Change how many jobs of a queue are in a state."""
        key = (queue, state)
        self.tallies[key] = self.tallies.get(key, 0) + by

    def save(self, jobs: list[tuple[JobRecord, JobState]]) -> None:
        """Write changed jobs back, each given with the state it had before."""
        plain = []
        for job, before in jobs:
            self.queues.leased.pop(job.seq, None)
            options = job.options
            if options.group is None and options.unique is None and not self.special(job.queue):
                plain.append((job, before))
            else:
                self._file(job, before)
        if plain:
            self.many("job_save", [changed_row(job) for job, _ in plain])
        for job, before in plain:
            self.moved(job, before)

    def _file(self, job: JobRecord, before: JobState) -> None:
        """Write back a job that has a group or a key; its group may have to park it, or have room now."""
        num, group = self.queue(job.queue), job.options.group
        self.gates.check(num, job)
        self.book(num, job, before)
        if group is not None:
            self.gates.advance(num, group)

    def book(self, num: int, job: JobRecord, before: JobState) -> None:
        """Write a job as what it is."""
        self.queues.leased.pop(job.seq, None)
        self.run("job_save", *changed_row(job))
        if self.special(job.queue) & GROUPED:
            self.take_turn(num, job)
        keys.settle(self, num, job)
        self.moved(job, before)
        if before is JobState.ACTIVE and job.state is not before and self.special(job.queue) & LIMITED:
            self.topics.add(f"ready:{job.queue}")  # there may be room for one more

    def take_turn(self, num: int, job: JobRecord) -> None:
        """Give a job that waits its turn, if it has none, and tell its group's indexes of it."""
        if job.state is JobState.WAITING and job.turn == NO_TURN:
            job.turn = self.gates.fresh_turn(num, job)
        self.run("job_line", job.options.group or "", max(job.turn, 0), IDLE.get(job.state), job.seq)

    def save_payload(self, job: JobRecord) -> None:
        """Write a changed payload."""
        if len(job.payload) > INLINE_PAYLOAD:
            self.run("payload_save", None, job.seq)
            self.run("payload_insert", job.seq, job.payload)
        else:
            self.run("payload_save", job.payload, job.seq)
            self.run("payload_delete", f"[{job.seq}]")

    def moved(self, job: JobRecord, before: JobState) -> None:
        """Count a change of state and say who may care."""
        state, queue = job.state, job.queue
        if state is not before:
            self.tally(queue, before, -1)
            self.tally(queue, state, 1)
        if state is JobState.WAITING or state in TIMED:
            self.topics.add(f"ready:{queue}")
        elif state in FINISHED:
            self.topics.add(f"done:{queue}")
            if job.linked:
                self.flows.ended(job)

    def drop(self, jobs: list[JobRecord]) -> None:
        """Delete records and their logs; ids that were promised to be kept stay known."""
        for job in jobs:
            self._keep_id(job.queue, job.id, transitions.kept_until(job))
            self.tally(job.queue, job.state, -1)
            if job.linked:
                if job.state not in FINISHED:
                    self.flows.ended(job)
                self.run("edge_delete", f"[{job.seq}]")
        self._delete([job.seq for job in jobs])
        for job in jobs:
            num, group = self.queue(job.queue), job.options.group
            keys.settle(self, num, job, removed=True)
            if job.state is JobState.ACTIVE and self.special(job.queue) & LIMITED:
                self.topics.add(f"ready:{job.queue}")
            if group is not None and job.state not in FINISHED:
                self.gates.advance(num, group)

    def drop_unseen(self, seqs: list[int]) -> None:
        """As ``drop``, without reading whole records."""
        if not seqs:
            return
        for _, num, job_id, state, options, enqueued_ms in self.among("job_ends", seqs).fetchall():
            queue = self.queues.name(num)
            kept_ms = readable_options(options).keep_id_ms
            self._keep_id(queue, job_id, 0 if kept_ms is None else enqueued_ms + kept_ms)
            self.tally(queue, STATES[state], -1)
        self._delete(seqs)

    def _keep_id(self, queue: str, job_id: str, until_ms: int) -> None:
        if until_ms > self.now_ms:
            self.run("kept_id_save", self.queue(queue), job_id, until_ms)
            self.queues.no_kept_ids = False

    def _delete(self, seqs: list[int]) -> None:
        if not seqs:
            return
        self.among("job_delete", seqs)
        self.among("payload_delete", seqs)
        for statement in ("log_delete", "edge_delete", "stream_delete", "chunk_delete"):
            self.run(statement, str(seqs))

    def totals(self, queue: str) -> dict[JobState, int]:
        """How many jobs of a queue are in each state, as of now."""
        found = tally_of(self.conn, self.sql, self.queues.get(queue).num)
        for held in (self.tx.tallies, self.tallies):
            for (name, state), by in held.items():
                if name == queue:
                    found[state] += by
        return found


class Tx:
    """What the requests of one transaction have in common."""

    def __init__(self, conn: Executor, sql: Statements, queues: Queues, meta: Meta, now_ms: int) -> None:
        self.conn = conn
        self.sql = sql
        self.queues = queues
        self.meta = meta
        self.now_ms = now_ms
        self.last_place = meta.last_place
        #: Not written yet: notes with their times, attempt records, counts.
        self.notes: list[tuple[int, list[NoteRun]]] = []
        self.history: list[AttemptRecord | AttemptRun] = []
        self.counts: dict[Counter, int] = {}
        self.tallies: dict[Tally, int] = {}
        self.known: dict[str, bool] = {}
        self.topics: set[str] = set()
        self.made: list[str] = []
        self._plain = True
        self._absorbed = False
        self._changes_before = conn.total_changes

    def step(self, now_ms: int | None) -> Step:
        """A fresh share for one request, at its own time or at the store's."""
        return Step(self, moment(now_ms, lambda: self.now_ms))

    def absorb(self, step: Step) -> None:
        """Keep what a successful request did."""
        self.last_place = step.last_place
        self._plain = self._plain and step.plain and step.now_ms == self.now_ms
        if step.notes:
            self.notes.append((step.now_ms, step.notes))
        if not self._absorbed:
            self._absorbed = True
            self.history, self.counts, self.tallies = step.history, step.counts, step.tallies
            self.known, self.topics, self.made = step.known, step.topics, step.made
            return
        self.history += step.history
        _add_to(self.counts, step.counts)
        _add_to(self.tallies, step.tallies)
        self.known.update(step.known)
        self.topics |= step.topics
        self.made += step.made

    @property
    def pages(self) -> float:
        """About how many pages of the database this transaction changed."""
        return 4 + 0.4 * (self.conn.total_changes - self._changes_before)

    def held_notes(self, queue: str) -> int:
        """How many notes about a queue are not written yet."""
        return sum(count_notes([note for note in notes if note[0] == queue]) for _, notes in self.notes)

    def held_history(self, queue: str) -> int:
        """How many attempt records of a queue are not written yet."""
        return sum(
            len(ended.attempts) if isinstance(ended, AttemptRun) else 1
            for ended in self.history
            if ended.queue == queue
        )

    # --- writing it down ----------------------------------------------------------------------------

    def flush(self) -> Meta:
        """Write everything that was gathered; returns the store's row as it is now."""
        pens: dict[str, _Pen] = {}
        for now_ms, notes in self.notes:
            for name, its in _by_queue(notes):
                (pens.get(name) or self._pen(pens, name)).note(now_ms, its)
        for name, records in _by_queue(self.history):
            (pens.get(name) or self._pen(pens, name)).end(records)
        for (name, task, outcome), by in self.counts.items():
            pen = pens.get(name) or self._pen(pens, name)
            pen.count(task, outcome, by)
        for (name, state), by in self.tallies.items():
            if by:
                pen = pens.get(name) or self._pen(pens, name)
                pen.tallies.append((state, by))
        for name, known in self.known.items():
            self._make_known(name, known)
        for name, pen in pens.items():
            pen.write(self.conn, self.sql)
            if pen.events:
                self.topics.add(f"event:{name}")
        return self._flush_meta()

    def _pen(self, pens: dict[str, _Pen], name: str) -> _Pen:
        if self.queues.num(name) is None:
            self.queues.make(name)
            self.made.append(name)
        pens[name] = pen = _Pen(self.queues.get(name))
        return pen

    def _make_known(self, name: str, known: bool) -> None:
        queue = self.queues.get(name)
        if queue.known is not known:
            queue.known = known
            self.conn.execute(self.sql["queue_known"], (known, queue.num))

    def _flush_meta(self) -> Meta:
        if self.conn.total_changes == self._changes_before:
            return self.meta  # nothing was written, so there is nothing to stamp
        if self._plain:
            return Meta(self.last_place, self.now_ms, self.meta.serial)
        meta = Meta(self.last_place, self.now_ms, self.meta.serial + bool(self.topics))
        self.conn.execute(self.sql["meta_save"], meta)
        return meta


class _Pen:
    """What one transaction writes about one queue."""

    __slots__ = ("at_ms", "counts", "ended", "events", "history", "noted", "queue", "tallies")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        #: Events and attempts as runs, the number of each, and the newest event's time.
        self.events: list[EventRun] = []
        self.noted = 0
        self.at_ms = 0
        self.history: list[AttemptRun] = []
        self.ended = 0
        self.counts: dict[tuple[str, str], int] = {}
        self.tallies: list[tuple[JobState, int]] = []

    def note(self, now_ms: int, notes: list[NoteRun]) -> None:
        """Take over events."""
        self.noted += count_notes(notes)
        self.at_ms = max(self.at_ms, now_ms)
        self.events += [(now_ms, *note[1:]) for note in notes]

    def end(self, records: list[AttemptRecord | AttemptRun]) -> None:
        """Take over attempts and count them."""
        for ended in records:
            run = ended if isinstance(ended, AttemptRun) else run_of(ended)
            self.history.append(run)
            self.ended += len(run.attempts)
            self.count(run.task, run.outcome, len(run.attempts))

    def count(self, task: str, outcome: str, by: int) -> None:
        key = (task, outcome)
        self.counts[key] = self.counts.get(key, 0) + by

    def write(self, conn: Executor, sql: Statements) -> None:
        queue = self.queue
        base = queue.num * LOG_KEY
        counts = [(task, outcome, by) for (task, outcome), by in self.counts.items()]
        deltas = pack((self.tallies, counts))
        if self.history:
            at_ms = max([run.finished_ms for run in self.history])
            for count, records in history_chunks(self.history, self.ended):
                last = queue.last_history
                queue.last_history = last + count
                conn.execute(sql["history_insert"], (base + last + count, last + 1, at_ms, records))
        if not self.events:
            fold(conn, sql, queue, [deltas])
            return
        mine: bytes | None = deltas
        for count, records in event_chunks(self.events, self.noted):
            last = queue.last_event
            queue.last_event = last + count
            conn.execute(sql["event_insert"], (base + last + count, last + 1, self.at_ms, mine, records))
            mine = None  # once is enough
            queue.unfolded += 1
        if queue.unfolded >= FOLD_CHUNKS or queue.last_event - queue.folded >= FOLD_EVENTS:
            fold(conn, sql, queue)


def fold(conn: Executor, sql: Statements, queue: Queue, more: Iterable[bytes] = ()) -> None:
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
        found: Deltas | None = damage.read_or_none(packed, unpack_deltas, "the counts of a chunk of events")
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


def _by_queue(records: list[Any]) -> Iterable[tuple[str, list[Any]]]:
    """Notes or attempt records, by queue and otherwise in their order."""
    if not records:
        return ()
    queue_of = _first if isinstance(records[0], tuple) else _queue
    if len(set(map(queue_of, records))) == 1:
        return ((queue_of(records[0]), records),)
    parts: dict[str, list[Any]] = {}
    for item in records:
        parts.setdefault(queue_of(item), []).append(item)
    return parts.items()


def _add_to(totals: dict[Any, int], more: dict[Any, int]) -> None:
    for key, by in more.items():
        totals[key] = totals.get(key, 0) + by

"""Add, claim, settle, extend, reconcile: the verbs that every job goes through.

Plain adds, claims of jobs that never ran and settlements that complete are written for speed: few columns,
one statement for many jobs. They do what ``core.transitions`` does; everything else calls it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from windlass.backend import requests as rq
from windlass.backends.sqlite import keys, stubs
from windlass.backends.sqlite.gates import GROUPED, LIMITED
from windlass.backends.sqlite.logs import Attempt, AttemptRun
from windlass.backends.sqlite.rows import (
    IDLE,
    INLINE_PAYLOAD,
    PLAIN_OPTIONS,
    STATES,
    UNSAID_OPTIONS,
    Row,
    decode_options,
    encode_options,
    is_lasting,
    is_simple,
    new_row,
    too_old_from,
    view,
)
from windlass.core import damage, transitions
from windlass.core.job import AttemptOutcome, EventType, JobRecord, JobRef, NewJob
from windlass.core.outcome import AddOutcome, Extended, Outcome, Settled, Settlement
from windlass.core.paths import took
from windlass.core.retention import goes_at_once, result_until, spare_until
from windlass.core.states import DUE_LATER, JobState
from windlass.core.transitions import NO_DATA, EventData, Note
from windlass.errors import StorageError

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step

#: Most due jobs that one claim promotes, and most expired ones that it ends per queue and round.
STEP = 1_000
#: Most rows of claimed jobs that are remembered.
LEASED_KEPT = 10_000
#: Where these stand in the parameters of ``job_insert``.
PAYLOAD, DUE = 7, 13

_DUE_STATES = frozenset(state.value for state in DUE_LATER)
# Members of an enum are slow to look up.
_COMPLETE, _OK, _ENQUEUED = Outcome.COMPLETE, Settled.OK, EventType.ENQUEUED
_QUEUED, _WAITING = AddOutcome.QUEUED, JobState.WAITING
_ACTIVE, _COMPLETED, _STARTED = JobState.ACTIVE, JobState.COMPLETED, EventType.STARTED


# --- add ------------------------------------------------------------------------------------------


def add(step: Step, request: rq.Add) -> list[rq.Added]:
    """Insert all jobs at once; if an id is taken, or kept, go through them one by one instead."""
    jobs = request.jobs
    if any(new.depends_on or new.parent is not None for new in jobs):
        return _add_flow(step, jobs)
    if _no_kept_ids(step) and not _need_care(step, jobs) and not stubs.any_of(step, jobs):
        last_place, noted = step.last_place, len(step.notes)
        fresh = _Fresh(step, jobs)
        if fresh.insert():
            took("sqlite.add_rows")
            step.plain = True
            return fresh.answers
        step.run("job_undo_insert", last_place)
        step.last_place = last_place
        del step.notes[noted:]
    return [_add_one(step, new) for new in jobs]


def _add_flow(step: Step, jobs: list[NewJob]) -> list[rq.Added]:
    """All jobs first, then all edges; a flow that cannot be is refused before anything is changed."""
    fresh, known = step.flows.sort(jobs, step.now_ms)
    answers = [_add_one(step, new) for new in jobs]
    step.flows.link(fresh, known, step)
    for new, answer in zip(jobs, answers, strict=True):
        job = step.find(JobRef(new.queue, new.id))
        if job is not None and answer.record is None:
            answer.state, answer.due_ms = job.state, job.due_ms
    return answers


def _need_care(step: Step, jobs: list[NewJob]) -> bool:
    """Whether a job has a group or a unique key, or its queue counts turns."""
    options, queue = None, ""
    for new in jobs:
        if new.options is not options:
            options = new.options
            if options.group is not None or options.unique is not None:
                return True
        if new.queue != queue:
            queue = new.queue
            if step.special(queue) & GROUPED:
                return True
    return False


def _no_kept_ids(step: Step) -> bool:
    queues = step.queues
    if queues.no_kept_ids is None:
        queues.no_kept_ids = step.one("kept_id_any") is None
    return queues.no_kept_ids


class _Fresh:
    """What ``transitions.create`` makes of new jobs, as rows; and the answers to their callers."""

    def __init__(self, step: Step, jobs: list[NewJob]) -> None:
        self._step = step
        self.answers: list[rq.Added] = []
        #: Rows for ``job_insert_plain`` and for ``job_insert``, the latter with their jobs.
        self._plain: list[Row] = []
        self._others: list[tuple[NewJob, Row]] = []
        #: How many jobs of a queue and task become waiting at once.
        self._ready: list[tuple[str, str, list[str]]] = []
        now_ms, queue, num = step.now_ms, "", 0
        options, options_text = None, ""
        task, ids = "", None
        for new in jobs:
            if new.queue != queue:
                queue, ids = new.queue, None
                num = step.queue(queue)
            if new.options is not options:
                options = new.options
                options_text = encode_options(options)
            seq = step.fresh_place()
            due_ms = None
            if is_plain(new):
                self._plain.append(plain_row(new, num, seq, now_ms, options_text))
            else:
                row = fresh_row(new, num, seq, now_ms, options_text)
                self._others.append((new, row))
                due_ms = row[DUE]
            if due_ms is not None:
                step.notes.append(Note(queue, *added_event(new, due_ms)))
                ids = None
                self.answers.append(rq.Added(AddOutcome.QUEUED, JobState.SCHEDULED, now_ms, due_ms))
                continue
            if ids is None or new.task != task:
                task = new.task
                ids = step.note_run(queue, EventType.ENQUEUED, task, NO_DATA)
                self._ready.append((queue, task, ids))
            ids.append(new.id)
            self.answers.append(rq.Added(_QUEUED, _WAITING, now_ms))

    def insert(self) -> bool:
        """Store and count them; False when an id was taken."""
        step = self._step
        done = step.many("job_insert_plain", self._plain) if self._plain else 0
        done += step.many("job_insert", [row for _, row in self._others]) if self._others else 0
        if done != len(self.answers):
            return False
        for queue, task, ids in self._ready:
            step.count(queue, task, "enqueued", len(ids))
            step.tally(queue, JobState.WAITING, len(ids))
        for new, row in self._others:
            if row[DUE] is not None:
                step.count(new.queue, new.task, "enqueued")
                step.tally(new.queue, JobState.SCHEDULED, 1)
            if row[PAYLOAD] is None:
                step.run("payload_insert", row[0], new.payload)
        for queue in {queue for queue, _, _ in self._ready} | {new.queue for new, _ in self._others}:
            step.known[queue] = True
            step.topics.add(f"ready:{queue}")
        return True


def is_plain(new: NewJob) -> bool:
    """Whether a new job only has to be put at the back of the line: then ``plain_row`` tells all about it.

    Every option that changes where or how a job is stored must be asked for here.
    """
    return (
        new.delay_ms <= 0
        and not new.options.lifo
        and new.options.group is None
        and new.options.unique is None
        and new.run_at_ms is None
        and new.expires_in_ms is None
        and new.options.expires_total_ms is None
        and new.request_id == new.id
        and len(new.payload) <= INLINE_PAYLOAD
    )


def plain_row(new: NewJob, num: int, seq: int, now_ms: int, options_text: str) -> Row:
    """The parameters of ``job_insert_plain``.

    A bytearray, since the sqlite3 module asks around for a while how to store anything but its base types,
    to which it does not count bytes and None.
    """
    return (
        seq,
        num,
        new.id,
        new.task,
        new.priority,
        bytearray(new.payload),
        new.codec,
        options_text,
        now_ms,
    )


def fresh_row(new: NewJob, num: int, seq: int, now_ms: int, options_text: str) -> Row:
    """The parameters of ``job_insert`` for a job that is added now."""
    ready_ms = new.run_at_ms if new.run_at_ms is not None else now_ms + new.delay_ms
    due_ms: int | None
    if ready_ms > now_ms:
        state, due_ms = JobState.SCHEDULED, ready_ms
    else:
        state, ready_ms, due_ms = JobState.WAITING, now_ms, None
    return (
        seq,
        num,
        new.id,
        new.task,
        state.value,
        new.priority,
        -seq if new.options.lifo else seq,
        new.payload if len(new.payload) <= INLINE_PAYLOAD else None,
        new.codec,
        options_text,
        None if new.request_id == new.id else new.request_id,
        now_ms,
        ready_ms,
        due_ms,
        transitions.first_deadline(new, now_ms),
    )


def added_event(new: NewJob, due_ms: int | None) -> tuple[EventType, str, str, EventData]:
    """What the event log says of a new job."""
    if due_ms is None:
        return _ENQUEUED, new.id, new.task, NO_DATA
    return EventType.SCHEDULED, new.id, new.task, {"run_at_ms": due_ms}


def _add_one(step: Step, new: NewJob) -> rq.Added:
    ref = JobRef(new.queue, new.id)
    old = step.find(ref)
    stub = stubs.find(step.all, step.queues.num(new.queue), ref, step.now_ms) if old is None else None
    known = old or stub
    if known is not None:
        answer = _answer_known(step, known, new)
        if answer is not None:
            return answer
    elif _is_kept(step, new):
        step.notes.append(Note(new.queue, EventType.DEDUPLICATED, new.id, new.task))
        return rq.Added(AddOutcome.DUPLICATE, None)
    num = step.queue(new.queue)
    answer = keys.answer(step, num, new)
    if answer is not None:
        return answer
    group = new.options.group
    if group is not None:
        step.mark(new.queue, GROUPED)
        refusal = step.gates.refuses(num, new)
        if refusal is not None:
            return rq.Added(refusal, None)
    if old is not None:
        transitions.remove(old, step)
        step.drop([old])
    before = keys.runs_before(step, num, new)
    if before is not None:
        new = msgspec.structs.replace(new, depends_on=[*new.depends_on, before])
    if stub is not None:
        step.run("stub_delete", num, new.id)
    job = transitions.create(new, step, after_ms=known.enqueued_ms if known else 0)
    _insert(step, num, job)
    keys.take(step, num, job)
    if before is not None:
        step.flows.follow(job, before)
    if group is not None:
        step.gates.advance(num, group)
    return rq.Added(AddOutcome.QUEUED, job.state, job.enqueued_ms, job.due_ms)


def _insert(step: Step, num: int, job: JobRecord) -> None:
    step.gates.check(num, job)
    if job.state is JobState.FAILED:  # it can never start
        _insert_row(step, num, job)
        step.save([(job, JobState.FAILED)])
        return
    _insert_row(step, num, job)
    if step.special(job.queue) & GROUPED:
        step.take_turn(num, job)


def _insert_row(step: Step, num: int, job: JobRecord) -> None:
    step.run("job_insert_one", *new_row(job, num))
    if len(job.payload) > INLINE_PAYLOAD:
        step.run("payload_insert", job.seq, job.payload)
    if job.linked:
        held_ms = job.due_ms if job.state is JobState.BLOCKED else None
        step.run("job_hold", IDLE.get(job.state), held_ms, job.seq)
    step.known[job.queue] = True
    step.count(job.queue, job.task, "enqueued")
    step.tally(job.queue, job.state, 1)
    step.topics.add(f"ready:{job.queue}")


def _is_kept(step: Step, new: NewJob) -> bool:
    num = step.queues.num(new.queue)
    row = None if num is None else step.one("kept_id", num, new.id)
    return row is not None and row[0] > step.now_ms


def _answer_known(step: Step, old: JobRecord, new: NewJob) -> rq.Added | None:
    """The answer that an existing record gives; None when it makes way for the new job."""
    outcome = transitions.answer_known(old, new, step.now_ms)
    if outcome is None:
        return None
    if outcome is AddOutcome.QUEUED:
        return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms)
    step.note(old, EventType.DEDUPLICATED)
    return rq.Added(outcome, old.state, old.enqueued_ms, old.due_ms, view(old, step.now_ms))


# --- claim ----------------------------------------------------------------------------------------


class _Line:
    """One queue during a claim."""

    def __init__(
        self, name: str, num: int, paused: bool, due_ms: int | None, ready: bool, special: int
    ) -> None:
        self.name = name
        self.num = num
        self.paused = paused
        self.due_ms = due_ms
        #: False when nobody waits; True may be out of date.
        self.ready = ready
        self.special = special
        self.taken = 0


def claim(step: Step, request: rq.Claim) -> rq.Claimed:
    lines = _lines(step, request)
    budget = _promote_lines(step, lines.values())
    for grouped in [line for line in lines.values() if line.special & GROUPED]:
        step.gates.claiming = True
        budget -= step.gates.advance_timed(grouped.num, budget)
        grouped.ready = True
    jobs: list[JobRecord] = []
    for bound in ("share", "cap"):
        for item in request.queues:
            line = lines.get(item.name)
            if line is None or line.paused or not line.ready:
                continue
            room = min(getattr(item, bound) - line.taken, request.limit - len(jobs))
            _pick(step, line, room, request, jobs)
    for line in lines.values():
        if line.taken and not line.ready and not _has_parked(step, line):
            step.notes.append(Note(line.name, EventType.DRAINED))
        if line.special:
            next_ms = step.gates.next_ms(line.num, line.name, line.special)
            line.due_ms = min((at for at in (line.due_ms, next_ms) if at is not None), default=None)
    dues = [line.due_ms for line in lines.values() if line.due_ms is not None]
    return rq.Claimed(jobs, step.now_ms, max(min(dues) - step.now_ms, 0) if dues else None)


def _has_parked(step: Step, line: _Line) -> bool:
    return bool(line.special & GROUPED) and step.totals(line.name)[JobState.PARKED] > 0


def _lines(step: Step, request: rq.Claim) -> dict[str, _Line]:
    nums = {item.name: num for item in request.queues if (num := step.queues.num(item.name)) is not None}
    if len(nums) == 1:
        ((name, num),) = nums.items()
        return {name: _Line(name, *step.all("claim_queue", num)[0])}
    found = {row[0]: row for row in step.all("claim_queues", str([*nums.values()]))}
    return {name: _Line(name, *found[num]) for name, num in nums.items()}


def _promote_lines(step: Step, lines: Iterable[_Line]) -> int:
    """Make due jobs waiting; returns how many more may be moved in this step."""
    budget = STEP
    for line in lines:
        if line.due_ms is not None and line.due_ms <= step.now_ms and budget > 0:
            budget -= promote_queue(step, line.num, budget)
            (line.due_ms,) = step.all("job_next_due", line.num)[0]
            line.ready = True
    return budget


def promote_queue(step: Step, num: int, limit: int) -> int:
    """Make due jobs of one queue waiting, earliest first; returns how many."""
    rows = step.all("job_due", num, step.now_ms, limit)
    promote_rows(step, rows)
    return len(rows)


def promote_rows(step: Step, rows: list[Row]) -> None:
    """Make the jobs of rows of ``job_due`` waiting, in this order, as ``transitions.promote`` does."""
    changed = []
    for due_ms, seq, num, job_id, task, state, lifo in rows:
        queue = step.queues.name(num)
        whole = type(due_ms) is int and type(job_id) is str and type(task) is str and state in _DUE_STATES
        if step.special(queue) & GROUPED or not whole:
            job = step.job(step.all("job_by_seqs", f"[{seq}]")[0], queue)
            if not damage.is_bad(job):
                transitions.promote(job, step)
                step.save([(job, STATES[state])])
            continue
        place = step.fresh_place()
        changed.append((min(due_ms, step.now_ms), -place if lifo else place, seq))
        step.notes.append(cast("Note", (queue, EventType.PROMOTED, job_id, task, NO_DATA)))
        step.tally(queue, STATES[state], -1)
        step.tally(queue, JobState.WAITING, 1)
        step.topics.add(f"ready:{queue}")
    if changed:
        step.many("job_promote", changed)


def _pick(step: Step, line: _Line, room: int, request: rq.Claim, jobs: list[JobRecord]) -> None:
    """Lease up to ``room`` jobs of one queue, and end those that expired before their turn."""
    if line.special & LIMITED:
        room = min(room, step.gates.room(line.num, line.name)[0])
    if line.special & GROUPED:
        _pick_turns(step, line, room, request, jobs)
        return
    expired = 0
    while room > 0 and line.ready and expired < STEP:
        rows = step.all("job_ready", line.num, room + 1)
        line.ready = len(rows) > room
        leased = _lease(step, line, rows[:room], request)
        line.taken += len(leased)
        if line.special & LIMITED:
            step.gates.queue_started(line.num, len(leased))
        jobs += leased
        expired += min(len(rows), room) - len(leased)
        room -= len(leased)
    if expired >= STEP and line.ready:
        line.due_ms = step.now_ms  # the bound was reached: ask again at once


def _pick_turns(step: Step, line: _Line, room: int, request: rq.Claim, jobs: list[JobRecord]) -> None:
    """As ``_pick``, one by one: what becomes of a job may change who is next."""
    passed, gates = 0, step.gates
    while room > 0 and passed < STEP and (row := step.one("job_first", line.num)) is not None:
        job = step.job(row, line.name)
        if damage.is_bad(job):
            passed += 1
            continue
        if transitions.is_expired(job, step.now_ms):
            transitions.expire(job, step)
            passed += 1
        elif not gates.may_start(line.num, job):
            passed += 1
        else:
            token = f"{request.claim_id}.{job.seq}"
            transitions.lease(job, step, token=token, worker=request.worker, lease_ms=request.lease_ms)
            gates.started(line.num, job)
            if line.special & LIMITED:
                gates.queue_started(line.num, 1)
            jobs.append(job)
            line.taken += 1
            room -= 1
        step.save([(job, JobState.WAITING)])
    line.ready = step.one("job_any_ready", line.num) is not None


class _Rest(msgspec.Struct, array_like=True):
    """The last column of ``job_ready``: what is not as in most jobs."""

    options: str
    place: int
    ready_ms: int
    priority: int
    codec: str
    request_id: str | None
    expires_ms: int | None
    again: int

    def needs_care(self, now_ms: int) -> bool:
        """Whether there is more to the lease than its own row."""
        if self.again or (self.expires_ms is not None and self.expires_ms <= now_ms):
            return True
        return self.options != PLAIN_OPTIONS and not is_simple(self.options)

    def fill(self, job: JobRecord, served: list[int]) -> None:
        """Complete a record that starts. ``served`` takes it down if its ``expires_in`` counts no more."""
        if self.expires_ms is not None:
            served.append(job.seq)
        job.place, job.ready_ms, job.priority = self.place, self.ready_ms, self.priority
        job.codec = self.codec
        job.request_id = job.id if self.request_id is None else self.request_id


#: What stands for all of it, by the options.
_SHORT = {None: PLAIN_OPTIONS, 1: UNSAID_OPTIONS}
_unpack_rest = msgspec.json.Decoder(_Rest).decode
#: Of a row that cannot be read: care is what it needs.
_UNREAD = _Rest("", 0, 0, 0, "", None, None, 1)


def _read_rest(packed: str) -> _Rest:
    try:
        return _unpack_rest(packed)
    except damage.UNREADABLE:
        return _UNREAD


def _lease(step: Step, line: _Line, rows: list[Row], request: rq.Claim) -> list[JobRecord]:
    """The jobs of rows of ``job_ready``, leased to the worker, without those that expired."""
    leased: list[JobRecord] = []
    until: dict[int, list[int]] = {}
    queue, now_ms, claim_id, worker = line.name, step.now_ms, request.claim_id, request.worker
    data: EventData = {"attempt": 1, "worker": worker}
    task, ids, options_text, model = "", None, "", None
    served: list[int] = []
    common: Row | None = None
    held = step.queues.leased
    for seq, job_id, its_task, payload, enqueued_ms, packed in rows:
        rest = None if packed in _SHORT else _read_rest(packed)
        if type(payload) is not bytes or type(its_task) is not str or type(enqueued_ms) is not int:
            rest = _UNREAD
        if rest is not None and rest.needs_care(now_ms):
            if (job := _lease_old(step, queue, seq, request)) is not None:
                leased.append(job)
                until.setdefault(job.lease_until_ms or 0, []).append(seq)
            ids = None
            continue
        text = _SHORT[packed] if rest is None else rest.options
        if model is None or text != options_text:
            options_text, common = text, None
            model = _leased_model(queue, options_text, request, now_ms)
            seqs = until.setdefault(model.lease_until_ms or 0, [])
        job = cast("Any", model).__copy__()  # in half the time that a new one takes
        job.seq, job.id, job.task, job.payload, job.enqueued_ms = seq, job_id, its_task, payload, enqueued_ms
        if rest is None:
            job.place, job.ready_ms, job.request_id = seq, enqueued_ms, job_id
        else:
            rest.fill(job, served)
        job.token = token = f"{claim_id}.{seq}"
        job.errors = []
        if ids is None or its_task != task:
            task, common = its_task, None
            ids = step.note_run(queue, _STARTED, task, data)
            took("sqlite.lease_first")
        if common is None:
            common = (line.num, task, options_text, worker, 0, 1, now_ms)
        ids.append(job_id)
        seqs.append(seq)
        leased.append(job)
        held[seq] = (seq, token, job_id, enqueued_ms, job.ready_ms, common)
    if len(held) > LEASED_KEPT:
        held.clear()
    for until_ms, seqs in until.items():
        step.among("job_lease", seqs, claim_id, worker, now_ms, until_ms)
    if served:
        step.among("job_stays", served)
    step.tally(queue, _WAITING, -len(leased))
    step.tally(queue, _ACTIVE, len(leased))
    return leased


def _leased_model(queue: str, options_text: str, request: rq.Claim, now_ms: int) -> JobRecord:
    """What jobs with the same options that start for the first time, in one claim, have in common."""
    options = decode_options(options_text)
    return JobRecord(
        queue=queue,
        id="",
        task="",
        payload=b"",
        state=_ACTIVE,
        options=options,
        started_ms=now_ms,
        deliveries=1,
        lease_until_ms=now_ms + (options.lease_ms or request.lease_ms),
        worker=request.worker,
    )


def _lease_old(step: Step, queue: str, seq: int, request: rq.Claim) -> JobRecord | None:
    """As ``_lease``, for a job that ran before, may have expired or cannot be read."""
    job = step.job(step.all("job_by_seqs", f"[{seq}]")[0], queue)
    if damage.is_bad(job):
        return None
    if transitions.is_expired(job, step.now_ms):
        transitions.expire(job, step)
        step.save([(job, JobState.WAITING)])
        return None
    token, expires_ms = f"{request.claim_id}.{seq}", job.expires_ms
    transitions.lease(job, step, token=token, worker=request.worker, lease_ms=request.lease_ms)
    if job.expires_ms != expires_ms:
        step.run("job_expires", job.expires_ms, seq)
    keys.settle(step, step.queue(queue), job)
    return job


# --- settle ---------------------------------------------------------------------------------------


def settle(step: Step, request: rq.Settle) -> rq.SettleResult:
    items = request.items
    seqs = [_seq(end.token) for end in items]
    if len(set(seqs)) == len(seqs):
        statuses = _settle_quick(step, items, seqs)
    else:  # a job that comes twice must be seen as its first settlement left it
        statuses = _settle_slow(step, items)
    left = step.tell()  # so that what is unblocked here can be claimed here
    return rq.SettleResult(statuses, claim(step, request.claim) if request.claim else None, left)


def _settle_quick(step: Step, items: list[Settlement], seqs: list[int]) -> list[Settled]:
    """Complete what holds its lease in a few statements; the rest in the slow way, in its turn."""
    rows = _leased_rows(step, seqs)
    completed = _Completed(step)
    statuses = []
    for end, seq in zip(items, seqs, strict=True):
        row = rows.get(seq)
        if (
            row is not None
            and end.outcome is _COMPLETE
            and end.filled is None
            and row[1] == end.token
            and row[2] == end.id
            and (row[5][2] == PLAIN_OPTIONS or is_lasting(row[5][2]))
            and completed.add(row, end)
        ):
            statuses.append(_OK)
        else:
            statuses += _settle_slow(step, [end])
            completed.cut()
    completed.save()
    return statuses


def _leased_rows(step: Step, seqs: list[int]) -> dict[int, Row]:
    """What ``Queues.leased`` holds of jobs, for those as well that were not claimed here a moment ago."""
    known = step.queues.leased
    rows = {seq: known.pop(seq) for seq in seqs if seq in known}
    unknown = [seq for seq in seqs if seq not in rows] if len(rows) < len(seqs) else []
    if unknown:
        rows.update((row[0], (*row[:5], row[5:])) for row in step.among("job_leased", unknown))
    return rows


class _Completed:
    """Attempts that complete in one request, and what they leave behind."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._runs: list[AttemptRun] = []
        #: Jobs with the same options and result are written by one statement.
        self._alike: dict[tuple[str, bytes | None], list[int]] = {}
        #: The run that goes on: what its attempts have in common, their queue, and the lists to add to.
        self._common: Row | None = None
        self._queue = ""
        self._attempts: list[Attempt] = []
        self._ids: list[str] = []
        #: The last result, and the jobs of the run that had it.
        self._result: bytes | None = None
        self._seqs: list[int] = []

    def add(self, row: Row, end: Settlement) -> bool:
        """Take one whose ``row`` of ``Queues.leased`` holds the lease; False if it is another queue's job."""
        seq, token, job_id, enqueued_ms, ready_ms, common = row
        result = end.result
        if common is not self._common and common != self._common:
            if self._step.queues.name(common[0]) != end.queue:
                return False
            self._begin(common, end.queue)
            self._seqs = self._alike.setdefault((common[2], result), [])
        elif end.queue != self._queue:
            return False
        elif result != self._result:
            self._seqs = self._alike.setdefault((common[2], result), [])
        self._result = result
        self._attempts.append((token, job_id, enqueued_ms, ready_ms, end.duration_ms))
        self._ids.append(job_id)
        self._seqs.append(seq)
        return True

    def cut(self) -> None:
        """What comes next stands after something else in the logs."""
        self._common = None

    def _begin(self, common: Row, queue: str) -> None:
        took("sqlite.complete")
        step = self._step
        _, task, options_text, worker, attempts, deliveries, started_ms = common
        self._common, self._queue, self._attempts = common, queue, []
        self._ids = step.note_run(queue, EventType.COMPLETED, task, NO_DATA)
        run = AttemptRun(
            queue,
            task,
            None,
            decode_options(options_text).tags,
            worker,
            attempts + 1,
            deliveries,
            started_ms,
            step.now_ms,
            AttemptOutcome.COMPLETED,
            None,
            None,
            self._attempts,
        )
        self._runs.append(run)
        step.history.append(run)

    def save(self) -> None:
        """Write the jobs and count them."""
        step = self._step
        counts: dict[str, int] = {}
        for run in self._runs:
            counts[run.queue] = counts.get(run.queue, 0) + len(run.attempts)
        for queue, count in counts.items():
            step.tally(queue, _ACTIVE, -count)
            step.tally(queue, _COMPLETED, count)
            step.topics.add(f"done:{queue}")
            if step.special(queue) & LIMITED:
                step.topics.add(f"ready:{queue}")  # there may be room for one more
        _save_completed(step, self._alike)


def _save_completed(step: Step, groups: dict[tuple[str, bytes | None], list[int]]) -> None:
    """One statement for all jobs with the same options and result, or one run per job if few are alike."""
    now_ms = step.now_ms
    single: list[Row] = []
    done = wanted = 0
    for (options_text, result), seqs in groups.items():
        options = decode_options(options_text)
        values = (
            now_ms,
            result,
            result_until(options, now_ms),
            too_old_from(options_text, _COMPLETED, now_ms),
            spare_until(options, now_ms),
        )
        wanted += len(seqs)
        if len(seqs) == 1:
            single.append((*values, seqs[0]))
        else:
            done += step.among("job_complete", seqs, *values).rowcount
    if single:
        done += step.many("job_complete_one", single)
    if done != wanted:  # whoever changes active jobs must take them out of ``Queues.leased``
        raise StorageError(f"{wanted - done} jobs are not what they were known to be; nothing was changed")


def _settle_slow(step: Step, items: list[Settlement]) -> list[Settled]:
    statuses = []
    for end in items:
        ref = JobRef(end.queue, end.id)
        job = step.find(ref) or stubs.find(step.all, step.queues.num(end.queue), ref, step.now_ms)
        status = transitions.check_token(job, end.token)
        if status is Settled.OK and job is not None:
            transitions.settle(job, step.flows.weigh(job, end), step)
            step.save([(job, JobState.ACTIVE)])
            if job.state is JobState.COMPLETED and goes_at_once(job.options):
                step.drop([job])
                stubs.put(step, job)
            if end.outcome is Outcome.WAIT and job.state is JobState.BLOCKED:
                step.flows.review(job, step)
            if end.hold_ms and job.options.group is not None:
                step.gates.hold_group(step.queue(end.queue), job.options.group, end.hold_ms)
        statuses.append(status)
    return statuses


def _seq(token: str) -> int:
    """The number of the job that a token of ours was made for; 0 for any other text."""
    tail = token.rpartition(".")[2]
    return int(tail) if tail.isdecimal() and len(tail) < 19 else 0


# --- extend, reconcile ------------------------------------------------------------------------------


def extend(step: Step, request: rq.Extend) -> list[Extended]:
    seqs = {_seq(lease.token) for lease in request.leases}
    rows = step.among("job_held", [*seqs]).fetchall() if seqs else []
    held = {(step.queues.name(row[1]), row[2], row[3]): row for row in rows}
    answers, moved = [], []
    for lease in request.leases:
        row = held.get((lease.queue, lease.id, lease.token))
        if row is None:
            answers.append(Extended.LOST)
            continue
        moved.append((step.now_ms + lease.lease_ms, row[0]))
        answers.append(Extended.OK if row[4] is None else Extended.CANCELLING)
    if moved:
        step.many("job_extend", moved)
    return answers


def reconcile(step: Step, request: rq.Reconcile) -> int:
    held = set(request.held)
    jobs = step.records(step.all("job_leased_by", request.worker))
    lost = [job for job in jobs if job.token not in held]
    for job in lost:
        if damage.is_bad(job):
            continue
        transitions.give_back(job, step)
        step.save([(job, JobState.ACTIVE)])
    return len(lost)

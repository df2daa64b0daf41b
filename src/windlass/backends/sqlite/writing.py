"""Writes the effects of a verb (``engine.effects``). The ``Kind`` of a change selects the statement."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import astuple

from windlass.backends.sqlite import edges, tables
from windlass.backends.sqlite.limits import GROUPED, LIMITED, is_limited, limits_row
from windlass.backends.sqlite.request import RequestState, Upkeep
from windlass.backends.sqlite.rows import (
    INLINE_PAYLOAD,
    LOG_KEY,
    STATES,
    Row,
    changed_row,
    encode_options,
    is_plain,
    pack,
    plain_row,
    storable,
    too_old_from,
    whole_row,
)
from windlass.backends.sqlite.statements import ONE
from windlass.backends.sqlite.tx import QueueState, fold
from windlass.core.job import LOGS_KEPT, JobRecord, LogLine
from windlass.core.paths import took
from windlass.core.retention import spare_until
from windlass.core.rollups import MARKS_KEPT
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk, StreamHead, too_much
from windlass.engine.effects import Effects, Kind, Move, QueueRow, Starts, Table, copy_row
from windlass.errors import StorageError

#: The most records of leased jobs that ``Queues.leased`` caches.
LEASED_KEPT = 10_000

_ACTIVE, _COMPLETED = JobState.ACTIVE, JobState.COMPLETED
_MADE = Kind.MADE


class TakenError(Exception):
    """Another job already has the id of a new job. No job was changed."""


def write(step: RequestState, effects: Effects) -> None:
    """Write the effects to the tables. Events, history and counts are left to ``Tx.flush``."""
    if effects.rows:
        _write_queues(step, effects)
    if effects.gone:
        _delete(step, effects.gone)
    kinds = _write_jobs(step, effects) if effects.jobs or effects.moves else set()
    if effects.rows:
        tables.write(step, effects.rows)
    if effects.relayed or step.upkeep is not None:
        _write_upkeep(step, effects, step.for_upkeep())
    if not effects.plain:
        _write_parts(step, effects)
    step.plain = step.plain and _is_plain(step, effects, kinds)
    step.gathered.append(effects)


def _write_upkeep(step: RequestState, effects: Effects, upkeep: Upkeep) -> None:
    if effects.relayed or upkeep.unread:
        edges.write_outbox(step, effects.relayed)
    if upkeep.stays:
        step.among("job_stays", upkeep.stays)


def _is_plain(step: RequestState, effects: Effects, kinds: set[Kind]) -> bool:
    """Whether the new jobs make an update of the store's row unnecessary (see ``tx.Meta``)."""
    if effects.gone or not effects.plain or kinds != {_MADE}:
        return not (kinds or effects or effects.topics)
    last = effects.moves[-1].jobs[-1] if effects.moves else next(reversed(effects.jobs.values())).job
    return last.seq == step.last_place and last.enqueued_ms == step.now_ms


# --- jobs -----------------------------------------------------------------------------------------


def _delete(step: RequestState, gone: list[JobRecord]) -> None:
    """Delete jobs and their data. Jobs that this request created have no row yet and are not counted."""
    seqs = [*{job.seq for job in gone}]
    for num, state in step.among("job_delete", seqs).fetchall():
        step.tally(step.queues.name(num), STATES[state], None, 1)
    step.among("payload_delete", seqs)
    for statement in ("log_delete", "edge_delete", "stream_delete", "chunk_delete"):
        step.run(statement, str(seqs))
    for job in gone:
        step.queues.leased.pop((job.queue, job.id), None)


def _write_jobs(step: RequestState, effects: Effects) -> set[Kind]:
    """Write all changed jobs. Returns the kinds of the changes."""
    moves = [*effects.moves, *_alike(effects)] if effects.jobs else effects.moves
    by_kind: dict[Kind, list[JobRecord]] = {}
    for move in moves:
        kind = move.kind
        by_kind[kind] = by_kind[kind] + move.jobs if kind in by_kind else move.jobs
    for kind in (
        sorted(by_kind) if len(by_kind) > 1 else by_kind
    ):  # new jobs first: the insert may show that an id is not new
        _WRITERS[kind](step, by_kind[kind])
    leased = step.queues.leased
    for move in moves:
        if move.before is not move.state:
            step.tally(move.queue, move.before, move.state, len(move.jobs))
        if move.state is _ACTIVE:
            _remember(leased, move)
        elif move.before is _ACTIVE and leased:
            for job in move.jobs:
                leased.pop((job.queue, job.id), None)
    return set(by_kind)


def _alike(effects: Effects) -> list[Move]:
    """Group jobs that were saved one by one into moves."""
    moves: dict[tuple[Kind, str, JobState | None, JobState], list[JobRecord]] = {}
    for change in effects.jobs.values():
        job = change.job
        moves.setdefault((change.kind, job.queue, change.before, job.state), []).append(job)
    return [Move(jobs, queue, before, state, kind) for (kind, queue, before, state), jobs in moves.items()]


def _remember(leased: dict[tuple[str, str], JobRecord], move: Move) -> None:
    """Cache the records of leased jobs, because the worker will settle them soon."""
    if len(leased) > LEASED_KEPT:
        leased.clear()
    for job in move.jobs:
        if len(job.payload) <= INLINE_PAYLOAD:
            leased[move.queue, job.id] = job
        else:
            leased.pop((move.queue, job.id), None)


def _insert(step: RequestState, jobs: list[JobRecord]) -> None:
    """Insert new jobs. Plain ones need only a few columns. Raises ``TakenError`` if an id exists."""
    plain: list[Row] = []
    whole: list[Row] = []
    queue, num, grouped = "", 0, False
    options, options_text = None, ""
    for job in jobs:
        if job.queue != queue:
            queue, num = job.queue, step.queue(job.queue)
            grouped = step.queues.get(queue).row.grouped
        if not grouped and is_plain(job):
            if job.options is not options:
                options = job.options
                options_text = encode_options(options)
            plain.append(plain_row(job, num, options_text))
        else:
            whole.append(whole_row(job, num, grouped=_may_be_timed(step, job).row.grouped))
    try:
        done = _insert_rows(step, plain, whole)
    except UnicodeEncodeError:
        step.run("job_undo_insert", step.first_place)
        done = _insert_rows(step, storable(plain), storable(whole))
    if done != len(jobs):
        step.run("job_undo_insert", step.first_place)
        raise TakenError
    if whole:
        _write_payloads(step, [job for job in jobs if len(job.payload) > INLINE_PAYLOAD])


def _insert_rows(step: RequestState, plain: list[Row], whole: list[Row]) -> int:
    done = 0
    for name, rows in (("job_insert_plain", plain), ("job_insert", whole)):
        if rows:
            done += step.conn.executemany(step.sql[name], rows).rowcount
    return done


def _write_payloads(step: RequestState, jobs: list[JobRecord]) -> None:
    if jobs:
        step.many("payload_insert", [(job.seq, job.payload) for job in jobs])


def _rewrite(step: RequestState, jobs: list[JobRecord]) -> None:
    """Write every column at once, because a STRICT table refuses a row that still has a wrong type."""
    rows = []
    for job in jobs:
        queue = _may_be_timed(step, job)
        rows.append(whole_row(job, queue.num, grouped=queue.row.grouped))
    step.many("job_rewrite", rows)
    step.among("payload_delete", [job.seq for job in jobs])
    _write_payloads(step, [job for job in jobs if len(job.payload) > INLINE_PAYLOAD])


def _may_be_timed(step: RequestState, job: JobRecord) -> QueueState:
    """The queue of a job that is written with its due time."""
    queue = step.queues.get(job.queue)
    queue.untimed = False
    return queue


def _save(step: RequestState, jobs: list[JobRecord]) -> None:
    step.many("job_save", [changed_row(job, grouped=_may_be_timed(step, job).row.grouped) for job in jobs])


def _lease(step: RequestState, jobs: list[JobRecord]) -> None:
    """Write the jobs of one claim, with one statement for all that have the same times.

    The statement makes each job's token from the claim's id and the job's number.
    """
    first = jobs[0]
    claim_id = (first.token or "").rpartition(".")[0]
    until_ms, expires_ms = first.lease_until_ms, first.expires_ms
    seqs: list[int] = []
    alike = {(until_ms, expires_ms): seqs}
    for job in jobs:
        if job.lease_until_ms != until_ms or job.expires_ms != expires_ms:
            until_ms, expires_ms = job.lease_until_ms, job.expires_ms
            seqs = alike.setdefault((until_ms, expires_ms), [])
        seqs.append(job.seq)
    for times, seqs in alike.items():
        step.among("job_lease", seqs, claim_id, first.worker, first.started_ms, *times)


def _complete(step: RequestState, jobs: list[JobRecord]) -> None:
    """Write jobs with the same options and result with one statement, and all others one by one."""
    alike: dict[tuple[int, bytes | None], list[JobRecord]] = {}
    options, result = None, None
    some: list[JobRecord] = []
    for job in jobs:
        if job.options is not options or job.result != result:
            options, result = job.options, job.result
            some = alike.setdefault((id(options), result), [])
        some.append(job)
    took("sqlite.complete")
    single: list[Row] = []
    done = 0
    for (_, result), some in alike.items():
        first = some[0]
        finished_ms = first.finished_ms or 0
        params = (
            finished_ms,
            None if result is None else bytearray(result),  # see ``rows.plain_row``
            first.result_until_ms,
            too_old_from(encode_options(first.options), _COMPLETED, finished_ms),
            spare_until(first.options, finished_ms),
        )
        if len(some) == 1:
            single.append((*params, first.seq))
        else:
            done += step.among("job_complete", [job.seq for job in some], *params).rowcount
    done += step.many("job_complete" + ONE, single) if single else 0
    if done != len(jobs):  # a bug: some change of an active job did not pop it from ``Queues.leased``
        missing = len(jobs) - done
        raise StorageError(
            f"the cache of leases is stale for {missing} jobs; nothing was changed: repeat the call"
        )


def _extend(step: RequestState, jobs: list[JobRecord]) -> None:
    step.many("job_extend", [(job.lease_until_ms, job.seq) for job in jobs])


_WRITERS: dict[Kind, Callable[[RequestState, list[JobRecord]], None]] = {
    Kind.MADE: _insert,
    Kind.REPLACED: _rewrite,
    Kind.LEASED: _lease,
    Kind.EXTENDED: _extend,
    Kind.COMPLETED: _complete,
    Kind.MOVED: _save,
}


# --- rows -----------------------------------------------------------------------------------------


def _write_queues(step: RequestState, effects: Effects) -> None:
    for (table, key), row in effects.rows.items():
        if table is Table.QUEUE:
            _write_queue(step, key[0], row)


def _write_queue(step: RequestState, name: str, row: QueueRow) -> None:
    num = step.queue(name)
    stored = step.queues.get(name)
    stored.row = copy_row(row)
    stored.special = GROUPED * row.grouped | LIMITED * is_limited(row)
    step.run("queue_save", row.paused, row.known, stored.special, num)
    if stored.special & LIMITED:
        step.run("limits_save", num, *limits_row(row))
    else:
        step.run("limits_forget", num)


# --- effects that few requests have ---------------------------------------------------------------


def _write_parts(step: RequestState, effects: Effects) -> None:
    for (queue, group), starts in effects.starts.items():
        _write_starts(step, queue, group, starts)
    if effects.edges or effects.ends:
        edges.write(step, effects)
    for job, lines in effects.logs:
        _write_log(step, job, lines)
    for job, head, chunks in effects.chunks:
        _write_stream(step, job, head, chunks)
    for mark in effects.marks:
        step.run("mark_insert", mark.id, mark.at_ms, mark.label)
        step.run("mark_trim", MARKS_KEPT)
    for name, upto in effects.forgotten.items():
        _forget_events(step, name, upto)
    for name, oldest in effects.trims.items():
        log = step.queues.get(name)
        step.run("history_floor", oldest - 1, log.last_history, log.num)
        step.run("history_trim", log.num * LOG_KEY, log.num * LOG_KEY + oldest - 1)


def _write_starts(step: RequestState, queue: str, group: str | None, starts: Starts) -> None:
    num, packed = step.queue(queue), pack(starts.times) if starts.times else None
    if group is None:
        step.queues.get(queue).starts = starts.times
        step.run("limits_starts", packed, num)
    elif starts.times:
        step.run("grp_starts", num, group, packed)
    else:
        step.run("grp_no_starts", num, group)


def _write_log(step: RequestState, job: JobRecord, lines: list[LogLine]) -> None:
    ((last,),) = step.all("log_last", job.seq)
    last = (last or 0) + len(lines)
    numbered = list(enumerate(lines, last - len(lines) + 1))[-LOGS_KEPT:]
    step.many("log_insert", [(job.seq, n, *astuple(line)) for n, line in numbered])
    step.run("log_trim", job.seq, last - LOGS_KEPT)


def _write_stream(step: RequestState, job: JobRecord, head: StreamHead, chunks: list[Chunk]) -> None:
    """Insert new chunks. Delete the oldest ones until the stream is within its bounds."""
    step.many("chunk_insert", [(job.seq, chunk.index, chunk.delivery, chunk.data) for chunk in chunks])
    if too_much(head):
        for (size,) in step.all("chunk_sizes", job.seq, head.oldest):
            if not too_much(head):
                break
            head.size -= size
            head.oldest += 1
        step.run("chunk_trim", job.seq, head.oldest)
    step.run("stream_save", job.seq, head.last, head.oldest, head.size, head.delivery, head.base)


def _forget_events(step: RequestState, name: str, floor: int) -> None:
    """Delete a queue's events up to ``floor``, after their counts were added to the totals."""
    queue = step.queues.get(name)
    fold(step.conn, step.sql, queue)
    step.run("queue_events_from", floor, queue.num)
    step.run("event_trim", queue.num * LOG_KEY, queue.num * LOG_KEY + floor)

"""Promote, recover, prune, elect, beat, command: duties, safe to run anywhere and any number of times."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.backends.sqlite import stubs, verbs_metrics
from windlass.backends.sqlite.gates import GROUPED
from windlass.backends.sqlite.logs import unpack_history
from windlass.backends.sqlite.rows import (
    LAST_SEQ,
    LOG_KEY,
    Row,
    decode_cursors,
    encode_json,
    pack,
    readable_options,
    unpack_worker,
)
from windlass.backends.sqlite.verbs_lifecycle import promote_rows
from windlass.core import damage, transitions
from windlass.core.job import (
    ARCHIVER_KEPT_MS,
    HISTORY_HELD,
    HISTORY_KEPT,
    HISTORY_KEPT_MS,
    ArchiverInfo,
    Command,
    JobRef,
    WorkerInfo,
)
from windlass.core.options import GRACE_MS, StoredOptions
from windlass.core.states import FINISHED, JobState

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step

WORKER_KEPT_MS = 300_000
#: Most kept ids, and chunks of a log, that one prune looks at.
SCAN = 10_000
#: Jobs whose state one recover looks at.
PATROL = 5_000
#: Most pages that one prune gives back to the file system, and free ones that are left for what comes next.
VACUUM_PAGES = 500
SPARE_PAGES = 500

_DEFAULTS = StoredOptions()


def promote(step: Step, request: rq.Promote) -> rq.Promoted:
    due: list[Row] = []
    for num, next_ms in step.all("job_next_dues"):
        if next_ms <= step.now_ms:
            due += step.all("job_due", num, step.now_ms, request.limit)
    due.sort()
    promote_rows(step, due[: request.limit])
    count = min(len(due), request.limit)
    specials = step.all("queue_specials")
    for num, _, _ in specials:
        count += step.gates.advance_timed(num, request.limit - count)
    dues = [next_ms for _, next_ms in step.all("job_next_dues")]
    for num, name, special in specials:
        next_ms = step.gates.next_ms(num, name, special)
        dues += [] if next_ms is None else [next_ms]
    return rq.Promoted(count, max(min(dues) - step.now_ms, 0) if dues else None)


def recover(step: Step, request: rq.Recover) -> rq.Recovered:
    jobs = step.records(step.all("job_lease_over", step.now_ms, request.limit))
    jobs += step.records(step.all("job_timeless", request.limit))
    jobs += step.records(_stateless(step))
    result = rq.Recovered([], [])
    for job in jobs:
        if damage.is_bad(job):
            result.failed.append(job.ref)
            continue
        alive = transitions.recover(job, step)
        (result.recovered if alive else result.failed).append(job.ref)
        step.save([(job, JobState.ACTIVE)])
    result.expired = _expire_passed(step, request.limit)
    return result


def _stateless(step: Step) -> list[Row]:
    """Jobs that are in no state that there is, among the next ``PATROL``: no other statement finds them."""
    start = step.queues.patrolled
    edge = step.one("list_edge_up", start, PATROL - 1)
    step.queues.patrolled = edge[0] if edge else 0
    return step.all("job_stateless", start, edge[0] if edge else LAST_SEQ)


def _expire_passed(step: Step, limit: int) -> list[JobRef]:
    """End what is pending past its time, the earliest first."""
    ended: list[JobRef] = []
    stays: list[int] = []
    for found in step.records(step.all("job_expired", step.now_ms, limit)):
        # The end of one may have let another of its group in.
        job = step.find(found.ref) if step.special(found.queue) & GROUPED else found
        if job is None or damage.is_bad(job):
            continue
        if not transitions.is_expired(job, step.now_ms):  # it ran or ended under an earlier release
            stays.append(job.seq)
            continue
        before = job.state
        transitions.expire(job, step)
        step.save([(job, before)])
        ended.append(job.ref)
    if stays:
        step.among("job_stays", stays)
    return ended


def set_back(step: Step, from_ms: int) -> None:
    """The store's time goes back: what ends by itself keeps the time that it had left. Due times stay."""
    by_ms = from_ms - step.now_ms
    for name in ("back_lease", "back_leader", "back_key"):
        step.run(name, by_ms, from_ms)
    step.run("back_worker", step.now_ms)
    step.gates.set_back(from_ms)
    step.queues.leased.clear()
    for _, queue in step.all("queue_nums"):
        step.count(queue, "", "clock_set_back")


# --- prune ----------------------------------------------------------------------------------------


def prune(step: Step, request: rq.Prune) -> rq.Pruned:
    old, more_old = _prunable(step, request.limit)
    step.drop_unseen([seq for _, _, seq in old[: request.limit]])
    ids = step.run("kept_id_prune", step.now_ms, SCAN)
    if ids:
        step.queues.no_kept_ids = None
    stubs.prune(step)
    keys = step.run("unique_key_prune", step.now_ms, SCAN)
    for (num,) in step.all("grp_queues"):
        step.gates.prune(num)
    workers = step.run("worker_prune", step.now_ms - WORKER_KEPT_MS)
    history, more_history = _trim_histories(step)
    metrics = verbs_metrics.prune(step, request.limit)
    _shrink(step)
    return rq.Pruned(
        jobs=min(len(old), request.limit),
        ids=ids,
        keys=keys,
        history=history,
        workers=workers,
        metrics=metrics,
        more=more_old or SCAN in (ids, keys) or more_history or metrics == request.limit,
    )


def _shrink(step: Step) -> None:
    """Give some free pages back, when they are many: a queue that comes and goes shall reuse its own."""
    ((free,),) = step.conn.execute("PRAGMA freelist_count").fetchall()
    ((pages,),) = step.conn.execute("PRAGMA page_count").fetchall()
    if free > SPARE_PAGES + pages // 8:
        for _ in range(min(free - SPARE_PAGES, VACUUM_PAGES)):
            step.conn.execute("PRAGMA incremental_vacuum(1)")  # the sqlite3 module stops after one page


def _prunable(step: Step, limit: int) -> tuple[list[Row], bool]:
    """(queue, finished_ms, seq) of finished records past their keep, in the order in which they go.

    Also tells whether there are, or may be, more than ``limit`` of them.

    By age through one index, or from the oldest of each queue and state, where those by count are found, too.
    Only so many candidates are looked at, so when very many are too old at once, the order among them is
    approximate.
    """
    candidates, unsure = max(2 * limit, 1_000), False
    found = set(step.all("prune_old", step.now_ms, candidates))
    for num, name in step.all("prune_queues", LOG_KEY):
        totals = step.totals(name)
        for state in FINISHED:
            if totals[state]:
                plain, seen = _plain_old(step, num, state, candidates)
                unsure = unsure or seen == candidates
                found.update(plain)
                found.update(_surplus(step, num, state, totals[state], limit + 1))
    return sorted(found), unsure or len(found) > limit


def _plain_old(step: Step, num: int, state: JobState, limit: int) -> tuple[list[Row], int]:
    """Plain jobs that are past the default age, among ``limit`` that are as old; and how many those were.

    Others that are kept longer may stand in between, as many as there are: those that were seen are not
    looked at again by this connection. None can appear among them while the store's clock does not go back.
    """
    age_ms = _DEFAULTS.keep_for(state).age_ms
    assert age_ms is not None
    seen = step.queues.kept_longer
    rows = step.all("prune_plain", num, state, *seen.get((num, state), (0, 0)), step.now_ms - age_ms, limit)
    first = next((at for at, row in enumerate(rows) if row[3]), len(rows))
    if first:
        seen[num, state] = (rows[first - 1][1], rows[first - 1][2])
    return [row[:3] for row in rows[first:] if row[3]], len(rows)


def _surplus(step: Step, num: int, state: JobState, total: int, limit: int) -> list[Row]:
    newest = step.one("prune_newest", num, state)
    keep = readable_options(newest[0]).keep_for(state).count if newest else None
    if keep is None or total <= keep:
        return []
    return step.all("prune_surplus", num, state, step.now_ms, GRACE_MS, total - keep, limit)


def _trim_histories(step: Step) -> tuple[int, bool]:
    """Forget old attempt records; returns how many, and whether more may have to go."""
    archivers = list_archivers(step.all, step.now_ms)
    trimmed, more = 0, False
    for num, name in step.all("prune_queues", LOG_KEY):
        last = step.queues.get(name).last_history
        copied = min((info.cursors.get(name, 0) for info in archivers), default=last)
        rolled_up = verbs_metrics.holds_from(step, num)
        copied = copied if rolled_up is None else min(copied, rolled_up)
        before, floor, unsure = _history_floor(step, num, name, copied)
        if floor > before:
            step.run("history_floor", floor, last, num)
            step.run("history_trim", num * LOG_KEY, num * LOG_KEY + floor)
        if floor > max(before, copied):
            step.count(name, "", "history_dropped", floor - max(before, copied))
        trimmed += floor - before
        more = more or unsure
    return trimmed, more


def _history_floor(step: Step, num: int, name: str, copied: int) -> tuple[int, int, bool]:
    """Up to where a queue's history was gone before, and shall be now; and whether that is not all yet.

    Too old or too much goes when every live archiver has copied it; beyond the hard bound it goes anyway.
    """
    ((before,),) = step.all("queue_floor", num)
    base, last = num * LOG_KEY, step.queues.get(name).last_history
    # Records of this transaction are not written yet; they are young, but they count.
    count = last + step.tx.held_history(name)
    floor = max(before, count - HISTORY_KEPT)
    chunks = step.all("history_ages", base + floor, base + last, SCAN)
    for key, _, at_ms in chunks:
        if at_ms > step.now_ms - HISTORY_KEPT_MS:
            floor = _floor_within(step, key, floor)
            break
        floor = key - base
    unsure = len(chunks) == SCAN and floor == chunks[-1][0] - base
    return before, min(max(before, min(floor, copied), count - HISTORY_HELD), last), unsure


def _floor_within(step: Step, key: int, floor: int) -> int:
    """The new floor when the chunk at ``key`` holds the first record that stays."""
    row = step.one("history_chunk", key)
    assert row is not None
    records = damage.read_or_none(row[0], unpack_history, f"chunk {key} of the history")
    if records is None:
        return floor
    first = key % LOG_KEY - len(records) + 1
    for at, ended in enumerate(records, first):
        if at > floor and ended.finished_ms > step.now_ms - HISTORY_KEPT_MS:
            return at - 1
    return floor


def archive(step: Step, request: rq.Archive) -> None:
    row = step.one("archiver", request.name)
    read = (
        None
        if row is None
        else damage.read_or_none(row[0], decode_cursors, f"the row of archiver {request.name}")
    )
    cursors: dict[str, int] = {} if read is None else read
    for queue, at in request.cursors.items():
        cursors[queue] = max(cursors.get(queue, 0), at)
    step.run("archiver_save", request.name, step.now_ms, encode_json(cursors))


def list_archivers(select: Callable[..., list[Row]], now_ms: int) -> list[ArchiverInfo]:
    """Archivers that were seen lately, by name."""
    rows = select("archiver_list", now_ms - ARCHIVER_KEPT_MS)
    return list(damage.readable(rows, _archiver, lambda row: f"the row of archiver {row[0]}"))


def _archiver(row: Row) -> ArchiverInfo:
    name, cursors, seen_ms = row
    return ArchiverInfo(name=name, cursors=decode_cursors(cursors), seen_ms=seen_ms)


# --- leaders and workers ------------------------------------------------------------------------------


def elect(step: Step, request: rq.Elect) -> bool:
    holder, until_ms = step.one("leader", request.role) or ("", 0)
    if holder != request.holder and until_ms > step.now_ms:
        return False
    step.run("leader_save", request.role, request.holder, step.now_ms + request.ttl_ms)
    return True


def resign(step: Step, request: rq.Resign) -> bool:
    holder, until_ms = step.one("leader", request.role) or ("", 0)
    if holder != request.holder or until_ms <= step.now_ms:
        return False
    step.run("leader_delete", request.role)
    return True


def beat(step: Step, request: rq.Beat) -> Command | None:
    worker = request.worker
    if request.gone:
        step.run("worker_delete", worker.id)
        return None
    row = step.one("worker", worker.id)
    known = (
        None if row is None else damage.read_or_none(row[0], unpack_worker, f"the row of worker {worker.id}")
    )
    worker = _stamped(worker, known, step.now_ms)
    _save_worker(step, worker)
    return worker.command


def command_worker(step: Step, request: rq.CommandWorker) -> bool:
    row = step.one("worker", request.worker)
    worker = (
        None
        if row is None
        else damage.read_or_none(row[0], unpack_worker, f"the row of worker {request.worker}")
    )
    if worker is None:
        return False
    worker.command = Command(action=request.action, id=request.id)
    _save_worker(step, worker)
    step.topics.add(f"worker:{worker.id}")
    return True


def _save_worker(step: Step, worker: WorkerInfo) -> None:
    step.run("worker_save", worker.id, worker.started_ms, worker.beat_ms, pack(worker))


def _stamped(worker: WorkerInfo, known: WorkerInfo | None, beat_ms: int) -> WorkerInfo:
    """What a worker tells of itself, with what the store knows of it."""
    worker = copy(worker)
    worker.started_ms = known.started_ms if known else beat_ms
    worker.command = known.command if known else None
    worker.beat_ms = beat_ms
    return worker

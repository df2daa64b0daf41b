"""Finds what a prune removes: records, entries and history past their retention, in bounded steps."""

from __future__ import annotations

from windlass.backends.sqlite import loading, tables
from windlass.backends.sqlite.logs import unpack_history
from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import LOG_KEY, STATES, Row, readable_options
from windlass.core import bad_records
from windlass.core.job import WORKER_KEPT_MS, JobRecord, JobRef
from windlass.core.option_values import GRACE_MS
from windlass.core.options import StoredOptions
from windlass.core.rollups import KEPT_MS, STEP_MS
from windlass.core.states import FINISHED, JobState
from windlass.core.stubs import STUB_MS
from windlass.engine.effects import Table
from windlass.engine.reads import LogSpan
from windlass.engine.unit_of_work import UnitOfWork

#: The most chunks of a log that one prune reads.
SCAN = 10_000
#: How many queues one prune checks. The next one continues with the queues after them.
QUEUES = 250

_DEFAULTS = StoredOptions()


# --- jobs -----------------------------------------------------------------------------------------


def past_keep(step: RequestState, work: UnitOfWork, limit: int) -> list[JobRecord]:
    """Return finished jobs that are past their retention, in the order in which they are removed.

    Jobs with an age of their own are found through one index. Jobs with the default age, and jobs beyond a
    maximum count, are found from the oldest of each queue and state. The number of candidates is bounded, so
    if very many jobs are too old at once, or there are very many queues, their order is approximate.
    """
    now_ms, candidates = work.now_ms, max(2 * limit, 1_000)
    found = set(step.all("prune_old", now_ms, candidates))
    for num, name in _queues(step)[0]:
        totals = step.totals(name)
        for state in FINISHED:
            if totals[state]:
                plain, cut = _plain_old(step, num, state, now_ms, candidates)
                work.past.cut = work.past.cut or cut
                found.update(plain)
                found.update(_surplus(step, num, state, totals[state], now_ms, limit))
    seqs = [seq for _, _, seq in sorted(found)[:limit]]
    work.past.cut = work.past.cut or len(seqs) == limit
    rows = {row[0]: row for row in step.among("job_ends", seqs)} if seqs else {}
    return [_ended(step, rows[seq]) for seq in seqs]


def _queues(step: RequestState) -> tuple[list[Row], int]:
    """Return the queues that this prune checks, and the last of them if there may be more (else 0)."""
    rows = step.all("prune_queues", LOG_KEY, step.queues.pruned, QUEUES)
    return [row[:2] for row in rows if row[2]], rows[-1][0] if len(rows) == QUEUES else 0


def _ended(step: RequestState, row: Row) -> JobRecord:
    seq, num, job_id, state, options, enqueued_ms, linked = row
    return JobRecord(
        queue=step.queues.name(num),
        id=job_id,
        task="",
        payload=b"",
        seq=seq,
        state=STATES[state],
        options=readable_options(options),
        enqueued_ms=enqueued_ms,
        linked=linked is not None,
    )


def _plain_old(
    step: RequestState, num: int, state: JobState, now_ms: int, limit: int
) -> tuple[list[Row], bool]:
    """Return plain jobs that are past the default age, and whether there may be more.

    Any number of jobs that are kept longer may precede them. This connection remembers how far it has seen
    only such jobs and skips them next time. No plain job can appear among them unless the clock goes back.
    """
    age_ms = _DEFAULTS.keep_for(state).age_ms
    assert age_ms is not None
    seen = step.queues.kept_longer
    rows = step.all("prune_plain", num, state, *seen.get((num, state), (0, 0)), now_ms - age_ms, limit)
    first = next((at for at, row in enumerate(rows) if row[3]), len(rows))
    if first:
        seen[num, state] = (rows[first - 1][1], rows[first - 1][2])
    return [row[:3] for row in rows[first:] if row[3]], len(rows) == limit


def _surplus(step: RequestState, num: int, state: JobState, total: int, now_ms: int, limit: int) -> list[Row]:
    newest = step.all("prune_newest", num, state)
    keep = readable_options(newest[0][0]).keep_for(state).count if newest else None
    if keep is None or total <= keep:
        return []
    return step.all("prune_surplus", num, state, now_ms, GRACE_MS, total - keep, limit)


# --- entries of tables ----------------------------------------------------------------------------


def load_entries(step: RequestState, work: UnitOfWork, limit: int) -> None:
    """Load table entries whose time has passed, and groups that can be deleted."""
    now_ms, past, name = work.now_ms, work.past, step.queues.name
    past.kept_ids = [(name(num), key) for num, key in step.all("kept_id_past", now_ms, limit)]
    past.keys = [(name(num), key) for num, key in step.all("unique_key_past", now_ms, limit)]
    past.workers = [(key,) for (key,) in step.all("worker_past", now_ms - WORKER_KEPT_MS, limit)]
    past.stubs = [JobRef(name(num), key) for num, key in step.all("stub_past", limit, now_ms - STUB_MS)]
    for window, step_ms in STEP_MS.items():
        rows = step.all("metrics_past", step_ms, now_ms - KEPT_MS[window], limit)
        past.rollups += [(name(num), window, start_ms, task) for num, start_ms, task in rows]
    past.groups = [(name(num), group) for num, group in _idle_groups(step, limit)]
    loading.load_groups(step, past.groups, work)


def _idle_groups(step: RequestState, limit: int) -> list[Row]:
    """Return groups that may be deleted. This connection starts after those that it returned last time: many
    of them may stay, because their rate or bucket is in use, and must not hide the others."""
    rows = step.all("grp_idle", *step.queues.groups_checked, limit)
    step.queues.groups_checked = rows[-1] if len(rows) == limit else (0, "")
    return rows


# --- history --------------------------------------------------------------------------------------


def load_history(step: RequestState, work: UnitOfWork, since_ms: int) -> None:
    """Load the extent of the queues' histories, and the positions of archivers and roll-ups.

    Call it last: the next prune continues with the queues after these, unless this one was cut.
    """
    queues, last_num = _queues(step)
    if not work.past.cut:
        step.queues.pruned, work.past.cut = last_num, last_num > 0
    for num, name in queues:
        ((_, floor),) = step.all("queue_floors", num)
        last = step.queues.get(name).last_history
        work.logs[name] = LogSpan(floor + 1, last, _young(step, num, floor, last, since_ms))
    tables.put(work, Table.ARCHIVER, "", step.all("archivers_after", -1))
    for num, *cursor in step.all("metrics_cursors_all"):
        tables.put(work, Table.CURSOR, step.queues.name(num), [tuple(cursor)])


def _young(step: RequestState, num: int, floor: int, last: int, since_ms: int) -> int:
    """Return the id of the first record after ``since_ms``, or of the first that this step did not read."""
    base = num * LOG_KEY
    for key, _, at_ms in step.all("history_ages", base + floor, base + last, SCAN):
        if at_ms > since_ms:
            return _first_young(step, key, floor, since_ms)
        floor = key - base
    return floor + 1


def _first_young(step: RequestState, key: int, floor: int, since_ms: int) -> int:
    """Return the id of the first record after ``since_ms`` in the chunk at ``key``."""
    ((packed,),) = step.all("history_chunk", key)
    records = bad_records.read_or_none(packed, unpack_history, f"chunk {key} of the history")
    if records is None:
        return floor + 1
    first = key % LOG_KEY - len(records) + 1
    young = (at for at, ended in enumerate(records, first) if at > floor and ended.finished_ms > since_ms)
    return next(young, floor + 1)

"""Read-only requests about jobs, queues, logs and workers. Each is answered from one snapshot."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from windlass.backend import requests as rq
from windlass.backends.sqlite import inspection_more, stubs
from windlass.backends.sqlite.finding import conditions
from windlass.backends.sqlite.logs import unpack_events, unpack_history
from windlass.backends.sqlite.rows import (
    LOG_KEY,
    Row,
    index_of,
    record,
    unpack_worker,
)
from windlass.backends.sqlite.snapshot import ReadSnapshot
from windlass.backends.sqlite.tables import read_archiver
from windlass.backends.sqlite.tx import unfolded_counts
from windlass.core import bad_records
from windlass.core.job import (
    ARCHIVER_KEPT_MS,
    EVENTS_KEPT,
    ArchiverInfo,
    AttemptRecord,
    CounterRow,
    Event,
    JobRecord,
    LogLine,
    QueueInfo,
    WorkerInfo,
)
from windlass.core.order import LAST, Sort, place_after, seq_after
from windlass.core.states import FINISHED, JobState
from windlass.engine.views import is_wanted, view
from windlass.errors import HistoryTrimmedError

#: The most rows that one listing reads before it returns what it found, with a cursor.
SCAN = 5_000
#: Up to this many candidates are found through an index and sorted. With more, all jobs are scanned in order.
SORTABLE = 20_000
#: The same for listings that can scan an index instead of all jobs.
_FEW = 1_000
#: The number of waiting jobs that are read to find the oldest one.
HEAD = 5_000

_STATES = tuple(JobState)
_PART = 200
#: Each part of a list by time is this many times longer than the previous one.
_GROWTH = 4
_PRIORITIES = 32


def get(snap: ReadSnapshot, request: rq.GetJobs) -> list[JobRecord | None]:
    answers: list[JobRecord | None] = []
    for ref in request.refs:
        num = snap.num(ref.queue)
        rows = snap.all("job_by_id", num, ref.id)
        job = record(rows[0], ref.queue) if rows else stubs.find(snap, num, ref, snap.now_ms)
        answers.append(None if job is None else view(job, snap.now_ms, late=request.late))
    return answers


# --- listing --------------------------------------------------------------------------------------


def list_jobs(snap: ReadSnapshot, request: rq.ListJobs) -> rq.Page:
    num = snap.queues.num(request.queue)
    if num is None or request.limit <= 0:
        return rq.Page([])
    if request.sort is not Sort.ADDED:
        return _by_time(snap, num, request)
    start = seq_after(request.cursor, newest_first=request.newest_first)
    seqs = _short_list(snap, num, request, start)
    if seqs is not None:
        page, cursor = _first_wanted(snap, request, _rows(snap, request, seqs))
        looked = len(seqs) if cursor is None else seqs.index(cursor) + 1
    else:
        edge = _edge(snap, num, request, start)
        page, cursor = _first_wanted(snap, request, _walk(snap, num, request, start, edge))
        cursor = edge if cursor is None else cursor
        looked = _passed(snap, num, request, start, cursor)
    return rq.Page(page, None if cursor is None else str(cursor), looked)


def _first_wanted(
    snap: ReadSnapshot, request: rq.ListJobs, rows: Iterable[Row]
) -> tuple[list[JobRecord], int | None]:
    """Return the first page of wanted jobs, and the number of its last job if more follow."""
    page: list[JobRecord] = []
    for row in rows:
        job = record(row, request.queue)
        if not is_wanted(job, request):
            continue
        if len(page) == request.limit:
            return page, page[-1].seq
        page.append(view(job, snap.now_ms))
    return page, None


def _passed(snap: ReadSnapshot, num: int, request: rq.ListJobs, start: int, last: int | None) -> int:
    """Count the jobs that a scan passed up to ``last``, or to the end: all jobs of the queue in these states,
    or all jobs of the index.

    The number of rows that SQLite returned must not be used. It would reveal how many jobs contain a text,
    even to a caller that may not read it. So would counting a job twice when a page was full.
    """
    if request.newest_first:
        span = (0 if last is None else last - 1, max(start - 1, 0))
    else:
        span = (start, LAST if last is None else last)
    index = _index(request)
    if index is not None:
        return int(snap.all(f"list_{index}_passed", num, *span)[0][0])
    return int(snap.all("list_passed", *span, num, _states(request))[0][0])


def _by_time(snap: ReadSnapshot, num: int, request: rq.ListJobs) -> rq.Page:
    """List jobs by due time or finish time, read from the index of that time in growing parts. The first
    part has enough jobs to fill the page."""
    after: Sequence[int] = place_after(request.cursor, newest_first=request.newest_first)
    page: list[JobRecord] = []
    last: str | None = None
    passed = looked = 0
    size = min(request.limit + 1, SCAN)
    while size:
        places = _timed_places(snap, num, request, after, size)
        numbers = {seq: number for number, (_, seq) in enumerate(places)}
        for row in _rows(snap, request, list(numbers)):
            job = record(row, request.queue)
            if not is_wanted(job, request):
                continue
            if len(page) == request.limit:
                return rq.Page(page, last, passed)
            page.append(view(job, snap.now_ms))
            last = _cursor(places[numbers[row[0]]])
            passed = looked + numbers[row[0]] + 1
        looked += len(places)
        if len(places) < size:
            return rq.Page(page, None, looked)
        after = places[-1]
        size = min(size * _GROWTH, SCAN - looked)
    return rq.Page(page, _cursor(after), looked)


def _cursor(place: Sequence[int]) -> str:
    return f"{place[0]}.{place[1]}"


def _timed_places(
    snap: ReadSnapshot, num: int, request: rq.ListJobs, after: Sequence[int], size: int
) -> list[Row]:
    """Return the time and the number of the next ``size`` jobs."""
    down = request.newest_first
    if request.sort is Sort.DUE:
        return snap.all("list_due_down" if down else "list_due_up", num, *after, size)
    name = "list_finished_down" if down else "list_finished_up"
    streams = [snap.all(name, num, state.value, *after, size) for state in request.states]
    return list(islice(heapq.merge(*streams, reverse=down), size))


def _short_list(snap: ReadSnapshot, num: int, request: rq.ListJobs, start: int) -> list[int] | None:
    """Return the numbers of all candidates in order, or None if there are too many to sort."""
    found = _few_ended(snap, num, request)
    if found is None:
        found = _few_of_states(snap, num, request)
    if found is None:
        return None
    down = request.newest_first
    return sorted((seq for seq in found if (seq < start if down else seq > start)), reverse=down)


def _few_ended(snap: ReadSnapshot, num: int, request: rq.ListJobs) -> set[int] | None:
    """Return the jobs that finished in the requested time, or None if none is given or they are too many."""
    from_ms, to_ms = request.finished_from_ms, request.finished_to_ms
    if from_ms is None and to_ms is None:
        return None
    span = (from_ms or 0, LAST if to_ms is None else to_ms)
    found: set[int] = set()
    for state in FINISHED.intersection(request.states or _STATES):
        found.update(seq for (seq,) in snap.all("list_seqs_ended", num, state.value, *span, SORTABLE + 1))
    return found if len(found) <= SORTABLE else None


def _few_of_states(snap: ReadSnapshot, num: int, request: rq.ListJobs) -> set[int] | None:
    tally = snap.tally(num)
    states = set(request.states) or set(_STATES)
    if sum(tally[state] for state in states) > (SORTABLE if _index(request) is None else _FEW):
        return None
    found: set[int] = set()
    for state in states:
        if tally[state]:
            index, params = index_of(state)
            found.update(seq for (seq,) in snap.all(f"list_seqs_{index}", num, *params))
    return found


def _rows(snap: ReadSnapshot, request: rq.ListJobs, seqs: list[int]) -> Iterator[Row]:
    """Yield the rows of these jobs that may be wanted, in this order. Reads them in parts, on demand."""
    sql, values = _where(snap, "list_by_seqs", request)
    for first in range(0, len(seqs), _PART):
        part = seqs[first : first + _PART]
        rows = {row[0]: row for row in snap.conn.execute(sql, (str(part), *values))}
        yield from (rows[seq] for seq in part if seq in rows)


def _edge(snap: ReadSnapshot, num: int, request: rq.ListJobs, start: int) -> int | None:
    """Return the last job that a scan may read, or None if it may read to the end."""
    way, index = "down" if request.newest_first else "up", _index(request)
    if index is None:
        found = snap.all(f"list_edge_{way}", start, SCAN)
    else:
        found = snap.all(f"list_{index}_edge_{way}", num, start, SCAN)
    return found[0][0] if found else None


def _index(request: rq.ListJobs) -> str | None:
    """Return the index that contains all candidates, or None if all jobs of the store must be scanned."""
    return "top" if request.tops else "error" if request.needs_error else None


def _walk(snap: ReadSnapshot, num: int, request: rq.ListJobs, start: int, edge: int | None) -> Iterator[Row]:
    """Return the rows up to ``edge`` that may be wanted."""
    down = request.newest_first
    end = edge if edge is not None else 0 if down else LAST
    name = "_".join(part for part in ("list", _index(request), "walk", "down" if down else "up") if part)
    sql, values = _where(snap, name, request)
    return snap.conn.execute(sql, (start, end, num, _states(request), *values))


def _states(request: rq.ListJobs) -> str:
    """Return the requested states as a JSON list, for a statement."""
    return json.dumps([state.value for state in request.states or _STATES])


def _where(snap: ReadSnapshot, name: str, request: rq.ListJobs) -> tuple[str, list[Any]]:
    """Return a statement with the other conditions of the listing, and the values of these conditions."""
    also, values = conditions(request, snap.sql["payload_text"])
    return snap.sql[name].replace("/*also*/", also), values


# --- queues, logs, counters, workers ------------------------------------------------------------------


def count(snap: ReadSnapshot, request: rq.CountJobs) -> dict[JobState, int]:
    num = snap.queues.num(request.queue)
    return dict.fromkeys(JobState, 0) if num is None else snap.tally(num)


def list_queues(snap: ReadSnapshot, request: rq.ListQueues) -> list[QueueInfo]:
    infos = []
    for num, name, paused in snap.all("queue_list"):
        tally = snap.tally(num)
        infos.append(
            QueueInfo(
                name=name,
                paused=bool(paused),
                counts={state.value: total for state, total in tally.items()},
                oldest_ready_ms=_oldest_ready(snap, num, tally[JobState.WAITING]),
            )
        )
    return infos


def _oldest_ready(snap: ReadSnapshot, num: int, waiting: int) -> int | None:
    """Return when the oldest waiting job became ready.

    The answer is exact up to ``HEAD`` waiting jobs. Above that, only the first jobs of each priority are
    read. That is usually right, because jobs get their places in the order in which they become ready, except
    for a few that were released or recovered. With ``lifo`` the oldest jobs come last, so the answer may be
    too recent.
    """
    if not waiting:
        return None
    oldest: list[int] = [at for (at,) in snap.all("oldest_ready", num, HEAD) if at is not None]
    if waiting > HEAD:
        priority = LAST
        for _ in range(_PRIORITIES):
            found = snap.all("next_priority", num, priority)
            if not found:
                break
            ((priority,),) = found
            oldest += [at for (at,) in snap.all("oldest_ready_in", num, priority, _PART) if at is not None]
    return min(oldest, default=None)


def get_logs(snap: ReadSnapshot, request: rq.GetLogs) -> rq.LogPage:
    found = snap.all("job_seq", snap.num(request.ref.queue), request.ref.id)
    if not found:
        return rq.LogPage([], 0)
    ((seq,),) = found
    lines = [LogLine(*row) for row in snap.all("log_read", seq, request.limit, request.start)]
    return rq.LogPage(lines, snap.all("log_count", seq)[0][0])


def read_events(snap: ReadSnapshot, request: rq.ReadEvents) -> rq.EventPage:
    num = snap.queues.num(request.queue)
    if num is None:
        return rq.EventPage([], 0, 1)
    last, _, floor, _ = snap.logs(num)
    floor = max(floor, last - EVENTS_KEPT)
    after = max(request.after, floor)
    events: list[Event] = []
    chunks = snap.conn.execute(snap.sql["event_read"], _log_range(num, after))
    for _, first_id, records in chunks:
        if len(events) >= request.limit:
            break
        skip = max(after + 1 - first_id, 0)
        most = request.limit - len(events)
        read = partial(unpack_events, first_id, start=skip, count=most)
        events += (
            bad_records.read_or_none(records, read, f"events of queue {request.queue} from {first_id} on")
            or []
        )
    return rq.EventPage(events, last, floor + 1)


def read_history(snap: ReadSnapshot, request: rq.ReadHistory) -> rq.HistoryPage:
    num = snap.queues.num(request.queue)
    if num is None:
        return rq.HistoryPage([], request.after, 0, 1)
    _, newest, _, floor = snap.logs(num)
    if request.after < floor:
        raise HistoryTrimmedError("history", request.queue, request.after, floor + 1)
    found: list[AttemptRecord] = []
    chunks = snap.conn.execute(snap.sql["history_read"], _log_range(num, request.after))
    upto = request.after
    for key, first_id, records in chunks:
        if len(found) >= request.limit:
            break
        skip, most = max(request.after + 1 - first_id, 0), request.limit - len(found)
        read = partial(unpack_history, start=skip, count=most)
        part = bad_records.read_or_none(records, read, f"history of queue {request.queue} from {first_id} on")
        if part is None:
            upto = key % LOG_KEY  # skip the unreadable chunk
        else:
            found += part
            upto = first_id + skip + len(part) - 1
    return rq.HistoryPage(found, upto, newest, floor + 1)


def _log_range(num: int, after: int) -> tuple[int, int]:
    return num * LOG_KEY + max(after, 0), num * LOG_KEY + LOG_KEY - 1


def read_counters(snap: ReadSnapshot, request: rq.ReadCounters) -> list[CounterRow]:
    rows = []
    for num, name in snap.all("queue_nums"):
        if request.queue in (None, name):
            totals = {(task, outcome): total for task, outcome, total in snap.all("counter_list", num)}
            for key, by in unfolded_counts(snap.conn, snap.sql, num).items():
                totals[key] = totals.get(key, 0) + by
            rows += [CounterRow(name, task, outcome, total) for (task, outcome), total in totals.items()]
    return sorted(rows)


def list_workers(snap: ReadSnapshot, request: rq.ListWorkers) -> list[WorkerInfo]:
    rows = snap.all("workers_after", snap.now_ms - request.stale_ms)
    return list(
        bad_records.readable(
            rows, lambda row: unpack_worker(row[-1]), lambda row: f"the row of worker {row[0]}"
        )
    )


def archivers(snap: ReadSnapshot, request: rq.ListArchivers) -> list[ArchiverInfo]:
    rows = snap.all("archivers_after", snap.now_ms - ARCHIVER_KEPT_MS)
    return list(
        bad_records.readable(
            rows, lambda row: read_archiver(*row), lambda row: f"the row of archiver {row[0]}"
        )
    )


READS: dict[type[Any], Callable[[ReadSnapshot, Any], Any]] = {
    rq.GetJobs: get,
    rq.ListJobs: list_jobs,
    rq.CountJobs: count,
    rq.ListQueues: list_queues,
    rq.GetLogs: get_logs,
    rq.ReadEvents: read_events,
    rq.ReadHistory: read_history,
    rq.ReadCounters: read_counters,
    rq.ListWorkers: list_workers,
    rq.ListArchivers: archivers,
    **inspection_more.READS,
}

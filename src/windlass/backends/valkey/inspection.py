"""Read jobs, queues, events, history and counters."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from windlass.backend import requests as rq
from windlass.backends.valkey import logrows, records
from windlass.backends.valkey.codes import STATE_NUMBERS
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core import bad_records
from windlass.core.ids import TASK_CHARS
from windlass.core.job import AttemptRecord, CounterRow, Event, JobRecord, LogLine, QueueInfo
from windlass.core.order import Sort, place_after
from windlass.core.patterns import shortest_fit
from windlass.core.states import JobState
from windlass.errors import HistoryTrimmedError

_LUA_MAGIC = re.compile(r"([\^$()%.\[\]*+\-?])")
#: One character of UTF-8 in a Lua pattern.
_ONE = b"[%z\x01-\x7f\xc2-\xf4][\x80-\xbf]*"


async def get(session: ValkeySession, request: rq.GetJobs, now: str) -> list[JobRecord | None]:
    answers: list[JobRecord | None] = [None] * len(request.refs)

    async def one(group: SlotGroup, items: list[tuple[int, str]]) -> None:
        found = await session.functions.get(group.roots, now, items, request.late)
        for at, view in zip(group.positions, found, strict=True):
            answers[at] = records.viewed(request.refs[at].queue, view)

    await together(*(one(group, items) for group, items in session.grouped_refs(request.refs)))
    return answers


#: Lua writes larger numbers with exponents.
_LAST_NUMBER = 2**53 - 1


#: The indexes that have jobs of a state in the order of a time.
_PLACES: dict[Sort, dict[JobState, str]] = {
    Sort.ADDED: {},
    Sort.DUE: dict.fromkeys((JobState.SCHEDULED, JobState.RETRYING, JobState.SUSPENDED), "d"),
    Sort.FINISHED: {JobState.COMPLETED: "PC", JobState.FAILED: "F", JobState.CANCELLED: "X"},
}


#: Where to search for the text of a hint, as ``list_jobs.lua`` reads it.
_WHERE = {"error": 1, "payload": 2, "any": 3}


async def list_jobs(session: ValkeySession, request: rq.ListJobs, now: str) -> rq.Page:
    if request.task is not None and shortest_fit(request.task) > TASK_CHARS:
        return rq.Page([], None)  # no name can match, and Lua takes a limited number of arguments
    cursor, time, seq = -1, -1, -1
    if request.cursor is not None and request.sort is Sort.ADDED:
        cursor = min(int(request.cursor), _LAST_NUMBER)
        if cursor == 0 and request.newest_first:
            return rq.Page([], None)  # there is nothing before the first job
    elif request.cursor is not None:
        place = place_after(request.cursor, newest_first=request.newest_first)
        time, seq = (min(number, _LAST_NUMBER) for number in place)
    places = _PLACES[request.sort]
    what = (
        int(request.newest_first),
        cursor,
        request.limit,
        [STATE_NUMBERS[state] for state in request.states],
        request.tag or "",
        int(request.error_class is not None),
        request.error_class or "",
        sorted({name for state in request.states for name in places.get(state, "")}),
        time,
        seq,
        request.group or "",
        request.worker or "",
        int(request.fingerprint is not None),
        request.fingerprint or "",
        -1 if request.finished_from_ms is None else max(request.finished_from_ms, 0),
        -1 if request.finished_to_ms is None else max(request.finished_to_ms, 0),
        [(_WHERE[hint.where], hint.text) for hint in request.hints],
        int(request.tops),
        _in_head(request),
    )
    patterns = [] if request.task is None else lua_patterns(request.task)
    root = session.keys.queue(request.queue)
    further, looked, *views = await session.functions.list_jobs(root, now, what, patterns)
    jobs = [job for view in views if (job := records.viewed(request.queue, view)) is not None]
    if isinstance(further, bytes):
        return rq.Page(jobs, further.decode(), looked)
    return rq.Page(jobs, None if further < 0 else str(further), looked)


def _in_head(request: rq.ListJobs) -> list[str]:
    """Texts that the head of every matching job contains, to skip others without decoding their heads."""
    of_task = max(re.split(r"[*?]", request.task or ""), key=len)
    return [text for text in (of_task, request.tag, request.group, request.worker) if text]


def lua_patterns(glob: str) -> list[bytes]:
    """A glob (``*`` and ``?``) as Lua patterns over UTF-8 bytes: one for each part between two stars.

    A text matches if each part is found after the one before. With one pattern and ``.*`` Lua would try all
    combinations, which can block the server for hours.
    """
    parts = [b"".join(_lua_character(char) for char in part) for part in glob.split("*")]
    parts[0] = b"^" + parts[0]
    parts[-1] += b"$"
    return [part for part in parts if part not in (b"", b"^", b"$")]


def _lua_character(char: str) -> bytes:
    if char == "\0":
        return b"%z"
    return _ONE if char == "?" else _LUA_MAGIC.sub(r"%\1", char).encode()


async def count(session: ValkeySession, request: rq.CountJobs, now: str) -> dict[JobState, int]:
    (row,) = await session.functions.info([session.keys.queue(request.queue)], now, False)
    return _counts(row)


def _counts(row: list[int]) -> dict[JobState, int]:
    _, _, waiting, due, active, completed, failed, cancelled, retrying, _, blocked, suspended, *more = row
    limited, parked = more
    counts = dict.fromkeys(JobState, 0)
    counts[JobState.WAITING], counts[JobState.ACTIVE] = waiting, active
    counts[JobState.SCHEDULED], counts[JobState.RETRYING] = due - retrying - limited, retrying
    counts[JobState.BLOCKED], counts[JobState.SUSPENDED] = blocked, suspended + limited
    counts[JobState.COMPLETED], counts[JobState.FAILED] = completed, failed
    counts[JobState.CANCELLED], counts[JobState.PARKED] = cancelled, parked
    return counts


async def list_queues(session: ValkeySession, request: rq.ListQueues, now: str) -> list[QueueInfo]:
    infos = []
    for group in await session.all_groups():
        rows = await session.functions.info(group.roots, now, True)
        for name, row in zip(group.names, rows, strict=True):
            if not row[0]:
                continue
            counts = {state.value: number for state, number in _counts(row).items()}
            oldest = None if row[9] < 0 else row[9]
            infos.append(QueueInfo(name=name, paused=bool(row[1]), counts=counts, oldest_ready_ms=oldest))
    return sorted(infos, key=lambda info: info.name)


async def get_logs(session: ValkeySession, request: rq.GetLogs, now: str) -> rq.LogPage:
    root = session.keys.queue(request.ref.queue)
    kept, *lines = await session.functions.logs(root, request.ref.id, request.start, request.limit)
    found = bad_records.readable(lines, _log_line, lambda line: f"a log line of job {request.ref.id}")
    return rq.LogPage(list(found), kept)


def _log_line(line: bytes) -> LogLine:
    """A line as ``report.lua`` packs it, or plain text of an earlier release."""
    if not line.startswith(b"\x01"):
        return LogLine(line.decode())
    text, at_ms, level, attempt, run = records.decode(line[1:])
    return LogLine(text, int(at_ms), level, attempt, run)


async def read_events(session: ValkeySession, request: rq.ReadEvents, now: str) -> rq.EventPage:
    root = session.keys.queue(request.queue)
    last, oldest, *entries = await session.functions.log_rows(root, "v", request.after, request.limit)
    after = max(request.after, oldest - 1)
    found: list[Event] = []
    for at in range(0, len(entries), 2):
        left = request.limit - len(found)
        read = partial(logrows.events, entries[at], after=after, limit=left)
        what = f"an entry of events of queue {request.queue} that ends with {entries[at]}"
        found += bad_records.read_or_none(entries[at + 1], read, what) or []
    return rq.EventPage(found, last, oldest)


async def read_history(session: ValkeySession, request: rq.ReadHistory, now: str) -> rq.HistoryPage:
    root = session.keys.queue(request.queue)
    last, oldest, *entries = await session.functions.log_rows(root, "h", request.after, request.limit)
    if request.after + 1 < oldest:
        raise HistoryTrimmedError("history", request.queue, request.after, oldest)
    rows: list[tuple[int, AttemptRecord]] = []
    upto = request.after
    for at in range(0, len(entries), 2):
        left = request.limit - len(rows)
        read = partial(logrows.attempts, request.queue, entries[at], after=request.after, limit=left)
        what = f"an entry of the history of queue {request.queue} that ends with {entries[at]}"
        part = bad_records.read_or_none(entries[at + 1], read, what) if left > 0 else []
        rows += part or []
        if part is None:
            upto = entries[at]  # unreadable: continue after it
        elif part:
            upto = part[-1][0]
    return rq.HistoryPage([record for _, record in rows], upto, last, oldest)


async def read_counters(session: ValkeySession, request: rq.ReadCounters, now: str) -> list[CounterRow]:
    if request.queue is not None:
        groups = session.grouped([request.queue])
    else:
        groups = await session.all_groups()
    rows: list[CounterRow] = []
    for group in groups:
        found: list[Any] = await session.functions.counters(group.roots)
        for name, fields in zip(group.names, found, strict=True):
            for at in range(0, len(fields), 2):
                _, outcome, task = fields[at].decode().split(":", 2)
                rows.append(CounterRow(name, task, outcome, int(fields[at + 1])))
    return sorted(rows)

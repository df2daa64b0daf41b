"""Workers, leaders and archivers: heartbeats, elections, commands, and how far the history is copied."""

from __future__ import annotations

from copy import copy

from windlass.backend import requests as rq
from windlass.core.job import ArchiverInfo, Command, WorkerInfo
from windlass.engine.effects import Entry, Table
from windlass.engine.reads import Reads, Verb
from windlass.engine.unit_of_work import UnitOfWork


def elect(work: UnitOfWork, request: rq.Elect) -> Verb[bool]:
    """Become or stay the leader of a role. False if another holder's term has not ended. Reads: 1."""
    holder, until_ms = yield from _leader(work, request.role)
    if holder != request.holder and until_ms > work.now_ms:
        return False
    work.put_row(Table.LEADER, (request.role,), (request.holder, work.now_ms + request.ttl_ms))
    return True


def resign(work: UnitOfWork, request: rq.Resign) -> Verb[bool]:
    """Give up the leadership of a role. False if the caller is not the leader. Reads: 1."""
    holder, until_ms = yield from _leader(work, request.role)
    if holder != request.holder or until_ms <= work.now_ms:
        return False
    work.put_row(Table.LEADER, (request.role,), None)
    return True


def _leader(work: UnitOfWork, role: str) -> Verb[tuple[str, int]]:
    entry: Entry = (Table.LEADER, (role,))
    yield Reads(rows=[entry])
    found: tuple[str, int] | None = work.rows[entry]
    return found or ("", 0)


def beat(work: UnitOfWork, request: rq.Beat) -> Verb[Command | None]:
    """Store a heartbeat, or remove a worker that is ``gone``. Returns the worker's last command. Reads: 1."""
    entry: Entry = (Table.WORKER, (request.worker.id,))
    yield Reads(rows=[entry])
    if request.gone:
        work.put_row(*entry, None)
        return None
    worker = copy(request.worker)
    worker.beat_ms = work.now_ms
    known: WorkerInfo | None = work.rows[entry]
    worker.started_ms = known.started_ms if known else work.now_ms
    worker.command = known.command if known else None
    work.put_row(*entry, worker)
    return worker.command


def command(work: UnitOfWork, request: rq.CommandWorker) -> Verb[bool]:
    """Leave a command for a worker and notify it. False if the worker is unknown. Reads: 1."""
    entry: Entry = (Table.WORKER, (request.worker,))
    yield Reads(rows=[entry])
    if work.rows[entry] is None:
        return False
    worker: WorkerInfo = copy(work.rows[entry])
    worker.command = Command(action=request.action, id=request.id)
    work.put_row(*entry, worker)
    work.notify(f"worker:{worker.id}")
    return True


def archive(work: UnitOfWork, request: rq.Archive) -> Verb[None]:
    """Register an archiver, or move its cursors forward. Reads: 1."""
    entry: Entry = (Table.ARCHIVER, (request.name,))
    yield Reads(rows=[entry])
    known: ArchiverInfo | None = work.rows[entry]
    cursors = dict(known.cursors) if known else {}
    for queue, at in request.cursors.items():
        cursors[queue] = max(cursors.get(queue, 0), at)
    work.put_row(*entry, ArchiverInfo(name=request.name, cursors=cursors, seen_ms=work.now_ms))

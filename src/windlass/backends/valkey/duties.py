"""Duties over all queues of the namespace, archivers, elections and workers."""

from __future__ import annotations

import heapq

import msgspec

from windlass.backend import requests as rq
from windlass.backends.valkey import relay
from windlass.backends.valkey.session import SlotGroup, ValkeySession
from windlass.core import bad_records
from windlass.core.job import ARCHIVER_KEPT_MS, WORKER_KEPT_MS, ArchiverInfo, Command, JobRef, WorkerInfo

_encode = msgspec.json.Encoder().encode
_decode_worker = msgspec.json.Decoder(WorkerInfo).decode
_decode_command = msgspec.json.Decoder(Command).decode


async def _shares(session: ValkeySession, now: str, index: str, limit: int) -> list[tuple[SlotGroup, int]]:
    """Divide ``limit`` among the groups of queues, so that the earliest jobs of all queues come first."""
    groups = await session.all_groups()
    if len(groups) <= 1:
        return [(group, limit) for group in groups]
    scores: list[tuple[int, int, int]] = []
    for number, group in enumerate(groups):
        found = await session.functions.peek(group.roots, now, index, limit)
        for part in found:
            pairs = zip(part[::2], part[1::2], strict=True)
            scores += [(int(score), int(seq), number) for seq, score in pairs]
    counts = [0] * len(groups)
    for _, _, number in heapq.nsmallest(limit, scores):
        counts[number] += 1
    return list(zip(groups, counts, strict=True))


async def promote(session: ValkeySession, request: rq.Promote, now: str) -> rq.Promoted:
    total = 0
    next_due: int | None = None
    shares = await _shares(session, now, "d", request.limit)
    admit_limit = -1 if len(shares) == 1 else request.limit - sum(count for _, count in shares)
    for group, count in shares:
        done, due, admitted = await session.functions.promote(group.roots, now, count, admit_limit)
        total += done + admitted
        admit_limit -= admitted
        if due >= 0:
            next_due = due if next_due is None else min(next_due, due)
    return rq.Promoted(total, next_due)


async def recover(session: ValkeySession, request: rq.Recover, now: str) -> rq.Recovered:
    rows: list[tuple[int, int, JobRef, int]] = []
    left: list[str] = []

    async def take(group: SlotGroup, leases: int, expired: int) -> None:
        if leases == expired == 0:
            return
        names, *found = await session.functions.recover(group.roots, now, leases, expired)
        left.extend(name.decode() for name in names)
        for at in range(0, len(found), 5):
            index, job_id, became, deadline_ms, seq = found[at : at + 5]
            rows.append((deadline_ms, seq, JobRef(group.names[index - 1], job_id.decode()), became))

    shares = await _shares(session, now, "a", request.limit)
    alone = len(shares) == 1
    for group, count in shares:
        await take(group, count, count if alone else 0)
    if not alone:  # read only now: a recovered job may have expired
        for group, count in await _shares(session, now, "z", request.limit):
            await take(group, 0, count)
    rows.sort()
    await relay.after(session, left, now)
    result = rq.Recovered([], [])
    for _, _, ref, became in rows:
        (result.failed, result.recovered, result.expired)[became].append(ref)
    return result


async def prune(session: ValkeySession, request: rq.Prune, now: str) -> rq.Pruned:
    result = rq.Pruned()
    archivers = await list_archivers(session, rq.ListArchivers(), now)
    for group in await session.all_groups():
        copied = [min((info.cursors.get(name, 0) for info in archivers), default=-1) for name in group.names]
        jobs, ids, history, more, metrics, keys = await session.functions.prune(
            group.roots, now, request.limit - result.jobs, copied, request.limit - result.metrics
        )
        result.jobs += jobs
        result.ids += ids
        result.keys += keys
        result.history += history
        result.metrics += metrics
        result.more = result.more or bool(more)
    result.workers = await session.functions.sweep(session.keys.root, now, WORKER_KEPT_MS)
    return result


async def archive(session: ValkeySession, request: rq.Archive, now: str) -> None:
    cursors = [part for cursor in request.cursors.items() for part in cursor]
    await session.functions.archive(session.keys.root, now, request.name, cursors)


async def list_archivers(session: ValkeySession, request: rq.ListArchivers, now: str) -> list[ArchiverInfo]:
    found = await session.functions.archivers(session.keys.root, now, ARCHIVER_KEPT_MS)
    rows = zip(found[::2], found[1::2], strict=True)
    infos = bad_records.readable(rows, _archiver, lambda row: f"the row of archiver {row[0]!r}")
    return sorted(infos, key=lambda info: info.name)


def _archiver(row: tuple[bytes, bytes]) -> ArchiverInfo:
    seen_ms, *cursors = msgspec.msgpack.decode(row[1])
    by_queue = dict(zip(cursors[::2], cursors[1::2], strict=True))
    return ArchiverInfo(name=row[0].decode(), cursors=by_queue, seen_ms=seen_ms)


async def elect(session: ValkeySession, request: rq.Elect, now: str) -> bool:
    return await session.functions.elect(session.keys.root, now, request.role, request.holder, request.ttl_ms)


async def resign(session: ValkeySession, request: rq.Resign, now: str) -> bool:
    return await session.functions.elect(session.keys.root, now, request.role, request.holder, -1)


async def beat(session: ValkeySession, request: rq.Beat, now: str) -> Command | None:
    worker = request.worker
    described = _encode(msgspec.structs.replace(worker, command=None))
    command = await session.functions.beat(session.keys.root, now, worker.id, request.gone, described)
    return None if command is None else _decode_command(command)


async def command_worker(session: ValkeySession, request: rq.CommandWorker, now: str) -> bool:
    command = _encode(Command(action=request.action, id=request.id))
    return await session.functions.command(session.keys.root, request.worker, command)


async def list_workers(session: ValkeySession, request: rq.ListWorkers, now: str) -> list[WorkerInfo]:
    found = await session.functions.workers(session.keys.root, now, request.stale_ms)
    rows = zip(found[::3], found[1::3], found[2::3], strict=True)
    workers = bad_records.readable(rows, _worker, lambda row: f"the row of a worker ({row[1]!r:.80})")
    return sorted(workers, key=lambda worker: worker.id)


def _worker(row: tuple[bytes, bytes, bytes]) -> WorkerInfo:
    beat, text, command = row
    started, _, described = text.partition(b" ")
    worker = _decode_worker(described)
    worker.beat_ms, worker.started_ms = int(beat), int(started)
    worker.command = _decode_command(command) if command else None
    return worker

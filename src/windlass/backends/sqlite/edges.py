"""Reads and writes edges (which job waits for which) and the outbox of ends that were not relayed yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import Row, pack
from windlass.core import bad_records
from windlass.core.edges import ChildEnd, Edge, EdgeStatus, OnFailure
from windlass.core.job import JobRef
from windlass.engine.effects import Effects
from windlass.engine.reads import MoreReads, Waits
from windlass.engine.unit_of_work import UnitOfWork

unpack_end = msgspec.msgpack.Decoder(ChildEnd).decode


def load(step: RequestState, reads: MoreReads, work: UnitOfWork) -> None:
    """Load the edges and the outbox entries that a verb asks for into ``work``."""
    if reads.pairs:
        pairs = [*reads.pairs]
        work.edges.update(dict.fromkeys(pairs))
        keys = [[*_key(step, dependent), *_key(step, child)] for dependent, child in pairs]
        work.edges.update(((e.dependent, e.child), e) for e in _edges(step, "edge_pairs", keys))
    if reads.waits:
        for ref in reads.waits:
            work.waits[ref] = Waits()
        for num, job_id, count, is_open in step.listed("edge_waits", _keys(step, reads.waits)):
            work.waits[JobRef(step.queues.name(num), job_id)] = Waits(count, is_open)
    if reads.unmet:
        for ref in reads.unmet:
            work.unmet[ref] = []
        for edge in _edges(step, "edge_unmet", _keys(step, reads.unmet)):
            work.unmet[edge.dependent].append(edge)
    if reads.reachable:
        name = step.queues.name
        for num, job_id, child_num, child in step.listed("edge_reachable", _keys(step, reads.reachable)):
            work.graph.setdefault(JobRef(name(num), job_id), []).append(JobRef(name(child_num), child))
    if reads.unsent is not None:
        ends = [[*_key(step, end.child), end.seq, end.run] for end in reads.unsent.ends]
        work.unsent = _edges(step, "edge_untold", ends, reads.unsent.limit)
    if reads.outbox:
        work.outbox = _outbox(step, reads.outbox)


def _key(step: RequestState, ref: JobRef) -> tuple[int, str]:
    return step.queues.num(ref.queue) or 0, ref.id


def _keys(step: RequestState, refs: Iterable[JobRef]) -> list[tuple[int, str]]:
    return [_key(step, ref) for ref in refs]


def _edges(step: RequestState, name: str, keys: list[Any], *params: Any) -> list[Edge]:
    return read_edges(step.listed(name, keys, *params), step.queues.name)


def _outbox(step: RequestState, limit: int) -> list[ChildEnd]:
    """Return the oldest ends in the outbox. Entries that cannot be read are deleted with the next write."""
    ends = []
    for num, packed in step.all("outbox", limit):
        end = bad_records.read_or_none(packed, unpack_end, f"entry {num} of the outbox")
        if end is None:
            step.for_upkeep().unread.append(num)
        else:
            step.for_upkeep().outbox.append(num)
            ends.append(end)
    return ends


def write(step: RequestState, effects: Effects) -> None:
    """Save changed edges and add new ends to the outbox."""
    step.many(
        "edge_save",
        [
            (
                *_key(step, edge.dependent),
                *_key(step, edge.child),
                *(edge.child_seq, edge.child_run, edge.on_failure, edge.status, edge.value),
                *(edge.codec, edge.reason, edge.error),
            )
            for edge in effects.edges.values()
        ],
    )
    step.many("outbox_insert", [(pack(end),) for end in effects.ends])


def write_outbox(step: RequestState, relayed: int) -> None:
    """Delete the first ``relayed`` of the loaded ends, and the entries that cannot be read."""
    upkeep = step.for_upkeep()
    gone = [*upkeep.outbox[:relayed], *upkeep.unread]
    if gone:
        step.run("outbox_delete", str(gone))


def read_edges(rows: list[Row], queue_name: Callable[[int], str]) -> list[Edge]:
    """Return the edges of rows. Rows that cannot be read are skipped."""
    what = "an edge of job {1}".format
    return list(bad_records.readable(rows, lambda row: to_edge(row, queue_name), lambda row: what(*row)))


def to_edge(row: Row, queue_name: Callable[[int], str]) -> Edge:
    """Return the edge of a row (columns as in ``EDGE_COLUMNS``)."""
    queue, job_id, child_queue, child, child_seq, child_run, on_failure, status, *rest = row
    value, codec, reason, error = rest
    return Edge(
        dependent=JobRef(queue_name(queue), job_id),
        child=JobRef(queue_name(child_queue), child),
        child_seq=child_seq,
        child_run=child_run,
        on_failure=OnFailure(on_failure),
        status=EdgeStatus(status),
        value=value,
        codec=codec,
        reason=reason,
        error=error,
    )

"""Flows, signals and live output: everything about them that is not add or settle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.backend import flows as fl
from windlass.backend import requests as rq
from windlass.backend import streams as sm
from windlass.backends.sqlite.flows import read_edges
from windlass.backends.sqlite.verbs_changes import change_one
from windlass.core import transitions
from windlass.core.outcome import Changed
from windlass.core.states import JobState
from windlass.core.streams import Chunk, StreamHead, accept, too_much

if TYPE_CHECKING:
    from windlass.backends.sqlite.rows import Row
    from windlass.backends.sqlite.tx import Step
    from windlass.backends.sqlite.verbs_reads import Snapshot
    from windlass.core.edges import Edge

_EMPTY = StreamHead()


def relay(step: Step, request: fl.Relay) -> fl.Relayed:
    count = step.flows.relay(request.limit, step)
    return fl.Relayed(count, step.flows.pending)


def signal(step: Step, request: fl.Signal) -> rq.ChangeResult:
    return change_one(
        step,
        request.ref,
        lambda job: transitions.signal(job, request.name, request.data, request.codec, step),
    )


def append_stream(step: Step, request: sm.AppendStream) -> rq.ChangeResult:
    job = step.find(request.ref)
    if job is None:
        return rq.ChangeResult(Changed.NOT_FOUND)
    if not transitions.holds(job, request.token):
        return rq.ChangeResult(Changed.LOST, job.state)
    row = step.one("stream", job.seq)
    head = StreamHead() if row is None else StreamHead(*row)
    new = accept(head, job.deliveries, request.first, request.chunks)
    step.many("chunk_insert", [(job.seq, chunk.index, chunk.delivery, chunk.data) for chunk in new])
    if too_much(head):
        _trim(step, job.seq, head)
    step.run("stream_save", job.seq, head.last, head.oldest, head.size, head.delivery, head.base)
    step.topics.add(f"stream:{job.queue}")
    return rq.ChangeResult(Changed.OK, job.state)


def _trim(step: Step, seq: int, head: StreamHead) -> None:
    """Let the oldest chunks go until the stream is within its bounds."""
    for (size,) in step.conn.execute(step.sql["chunk_sizes"], (seq, head.oldest)).fetchall():
        if not too_much(head):
            break
        head.size -= size
        head.oldest += 1
    step.run("chunk_trim", seq, head.oldest)


# --- reads ------------------------------------------------------------------------------------------


def get_dependencies(snap: Snapshot, request: fl.GetDependencies) -> list[fl.Dependencies]:
    answers = []
    for ref in request.refs:
        num = snap.queues.num(ref.queue)
        if num is None:
            answers.append(fl.Dependencies([], []))
            continue
        below = _edges(snap, snap.all("edges_of", num, ref.id), request.values)
        above = _edges(snap, snap.all("edges_to", num, ref.id, request.limit + 1), request.values)
        answers.append(fl.Dependencies(below, above[: request.limit], len(above) > request.limit))
    return answers


def _edges(snap: Snapshot, rows: list[Row], values: bool) -> list[Edge]:
    edges = read_edges(rows, snap.queues.name)
    if not values:
        for edge in edges:
            edge.value = None
    return edges


def read_stream(snap: Snapshot, request: sm.ReadStream) -> sm.StreamPage:
    num = snap.queues.num(request.ref.queue)
    rows = [] if num is None else snap.all("job_codec", num, request.ref.id)
    if not rows:
        return sm.StreamPage([], _EMPTY.last, _EMPTY.oldest, None)
    seq, state, codec, result_codec = rows[0]
    found = snap.all("stream", seq)
    head = StreamHead(*found[0]) if found else _EMPTY
    chunks = [Chunk(*row) for row in snap.all("chunk_read", seq, request.after, request.limit)]
    return sm.StreamPage(chunks, head.last, head.oldest, JobState(state), result_codec or codec)

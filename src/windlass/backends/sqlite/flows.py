"""Edges in the database: who waits for whom, and the outbox of ends that are yet to be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.backends.sqlite import keys, stubs
from windlass.backends.sqlite.rows import Row, pack
from windlass.core import damage
from windlass.core.edges import ChildEnd, Edge, EdgeStatus, OnFailure
from windlass.core.flowwork import FlowWork
from windlass.core.job import JobRecord, JobRef, NewJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from windlass.backends.sqlite.tx import Step
    from windlass.core.states import JobState

unpack_end = msgspec.msgpack.Decoder(ChildEnd).decode


class Flows(FlowWork):
    """The flows of the store, inside one request."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self._step = step

    def _key(self, ref: JobRef) -> tuple[int, str]:
        num = self._step.queues.num(ref.queue)
        return (0 if num is None else num, ref.id)

    def _edges(self, name: str, *params: object) -> list[Edge]:
        return read_edges(self._step.all(name, *params), self._step.queues.name)

    def find(self, ref: JobRef) -> JobRecord | None:
        return self._step.find(ref)

    def find_child(self, ref: JobRef) -> JobRecord | None:
        step = self._step
        return step.find(ref) or stubs.find(step.all, step.queues.num(ref.queue), ref, step.now_ms)

    def is_kept(self, ref: JobRef, now_ms: int) -> bool:
        row = self._step.one("kept_id", *self._key(ref))
        return row is not None and row[0] > now_ms

    def answered_by(self, new: NewJob, now_ms: int) -> str | None:
        num = self._step.queues.num(new.queue)
        return None if num is None else keys.answered_by(self._step, num, new)

    def refuses(self, new: NewJob, coming: int) -> bool:
        return self._step.gates.refuses(self._step.queue(new.queue), new, coming) is not None

    def file(self, job: JobRecord, before: JobState) -> None:
        self._step.save([(job, before)])

    def mark_linked(self, job: JobRecord) -> None:
        self._step.queues.leased.pop(job.seq, None)
        self._step.run("job_link", job.seq)

    def add_edge(self, dependent: JobRecord, edge: Edge) -> None:
        self._step.run(
            "edge_insert",
            dependent.seq,
            *self._key(edge.child),
            edge.child_seq,
            edge.on_failure,
            edge.status,
            edge.value,
            edge.codec,
            edge.reason,
            edge.error,
        )

    def save_edge(self, edge: Edge) -> None:
        self._step.run(
            "edge_save",
            edge.status,
            edge.value,
            edge.codec,
            edge.reason,
            edge.error,
            *self._key(edge.dependent),
            *self._key(edge.child),
        )

    def has_edge(self, dependent: JobRef, child: JobRef) -> bool:
        return self._step.one("edge_exists", *self._key(dependent), *self._key(child)) is not None

    def count_edges(self, dependent: JobRef) -> int:
        return int(self._step.all("edge_count", *self._key(dependent))[0][0])

    def open_children(self, dependent: JobRef) -> list[JobRef]:
        rows = self._step.all("edge_open_children", *self._key(dependent))
        return [JobRef(self._step.queues.name(num), child) for num, child in rows]

    def has_open(self, dependent: JobRef) -> bool:
        return self._step.one("edge_has_open", *self._key(dependent)) is not None

    def first_broken(self, dependent: JobRef) -> Edge | None:
        return next(iter(self._edges("edge_broken", *self._key(dependent))), None)

    def missed(self, dependent: JobRef) -> list[Edge]:
        return self._edges("edge_missed", *self._key(dependent))

    def save_again(self, edge: Edge) -> None:
        self.save_edge(edge)
        self._step.run("edge_child", edge.child_seq, *self._key(edge.dependent), *self._key(edge.child))

    def untold(self, end: ChildEnd, limit: int) -> list[Edge]:
        return self._edges("edge_untold", *self._key(end.child), end.seq, limit)

    def outbox(self) -> ChildEnd | None:
        while (row := self._step.one("outbox_first")) is not None:
            end = damage.read_or_none(row[1], unpack_end, f"entry {row[0]} of the outbox")
            if end is not None:
                return end
            self.drop_out()
        return None

    def put_out(self, ends: Iterable[ChildEnd]) -> None:
        self._step.many("outbox_insert", [(pack(end),) for end in ends])

    def drop_out(self) -> None:
        (first,) = self._step.all("outbox_first")
        self._step.run("outbox_delete", first[0])


def read_edges(rows: list[Row], queue_name: Callable[[int], str]) -> list[Edge]:
    """The edges of rows."""
    what = "an edge of job {1}".format
    return list(damage.readable(rows, lambda row: to_edge(row, queue_name), lambda row: what(*row)))


def to_edge(row: Row, queue_name: Callable[[int], str]) -> Edge:
    """The edge that a row (its columns as in ``EDGE_COLUMNS``) describes."""
    queue, job_id, child_queue, child, child_seq, on_failure, status, value, codec, reason, error = row
    return Edge(
        dependent=JobRef(queue_name(queue), job_id),
        child=JobRef(queue_name(child_queue), child),
        child_seq=child_seq,
        on_failure=OnFailure(on_failure),
        status=EdgeStatus(status),
        value=value,
        codec=codec,
        reason=reason,
        error=error,
    )

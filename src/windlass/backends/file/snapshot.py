"""The whole state of a store as effects, in pieces. The store may change between two pieces.

Jobs that are added after the first piece are left out, because they could come in the wrong order. A process
that loads the snapshot also replays the log from where the snapshot began (see ``effects``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from windlass.backends.file import effects as fx
from windlass.backends.file.store import FileStore
from windlass.engine.effects import Table

T = TypeVar("T")

#: Jobs, records or rows in one piece.
PIECE = 2_000


def pieces(store: FileStore) -> Iterator[list[Any]]:
    """Yield the effects that rebuild the store, in order. Each piece has the state when it is requested."""
    last_place = store.last_place
    queues = list(store.queues)
    for names in _portions(queues):
        yield [(4, Table.QUEUE, (name,), store.row(Table.QUEUE, (name,))) for name in names]
    for name in queues:
        yield from _jobs(store, name, last_place)
    for name in queues:
        yield from _queue(store, name)
    yield from _edges(store)
    for table, keys in _tables(store):
        for portion in _portions(keys):
            yield _rows(store, table, portion)
    yield [(19, mark) for _, _, mark in store.marks]


def _jobs(store: FileStore, name: str, last_place: int) -> Iterator[list[Any]]:
    jobs = store.queues[name].jobs
    for ids in _portions(list(jobs)):
        found = [jobs[job_id] for job_id in ids if job_id in jobs]
        found = [job for job in found if job.seq <= last_place]
        piece: list[Any] = [(1, fx.whole_of(job)) for job in found]
        for job in found:
            lines = store.logs.get(job.ref)
            if lines:
                total = store.journal.logs[job.ref]
                piece.append((8, name, job.id, job.seq, total - len(lines) + 1, list(lines)))
            head = store.streams.heads.get(job.ref)
            if head is not None:
                piece.append((9, name, job.id, job.seq, head, list(store.streams.chunks[job.ref])))
        yield piece


def _queue(store: FileStore, name: str) -> Iterator[list[Any]]:
    """Groups, keys, start times and logs of a queue."""
    queue = store.queues[name]
    yield [store.journal.starts_effect(store, name, None, None)] if queue.starts else []
    for portion in _portions([group.name for group in queue.groups]):
        yield _rows(store, Table.GROUP, [(name, group) for group in portion]) + [
            store.journal.starts_effect(store, name, group, None)
            for group in portion
            if (found := queue.groups.find(group)) is not None and found.usage.starts
        ]
    for keys in _portions(list(queue.keys)):
        yield _rows(store, Table.KEY, [(name, key) for key in keys])
    yield from _logs(store, name, queue.last_event, queue.last_history)


def _logs(store: FileStore, name: str, last_event: int, last_history: int) -> Iterator[list[Any]]:
    """Events and history of a queue up to the given numbers; the replay adds the later ones."""
    queue = store.queues[name]
    for events in _portions(list(queue.events)):
        yield [(14, name, events)]
    after = 0
    while rows := list(islice((r for r in queue.history if after < r[0] <= last_history), PIECE)):
        yield [(16, name, rows[0][0], [record for _, record in rows])]
        after = rows[-1][0]
    yield [(18, name, last_event, last_history)]


def _edges(store: FileStore) -> Iterator[list[Any]]:
    edges, journal = store.edges, store.journal
    for refs in _portions(list(edges.children)):
        yield [(10, edge) for ref in refs for edge in edges.children.get(ref, {}).values()]
    for refs in _portions(list(edges.dependents)):
        waiting = ((ref, list(edges.dependents.get(ref, ()))) for ref in refs)
        yield [(11, ref, dependents) for ref, dependents in waiting if len(dependents) > 1]
    # One piece, because the two numbers belong together. The outbox is small: only jobs with very many
    # dependents are in it.
    yield [(13, journal.relayed_ends), (12, journal.relayed_ends + 1, list(edges.left_ends))]


def _tables(store: FileStore) -> Iterator[tuple[Table, list[Any]]]:
    yield from ((table, list(rows)) for table, rows in store.tables.items())
    yield Table.STUB, store.stubs.refs()
    for (queue, step), rows in list(store.rollups.items()):
        yield Table.ROLLUP, [(queue, step, *key) for key in rows]


def _rows(store: FileStore, table: Table, keys: Iterable[tuple[Any, ...]]) -> list[Any]:
    values = ((tuple(key), store.row(table, key)) for key in keys)
    return [(4, table, key, value) for key, value in values if value is not None]


def _portions(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), PIECE):
        yield items[start : start + PIECE]

"""One new job in a transaction of its own: the commonest write, without the machinery that others need.

It does what ``verbs_lifecycle.add`` and ``Tx.flush`` do with such a request, in half the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.backends.sqlite.rows import INLINE_PAYLOAD, LOG_KEY, encode_options, pack
from windlass.backends.sqlite.tx import FOLD_CHUNKS, FOLD_EVENTS, Meta
from windlass.backends.sqlite.verbs_lifecycle import DUE, STATE, added_event, fresh_row
from windlass.core.outcome import AddOutcome

if TYPE_CHECKING:
    import sqlite3

    from windlass.backends.sqlite.statements import Statements
    from windlass.backends.sqlite.tx import Queue, Queues
    from windlass.core.job import NewJob
    from windlass.core.states import JobState

#: About how many pages it changes.
PAGES = 5


def add_alone(
    cursor: sqlite3.Cursor, sql: Statements, queues: Queues, request: rq.Add, meta: Meta, now_ms: int
) -> tuple[list[rq.Added], Meta, set[str]] | None:
    """Add the one job of ``request``; None, and nothing is changed, when there is more to it than that."""
    (new,) = request.jobs
    queue = queues.cached(new.queue)
    if queue is None or not queues.no_kept_ids or not _is_plain(new, queue):
        return None
    row = fresh_row(new, queue.num, meta.last_place + 1, now_ms, encode_options(new.options))
    try:
        if cursor.execute(sql["job_insert"], row).rowcount != 1:
            return None  # the id is taken
    except UnicodeEncodeError:
        return None
    state, due_ms = row[STATE], row[DUE]
    queue.last_event = event_id = queue.last_event + 1
    queue.unfolded += 1
    event = (event_id, now_ms, *added_event(new, due_ms))
    key = queue.num * LOG_KEY + event_id
    cursor.execute(sql["event_insert"], (key, event_id, now_ms, _deltas(new.task, state), pack((event,))))
    answer = [rq.Added(AddOutcome.QUEUED, state, now_ms, due_ms)]
    return answer, Meta(row[0], now_ms, meta.serial), {f"ready:{new.queue}", f"event:{new.queue}"}


def _is_plain(new: NewJob, queue: Queue) -> bool:
    return (
        queue.known
        and queue.unfolded + 1 < FOLD_CHUNKS
        and queue.last_event + 1 - queue.folded < FOLD_EVENTS
        and len(new.payload) <= INLINE_PAYLOAD
        and not new.depends_on
        and new.parent is None
    )


@lru_cache(maxsize=1_024)
def _deltas(task: str, state: JobState) -> bytes:
    """One job more in ``state``, one more ``task`` enqueued."""
    return pack(([(state, 1)], [(task, "enqueued", 1)]))

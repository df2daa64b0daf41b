"""One new job in a transaction of its own: the commonest write, without the machinery that others need.

It does what ``verbs_lifecycle.add`` and ``Tx.flush`` do with such a request, in half the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from windlass.backend import requests as rq
from windlass.backends.sqlite.gates import GROUPED
from windlass.backends.sqlite.rows import LOG_KEY, encode_options, pack
from windlass.backends.sqlite.tx import FOLD_CHUNKS, FOLD_EVENTS, Meta
from windlass.backends.sqlite.verbs_lifecycle import added_event, is_plain, plain_row
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState

if TYPE_CHECKING:
    import sqlite3

    from windlass.backends.sqlite.statements import Statements
    from windlass.backends.sqlite.tx import Queue, Queues
    from windlass.core.options import StoredOptions

#: About how many pages it changes.
PAGES = 5

# Members of an enum are slow to look up.
_QUEUED, _WAITING = AddOutcome.QUEUED, JobState.WAITING


def add_alone(
    cursor: sqlite3.Cursor, sql: Statements, queues: Queues, request: rq.Add, meta: Meta, now_ms: int
) -> tuple[list[rq.Added], Meta, set[str]] | None:
    """Add the one job of ``request``; None, and nothing is changed, when there is more to it than that."""
    (new,) = request.jobs
    queue = queues.cached(new.queue)
    if queue is None or not queues.no_kept_ids or not is_plain(new) or not _may_go_on(queue):
        return None
    if new.depends_on or new.parent is not None:
        return None
    seq = meta.last_place + 1
    try:
        row = plain_row(new, queue.num, seq, now_ms, _encoded(new.options))
        if cursor.execute(sql["job_insert_plain"], row).rowcount != 1:
            return None  # the id is taken
    except UnicodeEncodeError:
        return None
    queue.last_event = event_id = queue.last_event + 1
    queue.unfolded += 1
    events = pack(((now_ms, *added_event(new, None)),))
    key = queue.num * LOG_KEY + event_id
    cursor.execute(sql["event_insert"], (key, event_id, now_ms, _deltas(new.task), bytearray(events)))
    answer = [rq.Added(_QUEUED, _WAITING, now_ms)]
    return answer, Meta(seq, now_ms, meta.serial), {f"ready:{new.queue}", f"event:{new.queue}"}


def _may_go_on(queue: Queue) -> bool:
    """Whether the queue is known, counts no turns, and one more chunk of events needs no fold."""
    return (
        queue.known
        and not queue.special & GROUPED
        and queue.unfolded + 1 < FOLD_CHUNKS
        and queue.last_event + 1 - queue.folded < FOLD_EVENTS
    )


_last: tuple[StoredOptions | None, str] = (None, "")


def _encoded(options: StoredOptions) -> str:
    """``encode_options`` with the last answer at hand: jobs of one producer share their options."""
    global _last
    known, text = _last
    if options is not known:
        text = encode_options(options)
        _last = (options, text)
    return text


@lru_cache(maxsize=1_024)
def _deltas(task: str) -> bytearray:
    """One job more is waiting, one more ``task`` enqueued."""
    return bytearray(pack(([(JobState.WAITING, 1)], [(task, "enqueued", 1)])))

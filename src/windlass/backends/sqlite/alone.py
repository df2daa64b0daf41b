"""One new job in a transaction of its own: the commonest write, without the machinery that others need.

It does what ``verbs_lifecycle.add`` and ``Tx.flush`` do with such a request, in half the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from windlass.backend import requests as rq
from windlass.backends.sqlite.gates import GROUPED
from windlass.backends.sqlite.rows import LOG_KEY, encode_options, pack
from windlass.backends.sqlite.tx import FOLD_CHUNKS, FOLD_EVENTS, Meta
from windlass.backends.sqlite.verbs_lifecycle import added_event, is_plain, plain_row
from windlass.core.clock import moment
from windlass.core.outcome import AddOutcome
from windlass.core.paths import took
from windlass.core.states import JobState

if TYPE_CHECKING:
    import sqlite3

    from windlass.backend.calls import Answer, Call
    from windlass.backends.sqlite.statements import Statements
    from windlass.backends.sqlite.tx import Queue, Queues
    from windlass.core.job import NewJob
    from windlass.core.options import StoredOptions

#: About how many pages it changes.
PAGES = 5

# Members of an enum are slow to look up.
_QUEUED, _WAITING = AddOutcome.QUEUED, JobState.WAITING


class AddAlone:
    """Adds single jobs through one connection."""

    def __init__(self, cursor: sqlite3.Cursor, sql: Statements, queues: Queues) -> None:
        self._execute = cursor.execute
        self._insert_job, self._insert_event = sql["job_insert_plain"], sql["event_insert"]
        self._queues = queues
        #: The last options and their text: jobs of one producer share them.
        self._options: StoredOptions | None = None
        self._options_text = ""

    def add(
        self, calls: list[Call[Any]], meta: Meta, now_ms: int
    ) -> tuple[list[Answer], Meta, set[str]] | None:
        """Add the one job of the one call: its answer, the new state of the store, the topics touched.

        None, and nothing is changed, when there is more to it than that.
        """
        request = calls[0].request if len(calls) == 1 else None
        if type(request) is not rq.Add or len(request.jobs) != 1:
            return None
        new = request.jobs[0]
        queue = self._queues.cached(new.queue)
        if not (self._queues.no_kept_ids and self._queues.no_stubs):
            return None
        if queue is None or moment(request.now_ms, lambda: now_ms) != now_ms:
            return None
        if not is_plain(new) or new.depends_on or new.parent is not None or not _may_go_on(queue):
            return None
        if new.options is not self._options:
            self._options, self._options_text = new.options, encode_options(new.options)
        seq = meta.last_place + 1
        try:
            row = plain_row(new, queue.num, seq, now_ms, self._options_text)
            if self._execute(self._insert_job, row).rowcount != 1:
                return None  # the id is taken
        except UnicodeEncodeError:
            return None
        took("sqlite.add_alone")
        self._log(queue, new, now_ms)
        after = tuple.__new__(Meta, (seq, now_ms, meta.serial))  # a named tuple makes itself slowly
        return [(calls[0], [rq.Added(_QUEUED, _WAITING, now_ms)], None)], after, _topics(new.queue)

    def _log(self, queue: Queue, new: NewJob, now_ms: int) -> None:
        """Write the event, which carries the counts."""
        queue.last_event = number = queue.last_event + 1
        queue.unfolded += 1
        events = bytearray(pack(((now_ms, *added_event(new, None)),)))
        key = queue.num * LOG_KEY + number
        self._execute(self._insert_event, (key, number, now_ms, _deltas(new.task), events))


def _may_go_on(queue: Queue) -> bool:
    """Whether the queue is known, counts no turns, and one more chunk of events needs no fold."""
    return (
        queue.known
        and not queue.special & GROUPED
        and queue.unfolded + 1 < FOLD_CHUNKS
        and queue.last_event + 1 - queue.folded < FOLD_EVENTS
    )


@lru_cache(maxsize=1_024)
def _topics(queue: str) -> set[str]:
    """What an add touches. Not to be changed."""
    return {f"ready:{queue}", f"event:{queue}"}


@lru_cache(maxsize=1_024)
def _deltas(task: str) -> bytearray:
    """One job more is waiting, one more ``task`` enqueued."""
    return bytearray(pack(([(JobState.WAITING, 1)], [(task, "enqueued", 1)])))

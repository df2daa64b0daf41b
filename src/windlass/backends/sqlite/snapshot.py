"""A read transaction. Every read-only request is answered from one."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from windlass.backends.sqlite.rows import LOG_KEY
from windlass.backends.sqlite.statements import StatementRunner, Statements
from windlass.backends.sqlite.tx import Queues, tally_of
from windlass.core.states import JobState


@dataclass(frozen=True, slots=True)
class ReadSnapshot(StatementRunner):
    """A read transaction with the current time."""

    conn: sqlite3.Connection
    sql: Statements
    queues: Queues
    now_ms: int

    def num(self, queue: str) -> int:
        """Return the number of a queue, or 0, which no row has, if it does not exist."""
        return self.queues.num(queue) or 0

    def tally(self, num: int) -> dict[JobState, int]:
        return tally_of(self.conn, self.sql, num)

    def logs(self, num: int) -> tuple[int, int, int, int]:
        """Return the ids of the last event and the last attempt record, then of the last removed ones."""
        last_event, last_history, event_floor, history_floor, event_key, history_key = self.all(
            "queue_logs", num * LOG_KEY, num * LOG_KEY + LOG_KEY - 1, num
        )[0]
        return (
            max(last_event, (event_key or 0) % LOG_KEY),
            max(last_history, (history_key or 0) % LOG_KEY),
            event_floor,
            history_floor,
        )

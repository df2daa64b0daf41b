"""The upper bound: plain ``sqlite3`` with the same rows, schema, batches and durability.

The tables are created by Windlass's own migrations, and the row is one that Windlass wrote. Rows are prepared
before the clock starts, so only SQLite is measured.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path
from typing import Any

from windlass import Windlass
from windlass.core.ids import new_ids

_ACTIVATE = (
    "UPDATE {job} SET state = 'active', token = ?, worker = 'w', started_ms = 1, lease_until_ms = 2, "
    "deliveries = deliveries + 1 WHERE seq = ?"
)
_COMPLETE = (
    "UPDATE {job} SET state = 'completed', token = NULL, settled_token = ?, finished_ms = 3, "
    "lease_until_ms = NULL WHERE seq = ?"
)


class RawStore:
    """A fresh database with Windlass's schema and a connection to it, synchronous=FULL."""

    def __init__(self, path: Path, text: str) -> None:
        asyncio.run(_make(path, text))
        self.conn = sqlite3.connect(path, isolation_level=None)
        self.conn.execute("PRAGMA synchronous = FULL")
        (self._job,) = self.conn.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%\\_job' ESCAPE '\\'"
        ).fetchone()
        self._model = self._own_values()
        places = ", ".join("?" * len(self._model))
        self._insert = f"INSERT INTO {self._job} ({', '.join(self._model)}) VALUES ({places})"

    def close(self) -> None:
        self.conn.close()

    def rows(self, count: int) -> list[tuple[Any, ...]]:
        """Jobs like the one that Windlass wrote, each with its own id and place in line."""
        model = self._model
        return [
            tuple((model | {"seq": number, "id": job_id, "place": number}).values())
            for number, job_id in enumerate(new_ids(count), model["seq"] + 1)
        ]

    def _own_values(self) -> dict[str, Any]:
        """The columns of the one job that Windlass wrote, without those that SQLite fills in by itself."""
        columns = self.conn.execute(f"PRAGMA table_info({self._job})").fetchall()
        (values,) = self.conn.execute(f"SELECT * FROM {self._job}").fetchall()
        filled = [self.conn.execute(f"SELECT {column[4] or 'NULL'}").fetchone()[0] for column in columns]
        return {
            column[1]: value
            for column, value, default in zip(columns, values, filled, strict=True)
            if value != default
        }

    def bulk(self, count: int, batch: int) -> float:
        """Rows per second with one transaction for each batch."""
        rows = self.rows(count)
        started = time.perf_counter()
        for first in range(0, count, batch):
            self.insert(rows[first : first + batch])
        return count / (time.perf_counter() - started)

    def insert(self, rows: list[tuple[Any, ...]]) -> None:
        """One transaction."""
        self.conn.execute("BEGIN IMMEDIATE")
        self.conn.executemany(self._insert, rows)
        self.conn.execute("COMMIT")

    def one_by_one(self, count: int) -> float:
        """Rows per second with one transaction for each row."""
        return self.bulk(count, 1)

    def drain(self, count: int, batch: int) -> float:
        """Jobs per second: one transaction completes a batch and takes the next."""
        self.bulk(count, 1_000)
        queue = self._model["queue"]
        pick = (
            f"SELECT seq, payload FROM {self._job} WHERE state = 'waiting' AND queue = ? "
            "ORDER BY priority DESC, turn, place LIMIT ?"
        )
        activate, complete = _ACTIVATE.format(job=self._job), _COMPLETE.format(job=self._job)
        held: list[tuple[str, int]] = []
        started = time.perf_counter()
        while True:
            self.conn.execute("BEGIN IMMEDIATE")
            self.conn.executemany(complete, held)
            found = self.conn.execute(pick, (queue, batch)).fetchall()
            held = [(f"token.{seq}", seq) for seq, _ in found]
            self.conn.executemany(activate, held)
            self.conn.execute("COMMIT")
            if not held:
                return count / (time.perf_counter() - started)


async def _make(path: Path, text: str) -> None:
    async with Windlass(f"sqlite:///{path}") as app:
        await app.queue("bench").add("noop", {"text": text})

"""Procrastinate: rows of a table in PostgreSQL, with arguments in JSON.

Rows that were taken are kept in a table of ours until they are added here. The retries of a task are part of
its code, not of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from windlass.backend.urls import hide_secrets
from windlass.errors import ConfigError, StorageError, not_installed
from windlass.importing.model import Entry, ForeignJob, Found, Shelf, Unreadable, refuses

#: The rows of a shelf: of one queue, ready when the import began, or due later.
_OPEN: Final = "status = 'todo' AND queue_name = %s AND coalesce(scheduled_at > %s, false) = %s"
#: The arguments as text, so that our reader checks the depth of nesting and the length of numbers.
_READ: Final = """
SELECT id, task_name, args::text, priority, lock, queueing_lock, scheduled_at,
       EXISTS (SELECT FROM procrastinate_periodic_defers p WHERE p.job_id = j.id)
FROM procrastinate_jobs j WHERE id = ANY(%s)
"""
#: Removes rows and stores each that was still there in the holding table, in one step.
_TAKE: Final = """
WITH asked AS (SELECT * FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS t(id, name, job)),
     gone AS (DELETE FROM procrastinate_jobs j USING asked
              WHERE j.id = asked.id AND j.status = 'todo' RETURNING j.id)
INSERT INTO windlass_import (holding, name, job)
SELECT %s, name, job FROM asked JOIN gone USING (id)
ON CONFLICT (holding, name) DO UPDATE SET job = excluded.job
RETURNING name
"""
_HOLDING: Final = """
CREATE TABLE IF NOT EXISTS windlass_import (holding text, name text, job text, PRIMARY KEY (holding, name))
"""
_LEFT: Final = """
SELECT (SELECT count(*) FROM procrastinate_jobs WHERE status IN ('doing', 'aborting')),
       (SELECT count(DISTINCT (task_name, periodic_id)) FROM procrastinate_periodic_defers)
"""


class PostgresClient:
    """A connection to the database of the other system. ``schema`` contains its tables."""

    def __init__(self, url: str, schema: str = "") -> None:
        try:
            import psycopg
        except ImportError as exc:
            raise not_installed("import", "psycopg", "windlass[postgres]") from exc
        if not url.startswith(("postgres://", "postgresql://")):
            raise ConfigError("source", "a URL like postgresql://localhost/shop", hide_secrets(url))
        self._psycopg: Any = psycopg
        self._url = url
        self._schema = schema
        self._connection: Any = None
        self._began: datetime | None = None

    async def close(self) -> None:
        """Close the connection, and drop the holding table if it is empty."""
        if self._connection is None:
            return
        try:
            if await self._has_holding() and not await self.rows("SELECT 1 FROM windlass_import LIMIT 1"):
                await self.rows("DROP TABLE IF EXISTS windlass_import")
        finally:
            await self._connection.close()

    async def _has_holding(self) -> bool:
        ((found,),) = await self.rows("SELECT to_regclass('windlass_import') IS NOT NULL")
        return bool(found)

    async def rows(self, query: str, *values: Any) -> list[Any]:
        """The rows of a result; empty if it has none."""
        errors = self._psycopg.errors
        try:
            if self._connection is None:
                await self._connect()
            cursor = await self._connection.execute(query, values)
            return [] if cursor.description is None else list(await cursor.fetchall())
        except (errors.UndefinedTable, errors.UndefinedColumn) as exc:
            message = (
                "the database has no tables of Procrastinate 2 or later; if they are not in the schema "
                "public, give --prefix SCHEMA"
            )
            raise ConfigError("source", message=message) from exc
        except self._psycopg.Error as exc:
            raise StorageError(f"the database to import from did not answer: {exc}; check its URL") from exc

    async def _connect(self) -> None:
        connect = self._psycopg.AsyncConnection.connect
        self._connection = await connect(self._url, autocommit=True, connect_timeout=5)
        if self._schema:
            name = self._psycopg.sql.Identifier(self._schema).as_string(self._connection)
            await self._connection.execute("SELECT set_config('search_path', %s, false)", [name])
        cursor = await self._connection.execute("SELECT now()")
        (self._began,) = await cursor.fetchone()

    async def count(self, shelf: Shelf) -> int:
        """The number of rows of a shelf."""
        query = f"SELECT count(*) FROM procrastinate_jobs WHERE {_OPEN}"
        ((found,),) = await self.rows(query, shelf.key.decode(), self._began, shelf.later)
        return int(found)

    async def window(self, shelf: Shelf, skip: int, count: int) -> list[tuple[bytes, float]]:
        """Ids of a shelf, in the order in which they would run, after the first ``skip``."""
        order = "scheduled_at, " if shelf.later else ""
        query = f"SELECT id FROM procrastinate_jobs WHERE {_OPEN} ORDER BY {order}priority DESC, id"
        values = (shelf.key.decode(), self._began, shelf.later, skip, count)
        return [
            (str(job_id).encode(), 0.0)
            for (job_id,) in await self.rows(f"{query} OFFSET %s LIMIT %s", *values)
        ]

    async def take(self, shelf: Shelf, holding: str, items: Sequence[tuple[bytes, str, bytes]]) -> list[bool]:
        """Move rows (id, name, text) to the holding table. False for rows that a worker has taken."""
        await self.rows(_HOLDING)
        ids, names = [int(member) for member, _, _ in items], [name for _, name, _ in items]
        texts = [text.decode() for _, _, text in items]
        taken = {name for (name,) in await self.rows(_TAKE, ids, names, texts, holding)}
        return [name in taken for name in names]

    async def held_count(self, holding: str) -> int:
        """The number of rows that an interrupted run holds."""
        if not await self._has_holding():
            return 0
        ((found,),) = await self.rows("SELECT count(*) FROM windlass_import WHERE holding = %s", holding)
        return int(found)

    async def held(self, holding: str, count: int) -> list[tuple[bytes, bytes]]:
        """Some rows of the holding table."""
        if not await self._has_holding():
            return []
        query = "SELECT name, job FROM windlass_import WHERE holding = %s ORDER BY name LIMIT %s"
        return [(name.encode(), job.encode()) for name, job in await self.rows(query, holding, count)]

    async def release(self, holding: str, jobs: Sequence[ForeignJob]) -> None:
        """Delete held rows."""
        names = [job.job_id for job in jobs]
        await self.rows("DELETE FROM windlass_import WHERE holding = %s AND name = ANY(%s)", holding, names)


class ProcrastinateReader:
    """Reads Procrastinate's jobs in PostgreSQL."""

    source = "procrastinate"

    def __init__(self, client: PostgresClient) -> None:
        self._client = client

    async def shelves(self) -> list[Shelf]:
        query = "SELECT DISTINCT queue_name FROM procrastinate_jobs WHERE status = 'todo' ORDER BY 1"
        names = [name for (name,) in await self._client.rows(query)]
        return [Shelf(name, name.encode(), "rows", later=later) for later in (False, True) for name in names]

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        ids = [int(member) for member, _ in entries]
        rows = {row[0]: row for row in await self._client.rows(_READ, ids)}
        return [_read(Entry(str(job_id)), shelf, rows.get(job_id)) for job_id in ids]

    async def left(self) -> dict[str, int]:
        ((running, periodic),) = await self._client.rows(_LEFT)
        found = {"that run (doing)": running, "periodic tasks (make them schedules here)": periodic}
        return {what: count for what, count in found.items() if count}


@refuses("a job of Procrastinate")
def _read(entry: Entry, shelf: Shelf, row: Any) -> ForeignJob:
    if row is None:
        raise Unreadable("a worker of Procrastinate took it meanwhile")
    _, entry.task, args, priority, lock, queueing_lock, due, periodic = row
    if periodic:
        raise Unreadable("a periodic task made it: make it a schedule here")
    if lock is not None:
        raise Unreadable("it has a lock: let Procrastinate run it, or add it here to an ordered group")
    kwargs = msgspec.json.decode(args)
    if not isinstance(kwargs, dict):
        raise Unreadable("its arguments are not an object")
    return ForeignJob(
        source="procrastinate",
        id=entry.id,
        queue=shelf.queue,
        task=entry.task,
        kwargs=kwargs,
        priority=priority,
        due_ms=round(due.timestamp() * 1000) if shelf.later else None,
        unique=queueing_lock,
    )

"""One typed stub for each server function. The headers of the Lua files describe arguments and answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, NamedTuple

from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.layouts import ScheduleState
from windlass.backends.valkey.sent_records import pack

Roots = list[str]
Item = tuple[int, str]


class Turn(NamedTuple):
    """The answer of ``work``."""

    now_ms: int
    statuses: bytes
    next_due_in_ms: int
    #: For each claimed queue the character 1 if it has more jobs, see ``lua/functions/work.lua`` for others.
    left: bytes
    #: Queues whose outbox has entries to relay.
    relay: list[bytes]
    leased: list[Any]


class Functions:
    """The server functions. All roots of one call must share a slot."""

    def __init__(self, client: ValkeyClient) -> None:
        self._call = client.call

    async def version(self, root: str) -> int:
        return int(await self._call("version", [root]))

    async def add(self, roots: Roots, now: str, jobs: list[Any], tails: list[bytes]) -> list[Any]:
        found: list[Any] = await self._call("add", roots, now, pack(jobs), *tails)
        return found

    async def restore(self, roots: Roots, now: str, jobs: list[Any], tails: list[bytes]) -> list[Any]:
        found: list[Any] = await self._call("restore", roots, now, pack(jobs), *tails)
        return found

    def add_plain(self, root: str, now: str, jobs: list[Any]) -> Awaitable[list[Any]]:
        return self._call("add_plain", [root], now, *jobs)

    async def work(self, roots: Roots, now: str, ends: list[Any], claim: Any) -> Turn:
        found = await self._call("work", roots, now, pack((ends, claim)))
        return Turn(found[0], found[1], found[2], found[3], found[4], found[5:])

    async def extend(self, roots: Roots, now: str, leases: list[Any]) -> bytes:
        found: bytes = await self._call("extend", roots, now, pack(leases))
        return found

    async def reconcile(
        self, root: str, now: str, worker: str, held: list[str], skip: int
    ) -> tuple[int, int, list[bytes]]:
        given, skip, relay = await self._call("reconcile", [root], now, pack((worker, held, skip)))
        return given, skip, relay

    async def peek(self, roots: Roots, now: str, index: str, limit: int) -> list[list[bytes]]:
        found: list[list[bytes]] = await self._call("peek", roots, now, pack((index, limit)))
        return found

    async def promote(self, roots: Roots, now: str, limit: int, admit_limit: int) -> tuple[int, int, int]:
        count, next_due_in_ms, admitted = await self._call("promote", roots, now, pack((limit, admit_limit)))
        return count, next_due_in_ms, admitted

    async def recover(self, roots: Roots, now: str, leases: int, expired: int) -> list[Any]:
        found: list[Any] = await self._call("recover", roots, now, pack((leases, expired)))
        return found

    async def prune(
        self, roots: Roots, now: str, limit: int, copied: list[int], rows: int
    ) -> tuple[int, int, int, int, int, int]:
        jobs, ids, history, more, rolled_up, keys = await self._call(
            "prune", roots, now, pack((limit, copied, rows))
        )
        return jobs, ids, history, more, rolled_up, keys

    async def cancel(
        self, roots: Roots, now: str, reason: str, items: list[Item], *, dead: bool
    ) -> list[Any]:
        found: list[Any] = await self._call("cancel", roots, now, pack((reason, items, int(dead))))
        return found

    async def remove(self, roots: Roots, now: str, force: bool, items: list[Item]) -> list[Any]:
        found: list[Any] = await self._call("remove", roots, now, pack((int(force), items)))
        return found

    async def retry(self, roots: Roots, now: str, items: list[Any], values: list[bytes]) -> list[int]:
        found: list[int] = await self._call("retry", roots, now, pack(items), *values)
        return found

    async def change(self, root: str, now: str, what: tuple[Any, ...], payload: bytes) -> list[int]:
        found: list[int] = await self._call("change", [root], now, pack(what), payload)
        return found

    async def report(
        self, root: str, now: str, what: tuple[Any, ...], progress: bytes, logs: list[str]
    ) -> list[int]:
        found: list[int] = await self._call("report", [root], now, pack(what), progress, *logs)
        return found

    async def publish(self, root: str, now: str, what: tuple[Any, ...]) -> int:
        known: int = await self._call("publish", [root], now, pack(what))
        return known

    async def trim_events(self, root: str, keep: int) -> int:
        return int(await self._call("trim_events", [root], pack((keep,))))

    async def pause(self, root: str, now: str, paused: bool) -> tuple[int, int]:
        changed, known = await self._call("pause", [root], now, pack((int(paused),)))
        return changed, known

    async def purge(self, root: str, now: str, what: tuple[Any, ...]) -> list[Any]:
        found: list[Any] = await self._call("purge", [root], now, pack(what))
        return found

    async def result_ttl(self, root: str, now: str, job_id: str, ttl_ms: int) -> list[int]:
        found: list[int] = await self._call("result_ttl", [root], now, pack((job_id, ttl_ms)))
        return found

    async def get(self, roots: Roots, now: str, items: list[Item], late: bool) -> list[Any]:
        found: list[Any] = await self._call("get", roots, now, pack(items), int(late))
        return found

    async def list_jobs(self, root: str, now: str, what: tuple[Any, ...], patterns: list[bytes]) -> list[Any]:
        found: list[Any] = await self._call("list_jobs", [root], now, pack(what), *patterns)
        return found

    async def info(self, roots: Roots, now: str, deep: bool) -> list[list[int]]:
        found: list[list[int]] = await self._call("info", roots, now, pack((int(deep),)))
        return found

    async def logs(self, root: str, job_id: str, start: int, limit: int) -> list[Any]:
        found: list[Any] = await self._call("logs", [root], pack((job_id, start, limit)))
        return found

    async def log_rows(self, root: str, log: str, after: int, limit: int) -> list[Any]:
        found: list[Any] = await self._call("log_rows", [root], pack((log, after, limit)))
        return found

    async def counters(self, roots: Roots) -> list[list[bytes]]:
        found: list[list[bytes]] = await self._call("counters", roots)
        return found

    async def beat(self, root: str, now: str, worker: str, gone: bool, described: bytes) -> bytes | None:
        found: bytes | None = await self._call("beat", [root], now, worker, int(gone), described)
        return found

    async def command(self, root: str, worker: str, command: bytes) -> bool:
        return bool(await self._call("command", [root], worker, command))

    async def workers(self, root: str, now: str, stale_ms: int) -> list[bytes]:
        found: list[bytes] = await self._call("workers", [root], now, stale_ms)
        return found

    async def archive(self, root: str, now: str, name: str, cursors: list[Any]) -> None:
        await self._call("archive", [root], now, name, pack(cursors))

    async def archivers(self, root: str, now: str, kept_ms: int) -> list[bytes]:
        found: list[bytes] = await self._call("archivers", [root], now, kept_ms)
        return found

    async def elect(self, root: str, now: str, role: str, holder: str, ttl_ms: int) -> bool:
        return bool(await self._call("elect", [root], now, role, holder, ttl_ms))

    async def sweep(self, root: str, now: str, kept_ms: int) -> int:
        return int(await self._call("sweep", [root], now, kept_ms))

    # --- unique keys ------------------------------------------------------------------------------

    async def unique_get(self, root: str, now: str, key: str) -> list[Any] | None:
        found: list[Any] | None = await self._call("unique_get", [root], now, key)
        return found

    async def unique_free(self, root: str, now: str, key: str) -> bool:
        return bool(await self._call("unique_free", [root], now, key))

    async def unique_list(self, root: str, now: str, limit: int, after: str | None) -> list[Any]:
        what = pack((limit, int(after is not None)))
        found: list[Any] = await self._call("unique_list", [root], now, what, after or "")
        return found

    # --- limits and groups ------------------------------------------------------------------------

    async def limits_queue(self, root: str, now: str, what: tuple[int, int, int]) -> int:
        return int(await self._call("limits_queue", [root], now, pack(what)))

    async def limits_group(self, root: str, now: str, what: tuple[Any, ...]) -> tuple[int, str]:
        known, refused = await self._call("limits_group", [root], now, pack(what))
        return known, refused.decode()

    async def group_pause(self, root: str, now: str, group: str, paused: bool) -> tuple[int, int]:
        changed, known = await self._call("group_pause", [root], now, group, int(paused))
        return changed, known

    async def hold(self, root: str, now: str, ms: int, group: str | None) -> tuple[int, int]:
        what = pack((ms, int(group is not None)))
        until_ms, known = await self._call("hold", [root], now, what, group or "")
        return until_ms, known

    async def task_revoke(self, root: str, now: str, what: tuple[str, int, int, int]) -> tuple[int, int]:
        done, known = await self._call("task_revoke", [root], now, pack(what))
        return done, known

    async def task_restore(self, root: str, now: str, task: str) -> bool:
        return bool(await self._call("task_restore", [root], now, task))

    async def limits_get(self, root: str, now: str, groups: tuple[str, ...]) -> list[Any]:
        found: list[Any] = await self._call("limits_get", [root], now, *groups)
        return found

    async def groups_list(self, root: str, now: str, limit: int, after: str) -> list[Any]:
        found: list[Any] = await self._call("groups_list", [root], now, limit, after)
        return found

    # --- schedules --------------------------------------------------------------------------------

    async def schedule_put(self, root: str, name: str, state: ScheduleState, record: bytes) -> list[Any]:
        found: list[Any] = await self._call("schedule_put", [root], name, pack(state), record)
        return found

    async def schedule_remove(self, root: str, name: str, source: str | None) -> bool:
        sourced = int(source is not None)
        return bool(await self._call("schedule_remove", [root], name, sourced, source or ""))

    async def schedule_pause(self, root: str, name: str, paused: bool, next_ms: int) -> int:
        return int(await self._call("schedule_pause", [root], name, pack((int(paused), next_ms))))

    async def schedule_fire(
        self, root: str, now: str, name: str, what: tuple[Any, ...], tails: list[bytes]
    ) -> tuple[int, int, int]:
        ok, added, known = await self._call("schedule_fire", [root], now, name, pack(what), *tails)
        return ok, added, known

    async def schedules_due(self, roots: Roots, now: str, limit: int) -> list[Any]:
        found: list[Any] = await self._call("schedules_due", roots, now, limit)
        return found

    async def schedules_list(self, roots: Roots, now: str, what: tuple[Any, ...], after: str) -> list[Any]:
        found: list[Any] = await self._call("schedules_list", roots, now, pack(what), after)
        return found

    # --- roll-ups ---------------------------------------------------------------------------------

    async def metrics_progress(self, roots: Roots) -> list[int]:
        found: list[int] = await self._call("metrics_progress", roots)
        return found

    async def metrics_get(self, root: str, minutes: int, keys: list[bytes]) -> list[Any]:
        found: list[Any] = await self._call("metrics_get", [root], minutes, *keys)
        return found

    async def metrics_add(
        self, root: str, now: str, after: int, upto: int, minutes: int, rows: list[bytes]
    ) -> bool:
        return bool(await self._call("metrics_add", [root], now, after, upto, minutes, *rows))

    async def metrics_read(
        self, root: str, step: int, first: bytes, last: bytes, limit: int, task: str | None
    ) -> list[bytes]:
        only = int(task is not None)
        found: list[bytes] = await self._call(
            "metrics_read", [root], step, first, last, limit, only, task or ""
        )
        return found

    async def mark_add(self, root: str, now: str, mark: str, label: str, kept: int) -> list[Any]:
        found: list[Any] = await self._call("mark_add", [root], now, mark, label, kept)
        return found

    async def marks(self, root: str, since_ms: int) -> list[bytes]:
        found: list[bytes] = await self._call("marks", [root], since_ms)
        return found

    # --- flows, signals, live output ---------------------------------------------------------------

    async def flow_add(
        self, roots: Roots, now: str, jobs: list[Any], parents: list[Any], tails: list[bytes]
    ) -> list[Any]:
        found: list[Any] = await self._call("flow_add", roots, now, pack((jobs, parents)), *tails)
        return found

    async def flow_look(self, roots: Roots, now: str, items: list[Any]) -> list[list[Any]]:
        found: list[list[Any]] = await self._call("flow_look", roots, now, pack(items))
        return found

    async def flow_link(self, roots: Roots, now: str, items: list[Any]) -> list[Any]:
        found: list[Any] = await self._call("flow_link", roots, now, pack(items))
        return found

    async def flow_notify(
        self, roots: Roots, now: str, limit: int, ends: list[Any], items: list[Any], values: list[bytes]
    ) -> tuple[int, list[bytes]]:
        count, relay = await self._call("flow_notify", roots, now, pack((limit, ends, items)), *values)
        return count, relay

    async def flow_outbox(self, roots: Roots, now: str, limit: int, linking_ms: int) -> list[Any]:
        found: list[Any] = await self._call("flow_outbox", roots, now, pack((limit, linking_ms)))
        return found

    async def flow_notified(self, roots: Roots, items: list[Any]) -> None:
        await self._call("flow_notified", roots, pack(items))

    async def flow_linked(self, roots: Roots, items: list[Item]) -> None:
        await self._call("flow_linked", roots, pack(items))

    async def flow_open(self, roots: Roots, items: list[Item], *, missed: bool = False) -> list[list[Any]]:
        found: list[list[Any]] = await self._call("flow_open", roots, pack((int(missed), items)))
        return found

    async def flow_edges(self, roots: Roots, values: bool, items: list[Any]) -> list[list[bytes]]:
        found: list[list[bytes]] = await self._call("flow_edges", roots, pack((int(values), items)))
        return found

    async def flow_links(self, root: str, job_id: str, after: int, limit: int) -> list[Any]:
        found: list[Any] = await self._call("flow_links", [root], pack((job_id, after, limit)))
        return found

    async def flow_edge(self, roots: Roots, values: bool, items: list[Any]) -> list[bytes | None]:
        found: list[bytes | None] = await self._call("flow_edge", roots, pack((int(values), items)))
        return found

    async def signal(self, root: str, now: str, what: tuple[Any, ...], data: bytes) -> list[int]:
        found: list[int] = await self._call("signal", [root], now, pack(what), data)
        return found

    async def stream_append(
        self, root: str, now: str, what: tuple[Any, ...], chunks: list[bytes]
    ) -> list[int]:
        found: list[int] = await self._call("stream_append", [root], now, pack(what), *chunks)
        return found

    async def stream_read(self, root: str, job_id: str, after: int, limit: int) -> list[Any]:
        found: list[Any] = await self._call("stream_read", [root], pack((job_id, after, limit)))
        return found

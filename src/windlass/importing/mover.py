"""Reads the shelves of another system and adds the jobs, in one of three modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from windlass.api.app import Windlass
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import check_task_name, new_id
from windlass.core.job import NewJob
from windlass.core.option_values import Unique, UniqueMode, check_known
from windlass.core.outcome import AddOutcome
from windlass.errors import ConfigError
from windlass.importing.model import ForeignJob, Found, Refusal, Shelf, Source, SourceReader
from windlass.jobs.payload import pack_call, pack_data
from windlass.jobs.prepare import PreparedOptions

#: Entries per step.
WINDOW = 500
#: How long an imported id is kept, even without a record.
KEEP_ID_S = 7 * 86_400


class Mode(StrEnum):
    """Only inspect; add here and change nothing there; or take there and add here."""

    DRY = "dry"
    COPY = "copy"
    MOVE = "move"


@dataclass
class ShelfReport:
    """The result for one queue of the other system."""

    queue: str
    target: str
    waiting: int = 0
    scheduled: int = 0
    #: Added by this run; already here from an earlier one; taken by a worker of the other system meanwhile.
    added: int = 0
    known: int = 0
    gone: int = 0
    refused: int = 0


@dataclass
class ImportReport:
    """The result of a run."""

    mode: Mode
    source: str
    queues: dict[str, ShelfReport] = field(default_factory=dict)
    tasks: Counter[str] = field(default_factory=Counter)
    #: (task, reason) -> count.
    refusals: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Descriptions and counts of what is not imported.
    left: dict[str, int] = field(default_factory=dict)
    #: Entries of an interrupted run that this one finished (or, in other modes, that are still held).
    resumed: int = 0

    def total(self, name: str) -> int:
        """The sum of a column over all queues."""
        return sum(getattr(row, name) for row in self.queues.values())


class Mover:
    """Imports from one reader into one app."""

    def __init__(
        self,
        app: Windlass,
        client: Source,
        reader: SourceReader,
        *,
        queues: Iterable[str] = (),
        queue_names: Mapping[str, str] | None = None,
        task_names: Mapping[str, str] | None = None,
    ) -> None:
        self._app = app
        self._client = client
        self._reader = reader
        self._only = tuple(queues)
        self._queue_names = dict(queue_names or {})
        self._task_names = dict(task_names or {})
        self._holding = f"windlass:import:{reader.source}"

    async def size(self) -> int:
        """The number of entries to read."""
        return sum([await self._client.count(shelf) for shelf in await self._shelves()])

    async def run(self, mode: Mode, advance: Callable[[float], None] = lambda step: None) -> ImportReport:
        """Process all shelves; ``advance`` receives how many entries were processed."""
        report = ImportReport(mode, self._reader.source, left=await self._reader.left())
        if mode is Mode.MOVE:
            report.resumed = await self._finish_held()
        else:
            report.resumed = await self._client.held_count(self._holding)
        for shelf in await self._shelves():
            row = report.queues.setdefault(
                shelf.queue, ShelfReport(shelf.queue, self._queue_names.get(shelf.queue, shelf.queue))
            )
            await self._walk(shelf, mode, report, row, advance)
        return report

    async def _shelves(self) -> list[Shelf]:
        shelves = await self._reader.shelves()
        known = {shelf.queue for shelf in shelves}
        for name in self._only:
            check_known({name: None}, known, f"queue of {self._reader.source} there")
        return [shelf for shelf in shelves if not self._only or shelf.queue in self._only]

    async def _walk(
        self,
        shelf: Shelf,
        mode: Mode,
        report: ImportReport,
        row: ShelfReport,
        advance: Callable[[float], None],
    ) -> None:
        skip = 0
        while entries := await self._client.window(shelf, skip, WINDOW):
            found = await self._reader.read(shelf, entries)
            ready: list[tuple[bytes, ForeignJob, NewJob]] = []
            for (member, _), one in zip(entries, found, strict=True):
                made = self._prepare(one)
                if isinstance(made, Refusal):
                    row.refused += 1
                    report.refusals[made.task, made.reason] += 1
                else:
                    assert isinstance(one, ForeignJob)
                    ready.append((member, one, made))
                    report.tasks[made.task] += 1
                    if made.run_at_ms is None:
                        row.waiting += 1
                    else:
                        row.scheduled += 1
            stays = len(entries)
            if mode is Mode.MOVE:
                stays -= await self._move(shelf, row, ready)
            elif mode is Mode.COPY:
                await self._add(row, [new for _, _, new in ready])
            skip += stays
            advance(len(entries))

    async def _move(
        self, shelf: Shelf, row: ShelfReport, ready: Sequence[tuple[bytes, ForeignJob, NewJob]]
    ) -> int:
        """Take, add, release; returns how many entries left the shelf."""
        if not ready:
            return 0
        items = [(member, one.job_id, msgspec.json.encode(one)) for member, one, _ in ready]
        taken = await self._client.take(shelf, self._holding, items)
        mine = [pair for pair, took in zip(ready, taken, strict=True) if took]
        row.gone += len(ready) - len(mine)
        await self._add(row, [new for _, _, new in mine])
        if mine:
            await self._client.release(self._holding, [one for _, one, _ in mine])
        return len(ready)

    async def _finish_held(self) -> int:
        """Add the entries that an interrupted run had taken and not released."""
        done = 0
        while held := await self._client.held(self._holding, WINDOW):
            jobs = [msgspec.json.decode(text, type=ForeignJob) for _, text in held]
            news = [self._new_job(job) for job in jobs]
            await self._add(ShelfReport("", ""), news)
            await self._client.release(self._holding, jobs)
            done += len(jobs)
        return done

    async def _add(self, row: ShelfReport, news: Sequence[NewJob]) -> None:
        by_queue: dict[str, list[NewJob]] = {}
        for new in news:
            by_queue.setdefault(new.queue, []).append(new)
        for name, some in by_queue.items():
            for job in await self._app.queue(name).add_new(some):
                if job.outcome is AddOutcome.QUEUED:
                    row.added += 1
                else:
                    row.known += 1

    def _prepare(self, found: Found) -> NewJob | Refusal:
        """The job to add, or why it cannot be added."""
        if isinstance(found, Refusal):
            return found
        if found.expires_ms is not None and found.expires_ms <= SYSTEM_CLOCK.now_ms():
            return Refusal("it has expired", found.task, found.id)
        try:
            return self._new_job(found)
        except (ConfigError, TypeError, msgspec.MsgspecError) as exc:
            return Refusal(f"it cannot be a job here: {exc}", found.task, found.id)

    def _new_job(self, job: ForeignJob) -> NewJob:
        now_ms = SYSTEM_CLOCK.now_ms()
        options: dict[str, Any] = {"job_id": job.job_id, "keep_id": KEEP_ID_S, "priority": job.priority}
        if job.due_ms is not None and job.due_ms > now_ms:
            options["run_at"] = job.due_ms / 1000
        if job.expires_ms is not None:
            options["expires_in"] = max((job.expires_ms - now_ms) / 1000, 0.001)
        if job.unique is not None:
            options["unique"] = Unique(job.unique, UniqueMode.UNTIL_START)
        said = {"max_attempts": job.max_attempts, "timeout": job.timeout_s, "backoff": job.backoff}
        options |= {option: value for option, value in said.items() if value is not None}
        name = check_task_name(self._task_names.get(job.task, job.task))
        queue = self._app.queue(self._queue_names.get(job.queue, job.queue))
        task = self._app.tasks.get(name)
        base = task.job_options if task is not None else queue.defaults
        packed = pack_data(job.data) if job.plain else pack_call(job.args, job.kwargs)
        return PreparedOptions(base.merged(options)).new_job(queue, name, packed, new_id())

"""Schedules as users see them: create, read, pause, run now, remove; and schedules that code declares.

A schedule belongs to a queue, where its name is unique. Changes use the time of the store, so that the clocks
of producers do not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from windlass.backend import limit_requests as lrq
from windlass.backend import schedule_requests as sq
from windlass.core.ids import check_task_name, is_text, new_id
from windlass.core.job import NewJob
from windlass.core.option_values import check_known, to_options
from windlass.core.schedule_rules import (
    Rule,
    Schedule,
    ScheduleRecord,
    ScheduleStrategy,
    first_slot,
    slot_after,
    slot_job,
    to_schedule,
)
from windlass.errors import ConfigError, JobNotFoundError, ScheduleNotFoundError
from windlass.jobs.payload import unpack

if TYPE_CHECKING:
    from windlass.jobs.job import Job
    from windlass.schedules.interfaces import ScheduleApp, ScheduleQueue
    from windlass.serde.codecs import Codecs


log: Final = logging.getLogger("windlass.schedules")

#: Longer than the limit for new names, so that imported schedules can be removed.
_LONGEST_NAME: Final = 1_024


class ScheduleInfo:
    """A schedule as it is stored."""

    def __init__(self, record: ScheduleRecord, codecs: Codecs) -> None:
        self.record = record
        self._codecs = codecs

    def __repr__(self) -> str:
        when = "no next run" if self.next_run is None else f"next at {self.next_run.isoformat()}"
        return f"<Schedule {self.name} of queue {self.queue}: {'paused' if self.paused else when}>"

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.record.queue

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def task(self) -> str:
        """The name of the task that its jobs run."""
        return self.record.template.task

    @property
    def data(self) -> Any:
        """The data of its jobs."""
        template, codecs = self.record.template, self._codecs
        return unpack(codecs.template(codecs.payload(template.codec), template, self.name)).data

    @property
    def cron(self) -> str | None:
        """Its cron expression, if it has one."""
        return self.record.rule.cron

    @property
    def every(self) -> float | None:
        """The seconds between two slots, if it has an interval."""
        every_ms = self.record.rule.every_ms
        return None if every_ms is None else every_ms / 1000

    @property
    def timezone(self) -> str:
        """The time zone of its cron expression."""
        return self.record.rule.timezone

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.record.paused

    @property
    def source(self) -> str:
        """The application whose code declares it; empty when it was created by hand."""
        return self.record.source

    @property
    def next_run(self) -> datetime | None:
        """Its next slot; None when it has no more slots."""
        return _instant(self.record.next_ms)

    @property
    def last_run(self) -> datetime | None:
        """The slot of its last job, or when it was last run by hand."""
        return _instant(self.record.last_ms)

    @property
    def last_job_id(self) -> str | None:
        """The id of its last job, if any."""
        return self.record.last_job_id

    @property
    def fired(self) -> int:
        """The number of jobs that its slots added."""
        return self.record.fired

    @property
    def skipped(self) -> int:
        """The number of slots without a job, because the previous job was unfinished or the job was kept out
        (by its unique key or its group).
        """
        return self.record.skipped


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


class Schedules:
    """The schedules of one queue."""

    def __init__(self, queue: ScheduleQueue, strategies: Mapping[str, ScheduleStrategy]) -> None:
        self._queue = queue
        self._strategies = strategies

    async def put(
        self,
        name: str,
        schedule: Schedule | Mapping[str, Any],
        template: Mapping[str, Any] | ScheduleInfo | None = None,
    ) -> ScheduleInfo:
        """Create or change the schedule ``name``; see ``Queue.upsert_job_scheduler``."""
        if isinstance(template, ScheduleInfo):
            record = to_schedule(schedule).record(self._queue.name, name, template.record.template)
            record.source = template.source
        else:
            record = self.record(name, schedule, template)
        (now_ms, _) = await self._find(name)
        if has_ended(record, now_ms):
            raise ConfigError(
                "end",
                message=f"end {_instant(record.end_ms)} is in the past: this schedule would never run",
                got=str(_instant(record.end_ms)),
            )
        record.next_ms = first_slot(record, now_ms, self._strategies)
        return self._info(await self._queue.store.execute(sq.PutSchedule(schedule=record)))

    def record(
        self, name: str, schedule: Schedule | Mapping[str, Any], template: Mapping[str, Any] | None = None
    ) -> ScheduleRecord:
        """Return the checked record of a schedule without storing it."""
        return make_record(self._queue.app, name, to_schedule(schedule), self._template(name, template or {}))

    def _template(self, name: str, given: Mapping[str, Any]) -> NewJob:
        options = to_options("template", given)
        task, data = options.pop("name", name), options.pop("data", None)
        options |= to_options("template.opts", options.pop("opts", None))
        return self._queue.prepare(task, data, **options)

    async def get(self, name: str) -> ScheduleInfo | None:
        """Return the schedule of that name, or None."""
        _, record = await self._find(name)
        return None if record is None else self._info(record)

    async def list(self) -> list[ScheduleInfo]:
        """Return the schedules of the queue, by name."""
        return await list_schedules(self._queue.app, queue=self._queue.name)

    def _info(self, record: ScheduleRecord) -> ScheduleInfo:
        return ScheduleInfo(record, self._queue.app.codecs)

    async def remove(self, name: str) -> bool:
        """Remove a schedule; False when there is none."""
        request = sq.RemoveSchedule(queue=self._queue.name, name=_text(name))
        return await self._queue.store.execute(request)

    async def pause(self, name: str) -> None:
        """Pause a schedule. Raises ``ScheduleNotFoundError``."""
        request = sq.PauseSchedule(queue=self._queue.name, name=_text(name), paused=True)
        if not await self._queue.store.execute(request):
            raise ScheduleNotFoundError(self._queue.name, name)

    async def resume(self, name: str) -> None:
        """Continue with the next slot from now on. Slots that passed during the pause are skipped."""
        now_ms, record = await self._get(name)
        next_ms = slot_after(record, now_ms, self._strategies)
        request = sq.PauseSchedule(queue=self._queue.name, name=name, paused=False, next_ms=next_ms)
        await self._queue.store.execute(request)

    async def run(self, name: str) -> str:
        """Add its job now, in addition to its slots. Returns the job's id, or that of the job that holds its
        unique key.
        """
        _, record = await self._get(name)
        job = slot_job(record, new_id())
        queue = self._queue

        async def fire(jobs: list[NewJob]) -> sq.Fired:
            request = sq.FireSchedule(queue=queue.name, name=name, slot_ms=None, jobs=jobs)
            return await queue.store.execute(request)

        fired = await queue.app.hooks.enqueue_through([job], fire)
        if not fired.ok:
            raise ScheduleNotFoundError(queue.name, name)
        unique = job.options.unique
        if fired.added or unique is None:
            return job.id
        holder = await queue.store.execute(lrq.GetUniqueKey(queue=queue.name, key=unique.key))
        return job.id if holder is None else holder.job_id

    async def _get(self, name: str) -> tuple[int, ScheduleRecord]:
        now_ms, record = await self._find(name)
        if record is None:
            raise ScheduleNotFoundError(self._queue.name, name)
        return now_ms, record

    async def _find(self, name: str) -> tuple[int, ScheduleRecord | None]:
        """Return the store's time, and the schedule of that name or None."""
        check_task_name(name)
        page = await self._queue.store.execute(sq.ListSchedules(queue=self._queue.name, name=name))
        return page.now_ms, page.schedules[0] if page.schedules else None


def _text(name: object) -> str:
    """Check the name of an existing schedule, which may be any text."""
    if not isinstance(name, str) or not is_text(name) or len(name) > _LONGEST_NAME:
        raise ConfigError("name", f"a text of at most {_LONGEST_NAME} characters", name)
    return name


def has_ended(record: ScheduleRecord, now_ms: int) -> bool:
    """Whether the end of the schedule has passed."""
    return record.end_ms is not None and record.end_ms <= now_ms


def make_record(app: ScheduleApp, name: str, schedule: Schedule, template: NewJob) -> ScheduleRecord:
    """Return the checked record of a schedule, without its first slot."""
    check_task_name(name)
    if template.id != template.request_id:
        raise ConfigError(
            "job_id", message="a schedule names its jobs itself: leave out job_id", got=template.id
        )
    if template.run_at_ms is not None:
        raise ConfigError("run_at", message="a schedule says when its jobs run: leave out run_at")
    labels = app.codecs.labels(template)
    template.id = template.request_id = ""
    app.codecs.bind_to_schedule(template, labels, name)
    return schedule.record(template.queue, name, template)


async def list_schedules(
    app: ScheduleApp, *, queue: str | None = None, source: str | None = None
) -> list[ScheduleInfo]:
    """Return the schedules of one queue or of all, by queue and name."""
    found: list[ScheduleInfo] = []
    cursor: str | None = None
    while True:
        page = await app.store.execute(sq.ListSchedules(queue=queue, source=source, cursor=cursor))
        found += [ScheduleInfo(record, app.codecs) for record in page.schedules]
        cursor = page.cursor
        if cursor is None:
            return found


def _same(codecs: Codecs, known: ScheduleRecord, record: ScheduleRecord) -> bool:
    """Whether two declarations say the same."""
    if not codecs.are_equal(known.template, record.template, record.name):
        return False
    template = msgspec.structs.replace(record.template, payload=known.template.payload)
    # A deploy has set the source and the next slot.
    return known == msgspec.structs.replace(
        record, template=template, source=known.source, next_ms=known.next_ms
    )


class DeclaredSchedules:
    """The schedules that an application's code declares."""

    def __init__(self, strategies: Mapping[str, ScheduleStrategy], codecs: Codecs) -> None:
        self._strategies = strategies
        self._codecs = codecs
        self._declared: dict[tuple[str, str], ScheduleRecord] = {}

    def declare(self, record: ScheduleRecord) -> None:
        """Add a schedule. Raises ``ConfigError`` for a name that another schedule of the queue has."""
        _check_strategy(record.rule, self._strategies)
        key = (record.queue, record.name)
        known = self._declared.get(key)
        if known is not None and not _same(self._codecs, known, record):
            raise ConfigError(
                "name",
                message=f"queue {record.queue!r} already has a schedule {record.name!r} with another task, "
                "rule or arguments: choose another name",
                got=record.name,
            )
        self._declared[key] = record

    def __len__(self) -> int:
        return len(self._declared)

    async def deploy(self, app: ScheduleApp, source: str) -> tuple[int, list[ScheduleInfo]]:
        """Store the declared schedules and remove others of ``source``.

        Returns the number of declared schedules, and the removed ones.
        """
        store = app.store
        before = await list_schedules(app, source=source)
        now_ms = (await store.execute(sq.ListSchedules(limit=1))).now_ms
        for key, record in self._declared.items():
            record.source = source
            if has_ended(record, now_ms):  # not an error: existing code must keep starting
                log.warning("schedule %s of queue %s has ended: remove it from the code", *key)
            record.next_ms = first_slot(record, now_ms, self._strategies)
            await store.execute(sq.PutSchedule(schedule=record))
        gone = [info for info in before if (info.queue, info.name) not in self._declared]
        for info in gone:
            await store.execute(sq.RemoveSchedule(queue=info.queue, name=info.name, source=source))
        return len(self._declared), gone


def _check_strategy(rule: Rule, strategies: Mapping[str, ScheduleStrategy]) -> None:
    if rule.strategy is not None:
        check_known([rule.strategy], strategies, "schedule strategy")


class ScheduleVerbs:
    """The part of ``Queue`` that manages its schedules."""

    if TYPE_CHECKING:
        name: str
        _schedules: Schedules

        async def get_job(self, job_id: str) -> Job[Any] | None: ...

    async def upsert_job_scheduler(
        self,
        name: str,
        schedule: Schedule | Mapping[str, Any],
        template: Mapping[str, Any] | ScheduleInfo | None = None,
    ) -> ScheduleInfo:
        """Create or change a schedule: ``{"cron": "*/5 * * * *", "timezone": ...}`` or ``{"every": 60}``.

        ``template`` is ``{"name": task, "data": ..., "opts": {...}}``. The task's name defaults to the
        schedule's name. Pass the ``ScheduleInfo`` from ``get_job_scheduler`` to keep the template. A schedule
        whose rule does not change keeps its next slot.
        """
        return await self._schedules.put(name, schedule, template)

    async def get_job_scheduler(self, name: str) -> ScheduleInfo | None:
        """Return the schedule of that name, or None."""
        return await self._schedules.get(name)

    async def get_job_schedulers(self) -> list[ScheduleInfo]:
        """Return the queue's schedules, by name."""
        return await self._schedules.list()

    async def remove_job_scheduler(self, name: str) -> bool:
        """Remove a schedule; False when there is none. Its jobs are not removed."""
        return await self._schedules.remove(name)

    async def pause_job_scheduler(self, name: str) -> None:
        """Add no jobs for its slots until it is resumed."""
        await self._schedules.pause(name)

    async def resume_job_scheduler(self, name: str) -> None:
        """Add jobs again after ``pause_job_scheduler``. Slots that passed during the pause are skipped."""
        await self._schedules.resume(name)

    async def run_job_scheduler(self, name: str) -> Job[Any]:
        """Add the schedule's job now, in addition to its slots. Returns the job, or the one that holds its
        unique key.
        """
        job_id = await self._schedules.run(name)
        job = await self.get_job(job_id)
        if job is None:
            raise JobNotFoundError(self.name, job_id)
        return job

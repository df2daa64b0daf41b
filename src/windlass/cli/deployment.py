"""The checks of ``windlass doctor`` for the deployment: clocks, the server's settings, duties, retention.

``DEPLOYMENT_CHECKS`` lists them. A check takes the ``CheckContext`` and yields findings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from windlass.api.health import CheckContext
from windlass.backend.health import Finding, fact, problem, warning
from windlass.backend.protocol import ServedBackend
from windlass.backend.schedule_requests import DueSchedules, ListSchedules
from windlass.cli.values import show_age, show_bytes, show_time
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRecord
from windlass.core.states import DUE_LATER, JobState
from windlass.core.text import many

#: A difference of clocks that is reported, and one that makes times in reports and schedules misleading.
_SKEW_MS, _BAD_SKEW_MS = 1_000, 30_000
#: A time this far in the future comes from another clock; at most this many jobs are named.
_AHEAD_MS, _SHOWN = 10_000, 3
#: A worker of this age has reported whether it is the leader.
_SETTLED_MS = 60_000
#: A job that runs longer than this is reported.
_LONG_RUN_MS = 24 * 3_600_000
#: With more finished jobs than this, retention is mentioned.
_MANY_KEPT = 1_000_000


async def check_clock(context: CheckContext) -> AsyncIterator[Finding]:
    """Compare the store's clock, which decides when jobs are due, with this machine's."""
    store = context.app.store
    if not store.capabilities.schedules:
        return
    before = SYSTEM_CLOCK.now_ms()
    theirs = (await store.execute(DueSchedules())).now_ms
    after = SYSTEM_CLOCK.now_ms()
    # A time between the two readings means no difference.
    skew_ms = max(before - theirs, theirs - after, 0)
    if skew_ms <= _SKEW_MS:
        yield fact("the store's clock and this machine's agree")
        return
    text = f"the store's clock and this machine's differ by {show_age(skew_ms)}"
    advice = "let NTP keep both (timedatectl status); the store's clock decides when jobs are due"
    yield problem(text, advice) if skew_ms > _BAD_SKEW_MS else warning(text, advice)


async def check_due_times(context: CheckContext) -> AsyncIterator[Finding]:
    """Due times from a clock that was ahead. The store never changes a due time by itself."""
    now_ms = max(context.now, await _server_ms(context)) + _AHEAD_MS
    for info in context.queues:
        for state in sorted(DUE_LATER):
            jobs = await context.jobs(info.name, state) if info.counts.get(state) else []
            wrong = [job for job in jobs if _written_ms(job) > now_ms]
            if wrong:
                shown = ", ".join(f"{job.id} due {show_time(job.due_ms)}" for job in wrong[:_SHOWN])
                what = many(len(wrong), f"{state} job")
                advice = f"windlass promote {info.name} ID runs one now; the others wait for their time"
                yield warning(
                    f"{info.name}: {what} got a due time from a clock that was ahead: {shown}", advice
                )


async def check_schedule_times(context: CheckContext) -> AsyncIterator[Finding]:
    """Schedules that fired by a clock that was ahead. They continue when that time is reached."""
    if not context.app.store.capabilities.schedules:
        return
    now_ms = max(context.now, await _server_ms(context)) + _AHEAD_MS
    for record in (await context.app.store.execute(ListSchedules(limit=1_000))).schedules:
        if (record.last_ms or 0) > now_ms:
            due = show_time(record.next_ms)
            text = (
                f"{record.queue}: schedule {record.name} fired while a clock was ahead and is next due {due}"
            )
            yield warning(text, "remove the schedule and create it again: it then starts from now")


async def _server_ms(context: CheckContext) -> int:
    """The time of a server, which may differ from ours; 0 if the store uses this machine's clock."""
    store = context.app.store
    if not isinstance(store.backend, ServedBackend) or not store.capabilities.schedules:
        return 0
    return (await store.execute(DueSchedules())).now_ms


def _written_ms(job: JobRecord) -> int:
    """When the job was last changed, by the store's clock at that time."""
    return max(job.enqueued_ms, job.started_ms or 0, job.errors[-1].at_ms if job.errors else 0)


async def check_servers(context: CheckContext) -> AsyncIterator[Finding]:
    """The server's settings: what a restart loses, and whether it evicts data when memory is full."""
    backend = context.app.store.backend
    if isinstance(backend, ServedBackend):
        for settings in await backend.server_settings():
            for finding in judge_server(settings):
                yield finding


def judge_server(settings: Mapping[str, str]) -> list[Finding]:
    """The consequences of a server's settings for jobs."""
    where, version = settings.get("server", "the server"), _version(settings)
    found = [fact(f"{where} is {version}, with {show_bytes(int(settings.get('used_memory', 0)))} in use")]
    found += _judge_persistence(where, settings)
    policy = settings.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        advice = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"
        found.append(
            problem(f"{where} may evict jobs when memory runs out (maxmemory-policy {policy})", advice)
        )
    limit, used = int(settings.get("maxmemory", 0)), int(settings.get("used_memory", 0))
    if limit and used > 0.8 * limit:
        text = f"{where} uses {100 * used // limit} % of its maxmemory: when it is full, adding fails"
        found.append(
            warning(text, "raise maxmemory, or keep fewer finished jobs (keep_completed, result_ttl)")
        )
    return found


def _judge_persistence(where: str, settings: Mapping[str, str]) -> list[Finding]:
    found: list[Finding] = []
    fsync = settings.get("appendfsync")
    if settings.get("aof_enabled") != "1":
        saves = settings.get("save")
        lost = "everything since the last snapshot" if saves else "every job"
        text = f"{where} keeps no append-only file: a restart loses {lost}"
        advice = "CONFIG SET appendonly yes (and in its file), unless losing jobs is fine"
        found.append(warning(text, advice) if saves else problem(text, advice))
    elif fsync == "no":
        advice = "CONFIG SET appendfsync everysec, or always"
        found.append(warning(f"{where} lets the operating system decide when jobs reach the disk", advice))
    elif fsync is not None:
        window = "nothing" if fsync == "always" else "at most a second or two of jobs"
        found.append(fact(f"{where} writes an append-only file ({fsync}): a power cut loses {window}"))
    for name, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if settings.get(name, "ok") != "ok":
            found.append(problem(f"{where} could not write its {what}", "look at its log and at its disk"))
    return found


def _version(settings: Mapping[str, str]) -> str:
    if "valkey_version" in settings:
        return f"Valkey {settings['valkey_version']}"
    return f"Redis {settings.get('redis_version', 'of unknown version')}"


async def check_duties(context: CheckContext) -> AsyncIterator[Finding]:
    """Whether there is a leader, which prunes, rolls up and relays."""
    settled = [worker for worker in context.workers if context.now - worker.started_ms > _SETTLED_MS]
    if settled and not any(worker.leader for worker in context.workers):
        advice = "look at the workers' logs; those with duties=False never take part"
        yield warning("no worker is the leader, so nothing is pruned", advice)


async def check_long_runs(context: CheckContext) -> AsyncIterator[Finding]:
    """Jobs that have run for very long on a live worker."""
    for info in context.queues:
        if not info.counts.get("active"):
            continue
        active = await context.jobs(info.name, JobState.ACTIVE)
        ages = [context.now - job.started_ms for job in active if job.started_ms]
        old = [age for age in ages if age > _LONG_RUN_MS]
        if old:
            text = (
                f"{info.name}: {many(len(old), 'job')} run for more than a day, one for {show_age(max(old))}"
            )
            yield warning(text, f"give the task a timeout; see windlass jobs {info.name} --state active")


async def check_retention(context: CheckContext) -> AsyncIterator[Finding]:
    """Finished jobs that are never removed."""
    for info in context.queues:
        finished = sum(info.counts.get(state, 0) for state in ("completed", "failed", "cancelled"))
        advice = f"bound it in code (keep_completed, keep_failed); now: windlass clean {info.name}"
        if finished > _MANY_KEPT:
            yield warning(f"{info.name}: {many(finished, 'finished job')} kept", advice)
        for state in (JobState.COMPLETED, JobState.FAILED):
            if not info.counts.get(state.value):
                continue
            newest = await context.jobs(info.name, state)
            keeps = [job.options.keep_for(state.value) for job in newest]
            endless = sum(keep.age_ms is None and keep.count is None for keep in keeps)
            if endless:
                text = f"{info.name}: {many(endless, f'{state.value} job')} of the newest kept forever"
                yield warning(text, advice)


DEPLOYMENT_CHECKS: tuple[Callable[[CheckContext], AsyncIterator[Finding]], ...] = (
    check_clock,
    check_due_times,
    check_schedule_times,
    check_servers,
    check_duties,
    check_long_runs,
    check_retention,
)

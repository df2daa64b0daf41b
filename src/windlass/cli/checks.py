"""The checks of ``windlass doctor`` for stores and jobs. Each yields findings with advice."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import TYPE_CHECKING

from windlass._version import __version__
from windlass.api.health import HEALTH_CHECKS, CheckContext, every_job
from windlass.backend import requests as rq
from windlass.backend.health import Finding, fact, problem, warning
from windlass.backend.urls import parse_url
from windlass.cli.store_commands import shown_url, sqlite_path
from windlass.cli.values import show_bytes
from windlass.core import bad_records
from windlass.core.states import FINISHED, JobState
from windlass.core.text import many, printable

if TYPE_CHECKING:
    from windlass.api.app import Windlass

_BIG_LOG = 64 * 1024 * 1024


async def check_store(context: CheckContext) -> AsyncIterator[Finding]:
    """Report the store, its size and its version."""
    kept = sum(sum(info.counts.values()) for info in context.queues)
    size = f"{many(len(context.queues), 'queue')}, {many(kept, 'job')} kept"
    yield fact(f"{shown_url(context.app.url)} answers: {size}")
    yield fact(f"windlass {__version__} on {context.app.store.name}")


async def check_sqlite(context: CheckContext) -> AsyncIterator[Finding]:
    """The database file: journal, size, and with ``deep`` its integrity."""
    path = sqlite_path(context.app.url)
    if path is None:
        return
    verdict = ""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as conn:
        (mode,) = conn.execute("PRAGMA journal_mode").fetchone()
        (free,) = conn.execute("PRAGMA freelist_count").fetchone()
        (page,) = conn.execute("PRAGMA page_size").fetchone()
        if context.deep:
            (verdict,) = conn.execute("PRAGMA quick_check(1)").fetchone()
    log = path.with_name(path.name + "-wal")
    log_size = log.stat().st_size if log.exists() else 0
    synchronous = parse_url(context.app.url).options.get("synchronous", "full")
    yield fact(f"sqlite {sqlite3.sqlite_version}: journal {mode}, synchronous {synchronous}")
    size, spare = show_bytes(path.stat().st_size), show_bytes(free * page)
    yield fact(f"the file has {size} ({spare} free inside), its log {show_bytes(log_size)}")
    if verdict == "ok":
        yield fact("the file passed its integrity check")
    elif verdict:
        advice = "restore a backup, or save what the sqlite3 shell's .recover finds"
        yield problem(f"the file is damaged: {verdict}", advice)
    if mode != "wal":
        yield problem(f"the journal mode is {mode}, not wal", "put the file on a local disk")
    if synchronous != "full":
        advice = "drop ?synchronous= from the URL unless you chose this"
        yield warning(f"synchronous is {synchronous}: a power cut may lose the last jobs", advice)
    if log_size > _BIG_LOG:
        advice = "a program keeps a read transaction open: find and end it"
        yield warning(f"the log has grown to {show_bytes(log_size)}", advice)


async def check_workers(context: CheckContext) -> AsyncIterator[Finding]:
    """Whether workers are alive, and whether they have the same version."""
    workers = context.workers
    if not workers:
        yield fact("no worker is alive")  # check_unserved finds whether that matters
        return
    busy, slots = sum(w.busy for w in workers), sum(w.concurrency for w in workers)
    yield fact(f"{many(len(workers), 'worker')} alive, {busy} of {slots} slots busy")
    versions = sorted({worker.version for worker in workers})
    if len(versions) > 1:
        advice = "fine during a rolling deploy; otherwise restart the old ones"
        yield warning(f"workers run different versions: {', '.join(versions)}", advice)
    elif versions != [__version__]:
        text = f"workers run {versions[0]}, this command is {__version__}"
        yield warning(text, "use the same version in both places")


async def check_records(context: CheckContext) -> AsyncIterator[Finding]:
    """Jobs whose stored record cannot be read."""
    for info in context.queues:
        for state in [JobState(name) for name, count in info.counts.items() if count]:
            bad = [job async for job in context.every_job(info.name, state) if bad_records.is_bad(job)]
            if not bad:
                continue
            names = ", ".join(printable(job.id) for job in bad[:5]) + (", ..." if len(bad) > 5 else "")
            look = f"look at one: windlass job {info.name} {printable(bad[0].id)}"
            count = many(len(bad), f"{state.value} job")
            text = f"{info.name}: {count} with a record that cannot be read: {names}"
            if state in FINISHED:
                yield warning(text, f"{look}; then: windlass remove {info.name} {printable(bad[0].id)}")
            else:
                yield warning(text, f"{look}; windlass doctor --repair sets them aside as failed: bad_record")


async def set_aside(app: Windlass) -> AsyncIterator[Finding]:
    """Fail every job whose record cannot be read. Its bytes are kept."""
    for info in await app.queues():
        for state in [JobState(name) for name, count in info.counts.items() if count]:
            if state in FINISHED:
                continue
            bad = [job async for job in every_job(app, info.name, state) if bad_records.is_bad(job)]
            for job in bad:  # any change of such a job ends it
                await app.store.execute(rq.CancelJobs(refs=[job.ref], reason=bad_records.BAD_RECORD))
                yield fact(
                    f"{info.name}: job {printable(job.id)} was set aside as failed: {bad_records.BAD_RECORD}"
                )


async def check_failed(context: CheckContext) -> AsyncIterator[Finding]:
    """The dead set, by error class."""
    for info in context.queues:
        count = info.counts.get("failed", 0)
        if not count:
            continue
        failed = await context.jobs(info.name, JobState.FAILED)
        classes = Counter(job.errors[-1].error_class if job.errors else job.reason for job in failed)
        detail = ", ".join(f"{name} {number:,}" for name, number in classes.most_common(3))
        sampled = "" if len(failed) >= count else f" among the newest {len(failed):,}"
        advice = f"windlass jobs {info.name} --state failed; once fixed: windlass retry {info.name} --all"
        yield warning(f"{info.name}: {many(count, 'failed job')} kept ({detail}{sampled})", advice)
        if any(job.reason == "stalled" for job in failed):
            advice = "look for crashes or memory limits; run the task with isolation='process'"
            yield warning(f"{info.name}: jobs failed because their workers died repeatedly", advice)


CHECKS: tuple[Callable[[CheckContext], AsyncIterator[Finding]], ...] = (
    check_store,
    check_sqlite,
    check_workers,
    *HEALTH_CHECKS,
    check_records,
    check_failed,
)

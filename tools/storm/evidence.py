"""What is left when a storm is over: journals, the store's history, its counters and its records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tools.storm import plan
from tools.storm.journal import Line, read_journals
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.core.job import AttemptRecord, JobRecord, JobRef
from windlass.core.states import FINISHED, JobState
from windlass.errors import HistoryTrimmedError

_PAGE = 1_000


class Trouble(msgspec.Struct, kw_only=True):
    """A fault that was carried out, in the store's time; ``worker`` is "*" when it hit everybody."""

    kind: str
    worker: str
    from_ms: int
    to_ms: int
    #: So far ahead was the clock of one process meanwhile.
    ahead_ms: int = 0


class Kept(msgspec.Struct, kw_only=True):
    """How much a store still holds of one queue when everything was pruned."""

    queue: str
    most: int
    found: int


class Damage(msgspec.Struct, kw_only=True):
    """A record that was damaged, and what the store shows in its place when all is over."""

    what: str
    state: str | None
    reason: str


#: The time of a store that followed a clock which was ahead stands still for so long, and a bit.
STANDSTILL_S = 6.0


class Evidence(msgspec.Struct, kw_only=True):
    """All that the checker looks at."""

    settings: plan.Settings
    can: plan.Can
    clock: str = "node"
    loss_window_ms: int = 0
    hearsay_ms: int = 0
    repeats_late: bool = False
    #: Invariants that the store declares not to keep.
    exempt: frozenset[str] = frozenset()
    lines: list[Line] = []
    history: list[AttemptRecord] = []
    records: dict[str, list[JobRecord]] = {}
    counts: dict[str, dict[str, int]] = {}
    counters: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    troubles: list[Trouble] = []
    damages: list[Damage] = []
    kept: list[Kept] = []
    #: Rows of history that are gone, where the store declares that this may be.
    history_gone: int = 0
    #: Members of the cast that ended by themselves.
    crashes: list[str] = []
    #: Unfinished jobs per queue when patience ran out.
    stuck: dict[str, dict[str, int]] = {}

    def of(self, *ops: str) -> list[Line]:
        """The lines of the journals about ``ops``."""
        return [line for line in self.lines if line["op"] in ops]

    def tried(self) -> dict[str, Line]:
        """Every job that somebody asked for, by id."""
        return {job["id"]: job for line in self.of("try") for job in line["jobs"]}

    def acknowledged(self) -> dict[str, str]:
        """Every job whose add was answered, with the answer."""
        return {id: outcome for line in self.of("ack") for id, outcome in line["outcomes"]}

    def in_lag(self, at_ms: int) -> bool:
        """Whether what was acknowledged at ``at_ms`` may be lost: just before a failover, or during it."""
        return any(
            trouble.from_ms - self.loss_window_ms <= at_ms <= trouble.to_ms
            for trouble in self.troubles
            if self.loss_window_ms and trouble.kind == "failover"
        )

    def is_ahead(self, at_ms: int) -> bool:
        """Whether a time of the store may come from a clock that was ahead: it tells no order then."""
        return any(
            trouble.from_ms + trouble.ahead_ms - 1_000 <= at_ms <= trouble.to_ms + trouble.ahead_ms + 1_000
            for trouble in self.troubles
            if trouble.ahead_ms
        )

    def runs(self) -> list[AttemptRecord]:
        """Attempts that a worker began, at times that tell their order."""
        return [
            row
            for row in self.history
            if row.started_ms is not None
            and not (self.is_ahead(row.started_ms) or self.is_ahead(row.finished_ms))
        ]

    def by_job(self) -> dict[str, list[AttemptRecord]]:
        """The history of each job, in order of deliveries."""
        found: dict[str, list[AttemptRecord]] = {}
        for row in self.history:
            found.setdefault(row.job_id, []).append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row.delivery, row.finished_ms))
        return found


#: Outcomes after which a job has ended.
FINAL = frozenset({"completed", "failed", "cancelled", "expired"})


async def gather(app: Windlass, evidence: Evidence, directory: Path) -> None:
    """Read everything from the store and the journals into ``evidence``."""
    evidence.lines = list(read_journals(directory))
    evidence.troubles += [
        Trouble(kind="busy-machine", worker=line["by"], from_ms=line["start"], to_ms=line["end"])
        for line in evidence.of("late")
    ]
    # A worker without a connection loses the reply later than it was told to. Only these leave leases behind.
    evidence.troubles += [
        Trouble(kind="lost-reply", worker=line["by"], from_ms=line["at"], to_ms=line["at"])
        for line in evidence.of("lost")
        if line["what"] in ("Claim", "Settle")
    ]
    for queue in plan.QUEUES:
        rows, gone = await read_history(app, queue, may_lose="settled-is-kept" in evidence.exempt)
        evidence.history += rows
        evidence.history_gone += gone
        evidence.records[queue] = await _records(app, queue)
        counts = await app.store.execute(rq.CountJobs(queue=queue))
        evidence.counts[queue] = {state.value: count for state, count in counts.items()}
    for line in evidence.of("damaged"):
        evidence.damages.append(await _damage(app, line))
    for row in await app.store.execute(rq.ReadCounters()):
        evidence.counters[row.queue, row.task, row.outcome] += row.total


async def read_history(
    app: Windlass, queue: str, *, may_lose: bool = False
) -> tuple[list[AttemptRecord], int]:
    """All attempts of a queue, and how many rows are gone from a store that ``may_lose`` some."""
    rows: list[AttemptRecord] = []
    after = gone = 0
    while True:
        try:
            page = await app.store.execute(rq.ReadHistory(queue=queue, after=after))
        except HistoryTrimmedError as error:
            if not may_lose or error.oldest - 1 <= after:
                raise
            gone += error.oldest - 1 - after
            after = error.oldest - 1
            continue
        if not page.records:
            return rows, gone
        rows += page.records
        after = page.last


async def _records(app: Windlass, queue: str) -> list[JobRecord]:
    found: list[JobRecord] = []
    cursor: str | None = None
    while True:
        page = await app.store.execute(
            rq.ListJobs(queue=queue, cursor=cursor, limit=_PAGE, newest_first=False)
        )
        found += page.jobs
        cursor = page.cursor
        if cursor is None:
            return found


async def _damage(app: Windlass, line: Line) -> Damage:
    found = await app.store.get(JobRef(line["queue"], line["id"]))
    what = f"job {line['id']} of queue {line['queue']} ({line['kind']})"
    if found is None:
        return Damage(what=what, state=None, reason="")
    return Damage(what=what, state=found.state.value, reason=found.reason)


async def unfinished(app: Windlass) -> dict[str, dict[str, int]]:
    """What is left to do, by queue and state."""
    left: dict[str, dict[str, int]] = {}
    for queue in plan.QUEUES:
        counts = await app.store.execute(rq.CountJobs(queue=queue))
        open_counts = {s.value: n for s, n in counts.items() if n and s not in FINISHED}
        if open_counts:
            left[queue] = open_counts
    return left


async def prune_all(app: Windlass, now_ms: int) -> list[Kept]:
    """What a store keeps once every grace has passed: prunes as of ``now_ms``. Destroys evidence."""
    while (await app.store.execute(rq.Prune(now_ms=now_ms))).more:
        pass
    counts = await app.store.execute(rq.CountJobs(queue=plan.KEPT, now_ms=now_ms))
    kept = [Kept(queue=plan.KEPT, most=plan.KEEP_COUNT, found=counts[JobState.COMPLETED])]
    for queue in plan.QUEUES:
        page: Any = await app.store.execute(rq.ReadEvents(queue=queue, after=0, limit=1, now_ms=now_ms))
        held = page.last_id - page.oldest_id + 1 if page.last_id else 0
        # Logs may be trimmed by the block: a tenth more than the bound is within it.
        kept.append(Kept(queue=f"events of {queue}", most=11_000, found=held))
    return kept

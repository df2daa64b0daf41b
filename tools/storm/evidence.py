"""The evidence after a storm: journals, and the history, counters and records of the store."""

from __future__ import annotations

import sys
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


class Incident(msgspec.Struct, kw_only=True):
    """A fault that was injected, in the store's time; ``worker`` is "*" if it affected all."""

    kind: str
    worker: str
    from_ms: int
    to_ms: int
    #: How far the clock of one process was ahead during this.
    ahead_ms: int = 0


class Kept(msgspec.Struct, kw_only=True):
    """How much a store still has of one queue after everything was pruned, and how much is allowed."""

    queue: str
    most: int
    found: int


class Damage(msgspec.Struct, kw_only=True):
    """A record that was damaged, and the state of its job at the end."""

    what: str
    state: str | None
    reason: str


#: A store that has seen a clock ahead keeps its time still until real time catches up: at most this long.
STANDSTILL_S = 6.0


class Evidence(msgspec.Struct, kw_only=True):
    """Everything that the invariants are checked on."""

    settings: plan.Settings
    can: plan.Can
    clock: str = "node"
    loss_window_ms: int = 0
    pause_delay_ms: int = 0
    repeats_late: bool = False
    #: Invariants that the store does not promise.
    exempt: frozenset[str] = frozenset()
    lines: list[Line] = []
    history: list[AttemptRecord] = []
    records: dict[str, list[JobRecord]] = {}
    counts: dict[str, dict[str, int]] = {}
    counters: Counter[tuple[str, str, str]] = msgspec.field(default_factory=Counter)
    incidents: list[Incident] = []
    damages: list[Damage] = []
    kept: list[Kept] = []
    #: Rows of history that are missing, if the store does not promise to keep all of them.
    history_gone: int = 0
    #: The errors of actors that ended by themselves.
    crashes: list[str] = []
    #: Unfinished jobs per queue after the timeout at the end.
    stuck: dict[str, dict[str, int]] = {}

    def of(self, *ops: str) -> list[Line]:
        """The lines of the journals about ``ops``."""
        return [line for line in self.lines if line["op"] in ops]

    def tried(self) -> dict[str, Line]:
        """Every job that a producer tried to add, by id."""
        return {job["id"]: job for line in self.of("try") for job in line["jobs"]}

    def acknowledged(self) -> dict[str, str]:
        """Every job whose add was answered, with the answer."""
        return {id: outcome for line in self.of("ack") for id, outcome in line["outcomes"]}

    def in_lag(self, at_ms: int) -> bool:
        """Whether a change that was acknowledged at ``at_ms`` may be lost, because of a failover."""
        return any(
            incident.from_ms - self.loss_window_ms <= at_ms <= incident.to_ms
            for incident in self.incidents
            if self.loss_window_ms and incident.kind == "failover"
        )

    def is_ahead(self, at_ms: int) -> bool:
        """Whether a time of the store may come from a clock that was ahead. Such times prove no order."""
        return any(
            incident.from_ms + incident.ahead_ms - 1_000
            <= at_ms
            <= incident.to_ms + incident.ahead_ms + 1_000
            for incident in self.incidents
            if incident.ahead_ms
        )

    def runs(self) -> list[AttemptRecord]:
        """Attempts that a worker started, without those whose times prove no order."""
        return [
            row
            for row in self.history
            if row.started_ms is not None
            and not (self.is_ahead(row.started_ms) or self.is_ahead(row.finished_ms))
        ]

    def by_job(self) -> dict[str, list[AttemptRecord]]:
        """The history of each job, ordered by delivery."""
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
    evidence.incidents += [
        Incident(kind="busy-machine", worker=line["by"], from_ms=line["start"], to_ms=line["end"])
        for line in evidence.of("late")
    ]
    # A worker without a connection loses the reply later than the fault. Only these requests leave leases.
    evidence.incidents += [
        Incident(kind="lost-reply", worker=line["by"], from_ms=line["at"], to_ms=line["at"])
        for line in evidence.of("lost")
        if line["what"] in ("Claim", "Settle")
    ]
    evidence.incidents += faults_of_coordinators(evidence)
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


def faults_of_coordinators(evidence: Evidence) -> list[Incident]:
    """The faults of the process that coordinated an AMQP store at that time, as faults that affect all.

    Other workers cannot settle and verify without it, so the leases of jobs that have ended may expire.
    """
    took_over = sorted((line["at"], line["by"]) for line in evidence.of("coordinates"))
    ends = [at_ms for at_ms, _ in took_over[1:]]
    return [
        msgspec.structs.replace(incident, worker="*")
        for (from_ms, name), to_ms in zip(took_over, [*ends, sys.maxsize], strict=False)
        for incident in evidence.incidents
        if incident.worker == name and from_ms <= incident.to_ms and incident.from_ms <= to_ms
    ]


async def read_history(
    app: Windlass, queue: str, *, may_lose: bool = False
) -> tuple[list[AttemptRecord], int]:
    """All attempts of a queue, and how many rows are missing from a store that ``may_lose`` some."""
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
    """The number of unfinished jobs, by queue and state."""
    left: dict[str, dict[str, int]] = {}
    for queue in plan.QUEUES:
        counts = await app.store.execute(rq.CountJobs(queue=queue))
        open_counts = {s.value: n for s, n in counts.items() if n and s not in FINISHED}
        if open_counts:
            left[queue] = open_counts
    return left


async def prune_all(app: Windlass, now_ms: int) -> list[Kept]:
    """Prune as of ``now_ms``, and return what the store still keeps. Destroys evidence."""
    while (await app.store.execute(rq.Prune(now_ms=now_ms))).more:
        pass
    counts = await app.store.execute(rq.CountJobs(queue=plan.KEPT, now_ms=now_ms))
    kept = [Kept(queue=plan.KEPT, most=plan.KEEP_COUNT, found=counts[JobState.COMPLETED])]
    for queue in plan.QUEUES:
        page: Any = await app.store.execute(rq.ReadEvents(queue=queue, after=0, limit=1, now_ms=now_ms))
        held = page.last_id - page.oldest_id + 1 if page.last_id else 0
        # Logs may be trimmed in blocks, so a tenth more than the limit is allowed.
        kept.append(Kept(queue=f"events of {queue}", most=11_000, found=held))
    return kept

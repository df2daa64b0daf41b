"""The invariants that must hold after any storm. Each has a name, and yields a text for every violation.

Times are the store's own, from its history. So limits and order are judged by what the store decided, not by
when an actor learned of it. Two events of the same millisecond are assumed to be in the order that violates
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tools.storm import plan
from tools.storm.evidence import FINAL, Evidence
from windlass.core.bad_records import BAD_RECORD
from windlass.core.job import AttemptRecord, JobRecord

#: The outcome of a settlement -> the outcomes that its history row may have. An earlier cancel may win.
_OUTCOMES = {
    "complete": {"completed"},
    "fail": {"failed"},
    "retry": {"retrying", "cancelled"},
    "snooze": {"snoozed", "cancelled"},
    "release": {"released", "cancelled"},
    "cancel": {"cancelled"},
    "wait": {"snoozed", "cancelled"},
    "suspend": {"snoozed", "cancelled"},
}
#: A fault may be the cause of events up to this long after it.
_AFTERMATH_MS = 4_000


class Violation(NamedTuple):
    """One violation of an invariant."""

    invariant: str
    what: str


Check = Callable[[Evidence], Iterable[str]]
INVARIANTS: dict[str, Check] = {}


def invariant(name: str) -> Callable[[Check], Check]:
    """Register a check under its name."""

    def enter(check: Check) -> Check:
        INVARIANTS[name] = check
        return check

    return enter


def check(evidence: Evidence, *, most: int = 10) -> list[Violation]:
    """Return the violations, at most ``most`` of each invariant."""
    found: list[Violation] = []
    for name, look in INVARIANTS.items():
        if name in evidence.exempt:
            continue
        for count, what in enumerate(look(evidence)):
            if count == most:
                found.append(Violation(name, "... and more"))
                break
            found.append(Violation(name, what))
    return found


# --- nothing lost ---------------------------------------------------------------------------------


@invariant("no-acknowledged-job-lost")
def no_job_lost(evidence: Evidence) -> Iterator[str]:
    """An acknowledged job is in the store, or its history shows that it ended."""
    for job_id, at_ms in lost_jobs(evidence):
        if not evidence.in_lag(at_ms):
            yield f"job {job_id} was acknowledged at {at_ms} and is nowhere"


def lost_jobs(evidence: Evidence) -> list[tuple[str, int]]:
    """Acknowledged jobs without a record and without an end in history, and when they were acknowledged."""
    ended = {row.job_id for row in evidence.history if row.outcome in FINAL}
    kept = {job.id for jobs in evidence.records.values() for job in jobs}
    return [
        (job_id, line["at"])
        for line in evidence.of("ack")
        for job_id, outcome in line["outcomes"]
        if outcome != "refused" and job_id not in ended and job_id not in kept
    ]


@invariant("nobody-crashes")
def nobody_crashes(evidence: Evidence) -> Iterator[str]:
    """Workers and producers end only if they are stopped or killed."""
    yield from evidence.crashes


@invariant("settled-is-kept")
def settled_is_kept(evidence: Evidence) -> Iterator[str]:
    """A settlement that was acknowledged is in history, under its token and with its outcome."""
    rows = {row.run_id: row for row in evidence.history}
    for line in evidence.of("settled"):
        for token, job_id, outcome, answer in line["ends"]:
            if answer not in ("ok", "already") or evidence.in_lag(line["at"]):
                continue
            row = rows.get(token)
            if row is None:
                yield f"{outcome} of job {job_id} was acknowledged under {token} and is not in history"
            elif row.outcome not in _OUTCOMES[outcome] or row.job_id != job_id:
                yield f"{outcome} of job {job_id} under {token} is in history as {row.outcome}"


@invariant("all-work-ends")
def all_work_ends(evidence: Evidence) -> Iterator[str]:
    """After the storm all jobs end in time; jobs with a damaged record fail as ``bad_record``.

    A damaged record that is overwritten before it is read does no harm: such a job completes.
    """
    for queue, counts in evidence.stuck.items():
        yield f"queue {queue} still has {counts}"
    for damage in evidence.damages:
        if damage.state != "completed" and (damage.state, damage.reason) != ("failed", BAD_RECORD):
            yield f"{damage.what} was damaged and is {damage.state} {damage.reason}"


# --- nothing twice --------------------------------------------------------------------------------


@invariant("one-end-per-token")
def one_end_per_token(evidence: Evidence) -> Iterator[str]:
    """No token has settled two attempts, and no token got the answer ``ok`` twice."""
    rows = Counter(row.run_id for row in evidence.history)
    for token, count in rows.items():
        if count > 1:
            yield f"history has {count} rows under token {token}"
    accepted = Counter(
        token for line in evidence.of("settled") for token, _, _, answer in line["ends"] if answer == "ok"
    )
    for token, count in accepted.items():
        if count > 1:
            yield f"token {token} got the answer ok to {count} settlements"


@invariant("one-run-per-token")
def one_run_per_token(evidence: Evidence) -> Iterator[str]:
    """A claim starts a handler once."""
    for token, count in Counter(line["token"] for line in evidence.of("start")).items():
        if count > 1:
            yield f"{count} handlers ran under token {token}"


@invariant("one-end-per-job")
def one_end_per_job(evidence: Evidence) -> Iterator[str]:
    """A job ends once: completed, failed, cancelled or expired. (No actor retries finished jobs.)"""
    for job_id, rows in evidence.by_job().items():
        ends = [row.outcome.value for row in rows if row.outcome in FINAL]
        if len(ends) > 1:
            yield f"job {job_id} ended {len(ends)} times: {', '.join(ends)}"


@invariant("one-lease-at-a-time")
def one_lease_at_a_time(evidence: Evidence) -> Iterator[str]:
    """The attempts of a job do not overlap, and have the deliveries 1, 2, 3 ..."""
    for job_id, rows in evidence.by_job().items():
        runs = [row for row in rows if row.started_ms is not None]
        for before, after in pairwise(runs):
            if evidence.is_ahead(before.finished_ms) or evidence.is_ahead(after.started_ms or 0):
                continue
            if after.started_ms is not None and after.started_ms < before.finished_ms:
                yield f"job {job_id}: delivery {after.delivery} began before {before.delivery} was over"
        deliveries = [row.delivery for row in runs]
        if deliveries != list(range(1, len(runs) + 1)):
            yield f"job {job_id} has the deliveries {deliveries}"


@invariant("no-phantom-completion")
def no_phantom_completion(evidence: Evidence) -> Iterator[str]:
    """The handler of a completed job has run to its end, under the token that completed it."""
    done = {line["token"] for line in evidence.of("end")}
    for row in evidence.history:
        if row.outcome == "completed" and row.run_id not in done:
            yield f"job {row.job_id} completed under {row.run_id}, whose handler never came to its end"


# --- order ----------------------------------------------------------------------------------------


def _producer(job_id: str) -> str:
    return job_id.split("-", 1)[0]


@invariant("first-starts-in-order")
def first_starts_in_order(evidence: Evidence) -> Iterator[str]:
    """Jobs of one producer on a plain queue start in the order in which they were added."""
    by_producer: dict[str, list[AttemptRecord]] = defaultdict(list)
    acknowledged = evidence.acknowledged()
    for row in evidence.runs():
        if row.queue == plan.FIFO and row.delivery == 1 and row.job_id in acknowledged:
            by_producer[_producer(row.job_id)].append(row)
    for rows in by_producer.values():
        rows.sort(key=lambda row: row.job_id)
        for before, after in pairwise(rows):
            if (after.started_ms or 0) < (before.started_ms or 0):
                yield f"job {after.job_id} started before {before.job_id}, which was added first"


@invariant("order-kept")
def order_kept(evidence: Evidence) -> Iterator[str]:
    """In an ordered group all attempts of a job end before the next job starts."""
    spans: dict[str, tuple[int, int]] = {}
    for row in evidence.runs():
        if row.group == plan.ORDERED and row.started_ms is not None:
            first, last = spans.get(row.job_id, (row.started_ms, row.finished_ms))
            spans[row.job_id] = (min(first, row.started_ms), max(last, row.finished_ms))
    inside = sorted((first, last, job_id) for job_id, (first, last) in spans.items())
    for (_, last, job_id), (first, _, other) in pairwise(inside):
        if first < last:
            yield f"{other} began at {first}, before {job_id} was done with at {last}"
    by_producer: dict[str, list[str]] = defaultdict(list)
    acknowledged = evidence.acknowledged()
    for _, _, job_id in inside:
        if job_id in acknowledged:
            by_producer[_producer(job_id)].append(job_id)
    for ids in by_producer.values():
        for before, after in pairwise(ids):
            if after < before and spans[after][0] != spans[before][0]:
                yield f"{before} ran before {after}, which was added first"


@invariant("no-parent-before-its-children")
def parents_last(evidence: Evidence) -> Iterator[str]:
    """A parent starts when all its children have ended."""
    ends = {row.job_id: row.finished_ms for row in evidence.history if row.outcome in FINAL}
    starts: dict[str, int] = {}
    for row in evidence.runs():
        if row.started_ms is not None:
            starts[row.job_id] = min(row.started_ms, starts.get(row.job_id, row.started_ms))
    for job_id, job in evidence.tried().items():
        for _, child in job.get("children", ()):
            start, end = starts.get(job_id, 1 << 60), ends.get(child, 1 << 60)
            if start < end and not evidence.is_ahead(end):
                yield f"parent {job_id} started at {start}, its child {child} ended at {ends.get(child)}"


# --- limits ---------------------------------------------------------------------------------------


@invariant("concurrency-never-exceeded")
def concurrency(evidence: Evidence) -> Iterator[str]:
    """The jobs of a queue or group that run at once never exceed its limit."""
    runs = evidence.runs()
    for what, most, rows in (
        ("queue limited", plan.QUEUE_CONCURRENCY, [row for row in runs if row.queue == plan.LIMITED]),
        ("group narrow", plan.GROUP_CONCURRENCY, [row for row in runs if row.group == plan.NARROW]),
        ("group ordered", 1, [row for row in runs if row.group == plan.ORDERED]),
    ):
        at_ms, peak = _peak(rows)
        if peak > most:
            yield f"{what}: {peak} at once at {at_ms}, {most} allowed"


def _peak(rows: list[AttemptRecord]) -> tuple[int, int]:
    """The time with the most concurrent attempts, and their number."""
    steps = [(row.finished_ms, -1) for row in rows if row.finished_ms != row.started_ms]
    steps += [(row.started_ms or 0, 1) for row in rows if row.finished_ms != row.started_ms]
    now = peak = at_ms = 0
    for moment, step in sorted(steps):
        now += step
        if now > peak:
            peak, at_ms = now, moment
    return at_ms, peak


@invariant("rate-never-exceeded")
def rates(evidence: Evidence) -> Iterator[str]:
    """No time window, wherever it begins, has more starts than the rate allows."""
    runs = evidence.runs()
    for what, (most, per_ms), rows in (
        ("queue limited", plan.QUEUE_RATE, [row for row in runs if row.queue == plan.LIMITED]),
        ("group rated", plan.GROUP_RATE, [row for row in runs if row.group == plan.RATED]),
    ):
        starts = sorted(row.started_ms or 0 for row in rows)
        for first, over in zip(starts, starts[most:], strict=False):
            if over - first < per_ms:
                yield f"{what}: more than {most} starts within {over - first} ms from {first}, {per_ms} asked"


@invariant("bucket-never-overdrawn")
def bucket(evidence: Evidence) -> Iterator[str]:
    """The cost of started jobs never exceeds the capacity of the bucket plus its refill."""
    costs = {job_id: job["cost"] for job_id, job in evidence.tried().items()}
    capacity, refill = plan.GROUP_BUCKET
    rows = sorted(
        (row.started_ms or 0, costs.get(row.job_id, 1)) for row in evidence.runs() if _in_bucket(row)
    )
    level, at_ms = float(capacity), 0
    for start, cost in rows:
        level = min(float(capacity), level + (start - at_ms) * refill / 1_000)
        level, at_ms = level - cost, start
        if level < -1e-6:
            yield f"the bucket was overdrawn by {-level:.3f} at {start}"


def _in_bucket(row: AttemptRecord) -> bool:
    return row.group == plan.BUCKET


# --- counters and states --------------------------------------------------------------------------


@invariant("counts-add-up")
def counts_add_up(evidence: Evidence) -> Iterator[str]:
    """Lifetime counters match the history, and the number of added jobs matches the known jobs."""
    if evidence.history_gone:
        return  # rows are missing, which is reported separately
    rows = Counter((row.queue, row.task, row.outcome.value) for row in evidence.history)
    counted = Counter(
        {
            key: n
            for key, n in evidence.counters.items()
            if key[0] in plan.QUEUES and key[2] in _HISTORY_OUTCOMES
        }
    )
    for key in sorted(set(rows) | set(counted)):
        if rows[key] != counted[key]:
            yield f"{'/'.join(key)}: {counted[key]} by the counters, {rows[key]} by history"
    for queue in plan.QUEUES:
        known = {row.job_id for row in evidence.history if row.queue == queue}
        known |= {job.id for job in evidence.records.get(queue, ())}
        known -= {job.id for job in evidence.records.get(queue, ()) if _was_never_added(job)}
        added = sum(
            n for (name, _, what), n in evidence.counters.items() if (name, what) == (queue, "enqueued")
        )
        if added != len(known):
            yield f"queue {queue}: {added} enqueued by the counters, {len(known)} jobs known"


def _was_never_added(job: JobRecord) -> bool:
    """Whether the record was made for an unreadable entry that no producer added."""
    return job.reason == BAD_RECORD and job.id.startswith("bad-")


_HISTORY_OUTCOMES = frozenset(
    {"completed", "retrying", "failed", "cancelled", "snoozed", "released", "stalled", "expired"}
)


@invariant("one-state")
def one_state(evidence: Evidence) -> Iterator[str]:
    """Each record is listed once. Its state matches the counts and the last outcome in its history."""
    ends = {row.job_id: row.outcome.value for row in evidence.history if row.outcome in FINAL}
    for queue, records in evidence.records.items():
        for job_id, count in Counter(job.id for job in records).items():
            if count > 1:
                yield f"job {job_id} is listed {count} times"
        listed = Counter(job.state.value for job in records)
        counted = Counter({state: n for state, n in evidence.counts[queue].items() if n})
        if listed != counted:
            yield f"queue {queue} counts {dict(counted)} and lists {dict(listed)}"
        for job in records:
            end = ends.get(job.id)
            if end is not None and job.state.value != ("failed" if end == "expired" else end):
                yield f"job {job.id} is {job.state.value}, its history ended with {end}"


@invariant("kept-within-bounds")
def kept_within_bounds(evidence: Evidence) -> Iterator[str]:
    """After the grace period a store keeps no more than the limits allow."""
    for kept in evidence.kept:
        if kept.found > kept.most:
            yield f"{kept.queue}: {kept.found} kept, {kept.most} allowed"


# --- cancel, pause, schedules, stalls ---------------------------------------------------------------


@invariant("cancel-holds")
def cancel_holds(evidence: Evidence) -> Iterator[str]:
    """A job whose cancellation was acknowledged as ``cancelled`` ends as cancelled."""
    cancelled = {line["id"] for line in evidence.of("cancel") if line["answer"] == "cancelled"}
    cancelled -= {line["id"] for line in evidence.of("cancel") if evidence.in_lag(line["at"])}
    for job_id, rows in evidence.by_job().items():
        if job_id in cancelled and rows[-1].outcome != "cancelled":
            yield f"job {job_id} was cancelled and ended as {rows[-1].outcome}"


@invariant("pause-holds")
def pause_holds(evidence: Evidence) -> Iterator[str]:
    """No job of a queue starts between an acknowledged pause and the resume.

    On a store with ``pause_delay_ms``, workers that are not affected by a fault stop within that time.
    """
    starts: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in evidence.runs():
        starts[row.queue].append((row.started_ms or 0, row.worker or ""))
    for found in starts.values():
        found.sort()
    late = evidence.pause_delay_ms
    jumps = [t for t in evidence.incidents if t.kind in ("clock", "clock-ahead", "failover")]
    paused: dict[str, tuple[str, int]] = {}
    for line in evidence.of("paused", "resuming"):
        if line["op"] == "paused":
            paused[line["by"]] = (line["queue"], line["at"])
            continue
        queue, since = paused.pop(line["by"], ("", 0))
        if queue != line["queue"] or any(_near(t.from_ms, t.to_ms, since, line["at"]) for t in jumps):
            continue
        found = starts[queue]
        at = bisect_left(found, (since + 2 + late, ""))  # the answer needs a moment
        for start, worker in found[at : bisect_left(found, (line["at"] - 1, ""))]:
            if not (late and _has_cause(evidence, {"*", worker}, since, start)):
                yield f"queue {queue} was paused from {since} to {line['at']}, a job started at {start}"
                break


def _has_cause(evidence: Evidence, workers: set[str | None], start: int, end: int) -> bool:
    """Whether a fault that affected one of ``workers`` can explain an event between ``start`` and ``end``."""
    return any(t.worker in workers and _near(t.from_ms, t.to_ms, start, end) for t in evidence.incidents)


@invariant("slot-fires-once")
def slot_fires_once(evidence: Evidence) -> Iterator[str]:
    """Each slot of a schedule adds one job."""
    jobs: dict[int, set[str]] = defaultdict(set)
    for line in evidence.of("tick"):
        jobs[line["slot"]].add(line["id"])
    for slot, ids in jobs.items():
        if len(ids) > 1:
            yield f"slot {slot} made {len(ids)} jobs"


@invariant("stalls-have-causes")
def stalls_have_causes(evidence: Evidence) -> Iterator[str]:
    """A lease expires only after a fault of its worker, of the store or of the machine.

    On a store that ``repeats_late``, the fault may have affected any earlier worker of the job.
    """
    first, holders = _first_runs(evidence) if evidence.repeats_late else ({}, {})
    for row in evidence.history:
        if row.outcome != "stalled" or row.started_ms is None:
            continue
        start, end = first.get(row.job_id, row.started_ms), row.finished_ms
        if evidence.is_ahead(start) or evidence.is_ahead(end):
            continue  # with a clock that was ahead, the length of a lease is unknown
        if not _has_cause(evidence, {"*", row.worker} | holders.get(row.job_id, set()), start, end):
            yield f"job {row.job_id} stalled on {row.worker} between {start} and {end} without a cause"


def _first_runs(evidence: Evidence) -> tuple[dict[str, int], dict[str, set[str | None]]]:
    """The first start of each job, and all workers that started it."""
    first: dict[str, int] = {}
    holders: dict[str, set[str | None]] = defaultdict(set)
    for row in evidence.runs():
        first[row.job_id] = min(first.get(row.job_id, row.started_ms or 0), row.started_ms or 0)
    for line in evidence.of("start"):
        holders[line["id"]].add(line["by"])
    return first, holders


def _near(from_ms: int, to_ms: int, start: int, end: int) -> bool:
    """Whether a fault between ``from_ms`` and ``to_ms`` can explain an event between ``start`` and ``end``.

    Clocks are read separately, so half a second of difference is allowed.
    """
    return from_ms - 500 <= end and start <= to_ms + _AFTERMATH_MS

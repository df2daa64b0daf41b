"""All random decisions of a storm, derived from one seed.

The jobs that producers add, the behaviour of their handlers, and the time and target of each fault come from
random generators that are seeded with ``--seed`` and the role of the process. The same seed and settings
therefore give the same decisions. How the processes interleave is not determined.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

import msgspec

#: The queues of a storm, named after what they test.
PLAIN, FIFO, GROUPED, LIMITED, FLOWS, TICKS, KEPT = (
    "plain",
    "fifo",
    "grouped",
    "limited",
    "flows",
    "ticks",
    "kept",
)
QUEUES = (PLAIN, FIFO, GROUPED, LIMITED, FLOWS, TICKS, KEPT)

#: The limits that a storm sets and checks.
QUEUE_CONCURRENCY = 3
QUEUE_RATE = (4, 500)  # starts, milliseconds
GROUP_CONCURRENCY = 2
GROUP_RATE = (3, 600)
GROUP_BUCKET = (6, 12.0)  # capacity, refill per second
KEEP_COUNT = 3
ORDERED, NARROW, RATED, BUCKET = "ordered", "narrow", "rated", "bucket"
TICK_MS = 400

#: Faults with their relative frequency. Each store lists the faults that apply to it.
FAULTS = {
    "kill": 5,  # kill -9 of a worker
    "kill-leader": 2,  # kill -9 of the leader
    "kill-producer": 1,
    "freeze": 4,  # SIGSTOP of a worker past its lease
    "lost-reply": 3,  # the store executes a request and its answer is dropped
    "cut": 2,  # connections of a process are closed, and new ones refused for a while
    "slow": 2,
    "half-open": 2,  # connections stay open and carry nothing
    "kill-store": 2,  # kill -9 of the server, which is started again
    "restart-store": 1,
    "freeze-store": 1,
    "failover": 2,  # a primary dies, its replica takes over
    "clock": 2,  # the wall clock jumps
    "full-disk": 2,
    "torn": 1,  # all processes die at once in the middle of a write
}
#: Faults that must be selected by name. A new fault in ``FAULTS`` would change the decisions of known seeds.
BY_NAME = {
    "damaged-record": 1,  # one stored record becomes unreadable
    "clock-ahead": 1,  # the wall clock of one process is far ahead for a moment
}


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """The settings of a storm."""

    seed: int
    seconds: float
    workers: int = 3
    producers: int = 2
    concurrency: int = 8
    lease: float = 1.5
    #: Seconds between faults, on average.
    calm: float = 1.2
    #: Steps per second of each producer.
    pace: float = 20.0
    #: Completed records to keep per queue; 0: the default.
    keep: int = 0
    #: Whether to add jobs that take longer than their lease.
    long_jobs: bool = True
    mutant: str = ""
    #: Seconds without progress, after producers and faults have stopped, until the storm gives up.
    patience: float = 60.0


class Fault(msgspec.Struct, kw_only=True, frozen=True):
    """One fault: time, kind, target and severity."""

    at_s: float
    kind: str
    target: int
    #: From 0 to 1: how long, how far, how many.
    force: float


def faults_of(settings: Settings, kinds: list[str]) -> list[Fault]:
    """The faults of a storm, in order. There are none in the first tenth of its time."""
    rng = random.Random(f"{settings.seed}/faults")
    found: list[Fault] = []
    at_s = settings.seconds * 0.1
    weights = [(FAULTS | BY_NAME)[kind] for kind in kinds]
    while kinds:
        at_s += rng.uniform(0.4, 1.6) * settings.calm
        if at_s > settings.seconds:
            break
        kind = rng.choices(kinds, weights)[0]
        found.append(
            Fault(at_s=round(at_s, 3), kind=kind, target=rng.randrange(1_000), force=round(rng.random(), 3))
        )
    return found


class NewWork(msgspec.Struct, kw_only=True):
    """One job that a producer adds."""

    queue: str
    task: str
    #: What the handler does: sleep for ``ms``, fail ``fails`` times, snooze once.
    ms: int = 5
    fails: int = 0
    snooze: bool = False
    group: str | None = None
    cost: int = 1
    delay_ms: int = 0
    priority: int = 0
    children: list[NewWork] = []


class ProducerStep(msgspec.Struct, kw_only=True):
    """One step of a producer: add jobs, then perhaps cancel one, or add it again."""

    kind: str
    jobs: list[NewWork]
    pause_ms: int
    cancel: bool = False
    again: bool = False


class Can(msgspec.Struct, kw_only=True, frozen=True):
    """The optional features of a store that a storm uses."""

    groups: bool = False
    limits: bool = False
    flows: bool = False
    schedules: bool = False
    low_priorities: bool = True


def steps_of(settings: Settings, producer: int, incarnation: int, can: Can) -> Iterator[ProducerStep]:
    """Yield the steps of a producer, without end."""
    rng = random.Random(f"{settings.seed}/producer/{producer}/{incarnation}")
    kinds = {"single": 4, "bulk": 2, "fifo": 5, "kept": 2, "later": 2}
    kinds |= {"ordered": 5, "narrow": 3, "rated": 2, "bucket": 2} if can.groups else {}
    kinds |= {"limited": 3} if can.limits else {}
    kinds |= {"flow": 2} if can.flows else {}
    while True:
        kind = rng.choices(list(kinds), list(kinds.values()))[0]
        step = ProducerStep(
            kind=kind, jobs=_MAKERS[kind](rng), pause_ms=round(rng.expovariate(settings.pace) * 1_000)
        )
        for job in step.jobs:
            job.ms = job.ms if settings.long_jobs else min(job.ms, 150)
            job.priority = job.priority if can.low_priorities else max(job.priority, 0)
        if kind in ("single", "later"):
            step.cancel = rng.random() < 0.15
            step.again = rng.random() < 0.1
        yield step


def _plain(rng: random.Random) -> NewWork:
    task = "grind" if rng.random() < 0.15 else "work"
    return NewWork(
        queue=PLAIN,
        task=task,
        ms=_sleep(rng),
        fails=rng.choices([0, 1, 2, 9], [80, 12, 5, 3])[0],
        snooze=rng.random() < 0.05,
        priority=rng.choice([0, 0, 0, 5, -5]),
    )


def _sleep(rng: random.Random) -> int:
    """Mostly short, sometimes longer than a lease, so that leases must be renewed."""
    return rng.choices([0, rng.randrange(1, 30), 150, 2_200], [30, 55, 12, 3])[0]


def _later(rng: random.Random) -> list[NewWork]:
    job = _plain(rng)
    job.delay_ms = rng.randrange(50, 2_000)
    return [job]


def _grouped(group: str, rng: random.Random) -> NewWork:
    fails = rng.choices([0, 1, 2], [85, 10, 5])[0]
    cost = rng.randrange(1, 4) if group == BUCKET else 1
    return NewWork(queue=GROUPED, task="work", ms=rng.randrange(0, 25), fails=fails, group=group, cost=cost)


def _flow(rng: random.Random) -> list[NewWork]:
    count = rng.randrange(1, 6)
    children = [
        NewWork(
            queue=rng.choice([FLOWS, PLAIN]),
            task="work",
            ms=rng.randrange(0, 60),
            fails=rng.choices([0, 1, 9], [88, 8, 4])[0],
        )
        for _ in range(count)
    ]
    return [NewWork(queue=FLOWS, task="gather", ms=2, children=children)]


_MAKERS = {
    "single": lambda rng: [_plain(rng)],
    "bulk": lambda rng: [_plain(rng) for _ in range(rng.randrange(2, 20))],
    "fifo": lambda rng: [NewWork(queue=FIFO, task="work", ms=rng.randrange(0, 10))],
    "kept": lambda rng: [NewWork(queue=KEPT, task="work", ms=0)],
    "later": _later,
    "ordered": lambda rng: [_grouped(ORDERED, rng)],
    "narrow": lambda rng: [_grouped(NARROW, rng)],
    "rated": lambda rng: [_grouped(RATED, rng)],
    "bucket": lambda rng: [_grouped(BUCKET, rng)],
    "limited": lambda rng: [NewWork(queue=LIMITED, task="work", ms=rng.randrange(0, 40))],
    "flow": _flow,
}


def pauses_of(settings: Settings, incarnation: int) -> Iterator[tuple[str, int, int]]:
    """Yield a queue, the milliseconds until it is paused, and the milliseconds until it is resumed."""
    # The old name of the role stays in the seed, so that known seeds give the same decisions.
    rng = random.Random(f"{settings.seed}/meddler/{incarnation}")
    while True:
        yield rng.choice([PLAIN, FIFO, GROUPED]), rng.randrange(300, 2_000), rng.randrange(100, 500)


def digest(settings: Settings, kinds: list[str], can: Can) -> str:
    """A fingerprint of the decisions. Equal fingerprints mean equal decisions."""
    parts: list[object] = [faults_of(settings, kinds)]
    for producer in range(settings.producers):
        steps = steps_of(settings, producer, 0, can)
        parts.append([next(steps) for _ in range(200)])
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=6).hexdigest()

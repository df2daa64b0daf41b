"""A model test: the same random operations on the memory store and on another backend, with equal answers.

``machine_for(make)`` gives a Hypothesis state machine; run it with ``run_state_machine_as_test``. Each rule
sends one request to both stores and compares the answers. Every few steps everything that can be read is
compared: counts, listings, records, logs, events, history, counters, queues, workers. Time, ids and claim ids
are the same on both sides. Backends may choose tokens and places, so tokens are mapped, and places are
compared by the order of claims. Sequences are only ordered within a queue: if jobs of two queues have the
same time, each store may take either first, and no step depends on the choice.

``machine_twin`` sends and compares requests, ``machine_operations`` makes them, and this module has the
strategies of Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from windlass.backend import Backend
from windlass.backends.memory import MemoryBackend
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import ErrorInfo, JobRef, WorkerFacts
from windlass.core.limit_rules import Rate
from windlass.core.option_values import KEEP_COMPLETED, Keep
from windlass.core.options import ALL_UNSAID, StoredOptions
from windlass.core.order import Sort
from windlass.core.outcome import Filled, Outcome
from windlass.core.schedule_rules import Rule
from windlass.core.states import JobState
from windlass_conformance.machine_operations import Claim, Operations, Steps
from windlass_conformance.machine_twin import (
    GROUP_LIMITS,
    GROUPS,
    IDS,
    KEYS,
    OPTIONS,
    QUEUES,
    SIGNALS,
    START_MS,
    TAG,
    TASKS,
    UNIQUE,
    WORKERS,
    Twin,
)

#: Steps between two comparisons of everything.
_LOOK_EVERY = 4
_queue = st.sampled_from(QUEUES)
_worker = st.sampled_from(WORKERS)
_ref = st.builds(JobRef, _queue, st.sampled_from(IDS))
_refs = st.lists(_ref, min_size=1, max_size=3)
_pick = st.integers(0, 5)
_picks = st.lists(_pick, min_size=1, max_size=3)
_delay = st.sampled_from([0, 0, 5, 50])
_limit = st.sampled_from([1_000, 1])
_dependency = st.builds(Dependency, _queue, st.sampled_from(IDS), st.sampled_from(list(OnFailure)))


_task = st.sampled_from(["t", "t", *TASKS])
_keep = st.sampled_from([KEEP_COMPLETED, KEEP_COMPLETED, Keep(0, 0), Keep(None, 1), Keep(30, None)])
#: Several options at once, as few users write them.
_mixed = st.builds(
    StoredOptions,
    max_attempts=st.sampled_from([3, 3, 1]),
    lease_ms=st.sampled_from([None, None, 40]),
    max_stalls=st.sampled_from([2, 2, 0]),
    stall_delay_ms=st.sampled_from([0, 0, 30]),
    result_ttl_ms=st.sampled_from([None, 0, 20]),
    keep_completed=_keep,
    keep_failed=_keep,
    expires_total_ms=st.sampled_from([None, None, 100]),
    keep_id_ms=st.sampled_from([None, None, 500]),
    lifo=st.sampled_from([False, False, False, True]),
    unsaid=st.sampled_from([0, ALL_UNSAID]),
    fallbacks=st.sampled_from([(), ("a", None)]),
)


def new_jobs(**others: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Jobs to add. ``others``: strategies for fields that replace the usual ones."""
    fields = {
        "queue": _queue,
        "id": st.sampled_from(IDS),
        "task": _task,
        "priority": st.sampled_from([0, 0, -1, 5]),
        "delay_ms": _delay,
        "expires_in_ms": st.sampled_from([None, None, None, None, 3, 60]),
        "run_at_ms": st.sampled_from([None] * 9 + [START_MS, START_MS + 500, START_MS + 70_050]),
        "options": st.sampled_from(OPTIONS) | _mixed,
        "request_id": st.sampled_from(["", "", "", "r1", "r2"]),
        "group": st.sampled_from([None, None, *((name, cost) for name in GROUPS for cost in (1, 1, 2))]),
        "unique": st.sampled_from([None] * 8 + [*UNIQUE]),
        "depends_on": st.just([]) | st.lists(_dependency, max_size=3),
        "parent": st.none() | st.none() | _dependency,
    }
    return st.fixed_dictionaries(fields | others)


_new = new_jobs()
_schedule = st.sampled_from(["s", "every: *\x00"])
_mostly = st.sampled_from([True, True, True, False])
_parts = st.lists(
    st.tuples(_queue, st.integers(0, 3), st.integers(0, 4)),
    min_size=1,
    max_size=2,
    unique_by=lambda part: part[0],
)


#: What the task of a worker may say for a job that left it open.
FILLED = [
    Filled(result_ttl_ms=0, keep_completed=Keep(0, 0), keep_failed=Keep(0, 0)),
    Filled(result_ttl_ms=20),
    Filled(keep_completed=Keep(None, 1), keep_failed=Keep(30, None)),
]


def claims(*lease_ms: int) -> st.SearchStrategy[Claim]:
    """Claims, with one of these leases."""
    return st.tuples(_worker, _parts, st.integers(0, 4), st.sampled_from(lease_ms))


_claim = claims(10, 100)


def all_ends(**others: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Three ends of attempts. ``others``: strategies for fields that replace the usual ones."""
    fields = {
        "outcome": st.sampled_from(list(Outcome)),
        "signal": st.sampled_from(SIGNALS),
        "delay_ms": _delay,
        "result": st.sampled_from([None, b"1", b"null"]),
        "error": st.sampled_from([None, ErrorInfo(error_class="E", message="bad", fingerprint="f")]),
        "reason": st.sampled_from(["", "why"]),
        "uses_attempt": st.booleans(),
        "miss": st.booleans(),
        "hold_ms": st.sampled_from([0, 0, 0, 0, 0, 15]),
        "duration_ms": st.sampled_from([None, 3]),
        "filled": st.sampled_from([None] * 4 + FILLED),
        "facts": st.sampled_from([None, WorkerFacts("1.0", 7), WorkerFacts("1.0", 3, "host")]),
    }
    return st.lists(st.fixed_dictionaries(fields | others), min_size=3, max_size=3)


_ends = all_ends()
_change = st.sampled_from(
    [
        {"priority": 5},
        {"priority": 0},
        {"delay_ms": 0},
        {"delay_ms": 30},
        {"payload": b"new"},
        {"priority": -1, "delay_ms": 7, "payload": b"all"},
        {},
    ]
)
_states = st.lists(st.sampled_from(list(JobState)), max_size=4, unique=True)
STEPS: Steps = {
    "add": (6, {"jobs": st.lists(_new, min_size=1, max_size=4), "real": _mostly}),
    "add_twice": (
        1,
        {
            "queue": _queue,
            "ids": st.permutations(IDS),
            "unique": st.sampled_from(UNIQUE),
            "jobs": st.lists(_new, min_size=4, max_size=4),
        },
    ),
    "work": (4, {"queue": _queue, "limit": st.integers(1, 3), "ends": _ends}),
    "claim": (3, {"claim": _claim}),
    "settle": (3, {"picks": _picks, "ends": _ends, "claim": st.none() | _claim}),
    "stall": (2, {"queue": _queue, "limit": st.integers(1, 3)}),
    "pass_time": (3, {"ms": st.sampled_from([1, 5, 20, 50, 500])}),
    "pass_long_time": (1, {"ms": st.sampled_from([70_000, 90_000_000])}),
    "extend": (1, {"picks": _picks, "lease_ms": st.sampled_from([10, 100])}),
    "reconcile": (1, {"worker": _worker, "picks": st.lists(_pick, max_size=2)}),
    "promote": (1, {"limit": _limit}),
    "recover": (1, {"limit": _limit}),
    "prune": (1, {}),
    "cancel": (
        2,
        {
            "refs": _refs,
            "reason": st.sampled_from(["", "why"]),
            "dead": st.sampled_from([False, False, True]),
        },
    ),
    "remove": (1, {"refs": _refs, "force": st.booleans()}),
    "retry": (2, {"refs": _refs}),
    "change": (2, {"ref": _ref, "pick": st.none() | _pick, "fields": _change}),
    "report": (
        1,
        {
            "ref": _ref,
            "pick": st.none() | _pick,
            "progress": st.sampled_from([None, b"1", b'{"a":1}']),
            "logs": st.lists(st.sampled_from(["a", "b"]), max_size=2),
            "level": st.sampled_from(["info", "error"]),
        },
    ),
    "limit_queue": (
        1,
        {
            "queue": _queue,
            "fields": st.sampled_from([["concurrency"], ["rate"], ["concurrency", "rate"]]),
            "concurrency": st.sampled_from([None, None, 1, 2]),
            "rate": st.sampled_from([None, None, Rate(1, 20), Rate(3, 60)]),
        },
    ),
    "limit_group": (
        3,
        {
            "queue": _queue,
            "group": st.sampled_from(["*", "*", *GROUPS]),
            "limits": st.sampled_from(GROUP_LIMITS),
        },
    ),
    "pause_group": (1, {"queue": _queue, "group": st.sampled_from(GROUPS), "paused": st.booleans()}),
    "hold": (
        1,
        {
            "queue": _queue,
            "group": st.sampled_from([None, *GROUPS]),
            "ms": st.sampled_from([0, 10, 40]),
        },
    ),
    "free_key": (1, {"queue": _queue, "key": st.sampled_from(KEYS)}),
    "pause": (1, {"queue": _queue, "paused": st.booleans()}),
    "trim_events": (1, {"queue": _queue, "keep": st.integers(0, 3)}),
    "revoke_task": (
        1,
        {
            "queue": _queue,
            "task": _task,
            "for_ms": st.sampled_from([None, 5, 50]),
            "until_ms": st.sampled_from([None, None, START_MS + 200]),
            "once": st.sampled_from([True, True, False]),
        },
    ),
    "restore_task": (1, {"queue": _queue, "task": _task}),
    "purge": (
        1,
        {
            "queue": _queue,
            "states": _states,
            "grace_ms": st.sampled_from([0, 10]),
            "limit": _limit,
            "force": st.booleans(),
            "forget": st.booleans(),
        },
    ),
    "keep_result": (1, {"ref": _ref, "ttl_ms": st.sampled_from([0, 10, 100_000])}),
    "lead": (1, {"holder": _worker, "resign": st.booleans()}),
    "beat": (1, {"worker": _worker, "busy": st.integers(0, 2), "gone": st.booleans()}),
    "relay": (1, {"limit": _limit}),
    "signal": (1, {"ref": _ref, "name": st.sampled_from(SIGNALS), "data": st.sampled_from([b"1", b"2"])}),
    "stream": (1, {"pick": _pick, "chunks": st.lists(st.sampled_from([b"a", b"bc"]), max_size=3)}),
    "archive": (
        1,
        {
            "name": st.sampled_from(["lake", "pond"]),
            "cursors": st.dictionaries(_queue, st.integers(0, 5), max_size=2),
        },
    ),
    "search": (
        1,
        {
            "queue": _queue,
            "states": _states,
            "task": st.sampled_from([None, "t", "*", "?", "u"]),
            "tag": st.sampled_from([None, "red", TAG]),
            "error_class": st.sampled_from([None, None, "E", "JobStalled"]),
            "fingerprint": st.sampled_from([None, None, None, "f"]),
            "group": st.sampled_from([None, None, None, *GROUPS]),
            "worker": st.sampled_from([None, None, None, *WORKERS]),
            "finished_from_ms": st.sampled_from([None, None, START_MS + 100]),
            "finished_to_ms": st.sampled_from([None, None, START_MS + 70_000]),
            "tops": st.sampled_from([False, False, False, True]),
            "sort": st.sampled_from(list(Sort)),
            "newest_first": st.booleans(),
        },
    ),
    "restore": (2, {"refs": _refs, "later": st.sampled_from([False, False, True])}),
    "publish": (1, {"queue": _queue, "job_id": st.sampled_from(["", *IDS])}),
    "command": (1, {"worker": _worker, "command_id": st.sampled_from(["c1", "c2"])}),
    "mark": (1, {"mark_id": st.sampled_from(["m1", "m2"])}),
    "roll_up": (1, {"queue": _queue}),
    "put_schedule": (
        1,
        {
            "name": _schedule,
            "job": _new,
            "rule": st.sampled_from(
                [Rule(every_ms=100), Rule(every_ms=25_000), Rule(every_ms=100, at_start=True)]
            ),
            "limit": st.sampled_from([None, None, 2]),
            "end_ms": st.sampled_from([None, None, None, START_MS + 300]),
            "missed": st.sampled_from(["skip", "once", "all"]),
            "overlap": st.sampled_from(["allow", "skip"]),
            "source": st.sampled_from(["", "code"]),
        },
    ),
    "fire": (2, {"limit": st.sampled_from([1, 100]), "again": st.booleans()}),
    "fire_by_hand": (1, {"queue": _queue, "name": _schedule}),
    "pause_schedule": (
        1,
        {
            "queue": _queue,
            "name": _schedule,
            "paused": st.booleans(),
            "wait_ms": st.sampled_from([0, 50]),
        },
    ),
    "remove_schedule": (
        1,
        {"queue": _queue, "name": _schedule, "source": st.sampled_from([None, "code"])},
    ),
}


def drawn(steps: Steps) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """One of ``steps``, by weight."""
    return st.sampled_from([name for name, (weight, _) in steps.items() for _ in range(weight)]).flatmap(
        lambda name: st.tuples(st.just(name), st.fixed_dictionaries(steps[name][1]))
    )


_steps = drawn(STEPS)


class Histories(RuleBasedStateMachine):
    """Random steps on a ``Twin``. ``make_subject`` is set by ``machine_for``.

    One rule draws all steps, by weight: Hypothesis leaves some rules out of each example, and most rules need
    jobs that were added.
    """

    make_subject: Callable[[], Backend]
    apart: bool = False

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._count = 0
        self.subject = type(self).make_subject()
        self._runner.run(self.subject.open())
        self.twin = self.make_twin()
        self.operations = self.make_operations()

    def make_twin(self) -> Twin:
        return Twin(MemoryBackend(), self.subject)

    def make_operations(self) -> Operations:
        return Operations(self.twin, apart=self.apart)

    def take(self, step: tuple[str, dict[str, Any]]) -> None:
        """Execute one step."""
        name, arguments = step
        self._runner.run(self._take(name, arguments))

    async def _take(self, name: str, arguments: dict[str, Any]) -> None:
        await getattr(self.operations, name)(**arguments)
        self._count += 1
        if self._count % _LOOK_EVERY == 0:
            await self.twin.look()

    def teardown(self) -> None:
        try:
            self._runner.run(self.twin.look())
        finally:
            self._runner.run(self.subject.close())
            self._runner.close()


class Machine(Histories):
    """Histories in which the test sets the time."""

    @rule(step=_steps)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        self.take(step)


def machine_for(make_subject: Callable[[], Backend], *, apart: bool = False) -> type[Machine]:
    """A state machine that compares the memory store with the backend that ``make_subject`` returns.

    That backend is not opened yet, on a store that no other test uses. ``make_subject`` is called once for
    each example.

    ``apart``: the store keeps queues in different places, so that edges between queues take several steps.
    Then jobs depend on jobs of their own queue only, because the events of other edges may differ.
    """
    return type("BoundMachine", (Machine,), {"make_subject": staticmethod(make_subject), "apart": apart})

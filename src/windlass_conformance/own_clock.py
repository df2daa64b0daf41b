"""Random histories by the store's own clock, compared with the memory store.

As ``windlass_conformance.machine``, but requests carry no time, as in production. They come from one caller
and from several at once, also while an idle worker waits for its next job. Every delay is zero or an hour, so
nothing becomes due or expires while a history runs. Times may differ by a few seconds between the two sides;
everything else is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from windlass.backend import Backend, Listener
from windlass.backend import requests as rq
from windlass.backends.memory import MemoryBackend
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import NewJob
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass_conformance import machine
from windlass_conformance.machine import STEPS, Histories, drawn
from windlass_conformance.machine_operations import Operations, Steps
from windlass_conformance.machine_twin import QUEUES, Twin

HOUR_MS = 3_600_000
#: The largest difference between the times of the two sides.
NEAR_MS = 60_000
_SOON_MS = 5_000
#: How often a worker claims to get the job that it was notified of.
_LOOKS = 20

_OPTIONS = (
    *[StoredOptions()] * 4,
    StoredOptions(keep_id_ms=HOUR_MS),
    StoredOptions(max_stalls=0),
    StoredOptions(stall_delay_ms=HOUR_MS),
    StoredOptions(keep_completed=Keep(None, 1), keep_failed=Keep(None, 1), tags=("red",)),
    StoredOptions(lease_ms=HOUR_MS, max_attempts=2, trace={"a": "b"}),
    StoredOptions(lifo=True),
)
_LIMITS = (
    None,
    GroupLimits(concurrency=1),
    GroupLimits(concurrency=2, rate=Rate(2, HOUR_MS)),
    GroupLimits(ordered=True),
    GroupLimits(max_size=2),
)
_UNIQUE = tuple(
    StoredUnique(key=key, mode=mode, ttl_ms=ttl_ms)
    for key, mode, ttl_ms in (
        ("k", UniqueMode.UNTIL_DONE, None),
        ("k", UniqueMode.UNTIL_DONE, HOUR_MS),
        ("k", UniqueMode.UNTIL_START, None),
        ("l", UniqueMode.THROTTLE, HOUR_MS),
        ("k", UniqueMode.DEBOUNCE, HOUR_MS),
        ("l", UniqueMode.KEEP_LAST, None),
    )
)


class OwnTwin(Twin):
    """A twin whose subject uses its own clock, and the reference that of the machine."""

    def stamp(self, side: int, request: rq.Request[Any]) -> None:
        request.now_ms = None if side else SYSTEM_CLOCK.now_ms()

    def alike(self, first: Any, second: Any) -> bool:
        return _near(first, second, "")


def _near(first: Any, second: Any, name: str) -> bool:
    """Whether two values are equal; times may differ a little."""
    if isinstance(first, msgspec.Struct) and type(first) is type(second):
        return all(_near(getattr(first, one), getattr(second, one), one) for one in first.__struct_fields__)
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_near(first[key], second[key], key) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(
            _near(one, two, name) for one, two in zip(first, second, strict=True)
        )
    if str(name).endswith("_ms") and isinstance(first, int) and isinstance(second, int):
        return abs(first - second) < NEAR_MS
    return bool(first == second)


class OwnOperations(Operations):
    """Steps that need requests without a time."""

    def __init__(self, twin: Twin, *, apart: bool = False) -> None:
        super().__init__(twin, apart=apart)
        self._added = 0
        self._waiting: dict[str, Listener] = {}

    async def promote(self, limit: int) -> None:
        await self.twin.same(rq.Promote())

    async def recover(self, limit: int) -> None:
        await self.twin.same(rq.Recover())

    async def add_plain(self, queue: str, count: int) -> None:
        """Add new plain jobs, each by its own request; all at the same time where that is possible."""
        requests = [rq.Add(jobs=[self._plain_job(queue)]) for _ in range(count)]
        answers = [[await self.twin.send(0, request) for request in requests], []]
        answers[1] = await asyncio.gather(*(self.twin.send(1, request) for request in requests))
        self.twin.compare(requests, *(msgspec.to_builtins(answer) for answer in answers))

    async def wait_for_work(self, queue: str, patient: bool) -> None:
        """A worker claims nothing, waits for a hint about the next job (or does not), and claims it."""
        worker = f"waits-{queue}"
        listener = self._waiting.get(queue)
        if listener is None:
            listener = self.twin.sides[1].listen([f"ready:{queue}", f"worker:{worker}"])
            self._waiting[queue] = listener
        claim = (worker, [(queue, 1, 1)], 1, HOUR_MS)
        asked = self._claim(claim)
        asked.idle = True
        if (await self.twin.same(asked)).jobs:
            return
        while await listener.wait(0):
            pass
        await self.twin.same(rq.Add(jobs=[self._plain_job(queue)]))
        if patient:
            await listener.wait(_SOON_MS)
        first, second = [await self.twin.send(side, self._claim(claim)) for side in (0, 1)]
        for _ in range(_LOOKS if first.jobs else 0):
            if second.jobs:
                break
            await listener.wait(_SOON_MS)  # the job comes with a message, which it may have to wait for
            second = await self.twin.send(1, self._claim(claim))
        self.twin.heard(claim, first, second)

    def close(self) -> None:
        """Close the listeners."""
        for listener in self._waiting.values():
            listener.close()

    def _plain_job(self, queue: str) -> NewJob:
        self._added += 1
        name = f"plain{self._added}"
        return NewJob(queue=queue, id=name, task="t", payload=b"[]", request_id=name)


_queue = st.sampled_from(QUEUES)
_delay = st.sampled_from([0, 0, 0, HOUR_MS])
_new = machine.new_jobs(
    delay_ms=_delay,
    run_at_ms=st.none(),
    expires_in_ms=st.sampled_from([None, None, HOUR_MS]),
    options=st.sampled_from(_OPTIONS),
    unique=st.sampled_from([None] * 8 + [*_UNIQUE]),
)
_claim = machine.claims(HOUR_MS)
_ends = machine.all_ends(delay_ms=_delay, hold_ms=st.just(0), filled=st.none())
_change = st.sampled_from(
    [{"priority": 5}, {"priority": 0}, {"delay_ms": 0}, {"delay_ms": HOUR_MS}, {"payload": b"new"}, {}]
)

#: Steps of ``Operations`` that do not depend on the time.
_AS_THEY_ARE = (
    *("reconcile", "promote", "recover", "prune", "cancel", "remove", "retry", "report", "pause_group"),
    *("free_key", "pause", "relay", "signal", "stream", "archive", "search"),
)
OWN_STEPS: Steps = {
    **{name: STEPS[name] for name in _AS_THEY_ARE},
    "add": (4, {"jobs": st.lists(_new, min_size=1, max_size=4)}),
    "add_plain": (5, {"queue": _queue, "count": st.sampled_from([1, 1, 1, 4])}),
    "wait_for_work": (4, {"queue": _queue, "patient": st.booleans()}),
    "work": (5, {"queue": _queue, "limit": st.integers(1, 3), "ends": _ends}),
    "claim": (3, {"claim": _claim}),
    "settle": (3, {**STEPS["settle"][1], "ends": _ends, "claim": st.none() | _claim}),
    "extend": (1, {**STEPS["extend"][1], "lease_ms": st.just(HOUR_MS)}),
    "change": (2, {**STEPS["change"][1], "fields": _change}),
    "limit_group": (1, {**STEPS["limit_group"][1], "limits": st.sampled_from(_LIMITS)}),
    "purge": (1, {**STEPS["purge"][1], "grace_ms": st.sampled_from([0, HOUR_MS])}),
    "keep_result": (1, {**STEPS["keep_result"][1], "ttl_ms": st.just(2 * HOUR_MS)}),
}
_steps = drawn(OWN_STEPS)


class OwnMachine(Histories):
    """Histories by the store's own clock."""

    def make_twin(self) -> Twin:
        return OwnTwin(MemoryBackend(), self.subject)

    def make_operations(self) -> OwnOperations:
        return OwnOperations(self.twin, apart=self.apart)

    @rule(step=_steps)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        self.take(step)

    def teardown(self) -> None:
        assert isinstance(self.operations, OwnOperations)
        self.operations.close()
        super().teardown()


def own_machine_for(make_subject: Callable[[], Backend], *, apart: bool = False) -> type[OwnMachine]:
    """As ``machine.machine_for``, for histories by the store's own clock."""
    return type(
        "BoundOwnMachine", (OwnMachine,), {"make_subject": staticmethod(make_subject), "apart": apart}
    )

"""Capabilities that tests need, and what is checked instead if a backend does not have them.

A backend must refuse requests for a capability that it does not declare, with the typed error, before
anything reaches the store. Tests of that capability assert this refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.option_values import StoredUnique
from windlass.core.options import StoredOptions
from windlass.errors import UnsupportedByBackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass_conformance.harness import Harness

TestT = TypeVar("TestT", bound="Callable[..., Any]")

_NEEDS = "_windlass_needs"


def _add(**options: Any) -> rq.Request[Any]:
    return rq.Add(jobs=[NewJob(queue="q", id="j", task="t", payload=b"[]", options=StoredOptions(**options))])


#: For each capability, requests that need it.
_VERBS: dict[str, Callable[[], list[rq.Request[Any]]]] = {
    "priority": lambda: [
        rq.Add(jobs=[NewJob(queue="q", id="j", task="t", payload=b"[]", priority=1)]),
        rq.ChangeJob(ref=JobRef("q", "j"), priority=1),
    ],
    "exact_priority": lambda: [
        rq.Add(jobs=[NewJob(queue="q", id="j", task="t", payload=b"[]", priority=-1)]),
        rq.ChangeJob(ref=JobRef("q", "j"), priority=-1),
    ],
    "lifo": lambda: [_add(lifo=True)],
    "unique": lambda: [
        _add(unique=StoredUnique(key="k")),
        lrq.GetUniqueKey(queue="q", key="k"),
        lrq.FreeUniqueKey(queue="q", key="k"),
        lrq.ListUniqueKeys(queue="q"),
    ],
    "groups": lambda: [
        _add(group="g"),
        lrq.SetGroupLimits(queue="q", group="g"),
        lrq.PauseGroup(queue="q", group="g", paused=True),
        lrq.ListGroups(queue="q"),
    ],
    "limits": lambda: [
        lrq.SetQueueLimits(queue="q", fields=["concurrency"], concurrency=1),
        lrq.GetLimits(queue="q"),
        lrq.Hold(queue="q", ms=1),
    ],
    "revoked_tasks": lambda: [
        lrq.RevokeTask(queue="q", task="t"),
        lrq.RestoreTask(queue="q", task="t"),
    ],
    "schedules": lambda: [sq.DueSchedules()],
    "metrics": lambda: [mq.MetricsProgress()],
    "commands": lambda: [rq.CommandWorker(worker="w", action="quiet", id="1")],
    "flows": lambda: [fl.Relay()],
    "signals": lambda: [fl.Signal(ref=JobRef("q", "j"), name="go", data=b"1")],
    "streams": lambda: [sm.ReadStream(ref=JobRef("q", "j"))],
    "restore": lambda: [rq.Restore(jobs=[JobRecord(queue="q", id="j", task="t", payload=b"{}")])],
}


def needs(capability: str) -> Callable[[TestT], TestT]:
    """Mark a test that needs ``capability``. A module marks all its tests with ``NEEDS``."""

    def mark(test: TestT) -> TestT:
        setattr(test, _NEEDS, capability)
        return test

    return mark


def capability_of(test: Callable[..., Any], module: Any) -> str | None:
    """The capability that ``test`` of ``module`` needs, if any."""
    found: str | None = getattr(test, _NEEDS, None) or getattr(module, "NEEDS", None)
    return found


async def refuses(harness: Harness, capability: str) -> None:
    """Assert that requests for the capability raise the typed error, with the name of the backend."""
    store = Store(harness.backend, SYSTEM_CLOCK)
    for request in _VERBS[capability]():
        with pytest.raises(UnsupportedByBackendError) as caught:
            await store.execute(request)
        assert caught.value.backend == harness.backend.name
    assert await harness.counts("q") == {}

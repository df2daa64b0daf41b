"""What a test asks of a backend beyond the core, and what is checked instead where that is missing.

A capability that a backend does not declare must be refused, with the typed error, before anything reaches
the store. So a test of such a capability still runs there: it asserts the refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from windlass.backend import flows as fl
from windlass.backend import metrics as mq
from windlass.backend import requests as rq
from windlass.backend import schedules as sq
from windlass.backend import streams as sm
from windlass.backend.store import Store
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRef, NewJob
from windlass.core.options import StoredOptions
from windlass.errors import UnsupportedByBackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.testing.conformance.harness import Harness

TestT = TypeVar("TestT", bound="Callable[..., Any]")

_NEEDS = "_windlass_needs"

#: A verb that needs each capability.
_VERBS: dict[str, Callable[[], rq.Request[Any]]] = {
    "lifo": lambda: rq.Add(
        jobs=[NewJob(queue="q", id="j", task="t", payload=b"[]", options=StoredOptions(lifo=True))]
    ),
    "schedules": sq.DueSchedules,
    "metrics": mq.MetricsProgress,
    "commands": lambda: rq.CommandWorker(worker="w", action="quiet", id="1"),
    "flows": fl.Relay,
    "signals": lambda: fl.Signal(ref=JobRef("q", "j"), name="go", data=b"1"),
    "streams": lambda: sm.ReadStream(ref=JobRef("q", "j")),
}


def needs(capability: str) -> Callable[[TestT], TestT]:
    """Say that a test is about ``capability``. A module says it for all its tests with ``NEEDS``."""

    def mark(test: TestT) -> TestT:
        setattr(test, _NEEDS, capability)
        return test

    return mark


def capability_of(test: Callable[..., Any], module: Any) -> str | None:
    """What ``test`` of ``module`` needs."""
    found: str | None = getattr(test, _NEEDS, None) or getattr(module, "NEEDS", None)
    return found


async def refuses(harness: Harness, capability: str) -> None:
    """Assert that the capability is refused at the seam, with the name of the backend."""
    store = Store(harness.backend, SYSTEM_CLOCK)
    with pytest.raises(UnsupportedByBackendError) as caught:
        await store.execute(_VERBS[capability]())
    assert caught.value.backend == harness.backend.name

"""The memory store answers everything that any store can be asked, for whoever lives in its process."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from windlass import Windlass, Worker
from windlass.backend import (
    flow_requests,
    limit_requests,
    metric_requests,
    requests,
    schedule_requests,
    stream_requests,
)
from windlass.backends.memory.backend import MemoryBackend
from windlass.core.ids import new_id

backend_name = "memory"

_MODULES = (requests, flow_requests, limit_requests, metric_requests, schedule_requests, stream_requests)
#: What the end of a process takes away, by nature.
_NOT_IN_MEMORY = {"durable", "shared", "transactions"}


def every_request() -> set[type[Any]]:
    """Every verb of the contract."""
    return {
        kind
        for module in _MODULES
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, requests.Request) and kind is not requests.Request
    }


@pytest.mark.feature("L8")
def test_every_verb_of_the_contract_is_there_and_nothing_is_declared_missing() -> None:
    backend = MemoryBackend()
    store = backend._shared.store
    known = {*store.verbs, *store.shows}
    assert len(known) > 40
    assert {kind.__name__ for kind in every_request() - known} == set()
    declared = asdict(backend.capabilities)
    assert {name for name, there in declared.items() if not there} == _NOT_IN_MEMORY


@pytest.mark.feature("L8")
async def test_one_process_shares_a_store_by_its_name() -> None:
    url = f"memory://{new_id()}"
    async with (
        Windlass(url) as producer,
        Windlass(url) as consumer,
        Windlass(f"memory://{new_id()}") as other,
    ):
        job = await producer.queue("mail").add("greet", ["Ada"])
        assert await other.queue("mail").count() == 0
        async with Worker("mail", lambda job: f"hello {job.data[0]}", url_or_app=consumer):
            assert await job.result(timeout=10) == "hello Ada"

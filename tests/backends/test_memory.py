"""The memory store answers everything that any store can be asked, for whoever lives in its process."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
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
from windlass.backend.hub import Hub
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


@pytest.mark.parametrize("same_thread", [True, False])
def test_a_listener_whose_loop_was_closed_harms_no_later_hint(*, same_thread: bool) -> None:
    """The loop may have been closed while a task waited, as after an exit from a signal handler."""
    hub, loop = Hub(), asyncio.new_event_loop()

    async def leave_waiting() -> asyncio.Task[frozenset[str]]:
        task = asyncio.create_task(hub.listen(["ready:q"]).wait())
        await asyncio.sleep(0)
        return task

    left = loop.run_until_complete(leave_waiting())
    loop.close()

    async def hint() -> frozenset[str]:
        listener = hub.listen(["ready:q"])
        hub.publish(["ready:q"])
        return await listener.wait(10_000)

    if same_thread:
        assert asyncio.run(hint()) == {"ready:q"}
    else:
        with ThreadPoolExecutor() as pool:
            assert pool.submit(asyncio.run, hint()).result() == {"ready:q"}
    assert not left.done()

"""Results that go straight to the client that waits for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.amqp.servers import fresh_url
from tests.faults.kit import until
from windlass import Job, Windlass, Worker
from windlass.backends.amqp import direct_replies
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.plain_adds import PlainAdds
from windlass.jobs import results

if TYPE_CHECKING:
    from windlass.backend import requests as rq

pytestmark = pytest.mark.service("rabbitmq")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which requests were put to the coordinator, in their order."""
    names: list[str] = []
    ask = AmqpClient.ask

    async def noted(self: AmqpClient, request: rq.Request[Any]) -> Any:
        names.append(type(request).__name__)
        return await ask(self, request)

    monkeypatch.setattr(AmqpClient, "ask", noted)
    return names


async def _double(job: Job[Any]) -> str:
    return str(job.data["text"]) * 2


async def test_a_caller_gets_its_result_without_asking_the_coordinator(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a coordinator that notifies no waiter."""
    monkeypatch.setattr(Coordinator, "_news", lambda *_: None)
    monkeypatch.setattr(results, "FIRST_RECHECK_MS", 60_000)
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        async with Worker("q", _double, url_or_app=app):
            answers = [await queue.add_and_wait("double", {"text": f"{n}"}) for n in range(3)]
        assert answers == ["00", "11", "22"]
        assert "GetJobs" not in asked
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


async def test_a_result_that_is_too_large_for_a_direct_reply_is_read(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_replies, "MOST_RESULT", 10)
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        async with Worker("q", _double, url_or_app=app):
            assert await queue.add_and_wait("double", {"text": "x" * 50}) == "x" * 100
        assert "GetJobs" in asked
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


async def test_a_result_that_never_reaches_its_waiter_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct reply may be lost: the coordinator's notification makes the waiter look."""
    monkeypatch.setattr(direct_replies, "messages", lambda _: [])
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        async with Worker("q", _double, url_or_app=app):
            assert await queue.add_and_wait("double", {"text": "a"}) == "aa"
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


class _SlowConfirms:
    """Confirms of adds come when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[IoFuture[None]] = []
        self._publish = PlainAdds.publish
        monkeypatch.setattr(PlainAdds, "publish", lambda *add: spawn(self._hold(*add)))

    async def _hold(self, adds: PlainAdds, request: rq.Add, now_ms: int) -> None:
        held: IoFuture[None] = IoFuture()
        self.waiting.append(held)
        await self._publish(adds, request, now_ms)
        await held

    async def release(self, app: Windlass) -> None:
        async def go(_client: AmqpClient) -> None:
            for held in self.waiting:
                held.set(None)

        await app.store.backend._run(go)  # type: ignore[attr-defined]


async def test_a_caller_with_its_result_does_not_wait_for_the_confirms_of_its_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker has confirmed the end of the job, so its beginning is safe."""
    async with Windlass(fresh_url()) as app, Windlass(app.url) as other:
        await other.store.backend.coordinate()  # type: ignore[attr-defined]
        queue = app.queue("q")
        async with Worker("q", _double, url_or_app=other):
            assert await queue.add_and_wait("double", {"text": "a"}) == "aa"
            slow = _SlowConfirms(monkeypatch)
            assert await queue.add_and_wait("double", {"text": "b"}, timeout=20) == "bb"
            assert len(slow.waiting) == 1, "its confirms were held back"
            await slow.release(app)
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


async def test_an_add_that_no_caller_waits_for_is_confirmed_before_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if other callers of the same process wait for results of this queue."""
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        async with Worker("q", _double, url_or_app=app):
            assert await queue.add_and_wait("double", {"text": "a"}) == "aa"
            slow = _SlowConfirms(monkeypatch)
            adding = asyncio.ensure_future(queue.add("double", {"text": "b"}))
            await until(lambda: len(slow.waiting) == 1, "the add is published")
            assert await queue.add_and_wait("double", {"text": "c"}, timeout=20) == "cc"
            assert not adding.done(), "its result came before this one"
            await slow.release(app)
            assert await (await adding).result(timeout=20) == "bb"
        await app.store.backend.remove_all()  # type: ignore[attr-defined]

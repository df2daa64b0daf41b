"""Results that go straight to the client that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.amqp.servers import fresh_url
from windlass import Job, Windlass, Worker
from windlass.backends.amqp import direct_replies
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.coordinator import Coordinator
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

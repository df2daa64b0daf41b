"""Subscriptions that come and go: no request waits for one that stands already, no hint is missed."""

from __future__ import annotations

import asyncio

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, url_of
from tests.backends.valkey.support import add, new, opened
from tests.faults.kit import until
from windlass.backend import requests as rq

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")


@pytest.fixture(params=DEPLOYMENTS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param)


async def test_a_topic_that_is_left_and_wanted_again_at_once_holds_up_nobody(url: str) -> None:
    async with opened(url, timeout=30) as store:
        store.listen(["ready:q"]).close()
        for turns in range(6):
            listener = store.listen(["ready:q"])
            await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
            assert not store._barrier.is_closed
            await add(store, new())
            assert await listener.wait(20_000) == {"ready:q"}
            listener.close()
            for _ in range(turns):  # the leaving has come more or less far when the topic is wanted again
                await asyncio.sleep(0)


async def test_a_line_without_any_topic_still_answers(url: str) -> None:
    async with opened(url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))
        (line,) = store._here().subscriber._connections.values()
        listener.close()
        await until(lambda: not line.channels and not line._leaving.total(), "the topic to be left")
        await line.ping()
        assert line.pongs == []


async def test_many_listeners_of_many_topics_hear_what_concerns_them(url: str) -> None:
    async with opened(url, timeout=30) as store:
        names = [f"q{number}" for number in range(20)]
        listeners = {name: [store.listen([f"ready:{name}"]) for _ in range(2)] for name in names}
        for name in names[::2]:
            await add(store, new(name))
        for name in names[::2]:
            for listener in listeners[name]:
                assert await listener.wait(20_000) == {f"ready:{name}"}
        for name in names[1::2]:
            assert await listeners[name][0].wait(0) == frozenset()
        for listener in [one for pair in listeners.values() for one in pair]:
            listener.close()

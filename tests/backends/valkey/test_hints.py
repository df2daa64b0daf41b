"""Subscriptions that come and go: no request waits for one that stands already, no hint is missed."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis import Redis

from tests.backends.valkey.servers import DEPLOYMENTS, cluster_servers, url_of
from tests.backends.valkey.support import add, cancel_tasks, claim, new, opened
from tests.faults.kit import until
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend, backend
from windlass.backends.valkey.subscribe_barrier import SubscribeBarrier
from windlass.backends.valkey.subscriptions import Subscriber, SubscriptionListener, _SubscriberConnection
from windlass.backends.valkey.topology import Cluster
from windlass.core.ids import new_id
from windlass.core.outcome import Extended

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


async def test_a_request_that_could_not_wait_for_a_subscription_wakes_its_listeners(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of the add is lost. Without another one an idle worker would sleep on beside a job."""
    slow, join = asyncio.Event(), _SubscriberConnection.join

    async def join_late(connection: _SubscriberConnection, channels: set[str]) -> None:
        await slow.wait()
        await join(connection, channels)

    monkeypatch.setattr(_SubscriberConnection, "join", join_late)
    async with opened(url, timeout=1) as store:
        listener = store.listen(["ready:q"])
        await add(store, new())  # waits a fifth of its timeout
        slow.set()
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()


async def test_a_lease_is_renewed_without_waiting_for_a_subscription(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second, the most that other requests wait, is longer than a short lease."""
    waited: list[str] = []

    async def wait(barrier: SubscribeBarrier) -> None:
        waited.append("wait")

    monkeypatch.setattr(SubscribeBarrier, "wait", wait)
    async with opened(url, timeout=30) as store:
        await add(store, new())
        (job,) = await claim(store)
        listener = store.listen(["ready:q"])
        lease = rq.LeaseRef("q", job.id, job.token or "", 1_000)
        assert await store.execute(rq.Extend(leases=[lease])) == [Extended.OK]
        assert waited == []
        listener.close()


async def test_a_lost_connection_wakes_listeners_once_the_server_has_their_subscriptions_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Woken before, a worker claims nothing and sleeps, and the hint of an add right after that is lost."""
    late: list[tuple[_SubscriberConnection, tuple[str, ...]]] = []

    async def send_late(connection: _SubscriberConnection, *parts: str) -> None:
        late.append((connection, parts))

    async with opened(url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
        (lost,) = store._here().subscriber._connections.values()
        send = _SubscriberConnection.send
        monkeypatch.setattr(_SubscriberConnection, "send", send_late)
        await lost.connection.close()
        await until(lambda: bool(late), "the topic to be subscribed to again")
        assert await listener.wait(0) == frozenset()
        await add(store, new())
        monkeypatch.setattr(_SubscriberConnection, "send", send)
        for connection, parts in late:
            await connection.send(*parts)
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()


@pytest.mark.parametrize("prefix", ["windlass-valkey-wake", "windlass-valkey-read", "windlass"])
async def test_subscriptions_come_back_after_other_code_has_cancelled_their_tasks(
    url: str, prefix: str
) -> None:
    """A handler may cancel every task of its loop. Hints still arrive, and no request waits in vain."""
    async with opened(url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
        cancel_tasks(prefix)
        await asyncio.sleep(0)
        later = store.listen(["ready:later"])
        assert await listener.wait(20_000) == {"ready:q"}  # a hint may have been lost
        await until(lambda: not store._barrier.is_closed, "the later subscription")
        for queue, one in (("q", listener), ("later", later)):
            await one.wait(0)
            await add(store, new(queue))
            assert await one.wait(20_000) == {f"ready:{queue}"}
            one.close()


async def test_a_task_of_subscriptions_that_is_cancelled_before_its_first_step_is_started_again(
    url: str,
) -> None:
    async with opened(url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        cancel_tasks("windlass-valkey-wake")
        await until(lambda: not store._barrier.is_closed, "the subscription")
        await add(store, new())
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()


async def test_no_request_waits_for_a_subscription_while_the_connection_is_being_restored(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All listeners are woken when it is back, so none misses a hint."""
    refuse, back = asyncio.Event(), asyncio.Event()
    subscribe = Subscriber._subscribe

    async def subscribe_late(subscriber: Subscriber) -> None:
        if subscriber._failures:
            refuse.set()
            await back.wait()
        await subscribe(subscriber)

    monkeypatch.setattr(Subscriber, "_subscribe", subscribe_late)
    async with opened(url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
        for connection in store._here().subscriber._connections.values():
            await connection.connection.close()
        await refuse.wait()
        later = store.listen(["ready:later"])
        assert not store._barrier.is_closed
        await add(store, new("later"))  # its hint is lost
        back.set()
        assert await later.wait(20_000) == {"ready:later"}
        for one in (listener, later):
            one.close()


async def test_a_topic_that_has_moved_is_followed_also_after_a_lost_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server that refuses a subscription says where the topic is; the others may not know yet."""

    async def read_nothing(cluster: Cluster) -> None:
        pass

    async with opened(cluster_servers().url, timeout=30) as store:
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
        subscriber = store._here().subscriber
        topology = store._here().session.client.topology
        assert isinstance(topology, Cluster)
        slot = topology.slot(subscriber._keys.channel("ready:q"))
        ((right, lost),) = subscriber._connections.items()
        topology._slots[slot] = next(node for node in topology._slots.values() if node is not right)
        monkeypatch.setattr(Cluster, "_read_slots", read_nothing)
        await lost.connection.close()
        await until(lambda: topology.known(slot) is right, "the move to be known")
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()


async def test_servers_that_refuse_the_password_for_a_while_do_not_end_the_subscriptions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As while a password is being changed. The servers then do not say which of them has a slot either."""
    caplog.set_level("INFO", "windlass.valkey")
    async with AsyncExitStack() as stack:
        admins = [stack.enter_context(server.client()) for server in cluster_servers().servers]
        store = await stack.enter_async_context(opened(cluster_servers().url, timeout=30))
        listener = store.listen(["ready:q"])
        await store.execute(rq.CountJobs(queue="q"))  # waits until the subscription stands
        _set_password(admins, "changed")
        try:
            await until(
                lambda: "Authentication required" in caplog.text, "a server to refuse the subscription"
            )
        finally:
            _set_password(admins, "")
        assert await listener.wait(20_000) == {"ready:q"}
        listener.close()


def _set_password(admins: list[Redis], password: str) -> None:
    """Set the password of all servers, and end their other connections."""
    for admin in admins:
        admin.config_set("requirepass", password)
    for admin in admins:
        for kind in ("normal", "pubsub"):
            admin.client_kill_filter(_type=kind)


async def test_topics_that_nobody_listens_to_any_more_are_forgotten(url: str) -> None:
    async with opened(url, timeout=30) as store:
        for _ in range(3):
            listener = store.listen(["ready:q", f"done:{new_id()}"])
            await store.execute(rq.CountJobs(queue="q"))
            listener.close()
        subscriber = store._here().subscriber
        await until(lambda: not _remembered(subscriber), "every topic to be forgotten")


def _remembered(subscriber: Subscriber) -> list[str]:
    """The channels that the subscriber and its connections hold."""
    lines = subscriber._connections.values()
    counted = [name for line in lines for counter in (line._joining, line._leaving) for name in counter]
    return [*subscriber._topics, *subscriber._wanted, *subscriber._listeners, *counted]


def test_a_loop_that_ends_before_its_subscription_stands_holds_up_no_other(url: str) -> None:
    store = open_backend(f"{url}?namespace={new_id()}&timeout=30")
    assert isinstance(store, ValkeyBackend)

    async def listen() -> None:
        store.listen(["ready:q"])

    async def count() -> None:
        await store.execute(rq.CountJobs(queue="q"))
        assert not store._barrier.is_closed
        await store.close()

    asyncio.run(listen())
    asyncio.run(count())


def test_a_loop_that_stands_still_holds_up_no_other_and_is_woken_when_it_goes_on(url: str) -> None:
    store = open_backend(f"{url}?namespace={new_id()}&timeout=30")
    assert isinstance(store, ValkeyBackend)
    store._barrier._max_wait_s = 3_600
    still = asyncio.new_event_loop()

    async def listen() -> SubscriptionListener:
        return store.listen(["ready:q"])

    async def add_at_once() -> None:
        other = store.clone()
        async with asyncio.timeout(20):
            await add(other, new())
        await other.close()

    async def wait(listener: SubscriptionListener) -> None:
        assert await listener.wait(20_000) == {"ready:q"}
        await store.close()

    try:
        listener = still.run_until_complete(listen())
        asyncio.run(add_at_once())
        still.run_until_complete(wait(listener))
    finally:
        still.close()


@pytest.mark.filterwarnings("ignore:unclosed")  # asyncio cannot end a transport without its loop
async def test_a_client_is_closed_also_if_another_of_its_loops_ends_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that ends cancels its tasks: that must not look like a cancel of the close."""
    used, asked, ask = threading.Event(), threading.Event(), asyncio.run_coroutine_threadsafe

    def ask_and_end(*args: Any) -> Future[Any]:
        asking = ask(*args)
        asked.set()
        return asking

    async def use() -> None:
        await add(store, new())
        used.set()
        assert asked.wait(20)

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", ask_and_end)
    async with opened(url, timeout=30) as store:
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, use()))
        assert await asyncio.to_thread(used.wait, 20)
        closing = asyncio.create_task(store.close())
        await asyncio.wait([closing, other])
        assert not closing.cancelled()
        await closing
    gc.collect()


async def test_a_close_does_not_wait_long_for_a_loop_that_is_blocked(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used, free = threading.Event(), threading.Event()

    async def use() -> None:
        await add(store, new())
        used.set()
        assert free.wait(20)
        await asyncio.sleep(0)  # the close that was asked for begins
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})

    monkeypatch.setattr(backend, "_CLOSE_S", 0.01)
    async with opened(url, timeout=30) as store:
        other = asyncio.create_task(asyncio.to_thread(asyncio.run, use()))
        try:
            assert await asyncio.to_thread(used.wait, 20)
            async with asyncio.timeout(10):
                await store.close()
        finally:
            free.set()
            await other
    assert "another event loop of this client is blocked" in caplog.text


class _Owner:
    """Something that can be at the address of another one that is gone."""


async def test_an_owner_at_the_address_of_one_that_is_gone_is_waited_for() -> None:
    barrier = SubscribeBarrier(0.05)

    async def close_barrier() -> int:
        owner = _Owner()
        barrier.close(owner)
        return id(owner)

    address = await asyncio.to_thread(asyncio.run, close_barrier())
    owners = [_Owner() for _ in range(1_000)]
    owner = next((one for one in owners if id(one) == address), owners[0])
    barrier.close(owner)
    await barrier.wait()
    assert barrier.is_closed
    assert barrier.open(owner)  # the request above could not wait for it

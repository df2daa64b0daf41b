"""Replicated queues (``?queue_type=quorum``): how they are declared, faults, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

from tests.backends.amqp.servers import broker_url, fresh_url, new_server, scratch
from tests.faults.kit import staged, until
from tools.restarts import Campaign
from windlass import Job, JobState, Windlass, Worker
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend
from windlass.backends.amqp.limits import QUORUM_CAPABILITIES
from windlass.core import probe
from windlass.core.ids import new_id
from windlass.errors import ConfigError, StorageError, UnsupportedByBackendError

if TYPE_CHECKING:
    from collections.abc import Callable

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")

QUORUM = "queue_type=quorum"


def on_channel(step: Callable[[Any], Any]) -> Any:
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    try:
        return step(connection.channel())
    finally:
        connection.close()


async def remove_all(app: Windlass) -> None:
    assert isinstance(app.store.backend, AmqpBackend)
    await app.store.backend.remove_all()


@pytest.mark.feature("N2")
async def test_every_queue_that_keeps_jobs_is_declared_as_a_quorum_queue() -> None:
    namespace = f"q{new_id()[-12:]}"

    def declare_again(channel: Any) -> None:
        """The broker refuses a declaration that differs in kind or arguments."""
        limit = {"x-queue-type": "quorum", "x-delivery-limit": 1_000_000_000}
        channel.queue_declare(f"{namespace}.windlass.kept", durable=True, arguments=limit)
        dead = {
            "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": f"{namespace}.windlass.returned",
            "x-dead-letter-strategy": "at-least-once",
        }
        channel.queue_declare(f"{namespace}.queue.q", durable=True, arguments=limit | dead)

    async with Windlass(f"{broker_url()}?namespace={namespace}&{QUORUM}") as app:
        await app.queue("q").add("n")
        await asyncio.to_thread(on_channel, declare_again)
        await remove_all(app)


@pytest.mark.feature("G3")
async def test_priorities_are_declared_missing_and_refused() -> None:
    async with Windlass(fresh_url(QUORUM)) as app:
        assert app.store.capabilities == QUORUM_CAPABILITIES
        assert not app.store.capabilities.priority
        with pytest.raises(UnsupportedByBackendError, match="higher weight"):
            await app.queue("q").add("n", priority=1)
        job = await app.queue("q").add("n", priority=0)
        with pytest.raises(UnsupportedByBackendError):
            await job.change_priority(3)
        await remove_all(app)


@pytest.mark.parametrize(("first", "second"), [("classic", "quorum"), ("quorum", "classic")])
async def test_queues_of_the_other_type_are_an_error_that_says_what_to_do(first: str, second: str) -> None:
    url = fresh_url()
    async with Windlass(f"{url}&queue_type={first}") as app:
        await app.queue("q").add("n")
        store = open_backend(f"{url}&queue_type={second}")
        with pytest.raises(
            ConfigError, match=f"queue_type is '{second}', but .* use a namespace of its own for each type"
        ):
            await store.open()
        await remove_all(app)


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ("quorum", {}),
        ("quorum", {"x-max-priority": 10}),
        ("classic", {"x-queue-type": "quorum"}),
    ],
)
async def test_a_queue_of_jobs_that_another_program_declared_with_the_other_type_is_an_error(
    mine: str, theirs: dict[str, Any]
) -> None:
    namespace = f"q{new_id()[-12:]}"
    name = f"{namespace}.queue.q"
    await asyncio.to_thread(
        on_channel, lambda channel: channel.queue_declare(name, durable=True, arguments=theirs)
    )
    async with Windlass(f"{broker_url()}?namespace={namespace}&queue_type={mine}") as app:
        with pytest.raises(ConfigError, match=f"{name} exists and has another type"):
            await app.queue("q").add("n")
        await app.queue("other").add("n")  # the connection goes on
        await remove_all(app)


def test_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="classic or quorum, got 'stream'"):
        open_backend("amqp://127.0.0.1:1?queue_type=stream")


@pytest.mark.feature("J3", "J7", "N7")
@pytest.mark.parametrize("point", ["worker.claimed=kill@2", "amqp.ended=kill"])
async def test_a_killed_worker_loses_nothing(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path, fresh_url(QUORUM)) as stage:
        jobs = await stage.app.queue("q").add_bulk({"name": "noop", "data": {"n": n}} for n in range(40))
        victim = stage.worker(probes=point, concurrency=4)
        assert await victim.ended() == -signal.SIGKILL
        heir = stage.worker(concurrency=4)

        async def done() -> bool:
            counts = await stage.app.queue("q").get_job_counts()
            return counts[JobState.COMPLETED] == len(jobs)

        await until(done, "all completed")
        heir.signal(signal.SIGTERM)
        assert await heir.ended() == 0
        await remove_all(stage.app)


@pytest.mark.serial
@pytest.mark.timeout(180)
@pytest.mark.feature("J3")
async def test_a_job_that_the_broker_takes_out_of_its_queue_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A policy allows fewer returns than we do. RabbitMQ drops what is returned more often."""
    watch = probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    definitions = scratch() / "definitions.json"
    definitions.write_text(json.dumps(_with_limit(2)))
    server = new_server(f"load_definitions = {definitions}").start()
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    async def return_all(client: Any) -> int:
        found = await client.pull(client.names.queue("q"), 10)
        client.requeue([delivery.tag for delivery in found])
        return len(found)

    try:
        async with Windlass(f"{server.url}?{QUORUM}") as app:
            jobs = await app.queue("q").add_bulk({"name": "n", "data": n} for n in range(3))
            store = app.store.backend
            assert isinstance(store, AmqpBackend)
            await app.queue("q").get_job_counts()  # there is a coordinator

            async def put_back() -> bool:
                await store._run(return_all)
                return watch.count("amqp.put_back") >= len(jobs)

            await until(put_back, "the broker took all out of their queue")
            async with Worker("q", handler, url_or_app=app):
                for job in jobs:
                    await job.result(timeout=40)
            assert sorted(ran) == sorted(job.id for job in jobs)
    finally:
        server.stop()


@pytest.mark.serial
@pytest.mark.timeout(240)
@pytest.mark.feature("J3", "N8")
async def test_jobs_in_every_state_outlive_restarts_of_the_broker() -> None:
    """Once in order, once by ``kill -9``; ``scripts/restarts`` does it as often as one likes."""
    server = new_server().start()
    try:
        tally = await Campaign(server, restarts=2, jobs=2, queue_type="quorum").run()
    finally:
        server.stop()
    assert (tally.restarts, tally.kills, tally.added.total()) == (2, 1, 24)
    assert tally.is_good, f"{tally}: {tally.lost}, {tally.elsewhere}, {tally.not_run}"


@pytest.mark.serial
@pytest.mark.timeout(180)
@pytest.mark.feature("J3", "N8")
async def test_a_queue_that_is_new_when_the_broker_is_killed_keeps_its_jobs() -> None:
    """RabbitMQ 3.10 by itself forgets a quorum queue that it made within the second before."""
    server = new_server().start()
    ran: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> None:
        ran[job.id] += 1

    try:
        async with Windlass(f"{server.url}?{QUORUM}") as app:
            await app.queue("old").get_job_counts()  # there is a coordinator
            await asyncio.to_thread(server.restart)  # else it forgets its streams, too
            await until(partial(counts_jobs, app), "the broker is back")
            job = await app.queue("q").add("n")
            await asyncio.to_thread(server.restart, kill=True)
            async with Worker("q", handler, url_or_app=app):
                await until(lambda: ran, "the job runs")
                await job.result(timeout=40)
        assert ran == {job.id: 1}
    finally:
        server.stop()


async def counts_jobs(app: Windlass) -> bool:
    try:
        await app.queue("old").get_job_counts()
    except StorageError:
        return False
    return True


def _with_limit(returns: int) -> dict[str, Any]:
    """What an operator sets: a policy for all queues. The file stands for all, so it names the user too."""
    salt = b"salt"
    secret = base64.b64encode(salt + hashlib.sha256(salt + b"guest").digest()).decode()
    policy = {"vhost": "/", "name": "limit", "pattern": r"^queue\.", "apply-to": "queues", "priority": 0}
    return {
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password_hash": secret, "tags": ["administrator"]}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [policy | {"definition": {"delivery-limit": returns}}],
    }


async def test_jobs_that_are_claimed_from_two_queues_at_once_stay_in_their_queues() -> None:
    """Each queue is asked for more than one round of gets brings."""
    async with Windlass(fresh_url(QUORUM)) as app:
        for name in ("a", "b"):
            await app.queue(name).add_bulk([{"name": name} for _ in range(25)])
        queues = [rq.ClaimQueue(name, share=25, cap=25) for name in ("a", "b")]
        claim = rq.Claim(worker="w", queues=queues, limit=50, claim_id=new_id(), lease_ms=30_000)
        claimed = await app.store.execute(claim)
        assert [(job.queue, job.task) for job in claimed.jobs] == [("a", "a")] * 25 + [("b", "b")] * 25
        await remove_all(app)

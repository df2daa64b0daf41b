"""Two brokers, as of two sites: what RabbitMQ's own shovel and federation carry from one to the other."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.backends.amqp.plain_client import JobClient
from tests.backends.amqp.servers import broker_url, scratch
from tools.services.rabbitmq import Server, rabbitmq_binary
from windlass import Job, JobState, Windlass, Worker
from windlass.core.ids import new_id

backend_name = "amqp"
pytestmark = [pytest.mark.service("rabbitmq"), pytest.mark.slow, pytest.mark.timeout(240)]

_AMOUNT = 50


async def ignore(job: Job[Any]) -> None:
    """A handler that has nothing to do."""


class Sites:
    """The shared broker, where jobs are added, and another that is linked to it, where workers are.

    A shovel carries the jobs of ``shovelled``; ``federated`` is a federated queue.
    """

    def __init__(self) -> None:
        self.shovelled, self.federated = (f"{way}-{new_id()[-12:]}" for way in ("shovel", "federation"))
        self.near = broker_url()
        binary = rabbitmq_binary()
        assert binary is not None
        folder = scratch()
        (folder / "definitions.json").write_text(json.dumps(self._definitions()))
        self._server = Server(
            binary,
            folder,
            f"load_definitions = {folder / 'definitions.json'}",
            plugins=("rabbitmq_shovel", "rabbitmq_federation"),
        )
        self.stop = self._server.stop

    @property
    def queues(self) -> list[str]:
        return [self.shovelled, self.federated]

    def start(self) -> str:
        """Start the far broker; the queues of the near one exist."""
        return self._server.start().url

    def _definitions(self) -> dict[str, Any]:
        """The links, as an operator of the far broker sets them, and its user: the file stands for all."""
        salt = b"salt"
        secret = base64.b64encode(salt + hashlib.sha256(salt + b"guest").digest()).decode()
        shovel = {
            "src-protocol": "amqp091",
            "src-uri": self.near,
            "src-queue": f"queue.{self.shovelled}",
            "dest-protocol": "amqp091",
            "dest-uri": "amqp://",
            "dest-exchange": "jobs.direct",
            "dest-exchange-key": self.shovelled,
            "ack-mode": "on-confirm",
        }
        return {
            "vhosts": [{"name": "/"}],
            "users": [{"name": "guest", "password_hash": secret, "tags": ["administrator"]}],
            "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
            "parameters": [
                {"component": "shovel", "vhost": "/", "name": "jobs", "value": shovel},
                {
                    "component": "federation-upstream",
                    "vhost": "/",
                    "name": "near",
                    "value": {"uri": self.near},
                },
            ],
            "policies": [
                {
                    "vhost": "/",
                    "name": "jobs",
                    "pattern": f"^queue\\.{self.federated}$",
                    "apply-to": "queues",
                    "definition": {"federation-upstream": "near"},
                    "priority": 0,
                }
            ],
        }


@pytest.fixture
def sites() -> Iterator[Sites]:
    both = Sites()
    yield both
    both.stop()


def enqueue(url: str, queues: list[str]) -> set[tuple[str, str]]:
    """Jobs of a producer that knows nothing of Windlass."""
    client = JobClient(url)
    try:
        return {(queue, client.enqueue("n", [n], queue)) for queue in queues for n in range(_AMOUNT)}
    finally:
        client.connection.close()


@pytest.mark.feature("M9")
async def test_jobs_of_one_broker_run_at_another_through_a_shovel_and_through_federation(
    sites: Sites,
) -> None:
    async with Windlass(sites.near) as near, Worker(sites.queues, ignore, url_or_app=near) as worker:
        await worker.wait_until_ready()  # the queues are there
    far_url = await asyncio.to_thread(sites.start)
    runs: Counter[tuple[str, str]] = Counter()
    enough = asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        runs[job.queue_name, job.id] += 1
        if len(runs) == 2 * _AMOUNT + 2:
            enough.set()

    async with (
        Windlass(sites.near) as near,
        Windlass(far_url) as far,
        Worker(sites.queues, handler, url_or_app=far) as worker,
    ):
        await worker.wait_until_ready()
        wanted = await asyncio.to_thread(enqueue, sites.near, sites.queues)
        ours = [await near.queue(name).add("n") for name in sites.queues]
        await asyncio.wait_for(enough.wait(), 60)
        assert runs == Counter(wanted | {(job.queue_name, job.id) for job in ours}), "each once"
        for job in ours:
            here = await near.queue(job.queue_name).get_job(job.id)
            assert here is not None
            assert here.state is JobState.WAITING, "the broker where it was added does not know of its end"

"""In which order the coordinator publishes, without a broker."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.names import Names
from windlass.backends.amqp.placing import BrokerPlan
from windlass.core.job import JobRecord, NewJob
from windlass.speedups.amqp import Outgoing

NOW_MS = 1_760_000_000_000


class _Session:
    """A connection whose broker confirms when the test says so."""

    def __init__(self) -> None:
        self.names = Names("")
        self.published: list[tuple[list[Outgoing], IoFuture[None]]] = []

    def call_later(self, seconds: float, call: object) -> None:
        pass

    async def need_queues(self, names: list[str]) -> None:
        pass

    def publish(self, messages: Iterable[Outgoing]) -> IoFuture[None]:
        confirmed: IoFuture[None] = IoFuture()
        self.published.append((list(messages), confirmed))
        return confirmed

    async def until_confirmed(self, promise: IoFuture[None]) -> None:
        await promise

    def news(self) -> list[verbs.News]:
        """The news that went out."""
        return [
            msgspec.msgpack.decode(message.body, type=verbs.News)
            for messages, _ in self.published
            for message in messages
            if message.exchange == self.names.news
        ]


def _waiting_job() -> JobRecord:
    ledger = Ledger()
    ledger.apply(rq.Add(jobs=[NewJob(queue="q", id="one", task="t", payload=b"{}")]), NOW_MS)
    ((job, _),) = ledger.plan().publish
    return job


def test_only_news_of_lost_attempts_wait_until_their_jobs_have_other_messages() -> None:
    """Other news keep their order: a queue that was paused and then resumed is not paused."""
    session = _Session()
    coordinator = Coordinator(session)  # type: ignore[arg-type]
    plan = BrokerPlan(publish=[(_waiting_job(), 1)], lost=["token"])
    spawn(coordinator._carry_out(plan, verbs.News(paused=["q"], lost=["token"]), None))
    spawn(coordinator._carry_out(BrokerPlan(), verbs.News(resumed=["q"]), None))
    assert session.news() == [verbs.News(paused=["q"]), verbs.News(resumed=["q"])]
    session.published[0][1].set(None)
    assert session.news()[2:] == [verbs.News(lost=["token"])]

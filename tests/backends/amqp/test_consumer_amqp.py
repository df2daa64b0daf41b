"""The jobs that a connection holds, when the broker or the coordinator does not answer; without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.amqp.test_intake_amqp import QUEUE, _Client
from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.client import AmqpClient, NoAnswerError
from windlass.backends.amqp.consumer import Consumer
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import read_message
from windlass.backends.amqp.names import Names
from windlass.backends.amqp.offers import Offers
from windlass.backends.amqp.picker import Held, Picker
from windlass.backends.amqp.session import PublishRefusedError
from windlass.core.outcome import Extended, Outcome, Settlement
from windlass.errors import StorageError
from windlass.speedups.amqp_frames import Delivery


class _Broker(_Client):
    """A connection with a log: what is asked and put there is answered when the test says so."""

    within = AmqpClient.within

    def __init__(self) -> None:
        super().__init__()
        self.names: Any = Names("")
        self.connection = self
        self.void: set[tuple[str, str, int]] = set()
        self.asked: list[tuple[Any, IoFuture[Any]]] = []
        self.facts: list[tuple[Any, IoFuture[None]]] = []
        self.patience_s: list[float] = []
        self.acked: list[int] = []

    async def ask(self, request: rq.Request[Any], answer_s: float = 15.0) -> Any:
        answer: IoFuture[Any] = IoFuture()
        self.patience_s.append(answer_s)
        self.asked.append((request, answer))
        return await answer

    def append_fact(self, fact: rq.Request[Any]) -> IoFuture[None]:
        confirmed: IoFuture[None] = IoFuture()
        self.facts.append((fact, confirmed))
        return confirmed

    def publish(self, messages: Any) -> None:
        pass

    def ack(self, tags: Any) -> None:
        self.acked += list(tags)

    def call_soon_threadsafe(self, call: Any) -> None:
        call()

    def at_end(self, call: Any) -> None:
        call()

    def guarded(self, call: Any) -> Any:
        return call


def _consumer(left: dict[str, Held] | None = None) -> tuple[_Broker, Consumer]:
    broker = _Broker()
    return broker, Consumer(broker, Offers(), 60.0, left)  # type: ignore[arg-type]


def _held(job_id: str, tag: int) -> Held:
    start = verbs.Start(QUEUE, job_id, f"token-{job_id}", "w", 30_000, 0)
    return Held(tag, start, b"{}", None, 0, until_ms=2**60)


def _hold(consumer: Consumer, job_id: str, tag: int) -> Held:
    held = _held(job_id, tag)
    consumer.hold(held, held.start.key)
    return held


def test_messages_of_lost_attempts_are_asked_about_again_until_the_coordinator_answers() -> None:
    broker, consumer = _consumer()
    _hold(consumer, "a", 1)
    _hold(consumer, "b", 2)
    consumer.mark_lost(["token-a"])
    (_, answer), broker.asked = broker.asked[0], []
    answer.fail(StorageError("the coordinator did not answer"))
    assert broker.acked == []
    broker.fire()
    broker.fire()
    asked = {type(request): request for request, _ in broker.asked}
    assert [start.id for start in asked[verbs.Doubt].starts] == ["a"]
    assert [start.id for start in asked[verbs.Lend].starts] == ["b"]
    next(answer for request, answer in broker.asked if type(request) is verbs.Doubt).set([None])
    assert broker.acked == [1]


def test_an_attempt_whose_job_was_cancelled_before_its_start_was_logged_is_lost() -> None:
    broker, consumer = _consumer()
    cancelled, other = _hold(consumer, "a", 1), _hold(consumer, "b", 2)
    consumer.mark_void_lost({cancelled.start.key})
    assert (cancelled.lost, other.lost) == (True, False)
    ((request, answer),) = broker.asked
    assert isinstance(request, verbs.Doubt)
    broker.void.add(cancelled.start.key)
    answer.set([None])
    assert (broker.acked, broker.void) == ([1], set())


def test_an_attempt_whose_job_was_cancelled_while_it_was_offered_is_lost() -> None:
    broker, consumer = _consumer()
    held, other = _held("a", 1), _held("b", 2)
    broker.void.add(held.start.key)
    for one in (held, other):
        open_offer, message = consumer.intake.begin_offer(QUEUE), Delivery(one.tag, False, None, 0, b"{}")
        consumer._offer_answered(message, one, one.start.key, open_offer, began=True)
    assert (held.lost, other.lost) == (True, False)


def _renewal(job_id: str) -> rq.Extend:
    return rq.Extend(leases=[rq.LeaseRef(QUEUE, job_id, f"token-{job_id}", 30_000)])


def test_a_renewal_that_is_in_the_log_counts_without_an_answer() -> None:
    broker, consumer = _consumer()
    _hold(consumer, "a", 1)
    renewed = spawn(consumer.extend(_renewal("a")))
    broker.asked[0][1].fail(NoAnswerError("the coordinator did not answer"))
    assert renewed.result() == [Extended.OK]


def test_a_renewal_that_the_broker_did_not_take_does_not_count() -> None:
    broker, consumer = _consumer()
    _hold(consumer, "a", 1)
    renewed = spawn(consumer.extend(_renewal("a")))
    broker.asked[0][1].fail(PublishRefusedError([]))
    with pytest.raises(PublishRefusedError):
        renewed.result()


def test_a_renewal_does_not_wait_for_long_until_the_worker_has_said_what_it_runs() -> None:
    """Leases on other connections are due meanwhile. It is not in the log, so it does not count."""
    broker, consumer = _consumer({"token-a": _held("a", 1)})
    renewed = spawn(consumer.extend(_renewal("a")))
    assert [type(request) for request, _ in broker.asked] == [verbs.Lend]
    assert not renewed.done
    broker.fire()
    with pytest.raises(StorageError):
        renewed.result()
    again = spawn(consumer.extend(_renewal("a")))
    broker.asked[0][1].set([True])
    broker.asked[1][1].set([Extended.OK])
    assert again.result() == [Extended.OK]


def _end(job_id: str) -> rq.Settle:
    end = Settlement(queue=QUEUE, id=job_id, token=f"token-{job_id}", outcome=Outcome.COMPLETE)
    return rq.Settle(items=[end])


def _logged(broker: _Broker) -> list[str]:
    """The jobs whose starts were put into the log alone."""
    facts = [fact for fact, _ in broker.facts if isinstance(fact, verbs.Started)]
    return [start.id for fact in facts for start in fact.starts]


def test_starts_that_should_go_with_an_end_that_the_broker_refused_are_logged_later() -> None:
    broker, consumer = _consumer()
    both = [_hold(consumer, "a", 1).start, _hold(consumer, "b", 2).start]
    consumer.starts.add_deferred(both)
    settled = spawn(consumer.settle(_end("a"), 0))
    ((ended, confirmed),) = broker.facts
    assert [start.id for start in ended.began] == ["b"]
    confirmed.fail(PublishRefusedError([]))
    with pytest.raises(PublishRefusedError):
        settled.result()
    broker.fire()
    assert _logged(broker) == ["a", "b"]


def test_starts_are_logged_before_the_connection_is_closed() -> None:
    broker, consumer = _consumer()
    consumer.starts.add_deferred([_hold(consumer, "a", 1).start])
    consumer.prepare_close()
    assert _logged(broker) == ["a"]


def test_a_message_that_is_void_since_others_of_its_claim_were_asked_about_is_asked_about_too() -> None:
    broker, consumer = _consumer()
    claim = rq.Claim(worker="w", queues=[], limit=2, claim_id="claim", lease_ms=30_000)
    bodies = [b'{"jid": "%s", "class": "t", "args": []}' % job_id for job_id in (b"a", b"b")]
    found = [Delivery(1, True, None, 0, bodies[0]), Delivery(2, False, None, 0, bodies[1])]
    good = [(one, read_message(QUEUE, one.body, one.header, one.priority, 0)) for one in found]
    resolved = spawn(Picker(consumer, claim)._resolve(QUEUE, list(good)))
    broker.void.add(good[1][1].key)
    broker.asked[0][1].set([good[0][1].job])
    assert [[start.id for start in request.starts] for request, _ in broker.asked] == [["a"], ["b"]]
    broker.asked[1][1].set([None])
    assert (resolved.result(), broker.acked) == ([good[0]], [2])


def _pushed(consumer: Consumer, queue: str, tag: int, *, redelivered: bool) -> None:
    """Have a message of ``queue`` here, for the next claim."""
    body = b'{"jid": "%s", "class": "t", "args": []}' % queue.encode()
    consumer.intake._keep(queue, Delivery(tag, redelivered, None, 0, body))


def _claim_of(*queues: str, now_ms: int | None = None) -> rq.Claim:
    wanted = [rq.ClaimQueue(queue, 1, 1) for queue in queues]
    claim = rq.Claim(worker="w", queues=wanted, limit=len(queues), claim_id="claim", lease_ms=8_000)
    claim.now_ms = now_ms
    return claim


@pytest.mark.parametrize(("now_ms", "least_s", "most_s"), [(None, 1.0, 2.0), (1_000, 15.0, 15.0)])
def test_a_claim_that_has_started_jobs_waits_for_a_quarter_of_their_lease(
    now_ms: int | None, least_s: float, most_s: float
) -> None:
    """The worker cannot renew their leases before it has them. A lease by a time that the claim carries does
    not run meanwhile."""
    broker, consumer = _consumer()
    _pushed(consumer, "a", 1, redelivered=False)
    _pushed(consumer, "b", 2, redelivered=True)
    picker = Picker(consumer, _claim_of("a", "b", now_ms=now_ms))
    picking = spawn(picker.run())
    assert least_s <= broker.patience_s[0] <= most_s
    broker.asked[0][1].fail(NoAnswerError("the coordinator did not answer"))
    picking.result()
    assert ([job.id for job in picker.jobs], broker.given_back, broker.acked) == (["a"], [2], [])


def test_a_claim_that_has_started_nothing_waits_for_the_coordinator() -> None:
    broker, consumer = _consumer()
    _pushed(consumer, "b", 2, redelivered=True)
    picker = Picker(consumer, _claim_of("b"))
    picking = spawn(picker.run())
    assert broker.patience_s == [15.0]
    broker.asked[0][1].fail(NoAnswerError("the coordinator did not answer"))
    with pytest.raises(NoAnswerError):
        picking.result()
    assert picker.held_ms(0) == 0

"""Claims that are answered from prefetched messages, on the thread of the worker, and their starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url, open_store
from tests.backends.amqp.test_intake_amqp import QUEUE, _Client, _message
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, verbs
from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.start_log import StartLog
from windlass.core.ids import new_id
from windlass.core.job import JobRef, NewJob
from windlass.core.paths import counts
from windlass.core.states import JobState

# --- what may be taken -----------------------------------------------------------------------------------


def _prefetched(count: int) -> tuple[_Client, Intake]:
    """An intake whose broker has pushed ``count`` messages ahead."""
    client = _Client()
    intake = Intake(client)  # type: ignore[arg-type]
    intake.on_full_claim(QUEUE, 5)
    intake.on_full_claim(QUEUE, 5)
    for number in range(count):
        client.takers[0](_message(number + 1))
    return client, intake


def test_messages_that_were_pushed_ahead_are_seen_in_their_order() -> None:
    _, intake = _prefetched(3)
    assert [delivery.tag for delivery in intake.peek(QUEUE, 2)] == [1, 2]
    assert [delivery.tag for delivery in intake.take(QUEUE, 2)] == [1, 2]
    assert [delivery.tag for delivery in intake.peek(QUEUE, 1)] == [3]


def test_fewer_messages_than_wanted_are_left_to_a_claim() -> None:
    _, intake = _prefetched(3)
    assert intake.peek(QUEUE, 4) == []


def test_a_running_claim_is_first() -> None:
    _, intake = _prefetched(3)
    intake.begin_claim([QUEUE])
    assert intake.peek(QUEUE, 1) == []
    intake.end_claim([QUEUE])
    assert len(intake.peek(QUEUE, 1)) == 1


def test_messages_that_are_about_to_be_returned_are_not_taken() -> None:
    client, intake = _prefetched(3)
    client.paused.add(QUEUE)
    intake.stop(QUEUE)
    assert intake.peek(QUEUE, 1) == []


class _Hands:
    """A clock whose hands a test moves."""

    def __init__(self) -> None:
        self.ms = 50_000.0

    def monotonic_ms(self) -> float:
        return self.ms


def test_messages_from_before_the_process_stood_still_are_left_to_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker may have ended the connection meanwhile; its thread will see that first."""
    hands = _Hands()
    monkeypatch.setattr("windlass.backends.amqp.intake.SYSTEM_CLOCK", hands)
    client, intake = _prefetched(3)
    hands.ms += 250
    client.fire()
    hands.ms += 900
    assert len(intake.peek(QUEUE, 1)) == 1
    hands.ms += 200
    assert intake.peek(QUEUE, 1) == []
    intake.take(QUEUE, 2)
    client.fire()
    assert len(intake.peek(QUEUE, 1)) == 1


class _Closing(dict[str, Any]):
    """Consumers that the connection's thread removes as soon as another thread has seen them."""

    def __contains__(self, queue: object) -> bool:
        return self.pop(str(queue), None) is not None


def test_messages_of_a_consumer_that_is_cancelled_meanwhile_are_taken() -> None:
    _, intake = _prefetched(3)
    intake._prefetching = _Closing(intake._prefetching)
    assert [delivery.tag for delivery in intake.take(QUEUE, 2)] == [1, 2]


# --- starts ----------------------------------------------------------------------------------------------


class _Connection:
    """The log of a connection, and what it is asked to do later."""

    def __init__(self) -> None:
        self.usable = True
        self.connection = self
        self.logged: list[list[str]] = []
        self.steps: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []

    def guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return call

    def at_end(self, call: Callable[[], None]) -> None:
        self.steps.append(call)

    def call_soon_threadsafe(self, call: Callable[[], None]) -> None:
        self.steps.append(call)

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def append_fact(self, fact: verbs.Started) -> None:
        self.logged.append([start.id for start in fact.starts])

    def turn(self) -> None:
        """The connection's thread does what it was asked to."""
        steps, self.steps = self.steps, []
        for step in steps:
            step()

    def pause(self) -> None:
        """The time of the timers is over."""
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()


def _start(job_id: str) -> verbs.Start:
    return verbs.Start(QUEUE, job_id, f"token-{job_id}", "w", 30_000, 0)


def _start_log() -> tuple[_Connection, StartLog]:
    connection = _Connection()
    return connection, StartLog(connection, threading.RLock())  # type: ignore[arg-type]


def test_a_start_that_no_end_follows_is_logged_after_a_moment() -> None:
    connection, starts = _start_log()
    starts.add_deferred([_start("a")])
    starts.add_deferred([_start("b")])
    connection.turn()
    assert connection.logged == []
    connection.pause()
    assert connection.logged == [["a", "b"]]


def test_a_start_goes_with_the_next_ends() -> None:
    connection, starts = _start_log()
    starts.add_deferred([_start("a")])
    connection.turn()
    assert [start.id for start in starts.take(None)] == ["a"]
    connection.pause()
    assert connection.logged == []


def test_a_start_waits_while_ends_are_settled_and_is_logged_when_no_more_follow() -> None:
    connection, starts = _start_log()
    starts.begin_settling()
    starts.add_deferred([_start("a")])
    connection.turn()
    connection.pause()
    assert connection.logged == []
    starts.end_settling()
    connection.pause()
    assert connection.logged == [["a"]]


def test_a_start_does_not_wait_for_ends_that_are_settled_for_long() -> None:
    connection, starts = _start_log()
    starts.begin_settling()
    connection.pause()
    starts.add_deferred([_start("a")])
    connection.turn()
    for _ in range(2):
        assert connection.logged == []
        connection.pause()
    assert connection.logged == [["a"]]
    starts.end_settling()
    connection.pause()
    assert (connection.logged, connection.timers) == ([["a"]], [])


def test_starts_that_go_with_ends_again_and_again_have_no_entry_of_their_own() -> None:
    connection, starts = _start_log()
    starts.begin_settling()
    for number in range(4):
        starts.add_deferred([_start(str(number))])
        connection.turn()
        connection.pause()
        assert len(starts.take(None)) == 1
    assert connection.logged == []


def test_a_timer_that_ends_while_ends_are_settled_leaves_the_start_to_them() -> None:
    connection, starts = _start_log()
    starts.add_deferred([_start("a")])
    connection.turn()
    starts.begin_settling()
    connection.pause()
    assert connection.logged == []
    starts.end_settling()
    connection.pause()
    assert connection.logged == [["a"]]


def test_the_starts_of_a_claim_are_logged_in_the_same_turn_with_those_that_wait() -> None:
    connection, starts = _start_log()
    starts.begin_settling()
    starts.add_deferred([_start("a")])
    starts.add([_start("b")], None)
    connection.turn()
    assert connection.logged == [["a", "b"]]


# --- with a broker ---------------------------------------------------------------------------------------


def _claim() -> rq.Claim:
    queues = [rq.ClaimQueue(QUEUE, 1, 1)]
    return rq.Claim(worker="w", queues=queues, limit=1, claim_id=new_id(), lease_ms=30_000)


async def _filled_store() -> tuple[AmqpBackend, list[str]]:
    """A store with enough waiting jobs that a busy worker prefetches them, and their ids in order."""
    store = await open_store(fresh_url())
    ids = [new_id() for _ in range(200)]
    jobs = [NewJob(queue=QUEUE, id=id, task="n", payload=b"{}") for id in ids]
    await store.execute(rq.Add(jobs=jobs))
    return store, ids


async def _claim_until_prefetched(store: AmqpBackend) -> list[str]:
    """Claim jobs one by one until a claim was answered from prefetched messages."""
    listener = store.listen([f"ready:{QUEUE}"])
    before, started = counts["amqp.prefetched"], list[str]()
    while counts["amqp.prefetched"] == before:
        (job,) = (await store.execute(_claim())).jobs
        started.append(job.id)
    listener.close()
    return started


@pytest.mark.service("rabbitmq")
async def test_prefetched_jobs_start_in_their_order_and_are_known_to_run() -> None:
    store, ids = await _filled_store()
    started = await _claim_until_prefetched(store)
    assert started == ids[: len(started)]
    last: Any = (await store.execute(rq.GetJobs(refs=[JobRef(QUEUE, started[-1])])))[0]
    assert (last.state, last.worker) == (JobState.ACTIVE, "w")
    await store.remove_all()
    await store.close()


@pytest.mark.service("rabbitmq")
async def test_a_prefetched_message_that_counts_no_more_is_asked_about() -> None:
    store, ids = await _filled_store()
    started = await _claim_until_prefetched(store)
    following, after = ids[len(started) : len(started) + 2]
    await store.execute(rq.CancelJobs(refs=[JobRef(QUEUE, following)]))
    (job,) = (await store.execute(_claim())).jobs
    assert job.id == after
    await store.remove_all()
    await store.close()

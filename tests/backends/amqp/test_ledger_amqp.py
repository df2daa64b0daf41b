"""What the coordinator answers, without a broker."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec

import windlass.backends.amqp
from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.messages import Carried, read_job
from windlass.backends.amqp.placing import BrokerPlan
from windlass.core.job import JobRef, NewJob
from windlass.core.option_values import Keep
from windlass.core.options import ALL_UNSAID, StoredOptions
from windlass.core.outcome import Filled, Outcome, Settled, Settlement
from windlass.core.states import JobState

NOW_MS = 1_760_000_000_000
#: What a client does with a message before the log is read: make a job, start it, see what it is.
_CLIENTS = {"ChangeRecorder", "create", "holds", "is_expired", "lease"}


def test_what_becomes_of_a_job_is_left_to_the_engine() -> None:
    """The fold of the log calls the engine: no rule is written a third time."""
    for path in Path(windlass.backends.amqp.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used = {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("transitions", "settle_rules", "change_rules")
        }
        filed = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "windlass.engine.saving"
        }
        assert (used - _CLIENTS, filed) == (set(), set()), path.name


def test_an_add_that_is_logged_again_after_the_job_is_gone_makes_its_second_message_void() -> None:
    ledger = Ledger()
    at_once = StoredOptions(keep_completed=Keep(count=0), result_ttl_ms=0)
    new = NewJob(queue="q", id="one", task="t", payload=b"{}", request_id="r", options=at_once)
    born = verbs.Born(add=rq.Add(jobs=[new]))
    start = verbs.Start("q", "one", "token", "worker", 30_000, NOW_MS)
    done = Settlement(queue="q", id="one", token="token", outcome=Outcome.COMPLETE)
    for fact in (born, verbs.Ended(items=[done], starts=[start])):
        ledger.apply(fact, NOW_MS)
        assert not ledger.plan().void
    ledger.apply(born, NOW_MS + 1)
    assert ledger.plan().void == [("q", "one", 0)]


def _ended_without_record() -> tuple[Ledger, verbs.Born, verbs.Start]:
    """A ledger whose only job ended and left no record."""
    ledger = Ledger()
    at_once = StoredOptions(keep_completed=Keep(count=0), result_ttl_ms=0)
    new = NewJob(queue="q", id="one", task="t", payload=b"{}", options=at_once)
    born = verbs.Born(add=rq.Add(jobs=[new]))
    ledger.apply(born, NOW_MS)
    ledger.plan()
    body, header = b'{"jid": "one", "class": "t", "args": []}', msgspec.msgpack.encode(Carried(gen=0))
    start = verbs.Start("q", "one", "token", "w", 30_000, NOW_MS, task="t", body=body, header=header)
    done = Settlement(queue="q", id="one", token="token", outcome=Outcome.COMPLETE)
    ledger.apply(verbs.Ended(items=[done], starts=[start]), NOW_MS + 1)
    ledger.plan()
    return ledger, born, msgspec.structs.replace(start, token="second")


def test_a_message_of_a_job_that_ended_and_left_no_record_is_dropped() -> None:
    """Its acknowledgement was lost with the connection of its worker."""
    ledger, _, back = _ended_without_record()
    assert ledger.apply(verbs.Doubt(starts=[back]), NOW_MS + 2)[0] == [None]
    foreign = msgspec.structs.replace(back, header=None)
    assert ledger.apply(verbs.Doubt(starts=[foreign]), NOW_MS + 2)[0] != [None]


def test_the_message_of_a_job_whose_id_was_used_before_starts() -> None:
    """The first job of that id left no record. The message of the second is all that it has."""
    ledger, born, back = _ended_without_record()
    ledger.apply(born, NOW_MS + 2)
    ledger.plan()
    (job,) = ledger.apply(verbs.Doubt(starts=[back]), NOW_MS + 3)[0]
    assert job is not None and job.state is JobState.WAITING
    assert not ledger.gone


def _added_twice() -> tuple[Ledger, verbs.Start]:
    """An add that was repeated: its job waits, and there may be one message of it, or two."""
    ledger = Ledger()
    born = verbs.Born(add=rq.Add(jobs=[NewJob(queue="q", id="one", task="t", payload=b"{}", request_id="r")]))
    for _ in range(2):
        ledger.apply(born, NOW_MS)
    plan = ledger.plan()
    assert plan.void == plan.doubled == [("q", "one", 0)]
    return ledger, verbs.Start("q", "one", "token", "worker", 30_000, NOW_MS)


def test_an_add_that_was_repeated_because_its_first_message_was_lost_leaves_a_job_that_starts() -> None:
    ledger, only = _added_twice()
    (job,) = ledger.apply(verbs.Doubt(starts=[only]), NOW_MS + 1)[0]
    assert job is not None and job.state is JobState.WAITING


def test_of_the_two_messages_of_a_repeated_add_one_starts() -> None:
    ledger, first = _added_twice()
    second = msgspec.structs.replace(first, token="second")
    (job, dropped) = ledger.apply(verbs.Doubt(starts=[first, second]), NOW_MS + 1)[0]
    assert job is not None and dropped is None
    ledger, first = _added_twice()
    assert ledger.apply(verbs.Doubt(starts=[first]), NOW_MS + 1)[0] != [None]
    ledger.apply(verbs.Started(starts=[first]), NOW_MS + 1)
    assert ledger.apply(verbs.Doubt(starts=[second]), NOW_MS + 2)[0] == [None]
    assert not ledger.void


def test_a_release_whose_answer_was_lost_is_answered_alike_when_it_is_repeated() -> None:
    """The worker still has the message on which the job waits: acknowledged, it would be lost."""
    ledger = Ledger()
    new = NewJob(queue="q", id="one", task="t", payload=b"{}")
    ledger.apply(verbs.Born(add=rq.Add(jobs=[new])), NOW_MS)
    ledger.plan()
    start = verbs.Start("q", "one", "token", "worker", 30_000, NOW_MS)
    ledger.apply(verbs.Started(starts=[start]), NOW_MS)
    ledger.plan()
    release = Settlement(queue="q", id="one", token="token", outcome=Outcome.RELEASE, reason="shutdown")
    answers = []
    for _ in range(2):
        closing, _ = ledger.apply(verbs.Close(items=[release], starts=[start]), NOW_MS + 1)
        plan = ledger.plan()
        assert not plan.publish
        answers.append((closing.items, closing.requeue))
    assert answers[0] == ([Settled.OK], [True])
    assert answers[1] == ([Settled.ALREADY], [True])


def test_a_message_without_retry_leaves_its_attempts_to_the_task() -> None:
    job = {"jid": "a", "class": "mail", "args": []}
    silent, said = read_job("q", job, 0).options, read_job("q", {**job, "retry": 3}, 0).options
    assert (silent.max_attempts, silent.unsaid) == (26, ALL_UNSAID)
    assert (said.max_attempts, said.unsaid) == (4, ALL_UNSAID - 1)


def _started() -> tuple[Ledger, verbs.Start]:
    """A ledger with one job that runs."""
    ledger, start = _waiting()
    ledger.apply(verbs.Started(starts=[start]), NOW_MS)
    assert not ledger.plan().keep
    return ledger, start


def _waiting() -> tuple[Ledger, verbs.Start]:
    """A ledger with one job that waits, and a start of it by its first message."""
    ledger = Ledger()
    new = NewJob(queue="q", id="one", task="t", payload=b"{}")
    ledger.apply(verbs.Born(add=rq.Add(jobs=[new])), NOW_MS)
    assert not ledger.plan().keep
    return ledger, verbs.Start("q", "one", "token", "worker", 30_000, NOW_MS, copy=0)


def test_starts_that_are_logged_with_the_ends_before_them_count() -> None:
    ledger, first = _started()
    ledger.apply(verbs.Born(add=rq.Add(jobs=[NewJob(queue="q", id="two", task="t", payload=b"{}")])), NOW_MS)
    second = verbs.Start("q", "two", "token2", "worker", 30_000, NOW_MS)
    done = Settlement(queue="q", id="one", token=first.token, outcome=Outcome.COMPLETE)
    ledger.apply(verbs.Ended(items=[done], starts=[first], began=[second]), NOW_MS + 1)
    refs = [JobRef("q", "one"), JobRef("q", "two")]
    found, _ = ledger.apply(rq.GetJobs(refs=refs), NOW_MS + 1)
    assert [job and job.state for job in found] == [JobState.COMPLETED, JobState.ACTIVE]


def test_a_start_that_is_logged_with_its_own_end_begins_nothing() -> None:
    """The record of this job goes with its end; its start could make it anew."""
    ledger = Ledger()
    body = b'{"jid": "one", "class": "t", "args": [], "queue": "q", "retry": false}'
    start = verbs.Start("q", "one", "token", "worker", 30_000, NOW_MS, task="t", body=body)
    filled = Filled(result_ttl_ms=0, keep_completed=Keep(count=0))
    done = Settlement(queue="q", id="one", token="token", outcome=Outcome.COMPLETE, filled=filled)
    ledger.apply(verbs.Ended(items=[done], starts=[start], began=[start]), NOW_MS)
    assert ledger.apply(rq.CountJobs(queue="q"), NOW_MS)[0][JobState.ACTIVE] == 0


def _cancelled_before_its_start() -> tuple[Ledger, verbs.Start]:
    """A job that was cancelled while its start was on its way into the log."""
    ledger, start = _waiting()
    ledger.apply(rq.CancelJobs(refs=[JobRef("q", "one")]), NOW_MS)
    plan = ledger.plan()
    assert (plan.void, plan.doubled) == ([start.key], [])
    ledger.apply(verbs.Started(starts=[start]), NOW_MS + 1)
    return ledger, start


def test_a_worker_that_hands_in_a_job_that_was_cancelled_before_its_start_drops_its_message() -> None:
    """Nobody will ask about it any more."""
    ledger, start = _cancelled_before_its_start()
    done = Settlement(queue="q", id="one", token=start.token, outcome=Outcome.COMPLETE)
    closing, _ = ledger.apply(verbs.Close(items=[done], starts=[start]), NOW_MS + 2)
    assert (closing.items, closing.requeue) == ([Settled.LOST], [False])
    assert not ledger.void


def test_a_worker_that_drops_one_of_two_messages_leaves_the_other_to_be_asked_about() -> None:
    ledger, first = _added_twice()
    ledger.apply(rq.CancelJobs(refs=[JobRef("q", "one")]), NOW_MS + 1)
    done = Settlement(queue="q", id="one", token=first.token, outcome=Outcome.COMPLETE)
    closing, _ = ledger.apply(verbs.Close(items=[done], starts=[first]), NOW_MS + 2)
    assert closing.items == [Settled.LOST]
    assert list(ledger.void) == [first.key]


def test_a_start_that_comes_after_its_release_begins_nothing() -> None:
    ledger, start = _waiting()
    released = Settlement(queue="q", id="one", token=start.token, outcome=Outcome.RELEASE)
    ledger.apply(verbs.Close(items=[released], starts=[start]), NOW_MS)
    ledger.apply(verbs.Started(starts=[start]), NOW_MS)
    (job,), _ = ledger.apply(rq.GetJobs(refs=[JobRef("q", "one")]), NOW_MS)
    assert job is not None
    assert (job.state, job.deliveries, job.stalls) == (JobState.WAITING, 1, 0)


def test_a_job_that_is_kept_by_its_lease_is_kept_until_it_ends() -> None:
    ledger, start = _started()
    assert ledger.apply(verbs.Lend(starts=[start]), NOW_MS)[0] == [True]
    ((job, gen),) = ledger.plan().keep
    assert (job.state, job.token) == (JobState.ACTIVE, "token")
    renewal = rq.Extend(leases=[rq.LeaseRef("q", "one", "token", 30_000)])
    requests: list[rq.Request[Any]] = [renewal, verbs.Lend(starts=[start])]
    for request in requests:
        ledger.apply(request, NOW_MS + 1)
        assert ledger.plan() == BrokerPlan()
    done = Settlement(queue="q", id="one", token="token", outcome=Outcome.COMPLETE)
    ledger.apply(verbs.Ended(items=[done], starts=[start]), NOW_MS + 2)
    assert ledger.plan().drop == [(JobRef("q", "one"), gen)]


def test_a_job_that_is_kept_by_its_lease_gets_a_new_message_when_that_expires() -> None:
    ledger, start = _started()
    ledger.apply(verbs.Lend(starts=[start]), NOW_MS)
    ((_, gen),) = ledger.plan().keep
    ledger.apply(rq.Recover(), NOW_MS + 30_001)
    plan = ledger.plan()
    assert ([job.id for job, _ in plan.publish], plan.drop) == (["one"], [(JobRef("q", "one"), gen)])
    assert plan.lost == ["token"]


def test_a_job_that_is_released_while_it_is_kept_by_its_lease_gets_a_new_message() -> None:
    ledger, start = _started()
    ledger.apply(verbs.Lend(starts=[start]), NOW_MS)
    ledger.plan()
    release = Settlement(queue="q", id="one", token="token", outcome=Outcome.RELEASE, reason="shutdown")
    ledger.apply(verbs.Close(items=[release], starts=[start]), NOW_MS + 1)
    assert [job.id for job, _ in ledger.plan().publish] == ["one"]


def test_an_attempt_that_was_lost_is_not_kept_by_its_lease() -> None:
    ledger, start = _started()
    other = verbs.Start("q", "one", "newer", "other", 30_000, NOW_MS + 1)
    ledger.apply(verbs.Started(starts=[other]), NOW_MS + 1)
    ledger.plan()
    assert ledger.apply(verbs.Lend(starts=[start]), NOW_MS + 2)[0] == [False]
    assert not ledger.plan().keep


def test_a_new_coordinator_adopts_a_job_that_is_kept_by_its_lease() -> None:
    ledger, start = _started()
    ledger.apply(verbs.Lend(starts=[start]), NOW_MS)
    ((job, gen),) = ledger.plan().keep
    heir = Ledger()
    assert heir.adopt(job, gen)
    done = Settlement(queue="q", id="one", token="token", outcome=Outcome.COMPLETE)
    assert heir.apply(verbs.Close(items=[done], starts=[]), NOW_MS + 1)[0].items == [Settled.OK]
    assert heir.plan().drop == [(JobRef("q", "one"), gen)]


def test_a_message_that_was_published_again_is_dropped_while_the_first_one_is_at_work() -> None:
    ledger, _ = _started()
    again = verbs.Start("q", "one", "second", "other", 30_000, NOW_MS, again=True)
    assert ledger.apply(verbs.Doubt(starts=[again]), NOW_MS + 1)[0] == [None]
    assert ledger.plan().lost == []
    redelivered = msgspec.structs.replace(again, again=False)
    (job,) = ledger.apply(verbs.Doubt(starts=[redelivered]), NOW_MS + 2)[0]
    assert job is not None and job.state is JobState.WAITING


def test_of_the_messages_of_one_generation_only_the_first_that_a_worker_has_may_start() -> None:
    ledger, first = _waiting()
    second = msgspec.structs.replace(first, token="second", worker="other", copy=7)
    (job, dropped) = ledger.apply(verbs.Doubt(starts=[first, second]), NOW_MS)[0]
    assert job is not None and dropped is None
    ledger.apply(verbs.Started(starts=[first]), NOW_MS)
    assert ledger.apply(verbs.Doubt(starts=[second]), NOW_MS + 1)[0] == [None]
    assert ledger.plan().lost == []  # the first one runs on


def test_the_message_that_a_worker_had_decides_when_it_is_delivered_again() -> None:
    """Its holder has lost it, whatever other messages of the job there are."""
    ledger, first = _waiting()
    held = msgspec.structs.replace(first, copy=7)
    ledger.apply(verbs.Started(starts=[held]), NOW_MS)
    ledger.plan()
    other = msgspec.structs.replace(first, token="second", worker="other")
    assert ledger.apply(verbs.Doubt(starts=[other]), NOW_MS + 1)[0] == [None]
    back = msgspec.structs.replace(other, copy=7)
    (job,) = ledger.apply(verbs.Doubt(starts=[back]), NOW_MS + 2)[0]
    assert job is not None and job.state is JobState.WAITING

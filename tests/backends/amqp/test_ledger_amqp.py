"""What the coordinator answers, without a broker."""

from __future__ import annotations

import ast
from pathlib import Path

import windlass.backends.amqp
from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.messages import read_job
from windlass.core.job import NewJob
from windlass.core.options import ALL_UNSAID, Keep, StoredOptions
from windlass.core.outcome import Outcome, Settled, Settlement

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
            and node.value.id == "transitions"
        }
        filed = {
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "windlass.engine.saving"
        }
        assert (used - _CLIENTS, filed) == (set(), set()), path.name


def test_an_add_that_is_told_again_after_the_job_is_gone_makes_its_second_message_void() -> None:
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

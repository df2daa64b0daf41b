"""What the coordinator answers, without a broker."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.messages import read_job
from windlass.core.job import NewJob
from windlass.core.options import ALL_UNSAID
from windlass.core.outcome import Outcome, Settled, Settlement

NOW_MS = 1_760_000_000_000


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

"""What the coordinator answers, without a broker."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.ledger import Ledger
from windlass.core.job import NewJob
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

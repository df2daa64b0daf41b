"""A store with a past: a month of a shop's work, so that pictures show charts with something in them.

Jobs are added, claimed and settled through the store's own requests, which carry the time of that day.
"""

from __future__ import annotations

import json
import math
import random
from typing import Any

import msgspec

from windlass import Windlass
from windlass.api.metrics import roll_up
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import ErrorInfo, JobRecord, NewJob, fingerprint
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement

DAY_MS = 86_400_000
MINUTE_MS = 60_000
#: Queue, task, mean run time in ms, share of failures.
WORK = (
    ("mail", "send_mail", 85, 0.03),
    ("mail", "newsletter", 240, 0.0),
    ("images", "thumbnail", 40, 0.0),
    ("images", "read_upload", 150, 0.06),
    ("reports", "build_report", 2_100, 0.01),
    ("billing", "charge_card", 420, 0.09),
)
_ERRORS = {
    "send_mail": ("MailServerBusy", "451 mailbox of ada@example.com is busy"),
    "read_upload": ("ValueError", "upload 1717 is not an image"),
    "build_report": ("TimeoutError", "the warehouse did not answer within 30 s"),
    "charge_card": ("PaymentRefused", "card ending in 4242 was refused by the bank"),
}
_TRACEBACK = """Traceback (most recent call last):
  File "shop/worker.py", line 84, in run
    receipt = await gateway.charge(order.card, order.total)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "shop/gateway.py", line 31, in charge
    raise PaymentRefused(f"card ending in {card.last4} was refused by the bank")
shop.errors.{name}: {message}
"""


async def live_through(app: Windlass, now_ms: int, *, seed: int = 7) -> None:
    """Thirty days, the last hour minute by minute."""
    dice = random.Random(seed)
    for day in range(29, 0, -1):
        at_ms = now_ms - day * DAY_MS
        week = 0.55 if (29 - day) % 7 in (5, 6) else 1.0
        await work(
            app, dice, at_ms, now_ms, round(520 * week * (1 + 0.3 * math.sin(day / 4)) + dice.randrange(90))
        )
        await roll_up(app.store)
    for minute in range(59, 0, -1):
        swell = 1 + 0.5 * math.sin(minute / 9)
        await work(app, dice, now_ms - minute * MINUTE_MS, now_ms, round(9 * swell) + dice.randrange(4))
    await roll_up(app.store)


async def work(
    app: Windlass, dice: random.Random, at_ms: int, now_ms: int, jobs: int, keep: Keep | None = None
) -> None:
    """Add some jobs at one moment, and run them right after; retries are due some time after now.

    They are kept as jobs are by default, or as ``keep`` says.
    """
    chosen = dice.choices(WORK, weights=(40, 2, 30, 20, 5, 12), k=jobs)
    new = [_new(dice, queue, task, keep) for queue, task, _, _ in chosen]
    await app.store.execute(rq.Add(jobs=new, now_ms=at_ms))
    queues = sorted({queue for queue, _, _, _ in chosen})
    claim = rq.Claim(
        worker="shop:4711:past",
        queues=[rq.ClaimQueue(name, 1_000, 1_000) for name in queues],
        limit=1_000,
        claim_id=new_id(),
        now_ms=at_ms + dice.randrange(5, 60),
    )
    claimed = await app.store.execute(claim)
    kinds = {(queue, task): (mean, bad) for queue, task, mean, bad in WORK}
    items = []
    for job in claimed.jobs:
        mean, bad = kinds[job.queue, job.task]
        took = max(1, round(dice.lognormvariate(math.log(mean), 0.55)))
        delay_ms = now_ms - at_ms + dice.randrange(10, 3_000) * MINUTE_MS
        items.append(_settlement(dice, job, took, bad, at_ms, delay_ms))
    if items:
        await app.store.execute(rq.Settle(items=items, now_ms=claimed.now_ms + 500))


def _new(dice: random.Random, queue: str, task: str, keep: Keep | None) -> NewJob:
    number = dice.randrange(1_000, 9_999)
    arguments: dict[str, dict[str, Any]] = {
        "send_mail": {"to": f"customer{number}@example.com", "subject": f"Order {number}"},
        "newsletter": {"edition": number},
        "thumbnail": {"image": number, "width": 400},
        "read_upload": {"image": number},
        "build_report": {"month": "2026-10", "rows": number},
        "charge_card": {"order": number, "amount": number / 10, "currency": "EUR"},
    }
    identity = new_id()
    payload = json.dumps({"args": [], "kwargs": arguments[task]}).encode()
    options = StoredOptions(max_attempts=3, tags=("checkout",) if queue == "billing" else ())
    if keep is not None:
        options = msgspec.structs.replace(options, keep_completed=keep, keep_failed=keep)
    return NewJob(queue=queue, id=identity, request_id=identity, task=task, payload=payload, options=options)


def _settlement(
    dice: random.Random, job: JobRecord, took: int, bad: float, at_ms: int, delay_ms: int
) -> Settlement:
    base: dict[str, Any] = {"queue": job.queue, "id": job.id, "token": job.token, "duration_ms": took}
    if dice.random() >= bad:
        return Settlement(outcome=Outcome.COMPLETE, result=b'"done"', **base)
    name, message = _ERRORS[job.task]
    error = ErrorInfo(
        at_ms=at_ms,
        attempt=job.attempts + 1,
        error_class=name,
        message=message,
        traceback=_TRACEBACK.replace("{name}", name).replace("{message}", message),
        fingerprint=fingerprint(name, message),
    )
    if dice.random() < 0.5:
        return Settlement(outcome=Outcome.FAIL, error=error, reason="attempts", **base)
    return Settlement(outcome=Outcome.RETRY, error=error, delay_ms=delay_ms, **base)

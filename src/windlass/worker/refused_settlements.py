"""Settles jobs one by one, after the store has refused to settle them as a batch.

Settlements are sent in batches. If the store is unreachable (``StorageError``), the batch is sent again
later. Any other error means that something in the batch cannot be stored, so the same batch would fail again.
Then each settlement is sent alone, once. One that is refused becomes a plain failure that contains the
reason. If that is refused too, the lease expires, and the job's ``max_stalls`` limits how often this can
happen.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from windlass.backend import requests as rq
from windlass.core.job import error_info
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.probe import reach
from windlass.core.text import clean_text, printable
from windlass.core.tracebacks import name_of
from windlass.errors import StorageError

log: Final = logging.getLogger("windlass.worker")

Call = Callable[[rq.Request[Any]], Awaitable[Any]]
#: The reason of a job that failed because the store refused its settlement.
REFUSED: Final = "settlement_refused"


async def settle_one_by_one(call: Call, settlements: list[Settlement], cause: Exception) -> rq.SettleResult:
    """Settle each job alone, after the store refused them together because of ``cause``.

    A refused settlement is replaced in ``settlements`` by the failure that was sent instead. Raises
    ``StorageError`` when the store becomes unreachable; then all can be sent again.
    """
    log.warning(
        "the store refused a batch of %d settlements (%s): they are sent one by one",
        *(len(settlements), _printed(cause)),
    )
    result = rq.SettleResult(items=[])
    for at, end in enumerate(settlements):
        settlements[at], one = await _settle_one(call, end)
        result.items += one.items
        result.relay = result.relay or one.relay
    reach("worker.settled_apart", count=len(settlements))
    return result


async def _settle_one(call: Call, end: Settlement) -> tuple[Settlement, rq.SettleResult]:
    """Settle one job, as a failure if the store refuses it. Returns what was sent and the answer."""
    try:
        return end, await _send(call, end)
    except StorageError:
        raise
    except Exception as exc:
        log.error("job %r: the store refused how its attempt ended: %s", end.id, _printed(exc))
        failed = as_refused(end, exc)
    try:
        return failed, await _send(call, failed)
    except StorageError:
        raise
    except Exception as exc:
        log.error("job %r: its failure was refused too, so its lease will expire: %s", end.id, _printed(exc))
        return failed, rq.SettleResult(items=[Settled.LOST])


async def _send(call: Call, end: Settlement) -> rq.SettleResult:
    result: rq.SettleResult = await call(rq.Settle(items=[end]))
    return result


def as_refused(end: Settlement, exc: Exception) -> Settlement:
    """Return the failure that replaces a settlement which the store refused. It keeps only safe fields."""
    said = f"the store refused how the attempt ended ({end.outcome}): {_printed(exc)}"
    if end.error is not None:
        said = f"{said}; the handler's error was {_text(end.error.error_class)}: {_text(end.error.said)}"
    return Settlement(
        queue=end.queue,
        id=end.id,
        token=end.token,
        outcome=Outcome.FAIL,
        duration_ms=end.duration_ms if type(end.duration_ms) is int else None,
        error=error_info("SettlementRefused", said),
        reason=REFUSED,
        facts=end.facts,
    )


def _printed(exc: BaseException) -> str:
    return f"{name_of(exc)}: {_text(exc)}"


def _text(value: object) -> str:
    return printable(clean_text(value, 500))

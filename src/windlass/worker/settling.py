"""Settling attempts that the store refuses to settle together.

Settlements go in batches. An unreachable store raises ``StorageError``: the batch is sent again when it is
back. Any other error means that something in the batch cannot be stored, and sending it again would help no
job in it: then each settlement goes alone, once. One that is refused alone becomes a plain failure that says
why. If even that is refused, the lease runs out by itself and the job's ``max_stalls`` bounds what follows.
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
#: Why a job failed whose end the store refused.
REFUSED: Final = "settlement_refused"


async def settle_apart(call: Call, ends: list[Settlement], cause: Exception) -> rq.SettleResult:
    """Settle each of ``ends`` alone, after the store refused them together because of ``cause``.

    What is refused alone is replaced in ``ends`` by the failure that was sent instead.
    Raises ``StorageError`` when the store becomes unreachable meanwhile; all can then be sent again.
    """
    log.warning(
        "the store refused %d settlements in one batch (%s): each is sent alone", len(ends), _printed(cause)
    )
    result = rq.SettleResult(items=[])
    for at, end in enumerate(ends):
        ends[at], one = await _settle_one(call, end)
        result.items += one.items
        result.relay = result.relay or one.relay
    reach("worker.settled_apart", count=len(ends))
    return result


async def _settle_one(call: Call, end: Settlement) -> tuple[Settlement, rq.SettleResult]:
    """Settle one job; what the store refuses becomes a failure with the reason. What was sent, its answer."""
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
        log.error("job %r: its failure was refused as well, so its lease runs out: %s", end.id, _printed(exc))
        return failed, rq.SettleResult(items=[Settled.LOST])


async def _send(call: Call, end: Settlement) -> rq.SettleResult:
    result: rq.SettleResult = await call(rq.Settle(items=[end]))
    return result


def as_refused(end: Settlement, exc: Exception) -> Settlement:
    """The failure that stands for a settlement which the store does not take. It keeps what fails safely."""
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

"""How long a failed job waits before its next attempt.

``n`` is the number of failed attempts so far, including this one (1 after the first failure).

* ``fixed``: the delay itself;
* ``exponential``: delay x 2^(n-1);
* ``sidekiq``: (n-1)^4 + 15 + random(0 .. 30 n) seconds, about three weeks for 25 retries;
* any other name: a function registered with the app or the worker, ``f(n, error) -> seconds | None``
  (``None`` or a negative number stops retrying).

The first two never exceed ``cap`` and are then shortened by up to ``jitter`` (0.2 = at most a fifth), so that
jobs that fail together are not all retried at the same time. No delay is longer than ``MAX_DELAY_MS``. If a
strategy raises or returns an invalid delay, that is logged and the default applies.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

log: Final = logging.getLogger("windlass.backoff")

BackoffStrategy = Callable[[int, BaseException], float | None]

#: 100 years: the maximum of all delays. With it, times fit into the integers of every store.
MAX_DELAY_MS = 100 * 366 * 86_400_000

BUILT_IN = frozenset({"fixed", "exponential", "sidekiq"})


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A retry policy as it is stored with the job."""

    type: str = "exponential"
    delay_ms: int = 2_000
    cap_ms: int = 3_600_000
    jitter: float = 0.2


DEFAULT_BACKOFF = Backoff()


def backoff_ms(
    policy: Backoff,
    failures: int,
    error: BaseException,
    strategies: Mapping[str, BackoffStrategy],
    rng: random.Random,
) -> int | None:
    """Milliseconds until the next attempt; ``None`` when a custom strategy gives up."""
    if policy.type == "sidekiq":
        return min(((failures - 1) ** 4 + 15) * 1000 + rng.randint(0, 30_000 * failures), MAX_DELAY_MS)
    if policy.type == "fixed":
        base = float(policy.delay_ms)
    elif policy.type == "exponential":
        # 2^40 x 1 ms is beyond every cap, so doubling can stop before the number gets too large.
        base = policy.delay_ms * 2.0 ** min(failures - 1, 40)
    else:
        return _custom_ms(policy.type, failures, error, strategies)
    return min(max(round(min(base, policy.cap_ms) * rng.uniform(1 - policy.jitter, 1)), 0), MAX_DELAY_MS)


def _custom_ms(
    name: str, failures: int, error: BaseException, strategies: Mapping[str, BackoffStrategy]
) -> int | None:
    strategy = strategies.get(name)
    if strategy is None:
        # Only a newer release or another worker has this strategy. Use the default rather than lose the job.
        log.warning("no backoff strategy %r is registered here: the default backoff applies", name)
        return default_ms(failures)
    try:
        return _to_ms(strategy(failures, error))
    except BaseException:
        # A broken strategy must not lose the job, so the default applies.
        log.exception("the backoff strategy %r failed: the default backoff applies", name)
        return default_ms(failures)


def _to_ms(seconds: object) -> int | None:
    """The return value of a strategy in milliseconds. Raises ``ValueError`` if it is not a valid delay."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or math.isnan(seconds):
        raise ValueError(f"it returned a {type(seconds).__name__}, which is not a number of seconds")
    if seconds > MAX_DELAY_MS / 1000:
        raise ValueError("it returned more than 100 years")
    return None if seconds < 0 else round(seconds * 1000)


def default_ms(failures: int) -> int:
    """The delay of the default policy, for when the job's own policy cannot be used."""
    delay_ms = backoff_ms(DEFAULT_BACKOFF, failures, Exception(), {}, random.Random(failures))
    assert delay_ms is not None
    return delay_ms

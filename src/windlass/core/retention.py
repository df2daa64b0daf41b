"""When a finished record may be removed. The rule is the same for every store.

A record stays while its result may be read: for at least ``GRACE_MS``, and for an explicit ``result_ttl``.
After that it is removed when it is older than the ``age`` of its keep rule, or when ``count`` newer records
of the same queue and state exist (the rule of the newest finished job decides the count).

A completed job that keeps neither record nor result is removed when it is settled: see ``core.stubs``.
"""

from __future__ import annotations

from windlass.core.option_values import DEFAULT_RESULT_TTL_MS, GRACE_MS
from windlass.core.options import StoredOptions


def result_until(options: StoredOptions, now_ms: int) -> int:
    """Until when the result of a job that completes now may be read."""
    ttl = DEFAULT_RESULT_TTL_MS if options.result_ttl_ms is None else options.result_ttl_ms
    return now_ms + ttl


def goes_at_once(options: StoredOptions) -> bool:
    """Whether the record of a job is removed as soon as the job completes."""
    keep = options.keep_completed
    return options.result_ttl_ms == 0 and (keep.age_ms == 0 or keep.count == 0)


def keep_until(options: StoredOptions, state: str, now_ms: int) -> int | None:
    """When a job that finishes now is too old to be kept (None: never)."""
    age = options.keep_for(state).age_ms
    return None if age is None else max(now_ms + age, spare_until(options, now_ms))


def spare_until(options: StoredOptions, now_ms: int) -> int:
    """Until when the record of a job that finishes now is kept, even beyond the count."""
    return now_ms + max(GRACE_MS, options.result_ttl_ms or 0)

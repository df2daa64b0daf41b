"""When a finished record may go. One rule for every store.

A record stays while its result may be read: for ``GRACE_MS`` at least, and for an explicit ``result_ttl``.
After that it goes when it is older than the ``age`` of its keep rule, or when ``count`` newer ones of the
same queue and state exist (the rule of the newest finished job decides the count).

A completed job that keeps neither its record nor its result goes with its settlement: see ``core.stubs``.
"""

from __future__ import annotations

from windlass.core.option_values import DEFAULT_RESULT_TTL_MS, GRACE_MS
from windlass.core.options import StoredOptions


def result_until(options: StoredOptions, now_ms: int) -> int:
    """Until when the result of a job that completes now may be read."""
    ttl = DEFAULT_RESULT_TTL_MS if options.result_ttl_ms is None else options.result_ttl_ms
    return now_ms + ttl


def goes_at_once(options: StoredOptions) -> bool:
    """Whether the record of a job that completes need not stay."""
    keep = options.keep_completed
    return options.result_ttl_ms == 0 and (keep.age_ms == 0 or keep.count == 0)


def keep_until(options: StoredOptions, state: str, now_ms: int) -> int | None:
    """When a record that finishes now is too old (None: never)."""
    age = options.keep_for(state).age_ms
    return None if age is None else max(now_ms + age, spare_until(options, now_ms))


def spare_until(options: StoredOptions, now_ms: int) -> int:
    """Before this instant not even the count bound removes a record that finishes now."""
    return now_ms + max(GRACE_MS, options.result_ttl_ms or 0)

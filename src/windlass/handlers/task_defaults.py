"""Fills in a task's options for jobs that were added by name and did not set them."""

from __future__ import annotations

import msgspec

from windlass.core.options import ALL_UNSAID, FILLABLE, JobOptions, StoredOptions
from windlass.core.outcome import Filled

#: The fields of ``StoredOptions`` behind ``FILLABLE``, in its order.
_STORED = ("max_attempts", "backoff", "timeout_ms", "result_ttl_ms", "keep_completed", "keep_failed")
assert len(_STORED) == len(FILLABLE)


class TaskDefaults:
    """The options of a task that a worker fills in."""

    __slots__ = ("_said", "_stored")

    def __init__(self, options: JobOptions) -> None:
        self._stored: StoredOptions = options.stored()
        self._said: int = ALL_UNSAID & ~self._stored.unsaid

    def fill(self, options: StoredOptions) -> tuple[StoredOptions, Filled | None]:
        """Return the complete options of a job, and the values that are sent to the store with its
        settlement.
        """
        bits = options.unsaid & self._said
        if not bits:
            return options, None
        values = {name: getattr(self._stored, name) for at, name in enumerate(_STORED) if bits >> at & 1}
        given = {name: values[name] for name in Filled.__struct_fields__ if name in values}
        return msgspec.structs.replace(options, **values), Filled(**given) if given else None

"""How attempts end and how requests about single jobs are answered."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from windlass.core.job import ErrorInfo, WorkerFacts
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.text import clean_text
from windlass.errors import ConfigError


class AddOutcome(StrEnum):
    """The outcome of an ``add``."""

    QUEUED = "queued"
    DUPLICATE = "duplicate"
    REPLACED = "replaced"
    CACHED = "cached"
    #: Not added: its group is full.
    REFUSED = "refused"
    #: Not added: its group is ordered, and it has a priority or is ``lifo``.
    OUT_OF_ORDER = "out_of_order"


class Outcome(StrEnum):
    """How a worker ends an attempt."""

    COMPLETE = "complete"
    FAIL = "fail"
    RETRY = "retry"
    SNOOZE = "snooze"
    RELEASE = "release"
    CANCEL = "cancel"
    WAIT = "wait"
    SUSPEND = "suspend"


class Filled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options that the worker's task sets for a job that left them open. None: keep the stored value."""

    result_ttl_ms: int | None = None
    keep_completed: Keep | None = None
    keep_failed: Keep | None = None

    def over(self, options: StoredOptions) -> StoredOptions:
        """``options`` with the values that are set here."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(options, **said)


class Settlement(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The end of one attempt, under its lease token.

    * ``complete``: completed, with ``result``;
    * ``fail``: failed without another attempt, with ``error`` and ``reason``;
    * ``retry``: attempts + 1, ``retrying`` for ``delay_ms``; with 0, waiting at the back of its priority;
    * ``snooze``: ``scheduled`` for ``delay_ms`` (0: waiting, at the back); uses no attempt;
    * ``release``: waiting at its old place, or ``scheduled`` for ``delay_ms``; uses no attempt;
    * ``cancel``: cancelled, with ``reason``;
    * ``wait``: ``blocked`` until the jobs that it depends on have ended; uses no attempt. If none of them is
      open, the job is waiting again at once. If one did not complete and its edge says so, the job fails. If
      none is open for the second time, and no dependency was added since, the attempt fails: as ``retry``
      with ``delay_ms`` or, with a ``reason``, as ``fail``;
    * ``suspend``: ``suspended`` until ``signal`` arrives, for at most ``delay_ms`` (0: no limit); uses no
      attempt. If the signal has arrived before, the job is waiting at once.

    If a caller has cancelled the job in the meantime, it ends as cancelled, except for ``complete`` and
    ``fail``.
    """

    queue: str
    id: str
    token: str
    outcome: Outcome
    duration_ms: int | None = None
    result: bytes | None = None
    delay_ms: int = 0
    error: ErrorInfo | None = None
    reason: str = ""
    #: False: the failure is not the handler's fault and is not counted in ``attempts``.
    uses_attempt: bool = True
    #: True: the worker has no handler for the task. The release is counted in ``misses``.
    miss: bool = False
    #: If positive, no other job of the group starts for this long.
    hold_ms: int = 0
    #: The name of the signal that a suspended job waits for.
    signal: str = ""
    #: Values of the worker's task for options that the caller of the add left out.
    filled: Filled | None = None
    #: Facts about the worker, for the history record.
    facts: WorkerFacts | None = None


def to_reason(reason: object) -> str:
    """A caller's reason for a change, cleaned and bounded. Raises ``ConfigError`` if it is not a text."""
    if not isinstance(reason, str):
        raise ConfigError("reason", "a text", reason)
    return clean_text(reason)


class Settled(StrEnum):
    """The answer for one settlement."""

    OK = "ok"
    #: This token has settled before (the reply was lost). Nothing changed now.
    ALREADY = "already"
    #: Another lease is newer, or the lease expired and was recovered.
    LOST = "lost"
    #: The job has no record any more.
    GONE = "gone"


class Extended(StrEnum):
    """The answer for one lease extension."""

    OK = "ok"
    #: The lease is extended, but the worker must cancel the job.
    CANCELLING = "cancelling"
    LOST = "lost"


class CancelResult(StrEnum):
    """The answer to ``cancel``."""

    CANCELLED = "cancelled"
    #: The job is active. Its worker was notified and will stop it.
    CANCELLING = "cancelling"
    FINISHED = "finished"
    NOT_FOUND = "not_found"

    @property
    def code(self) -> str:
        """The name that other systems use: ``cancelled``, ``processing``, ``completed``, ``not_found``."""
        return _CANCEL_CODES.get(self.value, self.value)


_CANCEL_CODES = {"cancelling": "processing", "finished": "completed"}


class Changed(StrEnum):
    """The answer to a change of one job."""

    OK = "ok"
    NOT_FOUND = "not_found"
    #: The job's state does not allow it.
    ILLEGAL = "illegal"
    #: The given token is not the current lease.
    LOST = "lost"
    #: The job's group is ordered, so its priority cannot be changed.
    ORDERED = "ordered"

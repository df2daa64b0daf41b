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
    """What became of an ``add``."""

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
        """``options`` with what is said here."""
        said = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(options, **said)


class Settlement(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The end of one attempt, under its lease token.

    * ``complete``: completed, with ``result``;
    * ``fail``: failed for good, with ``error`` and ``reason``;
    * ``retry``: attempts + 1, ``retrying`` until ``delay_ms`` passed; with 0, waiting at the back of its
      priority;
    * ``snooze``: ``scheduled`` until ``delay_ms`` passed (0: waiting, at the back); costs no attempt;
    * ``release``: waiting at its old place, or ``scheduled`` for ``delay_ms``; costs no attempt;
    * ``cancel``: cancelled, with ``reason``;
    * ``wait``: ``blocked`` until the jobs that it depends on have ended (at once waiting again when none is
      open, failed when one of them did not complete and its edge says so); costs no attempt. The second time
      that none is open, and no other was added since, the attempt has failed: as ``retry`` with ``delay_ms``,
      or, with a ``reason``, as ``fail``;
    * ``suspend``: ``suspended`` until ``signal`` comes or ``delay_ms`` passed (0: no limit); waiting at once
      when that signal came before; costs no attempt.

    When cancellation was asked for meanwhile, all but ``complete`` and ``fail`` end as cancelled.
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
    #: False: a failure that is not the handler's fault leaves ``attempts`` alone.
    uses_attempt: bool = True
    #: True: this release is due to a missing handler and counts in ``misses``.
    miss: bool = False
    #: More than 0: nothing else of the job's group starts for this long.
    hold_ms: int = 0
    #: The name of the signal that a suspended job waits for.
    signal: str = ""
    #: What the task of the worker says of options that the job left unsaid.
    filled: Filled | None = None
    #: What the worker says of itself, for the record of the attempt.
    facts: WorkerFacts | None = None


def to_reason(reason: object) -> str:
    """A reason that a caller gives for a change: clean and bounded; ``ConfigError`` when it is no text."""
    if not isinstance(reason, str):
        raise ConfigError("reason", "a text", reason)
    return clean_text(reason)


class Settled(StrEnum):
    """The answer for one settlement."""

    OK = "ok"
    #: This token settled before: the reply was lost, nothing changed now.
    ALREADY = "already"
    #: Another lease is newer, or the lease expired and was recovered.
    LOST = "lost"
    #: The record is no longer there.
    GONE = "gone"


class Extended(StrEnum):
    """The answer for one lease extension."""

    OK = "ok"
    #: Extended, and the job is to be cancelled.
    CANCELLING = "cancelling"
    LOST = "lost"


class CancelResult(StrEnum):
    """The answer to ``cancel``."""

    CANCELLED = "cancelled"
    #: It runs: its worker was notified and will stop it.
    CANCELLING = "cancelling"
    FINISHED = "finished"
    NOT_FOUND = "not_found"

    @property
    def code(self) -> str:
        """In words of other systems: ``cancelled``, ``processing``, ``completed``, ``not_found``."""
        return _CANCEL_CODES.get(self.value, self.value)


_CANCEL_CODES = {"cancelling": "processing", "finished": "completed"}


class Changed(StrEnum):
    """The answer to a change of one job."""

    OK = "ok"
    NOT_FOUND = "not_found"
    #: The job's state does not allow it.
    ILLEGAL = "illegal"
    #: A token was given and is not the newest.
    LOST = "lost"
    #: The job's group is ordered: no priority counts there.
    ORDERED = "ordered"

"""Numbers for states, outcomes and the like, as server functions store and return them.

Stored records contain them: never change one, only add new ones. The Lua files get them from here, see
``words.py``.
"""

from __future__ import annotations

from windlass.core.edges import EdgeStatus, OnFailure
from windlass.core.job import AttemptOutcome, EventType
from windlass.core.option_values import UniqueMode
from windlass.core.outcome import AddOutcome, CancelResult, Changed, Extended, Outcome, Settled
from windlass.core.states import JobState

STATES = {
    1: JobState.WAITING,
    2: JobState.SCHEDULED,
    3: JobState.RETRYING,
    4: JobState.BLOCKED,
    5: JobState.PARKED,
    6: JobState.ACTIVE,
    7: JobState.COMPLETED,
    8: JobState.FAILED,
    9: JobState.CANCELLED,
    10: JobState.SUSPENDED,
}
STATE_NUMBERS = {state: number for number, state in STATES.items()}

ADD_OUTCOMES = (
    AddOutcome.QUEUED,
    AddOutcome.DUPLICATE,
    AddOutcome.CACHED,
    AddOutcome.REPLACED,
    AddOutcome.REFUSED,
    AddOutcome.OUT_OF_ORDER,
)
#: Not a state of a stored job: a head has it while a server function moves the job between indexes.
NOWHERE = 0

#: Answers of ``flow_look`` besides the first three outcomes: the job would be new, or only its id is kept.
WOULD_BE_NEW, ONLY_ID_KEPT = 3, 4

UNIQUE_MODES = {
    1: UniqueMode.UNTIL_DONE,
    2: UniqueMode.UNTIL_START,
    3: UniqueMode.THROTTLE,
    4: UniqueMode.DEBOUNCE,
    5: UniqueMode.KEEP_LAST,
}
UNIQUE_NUMBERS = {mode: number for number, mode in UNIQUE_MODES.items()}
#: Answers with one character for each item.
SETTLED = {ord("0"): Settled.OK, ord("1"): Settled.ALREADY, ord("2"): Settled.LOST, ord("3"): Settled.GONE}
EXTENDED = {ord("0"): Extended.OK, ord("1"): Extended.CANCELLING, ord("2"): Extended.LOST}
CANCELLED = {
    ord("0"): CancelResult.CANCELLED,
    ord("1"): CancelResult.CANCELLING,
    ord("2"): CancelResult.FINISHED,
    ord("3"): CancelResult.NOT_FOUND,
}
CHANGED = (Changed.OK, Changed.NOT_FOUND, Changed.ILLEGAL, Changed.LOST, Changed.ORDERED)

OUTCOME_NUMBERS = {
    Outcome.COMPLETE: 1,
    Outcome.FAIL: 2,
    Outcome.RETRY: 3,
    Outcome.SNOOZE: 4,
    Outcome.RELEASE: 5,
    Outcome.CANCEL: 6,
    Outcome.WAIT: 7,
    Outcome.SUSPEND: 8,
}
#: A completion that also holds its group.
COMPLETE_AND_HOLD = 9

#: By position.
ON_FAILURE = (OnFailure.FAIL, OnFailure.IGNORE, OnFailure.CONTINUE)
EDGE_STATUS = (EdgeStatus.OPEN, EdgeStatus.DONE, EdgeStatus.FAILED, EdgeStatus.IGNORED)

ATTEMPT_OUTCOMES = {
    1: AttemptOutcome.COMPLETED,
    2: AttemptOutcome.RETRYING,
    3: AttemptOutcome.FAILED,
    4: AttemptOutcome.CANCELLED,
    5: AttemptOutcome.SNOOZED,
    6: AttemptOutcome.RELEASED,
    7: AttemptOutcome.STALLED,
    8: AttemptOutcome.EXPIRED,
}

#: Number of an event -> its type and the names of the values after id and task. 0 means "none" for a name
#: that ends in ``_ms``.
EVENTS: dict[int, tuple[EventType, tuple[str, ...]]] = {
    1: (EventType.ENQUEUED, ("reason",)),
    2: (EventType.SCHEDULED, ("run_at_ms", "reason")),
    3: (EventType.PROMOTED, ()),
    4: (EventType.STARTED, ("attempt", "worker")),
    5: (EventType.PROGRESS, ("progress",)),
    6: (EventType.RETRYING, ("attempt", "error_class", "message", "run_at_ms")),
    7: (EventType.COMPLETED, ()),
    8: (EventType.FAILED, ("reason", "error_class", "message")),
    9: (EventType.CANCELLED, ("reason",)),
    10: (EventType.CANCELLING, ("reason",)),
    11: (EventType.STALLED, ("worker", "stalls", "run_at_ms")),
    12: (EventType.RELEASED, ("reason", "run_at_ms")),
    13: (EventType.PARKED, ("reason",)),
    14: (EventType.DEDUPLICATED, ()),
    15: (EventType.CHANGED, ("what", "priority")),
    16: (EventType.REMOVED, ("state",)),
    17: (EventType.PAUSED, ()),
    18: (EventType.RESUMED, ()),
    19: (EventType.DRAINED, ()),
    20: (EventType.BLOCKED, ("reason",)),
    21: (EventType.SUSPENDED, ("reason", "run_at_ms")),
    22: (EventType.CUSTOM, ("name", "data")),
}

#: First bytes: of the record of a plain job, of its head, and of a hint that contains completed jobs.
PLAIN, LEAN, NEWS = 255, 1, 1

#: Flags in the answer of ``add_plain``: the queue is new, the job was added alone, it was handed to an idle
#: worker.
NEW_QUEUE, ALONE, GIVEN_AWAY = 1, 2, 4

#: Flags of a claim about handoffs: register the worker as idle, end its registration.
TAKE, LEAVE = 1, 2
#: In the answer to a claim: the worker was registered.
TAKEN = 2
#: The token of a job that was handed to a worker is the id of the registering claim and this.
GIVEN = ".g.0"

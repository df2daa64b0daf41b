"""What clients and server functions hand each other, field by field.

Each of these travels as an array. The Lua files know a field by the name that it has here: ``words.py`` makes
their positions out of these classes, so a field is added here and nowhere else. Never move one: records that
are stored have it in its place. New fields go to the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Head(msgspec.Struct, array_like=True):
    """What the server knows of a job; 0 and '' stand for "none".

    The first ten fields are written by ``add``. In a head as added, place 0 means "as seq" and ready 0 "as
    enqueued". Fields behind ``reason`` are there once one of them is needed.
    """

    state: int
    seq: int
    place: int
    priority: int
    enqueued_ms: int
    ready_ms: int
    due_ms: int
    expires_ms: int
    task: str
    #: 0: all as usual; else the fields of ``Options``.
    options: int | list[Any]
    attempts: int = 0
    deliveries: int = 0
    stalls: int = 0
    manual_retries: int = 0
    misses: int = 0
    token: str = ""
    settled_token: str = ""
    worker: str = ""
    started_ms: int = 0
    finished_ms: int = 0
    #: "=" and the reason, once a caller asked for it.
    cancel: str = ""
    result_until_ms: int = 0
    reason: str = ""
    linked: int = 0
    awaits: str = ""
    signals: int = 0
    streamed: int = 0
    turn: int = 0
    #: 0, or what it waited for so far, see ``core.queue_time``.
    queue_time: list[int] | int = 0


#: The number of fields in every head that is not as it was added.
HEAD_SIZE = Head.__struct_fields__.index("reason") + 1


class Options(NamedTuple):
    """Options that the server must know; -1 stands for "none".

    A number that ``StoredOptions`` has under the same name is sent without a further line of code.

    Those from ``group`` on are there for jobs of which one is not as its default here: they overrule what the
    record says. Earlier releases did not write the last ones.
    """

    lease_ms: int
    max_stalls: int
    result_ttl_ms: int
    keep_completed_ms: int
    keep_completed_count: int
    keep_failed_ms: int
    keep_failed_count: int
    keep_id_ms: int
    #: 0: none.
    tags: tuple[str, ...] | int
    #: Of the result; 0: json.
    codec: str | int
    #: 0: none.
    group: str | int = 0
    cost: int = 1
    #: 0: none; else the fields of ``PackedUnique``.
    unique: Any = 0
    lifo: int = 0
    expires_total_ms: int = -1
    stall_delay_ms: int = 0
    #: For history; 0: none. The schedule and its slot, the job that waits for this one, the top of its flow.
    schedule: str | int = 0
    slot_ms: int = -1
    parent: str | int = 0
    root: str | int = 0


#: The number of options that all jobs have.
OPTIONS_SIZE = Options._fields.index("group")
#: What the others are where a job does not have them.
OPTIONS_LEFT_OUT = tuple(Options._field_defaults.values())


class PackedUnique(NamedTuple):
    """A unique key; a ttl of -1: none."""

    key: str
    mode: int
    ttl_ms: int


class Wanted(NamedTuple):
    """A job to be added: the part that the server reads. What has a default is for jobs of a flow."""

    #: Which of the call's queues.
    queue: int
    id: str
    task: str
    priority: int
    delay_ms: int
    #: -1: none.
    run_at_ms: int
    #: -1: none.
    expires_in_ms: int
    #: 0, or the fields of ``Options``.
    options: int | tuple[Any, ...]
    lifo: int
    #: 0 plain, 1 linked, 2 born blocked.
    kind: int = 0
    #: Queue, id, on failure of each job that it waits for.
    edges: Any = ()
    #: Queue, id, on failure of the job that waits for it, or 0.
    parent: Any = 0
    #: Queue, id, sequence of jobs of other slots that wait for it.
    links: Any = ()
    #: 1: it names jobs that it depends on, whether they count for this mention of it or not.
    waits: int = 0
    #: 1: a later mention of its id in the same request makes the job, this one is kept out; 2: an earlier one
    #: makes it.
    out: int = 0


class Restored(NamedTuple):
    """A job that is put back as it was."""

    #: Which of the call's queues.
    queue: int
    id: str
    head: Head
    request_id: str
    #: 0: none.
    result: Any
    progress: Any
    errors: Any
    #: Name, value, name, value, ...
    signals: tuple[Any, ...]


class Failure(NamedTuple):
    """What is said of an error; ``brief`` is what events say of it, ``said`` what history says (0: that)."""

    error_class: str
    message: str
    traceback: str
    fingerprint: str
    brief: str
    said: str | int = 0


class End(NamedTuple):
    """The end of an attempt."""

    #: Which of the call's queues.
    queue: int
    id: str
    token: str
    outcome: int
    #: -1: not known.
    duration_ms: int
    #: 0: none.
    result: Any
    delay_ms: int
    #: Of a suspension: the signal that it waits for.
    reason: str
    uses_attempt: int
    miss: int
    #: 0: none.
    error: int | Failure
    hold_ms: int
    #: 0, or ``Options`` from ``result_ttl_ms`` to ``keep_failed_count``, each -2 where the job's own holds.
    filled: int | tuple[int, ...] = 0
    #: What the worker says of itself, see ``settlements.facts_text``; 0: nothing.
    facts: str | int = 0


class GroupLimit(NamedTuple):
    """The limits of a group; 0: no such limit. ``refill`` is in millionths of tokens per millisecond."""

    #: As it was said.
    text: str
    most: int
    rate: int
    per_ms: int
    capacity: int
    refill: int
    ordered: int
    size: int
    skip: int


class EdgeRow(NamedTuple):
    """An edge as its dependent keeps it, except for the value of the child."""

    number: int
    #: Of the child; 0: not known yet.
    seq: int
    on_failure: int
    status: int
    codec: str
    reason: str
    error: str
    has_value: int


class Fate(NamedTuple):
    """How a child ended."""

    seq: int
    completed: int
    codec: Any
    reason: Any
    error: Any
    has_value: int
    value: bytes


class ScheduleState(msgspec.Struct, array_like=True):
    """What the server knows of a schedule; -1 and '' stand for "none"."""

    paused: int
    next_ms: int
    last_ms: int
    last_job_id: str
    fired: int
    skipped: int
    end_ms: int
    limit: int
    alone: int
    source: str
    rule: str

"""The fields of the arrays that clients and server functions exchange and store.

The Lua files use the names of the fields: ``words.py`` derives their positions from these classes, so a new
field is only added here. Add it at the end and never move a field, because stored records have the old
positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec


class Head(msgspec.Struct, array_like=True):
    """The part of a job that the server changes; 0 and '' mean "none".

    ``add`` writes the first ten fields. There a place of 0 means "as seq", and a ready time of 0 "as
    enqueued". Fields after ``reason`` are only stored once one of them is needed.
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
    #: 0 if all are defaults, else the fields of ``Options``.
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
    #: "=" and the reason, once a caller has asked to cancel the job.
    cancel: str = ""
    result_until_ms: int = 0
    reason: str = ""
    linked: int = 0
    awaits: str = ""
    signals: int = 0
    streamed: int = 0
    turn: int = 0
    #: 0, or the queue time so far, see ``core.queue_time``.
    queue_time: list[int] | int = 0


#: The number of fields that every head has once it was changed.
HEAD_SIZE = Head.__struct_fields__.index("reason") + 1


class Options(NamedTuple):
    """Options that the server needs; -1 means "none".

    A number that ``StoredOptions`` has under the same name is sent without further code.

    The fields from ``group`` on are stored if one of them differs from its default here. They override the
    options in the record. Earlier releases did not write the last fields.
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
    #: The codec of the result; 0: json.
    codec: str | int
    #: 0: none.
    group: str | int = 0
    cost: int = 1
    #: 0: none; else the fields of ``PackedUnique``.
    unique: Any = 0
    lifo: int = 0
    expires_total_ms: int = -1
    stall_delay_ms: int = 0
    #: For the history: schedule and slot, the parent, the root of the flow. 0: none.
    schedule: str | int = 0
    slot_ms: int = -1
    parent: str | int = 0
    root: str | int = 0


#: The number of options that are always stored if any are.
OPTIONS_SIZE = Options._fields.index("group")
#: The values of the other options where they are not stored.
OPTIONS_LEFT_OUT = tuple(Options._field_defaults.values())


class PackedUnique(NamedTuple):
    """A unique key; a ttl of -1 means "none"."""

    key: str
    mode: int
    ttl_ms: int


class Wanted(NamedTuple):
    """A job to be added: the part that the server reads. Fields with a default are for jobs of a flow."""

    #: The position of its root among the keys of the call.
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
    #: 0: without edges; 1: has a parent; 2: starts as blocked.
    kind: int = 0
    #: For each job that it waits for: queue, id, on failure.
    edges: Any = ()
    #: The parent: queue, id, on failure; 0: none.
    parent: Any = 0
    #: For each job of another slot that waits for it: queue, id, sequence.
    links: Any = ()
    #: 1: it has ``depends_on``, even if ``edges`` is empty for this mention of it.
    waits: int = 0
    #: If the request mentions its id again: 1 if a later mention creates the job (this one is kept out), 2 if
    #: an earlier one does.
    out: int = 0


class Restored(NamedTuple):
    """A job that is restored."""

    #: The position of its root among the keys of the call.
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
    """An error: ``brief`` is its message for events, ``said`` the one for history (0: the same)."""

    error_class: str
    message: str
    traceback: str
    fingerprint: str
    brief: str
    said: str | int = 0


class End(NamedTuple):
    """The end of an attempt."""

    #: The position of its root among the keys of the call.
    queue: int
    id: str
    token: str
    outcome: int
    #: -1: unknown.
    duration_ms: int
    #: 0: none.
    result: Any
    delay_ms: int
    #: For a suspension: the name of the signal that it waits for.
    reason: str
    uses_attempt: int
    miss: int
    #: 0: none.
    error: int | Failure
    hold_ms: int
    #: 0, or ``Options`` from ``result_ttl_ms`` to ``keep_failed_count``; -2 keeps the job's own value.
    filled: int | tuple[int, ...] = 0
    #: Facts of the worker, see ``settlements.facts_text``; 0: none.
    facts: str | int = 0


class GroupLimit(NamedTuple):
    """The limits of a group; 0 means no limit. ``refill`` is in millionths of a token per millisecond."""

    #: The limits as JSON, as they were set.
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
    """An edge as its dependent stores it, without the value of the child."""

    number: int
    #: The sequence of the child; 0: not known yet.
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
    """The part of a schedule that the server reads and changes; -1 and '' mean "none"."""

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

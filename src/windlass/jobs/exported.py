"""Jobs as lines of JSON, which ``windlass jobs --export`` writes and ``windlass enqueue --file`` reads.

A line has the task's ``name``, its arguments (``data``, or ``args`` and ``kwargs`` of a call), its ``queue``
and its options by the names of ``Queue.add``, with durations in seconds. Defaults are omitted. Reading a line
creates a job with the same id, payload and options, which runs from the start. ``past`` contains the rest of
the record (state, times, attempts, errors, result); ``read_record`` restores the job with it. Log lines, live
output and history are not exported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from windlass.core.backoff import DEFAULT_BACKOFF
from windlass.core.edges import Dependency, Edge, EdgeStatus, to_dependency
from windlass.core.ids import check_task_name, new_id
from windlass.core.job import JobRecord
from windlass.core.option_values import Keep, UniqueMode, check_known
from windlass.core.options import FILLABLE, OPTION_NAMES, JobOptions, StoredOptions
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass.jobs.payload import TakenResults, pack_call, pack_data, read_call
from windlass.jobs.prepare import PreparedOptions
from windlass.serde import tag_types, untag_types

if TYPE_CHECKING:
    from windlass.core.job import NewJob
    from windlass.jobs.interfaces import JobQueue
    from windlass.serde.codecs import Codecs

#: Fields of a line besides job options. ``state`` is only shown; ``said`` lists the options that the producer
#: set, where that does not follow from their values.
_OTHER: Final = frozenset(
    {
        *("name", "queue", "data", "args", "kwargs", "takes", "types"),
        *("state", "past", "said", "schedule", "slot_ms", "placed"),
    }
)
#: Options whose stored form is not the value that users write (see ``_options``).
_COMPOSED: Final = {"backoff", "keep_completed", "keep_failed", "tags", "fallbacks", "unique", "parent"}
#: Durations: seconds in a line, milliseconds in the store.
_SECONDS: Final = tuple(
    name for name in JobOptions.__struct_fields__ if f"{name}_ms" in StoredOptions.__struct_fields__
)
_AS_THEY_ARE: Final = tuple(
    name
    for name in JobOptions.__struct_fields__
    if name in StoredOptions.__struct_fields__ and name not in _COMPOSED
)
_DEFAULTS: Final = StoredOptions()
_TIMED: Final = (JobState.SCHEDULED, JobState.RETRYING, JobState.BLOCKED)
#: Jobs in these states are restored as waiting: the lease is gone, and the group decides again.
_READY_AGAIN: Final = (JobState.ACTIVE, JobState.PARKED)


#: Fields of the record that ``past`` contains, with bytes as base64.
_PAST: Final = (
    *("enqueued_ms", "ready_ms", "due_ms", "expires_ms", "started_ms", "finished_ms"),
    *("attempts", "deliveries", "stalls", "manual_retries", "misses", "worker", "cancel_reason", "reason"),
    *("progress", "result", "result_until_ms", "errors", "awaits", "signals"),
)


def export_job(record: JobRecord, edges: Iterable[Edge], codecs: Codecs, now_ms: int) -> dict[str, Any]:
    """Return a job as a line. Raises ``ValueError`` or ``ConfigError`` if its arguments are not readable."""
    line: dict[str, Any] = {"name": record.task, **_arguments(record, codecs)}
    line |= {"queue": record.queue, "job_id": record.id, "state": record.state.value}
    line |= _options(record.options)
    if record.priority:
        line["priority"] = record.priority
    unique = record.options.unique
    debounced = (
        unique is not None and unique.mode is UniqueMode.DEBOUNCE
    )  # the ttl of the key decides when it runs
    if record.state in _TIMED and record.due_ms is not None and not debounced:
        line["run_at"] = record.due_ms / 1000
    if record.expires_ms is not None:
        line["expires_in"] = max(record.expires_ms - now_ms, 1) / 1000
    waits_for = [edge for edge in edges if edge.status is EdgeStatus.OPEN]
    if waits_for:
        line["depends_on"] = [[edge.child.queue, edge.child.id, edge.on_failure.value] for edge in waits_for]
    past = {name: getattr(record, name) for name in _PAST}
    known = {name: value for name, value in past.items() if value not in (None, 0, "", [], {})}
    return {**line, "past": msgspec.to_builtins(known)}


def _arguments(record: JobRecord, codecs: Codecs) -> dict[str, Any]:
    call = read_call(codecs, record)
    plain: dict[str, Any] = (
        {"args": call.args, "kwargs": call.kwargs} if call.form == "call" else {"data": call.data}
    )
    try:
        tagged = tag_types(plain)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None
    said = plain if tagged == plain else {**tagged, "types": True}
    return said if call.takes is None else {**said, "takes": msgspec.to_builtins(call.takes)}


def _options(stored: StoredOptions) -> dict[str, Any]:
    """Return options that differ from their defaults, by the names and in the units of ``Queue.add``."""
    found: dict[str, Any] = {}
    for name in _AS_THEY_ARE:
        if getattr(stored, name) != getattr(_DEFAULTS, name):
            found[name] = getattr(stored, name)
    for name in _SECONDS:
        if getattr(stored, f"{name}_ms") != getattr(_DEFAULTS, f"{name}_ms"):
            found[name] = getattr(stored, f"{name}_ms") / 1000
    for name in ("keep_completed", "keep_failed"):
        keep: Keep = getattr(stored, name)
        if keep != getattr(_DEFAULTS, name):
            found[name] = {"age": None if keep.age_ms is None else keep.age_ms / 1000, "count": keep.count}
    for name in ("tags", "fallbacks"):
        if getattr(stored, name):
            found[name] = list(getattr(stored, name))
    found |= _composed(stored)
    said = [name for bit, name in enumerate(FILLABLE) if not stored.unsaid & 1 << bit]
    if set(said) != found.keys() & set(FILLABLE):
        found["said"] = said
    return found


def _composed(stored: StoredOptions) -> dict[str, Any]:
    """Return options that consist of several values."""
    found: dict[str, Any] = {}
    if stored.backoff != DEFAULT_BACKOFF:
        back = stored.backoff
        cap, delay = back.cap_ms / 1000, back.delay_ms / 1000
        found["backoff"] = {"type": back.type, "delay": delay, "cap": cap, "jitter": back.jitter}
    if stored.unique is not None:
        one = stored.unique
        ttl = None if one.ttl_ms is None else one.ttl_ms / 1000
        found["unique"] = {"key": one.key, "mode": one.mode.value, "ttl": ttl}
        if one.extend:
            found["unique"]["extend"] = True
    if stored.schedule is not None:
        found |= {"schedule": stored.schedule, "slot_ms": stored.slot_ms}
    if stored.parent is not None or stored.root is not None:
        found["placed"] = {"parent": stored.parent, "root": stored.root}
    return found


def read_job(queue: JobQueue, line: Mapping[str, Any]) -> NewJob:
    """Return the new job of a line, for ``queue``. Raises ``ConfigError`` when the line is invalid."""
    check_known(line, OPTION_NAMES | _OTHER, "job option")
    origin = _origin(line)
    given = {name: value for name, value in line.items() if name in OPTION_NAMES}
    if "depends_on" in given:
        given["depends_on"] = [_dependency(one, queue.name) for one in given["depends_on"]]
    options = queue.defaults.merged(given)
    if origin.said is not None:
        check_known(origin.said, FILLABLE, "option that a task may fill")
        options = msgspec.structs.replace(options, said=frozenset(origin.said))
    plan = PreparedOptions(options, queue.app.backoff_strategies)
    new = plan.new_job(queue, check_task_name(line["name"]), _packed(line), new_id())
    if origin.schedule is not None:
        made_by = {"schedule": origin.schedule, "slot_ms": origin.slot_ms}
        new.options = msgspec.structs.replace(new.options, **made_by)
    if origin.placed is not None:
        check_known(origin.placed, ("parent", "root"), "part of a place in a flow")
        new.options = msgspec.structs.replace(new.options, **origin.placed)
    return new


class _Origin(msgspec.Struct):
    """Parts of a line about the job's origin, which are not job options."""

    said: list[str] | None = None
    schedule: str | None = None
    slot_ms: int | None = None
    placed: dict[str, str | None] | None = None
    takes: TakenResults | None = None
    depends_on: list[Any] = []


def _origin(line: Mapping[str, Any]) -> _Origin:
    given = {name: line[name] for name in _Origin.__struct_fields__ if name in line}
    try:
        return msgspec.convert(given, _Origin)
    except msgspec.ValidationError as exc:
        raise ConfigError("line", message=f"the line is not what an export wrote ({exc})") from exc


def read_record(queue: JobQueue, line: Mapping[str, Any]) -> NewJob | JobRecord:
    """Return the restored job of a line. A blocked job, or one without a past, is returned as a new job."""
    new = read_job(queue, line)
    check_known([line.get("state", JobState.WAITING)], [state.value for state in JobState], "job state")
    state = JobState(line.get("state", JobState.WAITING))
    if line.get("past") is None or state is JobState.BLOCKED:
        return new
    if not isinstance(line["past"], Mapping):
        raise ConfigError("past", "an object, as an export writes it", line["past"])
    check_known(line["past"], _PAST, "part of a past")
    about = {"queue": new.queue, "id": new.id, "task": new.task, "payload": new.payload}
    try:
        record = msgspec.convert({**line["past"], **about}, JobRecord)
        for name in _PAST:
            value = getattr(record, name)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise msgspec.ValidationError(f"a number of more than 64 bits - at `$.{name}`")
    except msgspec.ValidationError as exc:
        raise ConfigError("past", message=f"past is not what an export wrote ({exc})") from exc
    record.state = JobState.WAITING if state in _READY_AGAIN else state
    record.codec, record.options, record.priority = new.codec, new.options, new.priority
    record.request_id = new.request_id
    if state is JobState.ACTIVE:
        record.started_ms, record.worker = None, None
    return record


def _untagged(data: dict[str, Any]) -> dict[str, Any]:
    try:
        return {name: untag_types(value) for name, value in data.items()}
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as exc:
        why = f"types is set, but the arguments are not what an export wrote ({type(exc).__name__}: {exc})"
        raise ConfigError("types", message=why) from exc


def _packed(line: Mapping[str, Any]) -> dict[str, Any]:
    data = {name: line[name] for name in ("data", "args", "kwargs") if name in line}
    if "data" in data and len(data) > 1:
        raise ConfigError("data", message="give data, or args and kwargs, not both")
    if line.get("types"):
        data = _untagged(data)
    taken = {"takes": line["takes"]} if line.get("takes") is not None else {}
    if "data" in data or not data:
        return {**pack_data(data.get("data")), **taken}
    args, kwargs = data.get("args", []), data.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ConfigError("args", "a list, and kwargs an object", args)
    return {**pack_call(args, kwargs), **taken}


def _dependency(one: Any, queue: str) -> Dependency:
    ref, on_failure = (one[:2], one[2]) if isinstance(one, list) and len(one) == 3 else (one, "fail")
    return to_dependency(tuple(ref) if isinstance(ref, list) else ref, on_failure, queue, "depends_on")

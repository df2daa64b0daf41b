"""The constants of the Lua files: codes, positions of fields, bounds and defaults, derived from Python.

``source`` is the first part of the library: one Lua table for each subject (``HEAD.STATE``,
``EVENT.STARTED``, ``KEPT.ERRORS``). They are tables because Lua allows 200 locals, and 60 upvalues in one
function. Compared with plain numbers, adding, claiming and ending jobs takes 1.02 times as long for plain
jobs and 1.04 times for others. Constants that only the server uses are defined in the Lua files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from windlass.backends.valkey import codes, layouts, packed_options
from windlass.core import (
    bad_records,
    flow_rules,
    job,
    limit_rules,
    option_values,
    queue_time,
    rollups,
    stubs,
    transitions,
)

Value = int | str
Words = Mapping[str, Value]


def tables() -> dict[str, Words]:
    """The tables of constants, by their names in Lua."""
    return {
        "HEAD": _positions(layouts.Head.__struct_fields__),
        "STATE": {"NOWHERE": codes.NOWHERE} | _named(codes.STATES),
        "OPTION": _positions(layouts.Options._fields),
        "QUEUE_TIME": _positions(queue_time.QueueTime.__struct_fields__),
        "UNIQUE": _positions(layouts.PackedUnique._fields),
        "JOB": _positions(layouts.Wanted._fields),
        "RESTORED": _positions(layouts.Restored._fields),
        "END": _positions(layouts.End._fields),
        "FAILURE": _positions(layouts.Failure._fields),
        "EDGE": _positions(layouts.EdgeRow._fields),
        "FATE": _positions(layouts.Fate._fields),
        "GROUP_LIMIT": _positions(layouts.GroupLimit._fields),
        "SCHEDULE": _positions(layouts.ScheduleState.__struct_fields__),
        "EVENT": {_word(kind): number for number, (kind, _) in codes.EVENTS.items()},
        "RAN": _named(codes.ATTEMPT_OUTCOMES),
        "OUTCOME": {_word(one): number for one, number in codes.OUTCOME_NUMBERS.items()}
        | {"COMPLETE_AND_HOLD": codes.COMPLETE_AND_HOLD},
        "MODE": _named(codes.UNIQUE_MODES),
        "ON": _named(dict(enumerate(codes.ON_FAILURE))),
        "EDGE_IS": _named(dict(enumerate(codes.EDGE_STATUS))),
        "ADDED": _named(dict(enumerate(codes.ADD_OUTCOMES)))
        | {"WOULD_BE_NEW": codes.WOULD_BE_NEW, "ONLY_ID_KEPT": codes.ONLY_ID_KEPT},
        "CHANGED": _named(dict(enumerate(codes.CHANGED))),
        "SETTLED": _named({int(chr(code)): one for code, one in codes.SETTLED.items()}),
        "EXTENDED": _named({int(chr(code)): one for code, one in codes.EXTENDED.items()}),
        "CANCEL": _named({int(chr(code)): one for code, one in codes.CANCELLED.items()}),
        "MARK": {
            "PLAIN": codes.PLAIN,
            "LEAN": codes.LEAN,
            "LEAN_BYTE": chr(codes.LEAN),
            "NEWS": codes.NEWS,
        },
        "FLAG": {"NEW_QUEUE": codes.NEW_QUEUE, "ALONE": codes.ALONE, "GIVEN_AWAY": codes.GIVEN_AWAY},
        "HANDOFF": {"TAKE": codes.TAKE, "LEAVE": codes.LEAVE, "TAKEN": codes.TAKEN, "GIVEN": codes.GIVEN},
        "KEPT": _bounds(),
        "SAID": {
            "STALLED": transitions.STALLED_CLASS,
            "EXPIRED": transitions.EXPIRED_CLASS,
            "EXPIRES_IN": transitions.EXPIRES_IN_MESSAGE,
            "EXPIRES_TOTAL": transitions.EXPIRES_TOTAL_MESSAGE,
            "KILLED": transitions.KILLED_CLASS,
            "COST": transitions.COST_CLASS,
            "DEPENDENCY": flow_rules.DEPENDENCY_CLASS,
            "BAD_RECORD": bad_records.BAD_RECORD_CLASS,
            "CHILDLESS": flow_rules.CHILDLESS_CLASS,
            "CHILDLESS_MESSAGE": flow_rules.CHILDLESS_MESSAGE,
            "WAITED": flow_rules.WAITED,
            "REVOKED": limit_rules.REVOKED_REASON,
        },
    }


def lists() -> dict[str, Iterable[Value]]:
    """The lists of constants, by their names in Lua."""
    return {
        "USUAL": [value for value in packed_options.USUAL if isinstance(value, int | str)],
        "BLANK_HEAD": [_blank(field.type) for field in _head_fields()],
        "RAN_NAMES": [str(codes.ATTEMPT_OUTCOMES[number].value) for number in sorted(codes.ATTEMPT_OUTCOMES)],
    }


def source() -> str:
    """The constants as Lua source."""
    lines = [
        f"local STEP = {job.STEP}",
        f"local MICRO = {limit_rules.MICRO}",
        f"local BAD_RECORD = {_lua(bad_records.BAD_RECORD)}",
    ]
    for name, words in tables().items():
        fields = ", ".join(f"{word} = {_lua(value)}" for word, value in words.items())
        lines.append(f"local {name} = {{ {fields} }}")
    for name, values in lists().items():
        lines.append(f"local {name} = {{ {', '.join(_lua(value) for value in values)} }}")
    return "\n".join(lines)


def _bounds() -> Words:
    """How many entries are kept, and for how long."""
    return {
        "BRIEF": job.BRIEF_CHARS,
        "ERRORS": job.ERRORS_KEPT,
        "EVENTS": job.EVENTS_KEPT,
        "REVOKED": limit_rules.MAX_REVOKED,
        "HISTORY": job.HISTORY_KEPT,
        "HISTORY_VERSION": job.HISTORY_SCHEMA_VERSION,
        "HISTORY_MS": job.HISTORY_KEPT_MS,
        "HISTORY_HELD": job.HISTORY_HELD,
        "GRACE_MS": option_values.GRACE_MS,
        "STUBS": stubs.STUBS_KEPT,
        "STUB_MS": stubs.STUB_MS,
        "RESULT_MS": option_values.DEFAULT_RESULT_TTL_MS,
        "ROLL_UP_MS": job.ARCHIVER_KEPT_MS,
        "MINUTES_MS": rollups.KEPT_MS["minute"],
        "HOURS_MS": rollups.KEPT_MS["hour"],
    }


def _head_fields() -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(layouts.Head)[: layouts.HEAD_SIZE]


def _blank(kind: Any) -> Value:
    return "" if kind is str else 0


def _positions(fields: Iterable[str]) -> Words:
    return {field.removesuffix("_ms").upper(): at for at, field in enumerate(fields, 1)}


def _named(numbers: Mapping[int, StrEnum]) -> dict[str, Value]:
    return {_word(one): number for number, one in numbers.items()}


def _word(one: StrEnum) -> str:
    return one.name


def _lua(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    return "'" + "".join(one if one.isprintable() else f"\\{ord(one)}" for one in value) + "'"

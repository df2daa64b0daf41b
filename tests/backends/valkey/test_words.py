"""The words of the Lua files come from Python, and no Lua file types one of them again."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from windlass.backends.valkey import check, codes, keys, layouts, loader, packed_options, words
from windlass.core import (
    bad_records,
    flow_rules,
    job,
    limit_rules,
    option_values,
    options,
    rollups,
    transitions,
)
from windlass.core.states import JobState

backend_name = "valkey"

_NO_CODE = re.compile(r"'[^'\n]*'|--[^\n]*")
_TEXT = re.compile(r"'([^'\n]*)'")
#: A field of a record that only the server reads, in the table that names its fields.
_OWN_FIELD = re.compile(r"\b[A-Z][A-Z_]* = \d+,")
_COMMENT = re.compile(r"--[^\n]*")
#: Where a Lua file tells of keys of a queue and what they hold.
_KEYS = re.compile(r"^--   ((?::\S+ +)+)(hash|zset|stream|set|list)\b", re.M)


def _files() -> dict[str, str]:
    """Every Lua file as it is kept, by name."""
    found = dict(loader.include_files())
    return found | {one.name: one.body for one in loader.function_files()}


def _library() -> str:
    """The text of the library as it would be made now."""
    return loader.library_source.__wrapped__(loader.VERSION)


def _value(name: str, word: str) -> str:
    """What the library of now says for a word."""
    (table,) = re.findall(rf"^local {name} = \{{ (.*) \}}$", _library(), re.M)
    return str(dict(re.findall(r"(\w+) = ('[^']*'|\d+)", table))[word])


# --- what Python says, Lua says ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "constant", "table", "word"),
    [
        (job, "ERRORS_KEPT", "KEPT", "ERRORS"),
        (job, "EVENTS_KEPT", "KEPT", "EVENTS"),
        (job, "HISTORY_KEPT", "KEPT", "HISTORY"),
        (job, "HISTORY_KEPT_MS", "KEPT", "HISTORY_MS"),
        (job, "HISTORY_HELD", "KEPT", "HISTORY_HELD"),
        (job, "ARCHIVER_KEPT_MS", "KEPT", "ROLL_UP_MS"),
        (option_values, "GRACE_MS", "KEPT", "GRACE_MS"),
        (option_values, "DEFAULT_RESULT_TTL_MS", "KEPT", "RESULT_MS"),
        (codes, "NOWHERE", "STATE", "NOWHERE"),
        (codes, "COMPLETE_AND_HOLD", "OUTCOME", "COMPLETE_AND_HOLD"),
        (codes, "PLAIN", "MARK", "PLAIN"),
        (codes, "LEAN", "MARK", "LEAN"),
        (codes, "NEWS", "MARK", "NEWS"),
        (codes, "TAKE", "HANDOFF", "TAKE"),
        (codes, "LEAVE", "HANDOFF", "LEAVE"),
        (codes, "TAKEN", "HANDOFF", "TAKEN"),
        (codes, "ALONE", "FLAG", "ALONE"),
    ],
)
def test_a_number_that_is_changed_in_python_is_changed_in_lua(
    monkeypatch: pytest.MonkeyPatch, where: Any, constant: str, table: str, word: str
) -> None:
    before = getattr(where, constant)
    assert _value(table, word) == str(before)
    monkeypatch.setattr(where, constant, before + 7)
    assert _value(table, word) == str(before + 7)


@pytest.mark.parametrize(
    ("where", "constant", "word"),
    [
        (transitions, "STALLED_CLASS", "STALLED"),
        (transitions, "EXPIRED_CLASS", "EXPIRED"),
        (transitions, "KILLED_CLASS", "KILLED"),
        (transitions, "COST_CLASS", "COST"),
        (flow_rules, "DEPENDENCY_CLASS", "DEPENDENCY"),
        (bad_records, "BAD_RECORD_CLASS", "BAD_RECORD"),
        (flow_rules, "CHILDLESS_CLASS", "CHILDLESS"),
        (flow_rules, "CHILDLESS_MESSAGE", "CHILDLESS_MESSAGE"),
        (flow_rules, "WAITED", "WAITED"),
    ],
)
def test_a_text_that_is_changed_in_python_is_changed_in_lua(
    monkeypatch: pytest.MonkeyPatch, where: Any, constant: str, word: str
) -> None:
    monkeypatch.setattr(where, constant, "Another")
    assert _value("SAID", word) == "'Another'"


@pytest.mark.parametrize(
    ("where", "constant", "local"),
    [(job, "STEP", "STEP"), (limit_rules, "MICRO", "MICRO")],
)
def test_a_bound_that_is_changed_in_python_is_changed_in_lua(
    monkeypatch: pytest.MonkeyPatch, where: Any, constant: str, local: str
) -> None:
    monkeypatch.setattr(where, constant, 4711)
    assert f"local {local} = 4711\n" in _library()


def test_a_state_with_another_number_has_it_in_lua_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "STATES", codes.STATES | {44: JobState.BLOCKED})
    assert _value("STATE", "BLOCKED") == "44"


def test_a_field_that_stands_elsewhere_stands_there_in_lua_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Turned(msgspec.Struct, array_like=True):
        seq: int
        state: int

    monkeypatch.setattr(layouts, "Head", Turned)
    assert (_value("HEAD", "SEQ"), _value("HEAD", "STATE")) == ("1", "2")


def test_what_a_job_has_that_says_nothing_is_what_the_server_takes_for_usual() -> None:
    said = options.StoredOptions()
    told: Any = packed_options.USUAL
    usual = layouts.Options(*told)
    assert usual.max_stalls == said.max_stalls
    assert (usual.keep_completed_ms, usual.keep_completed_count) == (
        said.keep_completed.age_ms,
        said.keep_completed.count,
    )
    assert (usual.keep_failed_ms, usual.keep_failed_count) == (
        said.keep_failed.age_ms,
        said.keep_failed.count,
    )
    assert f"local USUAL = {{ {', '.join(map(str, packed_options.USUAL))} }}\n" in _library()


def test_options_with_more_fields_than_this_release_knows_are_read() -> None:
    said = options.StoredOptions(group="g", cost=2)
    told = packed_options.pack_options(said, "json")
    assert packed_options.read_options(options.StoredOptions(), [*told, "of a later release"]) == said


def test_an_option_that_all_jobs_do_not_have_is_told_when_it_is_not_the_usual_one() -> None:
    assert packed_options.server_options(options.StoredOptions(), "json") == 0
    told = packed_options.server_options(options.StoredOptions(expires_total_ms=5), "json")
    assert isinstance(told, layouts.Options) and told.expires_total_ms == 5
    told = packed_options.server_options(options.StoredOptions(max_stalls=9), "json")
    assert isinstance(told, tuple) and len(told) == layouts.OPTIONS_SIZE


def test_roll_ups_are_kept_as_long_as_core_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "KEPT_MS", {"minute": 12, "hour": 34})
    assert (_value("KEPT", "MINUTES_MS"), _value("KEPT", "HOURS_MS")) == ("12", "34")


def test_every_code_has_its_word() -> None:
    tables = words.tables()
    for numbers, name in (
        (codes.STATES, "STATE"),
        (codes.ATTEMPT_OUTCOMES, "RAN"),
        (codes.UNIQUE_MODES, "MODE"),
        (dict(enumerate(codes.ADD_OUTCOMES)), "ADDED"),
        (dict(enumerate(codes.CHANGED)), "CHANGED"),
        (dict(enumerate(codes.ON_FAILURE)), "ON"),
        (dict(enumerate(codes.EDGE_STATUS)), "EDGE_IS"),
    ):
        for number, one in numbers.items():
            assert tables[name][one.name] == number
    assert {kind.name: number for number, (kind, _) in codes.EVENTS.items()} == tables["EVENT"]


# --- and no Lua file types it again ------------------------------------------------------------------

#: Numbers of ten and more that the Lua files may hold, which are the server's own business, and why.
OWN_NUMBERS = {
    "00_text": {4503599627370496: "offset of places"},
    "10_queue": {
        4000: "what fits Lua's stack",
        3999: "the same",
        1000000: "of a second",
        1000: "of a second",
    },
    "14_limits": {86400000: "how long starts are kept"},
    "15_plain": {200: "results in a head, and spare lists", 21: "bytes", 22: "bytes"},
    "20_heads": {15: "bytes", 16: "bytes"},
    "22_line": {32: "above the first byte of places"},
    "30_notes": {100: "trimming now and then", 13: "a row", 14: "a row", 15: "a row", 16: "told at once"},
    "40_lines": {1000000: "of a second"},
    "45_turns": {10: "steps"},
    "53_damaged": {21: "bytes", 22: "bytes", 23: "bytes", 15: "bytes", 100: "steps"},
    "55_flows": {500: "of a message", 128: "UTF-8", 192: "UTF-8"},
    "58_groups": {13: "fields", 11: "fields", 12: "fields", 10: "fields"},
    "59_group_settings": {10: "steps"},
    "60_pick": {256: "fits a byte", 250: "fits a byte"},
    "78_handoff": {1000: "registrations", 200: "fits a byte"},
    "90_rows": {100: "looked at"},
    "94_metrics": {500000: "rows of one queue"},
    "95_sweep": {100: "read at once", 10: "steps"},
    "97_quiet": {86400000: "how long a queue is quiet"},
    "flow_outbox": {100: "read at once"},
    "list_jobs": {100: "read at once"},
    "log_rows": {32: "read at once"},
    "report": {1000: "of progress in an event"},
}


def test_no_lua_file_holds_a_number_that_is_not_its_own() -> None:
    strange = {}
    for name, text in _files().items():
        code = _OWN_FIELD.sub("", _NO_CODE.sub("", text))
        found = {int(one) for one in re.findall(r"(?<![\w.\[])(\d{2,})\b", code)}
        if found - set(OWN_NUMBERS.get(name, {})) - {0}:
            strange[name] = sorted(found - set(OWN_NUMBERS.get(name, {})))
    assert strange == {}


def test_no_lua_file_counts_the_fields_of_what_clients_send_and_read() -> None:
    arrays = "head|options|USUAL|BLANK_HEAD|job|edge|fate|failure|state|wanted|closed|l|r|own|out"
    pattern = re.compile(rf"\b(?:{arrays})\[\d+\]")
    found = {name: pattern.findall(_COMMENT.sub("", text)) for name, text in _files().items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_no_lua_file_types_a_text_that_python_names() -> None:
    owned = {
        str(value)
        for name in ("SAID", "HANDOFF")
        for value in words.tables()[name].values()
        if isinstance(value, str)
    } | {bad_records.BAD_RECORD}
    found = {name: owned & set(_TEXT.findall(_COMMENT.sub("", text))) for name, text in _files().items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("return HEAD.NO_SUCH_FIELD", "HEAD.NO_SUCH_FIELD: there is no such word"),
        ("return WAITING", "WAITING: no Lua file and no table of words.py defines it"),
    ],
)
def test_a_word_that_nothing_defines_is_found_without_a_server(
    monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    changed = _library() + f"local function strange()\n  {line}\nend\n"
    monkeypatch.setattr(loader, "library_source", lambda version=loader.VERSION: changed)
    assert told in check.problems()


def test_every_key_of_a_queue_is_told_of_once_and_holds_one_kind_of_thing() -> None:
    told = [
        (key, kind)
        for text in _files().values()
        for names, kind in _KEYS.findall(text)
        for key in names.split()
        if "<" not in key
    ]
    assert len({key for key, _ in told}) == len(told), sorted(key for key, _ in told)
    told_elsewhere = {"": "hash", ":T": "set", ":hours": "hash", ":hours:keys": "zset"}
    assert dict(told) | told_elsewhere == keys.KINDS
    used = {f":{letter}" for text in _files().values() for letter in re.findall(r"\bq\.([A-Za-z])\b", text)}
    assert used <= keys.KINDS.keys()

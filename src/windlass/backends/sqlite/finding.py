"""SQL conditions for listings. SQLite skips rows much faster than Python can read them.

Every wanted job meets these conditions, but other jobs may, too. ``is_wanted`` makes the exact comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from windlass.backend import requests as rq
from windlass.backends.sqlite.rows import encode_json
from windlass.core.patterns import to_glob

Condition = tuple[str, tuple[Any, ...]]

_LIKE = "LIKE ? ESCAPE '\\'"
_HELD = {
    "error": f"errors {_LIKE}",
    "payload": f"(codec <> 'json' OR /*payload*/ {_LIKE})",
    "any": (
        f"(id {_LIKE} OR task {_LIKE} OR reason {_LIKE} OR options {_LIKE} OR errors {_LIKE} "
        f"OR codec <> 'json' OR /*payload*/ {_LIKE})"
    ),
}


def conditions(request: rq.ListJobs, payload: str) -> tuple[str, list[Any]]:
    """Return the end of a ``WHERE`` and its values. ``payload`` is the SQL that reads a payload as text."""
    found = list(_conditions(request))
    values = [value for _, its in found for value in its]
    return "".join(f" AND {text}" for text, _ in found).replace("/*payload*/", payload), values


def _conditions(request: rq.ListJobs) -> Iterator[Condition]:
    if request.task is not None:
        yield "task GLOB ?", (to_glob(request.task),)
    if request.group is not None:
        yield "grp = ?", (request.group,)
    if request.worker is not None:
        yield "worker = ?", (request.worker,)
    if request.finished_from_ms is not None:
        yield "finished_ms >= ?", (request.finished_from_ms,)
    if request.finished_to_ms is not None:
        yield "finished_ms < ?", (request.finished_to_ms,)
    if request.tops:
        yield "instr(options, '\"root\":')", ()
    if request.tag is not None:
        yield "instr(options, ?)", (encode_json(request.tag),)
    if request.needs_error:
        yield "errors IS NOT NULL", ()
    if request.error_class:
        yield "instr(errors, ?)", (f'"error_class":{encode_json(request.error_class)}',)
    if request.fingerprint:
        yield "instr(errors, ?)", (f'"fingerprint":{encode_json(request.fingerprint)}',)
    for hint in request.hints:
        text = _HELD[hint.where]
        yield text, (_like(hint.text),) * text.count("?")


def _like(text: str) -> str:
    for sign in "\\%_":
        text = text.replace(sign, f"\\{sign}")
    return f"%{text}%"

"""SQL from the named files beside this module.

``queries.sql`` and its neighbours hold one statement after each line ``-- name: something``. A name in
``[brackets]`` is a table or index of the namespace: ``[job]`` becomes ``"windlass_default_job"``.
``/*job*/`` stands for the columns of a job in the order that ``rows.record`` reads them, ``/*edge*/`` for
those of an edge, ``/*changes*/`` for what ``rows.changed_row`` writes, ``/*fixed*/`` for what
``rows.whole_row`` has before that, ``/*whole*/`` and ``/*marks*/`` for all of its columns and values,
``/*states*/`` for all states.
``/*among*/`` ends a statement about jobs by their numbers: it takes a JSON list of them or, under the name
with ``_span`` added, the first and the last.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from windlass.backends.sqlite.rows import EDGE_COLUMNS, JOB_CHANGED, JOB_COLUMNS, JOB_FIXED, STATE_LIST

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_BRACKETS = re.compile(r"\[(\w+)\]")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)

#: Files with named statements.
FILES = ("queries.sql", "schedules.sql", "metrics.sql", "flows.sql", "limits.sql")

Statements = dict[str, str]

SPAN = "_span"
_COLUMNS = {
    "/*job*/": JOB_COLUMNS,
    "/*edge*/": EDGE_COLUMNS,
    "/*whole*/": ", ".join((*JOB_FIXED, *JOB_CHANGED, "seq")),
    "/*marks*/": ", ".join("?" * (len(JOB_FIXED) + len(JOB_CHANGED) + 1)),
    "/*fixed*/": ", ".join(f"{name} = ?" for name in JOB_FIXED),
    "/*changes*/": ", ".join(f"{name} = ?" for name in JOB_CHANGED),
    "/*states*/": STATE_LIST,
}
_AMONG = "/*among*/"
_BY_LIST = "seq IN (SELECT value FROM json_each(?))"
_BY_SPAN = "seq BETWEEN ? AND ?"


def table(namespace: str, name: str) -> str:
    """The full, quoted name of a table or index.

    SQLite ignores the case of names and namespaces do not: a capital becomes ``^`` and its small letter.
    """
    small = re.sub("[A-Z]", lambda found: "^" + found[0].lower(), namespace)
    return f'"windlass_{small}_{name}"'


def in_namespace(text: str, namespace: str) -> str:
    """``text`` with every bracketed name made one of ``namespace``."""
    for mark, columns in _COLUMNS.items():
        text = text.replace(mark, columns)
    return _BRACKETS.sub(lambda found: table(namespace, found[1]), text)


def read(name: str) -> str:
    """The text of a file of ``sql/``."""
    return resources.files(__package__).joinpath("sql", name).read_text(encoding="utf-8")


@cache
def load(namespace: str) -> Statements:
    """Every named statement, for ``namespace``."""
    found: Statements = {}
    for file in FILES:
        parts = _NAMED.split(read(file))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found[name] = " ".join(in_namespace(_COMMENT.sub("", body), namespace).split())
    spans = {name + SPAN: sql.replace(_AMONG, _BY_SPAN) for name, sql in found.items() if _AMONG in sql}
    return {name: sql.replace(_AMONG, _BY_LIST) for name, sql in found.items()} | spans

"""Loads the named statements of ``sql/``.

``queries.sql`` and the files next to it hold one statement after each line ``-- name: something``. A name in
``[brackets]`` is a table or index of the namespace: ``[job]`` becomes ``"windlass_default_job"``. These
comments are replaced:

* ``/*job*/``: the columns of a job, in the order in which ``rows.record`` reads them;
* ``/*edge*/``: the columns of an edge, in the order in which ``edges.to_edge`` reads them;
* ``/*changes*/``: assignments of the columns that ``rows.changed_row`` writes;
* ``/*fixed*/``: assignments of the columns that ``rows.whole_row`` writes before those;
* ``/*whole*/`` and ``/*marks*/``: all columns of ``rows.whole_row``, and as many question marks;
* ``/*states*/``: all job states;
* ``/*among*/``: a condition on the numbers of jobs. The statement takes a JSON list of numbers. A second
  statement, whose name ends with ``_span``, takes the first and the last number of a range instead.
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
#: The items of a JSON list.
LISTED = "SELECT value FROM json_each(?)"
_BY_LIST = f"seq IN ({LISTED})"
_BY_SPAN = "seq BETWEEN ? AND ?"


def table(namespace: str, name: str) -> str:
    """Return the full, quoted name of a table or index.

    SQLite ignores the case of names, but namespaces are case-sensitive, so ``A`` becomes ``^a``.
    """
    small = re.sub("[A-Z]", lambda found: "^" + found[0].lower(), namespace)
    return f'"windlass_{small}_{name}"'


def in_namespace(text: str, namespace: str) -> str:
    """Replace the bracketed names and column lists in ``text``."""
    for mark, columns in _COLUMNS.items():
        text = text.replace(mark, columns)
    return _BRACKETS.sub(lambda found: table(namespace, found[1]), text)


def read(name: str) -> str:
    """Return the text of a file of ``sql/``."""
    return resources.files(__package__).joinpath("sql", name).read_text(encoding="utf-8")


@cache
def load(namespace: str) -> Statements:
    """Return all named statements for ``namespace``."""
    found: Statements = {}
    for file in FILES:
        parts = _NAMED.split(read(file))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found[name] = " ".join(in_namespace(_COMMENT.sub("", body), namespace).split())
    spans = {name + SPAN: sql.replace(_AMONG, _BY_SPAN) for name, sql in found.items() if _AMONG in sql}
    return {name: sql.replace(_AMONG, _BY_LIST) for name, sql in found.items()} | spans

"""Loads the named statements of ``sql/``.

``queries.sql`` and the files next to it hold one statement after each line ``-- name: something``. A name in
``[brackets]`` is a table or index of the namespace: ``[job]`` becomes ``"windlass_default_job"``.

A line ``-- entries: table (keys) columns`` stands for three statements about a table with one row per key.
``table_find`` takes the queue, if that is a key, and a list of the other keys. ``table_save`` and
``table_drop`` write one row. A named statement may replace one of them.

A name with ``{way}`` or ``{index}`` stands for one statement per variant: see ``_VARIANTS``.

These comments are replaced:

* ``/*job*/``: the columns of a job, in the order in which ``rows.record`` reads them;
* ``/*edge*/``: the columns of an edge, in the order in which ``edges.to_edge`` reads them;
* ``/*changes*/``: assignments of the columns that ``rows.changed_row`` writes;
* ``/*fixed*/``: assignments of the columns that ``rows.whole_row`` writes before those;
* ``/*whole*/`` and ``/*marks*/``: all columns of ``rows.whole_row``, and as many question marks;
* ``/*states*/``: all job states;
* ``/*among*/``: a condition on the numbers of jobs. The statement takes a JSON list of numbers. Two other
  statements take less: ``_span`` the first and the last number of a range, ``_one`` one number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from typing import Any

from windlass.backends.sqlite.connection import Executor
from windlass.backends.sqlite.rows import (
    EDGE_COLUMNS,
    JOB_CHANGED,
    JOB_COLUMNS,
    JOB_FIXED,
    STATE_LIST,
    Row,
    encode_json,
)

_NAMED = re.compile(r"^-- name: ([\w{}]+)\n", re.MULTILINE)
_ENTRIES = re.compile(r"^-- entries: (\w+) \((.+)\) (.+)$", re.MULTILINE)
_BRACKETS = re.compile(r"\[(\w+)\]")
_COMMENT = re.compile(r"--.*$", re.MULTILINE)

#: Files with named statements.
FILES = ("queries.sql", "schedules.sql", "metrics.sql", "flows.sql", "limits.sql")

Statements = dict[str, str]

SPAN, ONE = "_span", "_one"
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
#: What ``/*among*/`` becomes, by the end of the statement's name.
_BY = {"": f"seq IN ({LISTED})", SPAN: "seq BETWEEN ? AND ?", ONE: "seq = ?"}
#: By placeholder in a name: the variants, and what each puts in the place of other words in braces.
_VARIANTS = {
    "{way}": {
        "up": {"{after}": ">", "{upto}": "<=", "{order}": ""},
        "down": {"{after}": "<", "{upto}": ">=", "{order}": "DESC"},
    },
    "{index}": {
        "error": {"{by}": "[job_errors]", "{such}": "errors IS NOT NULL"},
        "top": {
            "{by}": "[job_tops]",
            "{such}": "instr(options, '\"root\":') AND instr(options, '/' || id || '\"')",
        },
    },
}


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
        text = read(file)
        for entries in _ENTRIES.finditer(text):
            found |= _entry_statements(*entries.groups())
        parts = _NAMED.split(text)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found.update(_variants(name, _COMMENT.sub("", body)))
    return {
        name + end: " ".join(in_namespace(body.replace(_AMONG, by), namespace).split())
        for name, body in found.items()
        for end, by in _BY.items()
        if not end or _AMONG in body
    }


def _entry_statements(table: str, keys: str, columns: str) -> Statements:
    """The statements of a table with one row per key: see the module docstring."""
    names, whole = keys.split(", "), f"{keys}, {columns}"
    own = [name for name in names if name != "queue"]
    found = ", ".join((*own, columns))
    where = " AND ".join(f"{name} = ?" if name == "queue" else f"{name} IN ({LISTED})" for name in names)
    marks = ", ".join("?" * len(whole.split(", ")))
    return {
        f"{table}_find": f"SELECT {found} FROM [{table}] WHERE {where}",
        f"{table}_save": f"INSERT OR REPLACE INTO [{table}] ({whole}) VALUES ({marks})",
        f"{table}_drop": f"DELETE FROM [{table}] WHERE {' AND '.join(f'{name} = ?' for name in names)}",
    }


def _variants(name: str, body: str) -> Iterator[tuple[str, str]]:
    """The statements that a name with placeholders stands for."""
    for placeholder, variants in _VARIANTS.items():
        if placeholder in name:
            for variant, words in variants.items():
                text = body
                for word, instead in words.items():
                    text = text.replace(word, instead)
                yield from _variants(name.replace(placeholder, variant), text)
            return
    yield name, body


class StatementRunner:
    """Executes named statements that read."""

    __slots__ = ()

    conn: Executor
    sql: Statements

    def all(self, name: str, *params: Any) -> list[Row]:
        """Execute a named statement and return all its rows."""
        return self.conn.execute(self.sql[name], params).fetchall()

    def listed(self, name: str, items: Iterable[Any], *params: Any) -> list[Row]:
        """Execute a named statement that takes a JSON list as its last parameter. Returns all its rows."""
        return self.conn.execute(self.sql[name], (*params, encode_json(list(items)))).fetchall()

    def listed_texts(self, name: str, items: list[Any], *params: Any) -> list[Row]:
        """As ``listed``, for texts that may contain NUL: ``json_each`` ends a text there."""
        ended = [item for item in items if isinstance(item, str) and "\0" in item]
        if not ended:
            return self.listed(name, items, *params)
        rows = self.listed(name, [item for item in items if item not in ended], *params)
        one = self.sql[name].replace(LISTED, "?")
        for item in ended:
            rows += self.conn.execute(one, (*params, item)).fetchall()
        return rows

"""The columns of every table of a lake as a page: ``python -m tools.lake_columns > docs/lake-columns.md``."""

from __future__ import annotations

from windlass.pipeline import schemas
from windlass.pipeline.sqlquery import VIEWS

_TYPES = {
    "text": "STRING",
    "int": "INT",
    "long": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "date": "DATE",
    "texts": "ARRAY&lt;STRING&gt;",
    "histogram": "ARRAY&lt;STRUCT&lt;bucket INT, count BIGINT&gt;&gt;",
}
_HEAD = """# The columns of a lake

Names and types as Delta has them, for dbt, BI tools and plain SQL; what they mean is in
[the pipeline](pipeline.md). Names that end in `_ms` are milliseconds: points in time since 1970 in UTC, or
spans. A table is at `<lake>/<name>`; `windlass pipeline sql` and `windlass.pipeline.sqlquery.connect` show it
under the name of its view. Columns are only ever appended; in rows of releases that did not have one it is
null, whatever is said here.
"""


def page() -> str:
    """The page, ending in a line break."""
    views = {table.path: view for view, table in VIEWS.items()}
    parts = [_HEAD]
    for table in schemas.TABLES.values():
        keys = f" Unique by `{', '.join(table.keys)}`." if table.keys else ""
        head = f"## {table.path}\n\nView `{views[table.path]}`.{keys}\n\n| column | type | |\n|---|---|---|\n"
        rows = [
            f"| `{column.name}` | {_TYPES[column.kind]} | {'' if column.nullable else 'never null'} |"
            for column in table.columns
        ]
        parts.append(head + "\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")

"""Print the page about the columns of the lake: ``python -m tools.lake_columns > docs/lake-columns.md``."""

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
_HEAD = """# Table columns

Column names and types of the Delta tables, for dbt, BI tools and plain SQL. [The pipeline](pipeline.md)
explains what they mean. Names that end in `_ms` are milliseconds: either a time (since 1970, UTC) or a
duration. A table is stored at `<lake>/<name>`; `windlass pipeline sql` and
`windlass.pipeline.sqlquery.connect` expose it under the name of its view. New releases only append columns.
In rows written before a column existed, the column is null, even if it is marked "never null".
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

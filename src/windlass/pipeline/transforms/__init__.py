"""Pure functions from rows to rows, without files or clocks.

Most run in a Spark task, on Arrow tables with DuckDB (``sql``). Those of ``attempts`` that remove duplicates
are transformations of Spark DataFrames.
"""

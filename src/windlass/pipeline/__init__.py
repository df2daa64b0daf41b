"""The data pipeline on Spark: every attempt of every job as a row to query, chart and replay.

It needs ``windlass[spark]`` and Java 17. The modules, from bottom to top:

* ``histogram``, ``schemas``: the definitions of the tables;
* ``files``, ``lake``: Delta tables in a folder or an object store;
* ``store_requests``, ``source``, ``sink``: ``format("windlass")`` for Spark;
* ``transforms``: pure functions from rows to rows, with DuckDB and Arrow;
* ``digest``, ``spark_tasks``: what a Spark task computes and writes;
* ``session``, ``workbench``, ``lake_batch``, ``job_snapshot``, ``run``: ``windlass pipeline run``;
* ``compact``, ``backfill``, ``erase``, ``migrate``: maintenance;
* ``gold``, ``sqlquery``, ``report``, ``replay``: reports and queries.

Importing this package imports neither Spark nor Arrow.
"""

"""The data pipeline on Spark: every attempt of every job as a row to query, chart and replay.

``windlass[spark]`` and Java 17. Layers, each importing only those listed before it:

* ``histogram``, ``schemas``: the definitions of the tables;
* ``files``, ``lake``: Delta tables in a folder or an object store;
* ``source``, ``sink``: ``format("windlass")`` for Spark;
* ``transforms``: pure functions from DataFrame to DataFrame;
* ``session``, ``tables``, ``batch``, ``run``: ``windlass pipeline run``;
* ``compact``, ``backfill``, ``erase``, ``migrate``: maintenance;
* ``gold``, ``sqlquery``, ``report``, ``replay``: reports and queries.

Importing this package imports neither Spark nor Arrow.
"""

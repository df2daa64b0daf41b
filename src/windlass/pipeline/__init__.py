"""The data pipeline on Spark: every attempt of every job as a row to query, chart and replay.

``windlass[spark]`` and Java 17. Layers, each importing only what stands before it:

* ``histogram``, ``schemas``: what the tables are;
* ``files``, ``lake``: Delta tables in a folder or an object store;
* ``source``, ``sink``: ``format("windlass")`` for Spark;
* ``transforms``: pure functions from DataFrame to DataFrame;
* ``session``, ``tables``, ``batch``, ``run``: what ``windlass pipeline run`` does;
* ``compact``, ``backfill``, ``erase``, ``migrate``: upkeep;
* ``gold``, ``sqlquery``, ``report``, ``replay``: what people read.

Importing this package imports neither Spark nor Arrow.
"""

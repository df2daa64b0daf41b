"""The data pipeline on Spark: every attempt of every job as a row to query, chart and replay.

``windlass[spark]`` and Java 17. Layers, each importing only what stands before it:

* ``histogram``, ``schemas``: what the tables are;
* ``files``, ``lake``: a directory of Parquet files with a commit log;
* ``source``, ``sink``: ``format("windlass")`` for Spark;
* ``transforms``: pure functions from DataFrame to DataFrame;
* ``session``, ``batch``, ``run``, ``compact``: what ``windlass pipeline run`` does;
* ``gold``, ``sqlquery``, ``report``, ``replay``: what people read.

Importing this package imports neither Spark nor Arrow.
"""

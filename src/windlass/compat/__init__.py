"""Windlass under the names of other systems, for programs that move one step at a time.

``windlass.compat.celery`` has Celery's API. Each shim is a translation onto Windlass's public API: jobs,
flows, schedules and options are those of Windlass, and both ways of writing can be mixed.
"""

"""The APIs of other systems on Windlass, for programs that migrate step by step.

``windlass.compat.celery`` has Celery's API. Each shim translates to Windlass's public API: jobs, flows,
schedules and options are those of Windlass, and both APIs can be mixed.
"""

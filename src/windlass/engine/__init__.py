"""Every decision about jobs: which data a request reads, what it answers and what it changes.

Nothing here does I/O or depends on a store, a clock or asyncio. A verb is a generator (``drive``). It yields
the reads that it needs (``reads.Reads``), decides with the loaded data (``unit_of_work.UnitOfWork``) and
collects its changes as effects (``effects.Effects``), which the store writes in one transaction. A store
implements ``drive.Port``. See ``docs/internals/engine.md``.
"""

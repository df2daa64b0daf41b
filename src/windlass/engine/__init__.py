"""Every decision about jobs: what a request reads, what it answers, what it changes. Each is made in one
place.

Nothing here does I/O, knows a store, a clock or asyncio. A verb is a generator (``drive``): it yields what it
must know (``reads.Reads``), decides on what was loaded (``unit_of_work.UnitOfWork``) and leaves what it
changed as effects (``effects.Effects``), which its store writes in one piece. A store implements
``drive.Port``. See ``docs/internals/engine.md``.
"""

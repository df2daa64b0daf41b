"""What applications use first: the app, its queues, its tasks, events, search, the same without asyncio.

What happens behind a call: ``docs/internals/walk.md``.
"""

"""The public API: the app, its queues and tasks, events, search, and the same without asyncio.

``docs/internals/walk.md`` follows a call through the layers.
"""

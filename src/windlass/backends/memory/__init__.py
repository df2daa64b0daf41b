"""Jobs in this process's memory: the readable reference, for tests and for embedding.

``memory://`` is one store per process; ``memory://name`` and ``?namespace=`` are others. Nothing survives
the process.

What stands where: ``docs/internals/stores.md``.
"""

from windlass.backends.memory.backend import MemoryBackend, from_url

__all__ = ["MemoryBackend", "from_url"]

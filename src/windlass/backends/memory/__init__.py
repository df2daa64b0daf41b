"""Jobs in the memory of this process: the reference store, for tests and for embedding.

``memory://`` is one store per process; ``memory://name`` and ``?namespace=`` are others. No job survives the
process.

``docs/internals/stores.md`` describes the modules.
"""

from windlass.backends.memory.backend import MemoryBackend, from_url

__all__ = ["MemoryBackend", "from_url"]

"""The backend contract: the interface and the requests that every store implements.

The stores themselves are in ``windlass.backends`` and are selected by URL.
How to add a verb: ``docs/internals/add-a-verb.md``.
"""

from windlass.backend.capabilities import Capabilities
from windlass.backend.protocol import Backend, Listener
from windlass.backend.urls import open_backend

__all__ = ["Backend", "Capabilities", "Listener", "open_backend"]

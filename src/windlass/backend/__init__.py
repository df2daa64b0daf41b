"""The backend contract: what every store can be asked, and how.

Singular: the contract. The stores themselves live in ``windlass.backends`` and are found by URL.
How to add a verb: ``docs/internals/add-a-verb.md``.
"""

from windlass.backend.capabilities import Capabilities
from windlass.backend.protocol import Backend, Listener
from windlass.backend.urls import open_backend

__all__ = ["Backend", "Capabilities", "Listener", "open_backend"]

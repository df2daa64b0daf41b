"""Jobs in Valkey or Redis: one server, a cluster, or behind Sentinel.

``valkey://host:port/db`` · ``redis://`` · ``valkeys://``, ``rediss://`` (TLS) ·
``valkey+cluster://host1,host2`` · ``valkey+sentinel://host1,host2/name-of-the-primary/db``.
Every change is one call of a server function, see ``lua/``. ``docs/internals/stores.md`` describes the keys.
"""

from windlass.backends.valkey.backend import ValkeyBackend, from_url
from windlass.backends.valkey.existing_client import url_of

__all__ = ["ValkeyBackend", "from_url", "url_of"]

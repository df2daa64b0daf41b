"""Jobs in a plain directory, shared by all processes of a machine; no server, no database.

``file:///directory``, with ``?namespace=``, ``?synchronous=full|off`` and ``?timeout=`` (seconds that a call
may wait). Each process keeps the state in a memory store, on which the engine decides. Every change is
appended to a checksummed log, which all processes read. An acknowledged write survives a crash of the process
and, with ``synchronous=full`` (the default), a power failure.

``docs/internals/stores.md`` describes the files.
"""

from windlass.backends.file.backend import FileBackend, from_url
from windlass.backends.file.doctor import examine, repair

__all__ = ["FileBackend", "examine", "from_url", "repair"]

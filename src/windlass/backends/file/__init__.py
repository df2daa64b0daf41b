"""Jobs in a plain directory, shared by all processes of a machine; no server, no database.

``file:///directory``, with ``?namespace=``, ``?synchronous=full|off`` and ``?timeout=`` (seconds that a call
may wait). The memory store's state machine decides; what it changes is appended to a checksummed log that all
processes follow. An acknowledged write survives the loss of the process and, with ``synchronous=full`` (the
default), of power.

What stands where: ``docs/internals/stores.md``.
"""

from windlass.backends.file.backend import FileBackend, from_url
from windlass.backends.file.doctor import examine, repair

__all__ = ["FileBackend", "examine", "from_url", "repair"]

"""Jobs in one SQLite file, shared by all processes of a machine.

``sqlite:///relative.db`` or ``sqlite:////absolute.db``, with ``?namespace=``, ``?synchronous=full|normal``
and ``?timeout=`` (seconds that a call may wait). An acknowledged write survives the loss of the process and,
with ``synchronous=full`` (the default), of power, except for the last step of a worker: see
``docs/reliability.md``.

In which order to read the files of this package: ``docs/internals/sqlite.md``.
"""

from windlass.backends.sqlite.backend import SqliteBackend, from_url
from windlass.backends.sqlite.doctor import examine, repair
from windlass.backends.sqlite.transactional import add_in_transaction, settle_in_transaction

__all__ = ["SqliteBackend", "add_in_transaction", "examine", "from_url", "repair", "settle_in_transaction"]

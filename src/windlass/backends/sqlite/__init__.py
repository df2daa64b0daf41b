"""Jobs in one SQLite file, shared by all processes of a machine.

The URL is ``sqlite:///relative.db`` or ``sqlite:////absolute.db``, with ``?namespace=``,
``?synchronous=full|normal`` and ``?timeout=`` (seconds that a call may wait). An acknowledged write survives
a crash of the process. With ``synchronous=full`` (the default) it also survives a loss of power, except for
the last step of a worker: see ``docs/reliability.md``.

``docs/internals/sqlite.md`` says in which order to read the files of this package.
"""

from windlass.backends.sqlite.backend import SqliteBackend, from_url
from windlass.backends.sqlite.doctor import examine, repair
from windlass.backends.sqlite.transactional import add_in_transaction, settle_in_transaction

__all__ = ["SqliteBackend", "add_in_transaction", "examine", "from_url", "repair", "settle_in_transaction"]

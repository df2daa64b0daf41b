"""The file store as a backend: clients of the threads and memory that a process has for a directory."""

from __future__ import annotations

from windlass.backend.capabilities import Capabilities
from windlass.backend.local.store import LocalBackend, LocalStore, OpenStores
from windlass.backend.urls import BackendUrl
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.session import FileSession
from windlass.backends.file.settings import FileSettings, parse
from windlass.backends.file.threads import FileReader, FileWriter
from windlass.backends.memory.inspection import SHOWS
from windlass.engine.verbs import VERBS


class Node(LocalStore[FileSettings, FileSession]):
    """The threads and memory for one directory, namespace and set of settings in this process."""

    name = "file"
    what = "store"
    open_s = 60.0  # opening reads the whole log
    waited = {  # noqa: RUF012
        "open": "it is still being opened",
        "lock": "another process is writing, or is stopped in the middle of a step",
        "run": "the disk or the steps before it are slow",
        "compact": "its log is being made shorter",
        "idle": "this process had no time for it",
    }
    verbs = VERBS
    reads = SHOWS

    def __init__(self, settings: FileSettings) -> None:
        wake = FileNotifier(settings)
        session = FileSession(settings, wake)
        super().__init__(settings, wake, session, FileWriter(session, wake))

    def make_reader(self) -> FileReader:
        return FileReader(self.session)

    def forked(self) -> None:
        self.session.close_lock()  # otherwise the child would keep a lock that the parent holds


class FileBackend(LocalBackend[FileSettings, Node]):
    """A client of one directory and namespace. Clients of one process share its threads and memory."""

    name = "file"
    capabilities = Capabilities.full(durable=True, shared=True)
    stores = OpenStores(Node)


def from_url(url: BackendUrl) -> FileBackend:
    """Return a client of the directory in the URL, not yet opened."""
    return FileBackend(parse(url))

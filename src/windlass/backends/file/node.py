"""The threads and memory of one directory in this process; see ``backend.local.store``."""

from __future__ import annotations

from windlass.backend.hub import Hub
from windlass.backend.local.store import LocalStore, OpenStores
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.session import FileSession
from windlass.backends.file.settings import FileSettings
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
        hub = Hub()
        wake = FileNotifier(settings, hub)
        session = FileSession(settings, wake)
        super().__init__(settings, hub, wake, session, FileWriter(session, wake))

    def make_reader(self) -> FileReader:
        return FileReader(self.session)

    def forked(self) -> None:
        self.session.close_lock()  # otherwise the child would keep a lock that the parent holds


nodes = OpenStores(Node)

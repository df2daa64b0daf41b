"""One directory, as this process uses it; see ``backend.local.store``."""

from __future__ import annotations

from typing import TypeVar

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backend.hub import Hub
from windlass.backend.local.store import LocalStore, OpenStores
from windlass.backends.file.notify import FileNotifier
from windlass.backends.file.session import FileSession
from windlass.backends.file.settings import Settings
from windlass.backends.file.threads import FileReader, FileWriter

R = TypeVar("R")

#: Requests that change nothing.
READS = frozenset(
    {
        *(rq.GetJobs, rq.ListJobs, rq.CountJobs, rq.ListQueues, rq.GetLogs, rq.ReadEvents, rq.ReadHistory),
        *(rq.ReadCounters, rq.ListWorkers, rq.ListArchivers, fl.GetDependencies, sm.ReadStream),
        *(lrq.GetLimits, lrq.ListGroups, lrq.GetUniqueKey, lrq.ListUniqueKeys),
        *(sq.ListSchedules, sq.DueSchedules, mq.MetricsProgress, mq.ReadMetrics, mq.ListMarks),
    }
)


class Node(LocalStore[Settings, FileSession]):
    """Threads and memory for one (directory, namespace, settings) in this process."""

    what = "store"
    open_s = 60.0  # it reads everything that is stored
    waited = {  # noqa: RUF012
        "open": "it is still being opened",
        "lock": "another process is writing, or is stopped in the middle of a step",
        "run": "the disk or the steps before it are slow",
        "compact": "its log is being made shorter",
        "idle": "this process had no time for it",
    }

    def __init__(self, settings: Settings) -> None:
        hub = Hub()
        wake = FileNotifier(settings, hub)
        session = FileSession(settings, wake)
        super().__init__(settings, hub, wake, session, FileWriter(session, wake))

    def is_read(self, request: rq.Request[R]) -> bool:
        return type(request) in READS

    def make_reader(self) -> FileReader:
        return FileReader(self.session)

    def forked(self) -> None:
        self.session.close_lock()  # else a lock that the parent holds would outlive it


nodes = OpenStores(Node)

"""One directory, as this process uses it: a writer, a reader, listeners. Shared by all its clients."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, TypeVar

from windlass.backend import flows as fl
from windlass.backend import limits as lrq
from windlass.backend import metrics as mq
from windlass.backend import requests as rq
from windlass.backend import schedules as sq
from windlass.backend import streams as sm
from windlass.backend.hub import Hub, HubListener
from windlass.backend.local.calls import Call
from windlass.backend.local.desk import Desk, is_short
from windlass.backends.file.lanes import Reader, Writer
from windlass.backends.file.session import Session
from windlass.backends.file.wake import Wake
from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backend.local.lane import Lane
    from windlass.backends.file.settings import Settings

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
_LAST_MOMENT_S = 0.1
#: Opening reads everything that is stored: it has this long, whatever a call may take.
_OPEN_S = 60.0
_WAITED = {
    "open": "it is still being opened",
    "lock": "another process is writing, or is stopped in the middle of a step",
    "run": "the disk or the steps before it are slow",
    "compact": "its log is being made shorter",
    "idle": "this process had no time for it",
}


class Node:
    """Threads and memory for one (directory, namespace, settings) in this process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.clients = 0
        self.hub = Hub()
        self.wake = Wake(settings, self.hub)
        self.session = Session(settings, self.wake)
        self._writer = Writer(self.session, self.wake)
        self._reader: Reader | None = None
        self._desks: dict[int, Desk] = {}
        self._reader_lock = threading.Lock()
        self._writer.start()

    async def opened(self) -> None:
        """Wait until the store was read; raises ``StorageError`` when it cannot be."""
        patience = max(self.settings.timeout, _OPEN_S)
        opening = asyncio.wrap_future(self._writer.opened)
        try:
            await asyncio.wait_for(asyncio.shield(opening), patience)
        except TimeoutError:
            raise StorageError(
                f"{self.settings.shown} could not be opened within {patience:g} s: "
                f"{_WAITED['lock']}; find that process, or raise ?timeout="
            ) from None

    async def execute(self, request: rq.Request[R]) -> R:
        """See ``Backend.execute``."""
        self.check_process()
        if self._writer.ended.done():
            raise StorageError(f"{self.settings.shown} is closed")
        call = Call(request, self.settings.timeout, self._explain)
        if is_short(request) and self._desk(call.loop).write(call):
            await asyncio.sleep(0)  # whoever adds without end must let timers and signals have their turn
            return call.future.result()
        self._lane(request).put(call)
        return await call.future

    def listen(self, topics: Iterable[str]) -> HubListener:
        self.check_process()
        listener = self.hub.listen(topics)
        self.wake.listen_for(listener.topics)
        return listener

    async def stop(self) -> None:
        """End the threads after the calls that are under way."""
        lanes: list[Lane] = [self._writer] + ([self._reader] if self._reader else [])
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            # One that could not even open hangs at a lock: it is left to end by itself.
            patience = self.settings.timeout if lane.opened.done() else _LAST_MOMENT_S
            await asyncio.wait([asyncio.wrap_future(lane.ended)], timeout=patience)
            if lane.ended.done():
                lane.thread.join()
        self.wake.stop()

    def check_process(self) -> None:
        """Refuse to work in a child that was forked while this store was open."""
        if self.pid != os.getpid():
            raise StorageError(
                f"{self.settings.shown} was opened by process {self.pid} and this is its fork {os.getpid()}; "
                "open a backend of its own in each process (and prefer spawn to fork)"
            )

    def _lane(self, request: rq.Request[R]) -> Lane:
        if type(request) not in READS:
            return self._writer
        if self._reader is None:
            with self._reader_lock:
                if self._reader is None:
                    reader = Reader(self.session)
                    reader.start()
                    self._reader = reader
        return self._reader

    def _desk(self, loop: asyncio.AbstractEventLoop) -> Desk:
        desk = self._desks.get(id(loop))
        if desk is None:
            for key, other in list(self._desks.items()):
                if other.loop.is_closed():
                    self._desks.pop(key, None)
            desk = self._desks[id(loop)] = Desk(loop, self.session, self._writer, self.wake)
        return desk

    def _explain(self, begun: bool) -> str:
        if begun:
            return (
                f"{self.settings.shown} did not finish a call within {self.settings.timeout * 5:g} s; it may "
                "still be carried out (repeating it is safe). Is the disk stuck?"
            )
        why = _WAITED.get(self._writer.phase, "it is busy")
        return (
            f"{self.settings.shown} did not begin a call within {self.settings.timeout:g} s: {why}. "
            "Nothing was changed; repeat the call, end what holds the store, or raise ?timeout="
        )


_nodes: dict[Settings, Node] = {}
_lock = threading.Lock()


def acquire(settings: Settings) -> Node:
    """The process's node for ``settings``, with one more client."""
    with _lock:
        node = _nodes.get(settings)
        if node is None:
            node = _nodes[settings] = Node(settings)
        node.clients += 1
        return node


async def release(node: Node) -> None:
    """Take one client away; the last one ends the threads."""
    with _lock:
        node.clients -= 1
        last = node.clients == 0
        if last and _nodes.get(node.settings) is node:
            del _nodes[node.settings]
    if last and node.pid == os.getpid():
        await node.stop()


_left_to_parent: list[Node] = []


def _after_fork() -> None:
    """A child begins without nodes, and must not close what its parent uses."""
    global _lock
    _lock = threading.Lock()
    for node in _nodes.values():
        node.session.close_lock()  # else a lock that the parent holds would outlive it
    _left_to_parent.extend(_nodes.values())
    _nodes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

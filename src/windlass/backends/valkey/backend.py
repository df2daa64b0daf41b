"""The backend: one session per event loop, and the dispatch of requests to verbs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backend.capabilities import Capabilities
from windlass.backend.urls import BackendUrl
from windlass.backends.valkey import (
    changes,
    duties,
    flows,
    handoff,
    inspection,
    limits,
    metrics,
    output,
    relay,
    restoring,
    schedules,
    server,
    unique,
    work,
)
from windlass.backends.valkey.adds import Adder
from windlass.backends.valkey.keys import Keys
from windlass.backends.valkey.session import ValkeySession
from windlass.backends.valkey.settings import ValkeySettings, parse
from windlass.backends.valkey.subscribe_barrier import SubscribeBarrier
from windlass.backends.valkey.subscriptions import Subscriber, SubscriptionListener
from windlass.core.job import Completed
from windlass.core.probe import reach

R = TypeVar("R")
Verb = Callable[[ValkeySession, Any, str], Awaitable[Any]]

log = logging.getLogger("windlass.valkey")

#: How long a close waits for the connections of another event loop, which may be blocked.
_CLOSE_S = 5.0

_VERBS: dict[type[Any], Verb] = {
    rq.Restore: restoring.restore,
    rq.Settle: work.settle,
    rq.Claim: work.claim,
    rq.Extend: work.extend,
    rq.Reconcile: work.reconcile,
    rq.Promote: duties.promote,
    rq.Recover: duties.recover,
    rq.Prune: duties.prune,
    rq.Archive: duties.archive,
    rq.ListArchivers: duties.list_archivers,
    rq.Elect: duties.elect,
    rq.Resign: duties.resign,
    rq.Beat: duties.beat,
    rq.ListWorkers: duties.list_workers,
    rq.CommandWorker: duties.command_worker,
    rq.CancelJobs: changes.cancel,
    rq.RemoveJobs: changes.remove,
    rq.RetryJobs: changes.retry,
    rq.ChangeJob: changes.change,
    rq.Report: changes.report,
    rq.PublishEvent: changes.publish,
    rq.TrimEvents: changes.trim_events,
    rq.PauseQueue: changes.pause,
    rq.Purge: changes.purge,
    rq.SetResultTtl: changes.set_result_ttl,
    rq.GetJobs: inspection.get,
    rq.ListJobs: inspection.list_jobs,
    rq.CountJobs: inspection.count,
    rq.ListQueues: inspection.list_queues,
    rq.GetLogs: inspection.get_logs,
    rq.ReadEvents: inspection.read_events,
    rq.ReadHistory: inspection.read_history,
    rq.ReadCounters: inspection.read_counters,
    lrq.SetQueueLimits: limits.set_queue,
    lrq.SetGroupLimits: limits.set_group,
    lrq.PauseGroup: limits.pause_group,
    lrq.Hold: limits.hold,
    lrq.RevokeTask: limits.revoke_task,
    lrq.RestoreTask: limits.restore_task,
    lrq.GetLimits: limits.get,
    lrq.ListGroups: limits.list_groups,
    lrq.GetUniqueKey: unique.get,
    lrq.FreeUniqueKey: unique.free,
    lrq.ListUniqueKeys: unique.list_keys,
    sq.PutSchedule: schedules.put,
    sq.ListSchedules: schedules.list_schedules,
    sq.RemoveSchedule: schedules.remove,
    sq.PauseSchedule: schedules.pause,
    sq.DueSchedules: schedules.due,
    sq.FireSchedule: schedules.fire,
    mq.MetricsProgress: metrics.progress,
    mq.AddMetrics: metrics.add,
    mq.ReadMetrics: metrics.read,
    mq.AddMark: metrics.add_mark,
    mq.ListMarks: metrics.list_marks,
    fl.GetDependencies: flows.get_dependencies,
    fl.Relay: relay.relay,
    fl.Signal: changes.signal,
    sm.AppendStream: output.append,
    sm.ReadStream: output.read,
}


@dataclass(slots=True)
class _PerLoop:
    """The state of one event loop."""

    loop: asyncio.AbstractEventLoop
    session: ValkeySession
    adder: Adder
    subscriber: Subscriber

    async def close(self) -> None:
        await self.subscriber.close()
        await self.adder.close()
        await self.session.handoffs.close()
        await self.session.close()


class ValkeyBackend:
    """A client of one namespace. Usable from several event loops: each gets connections of its own."""

    capabilities = Capabilities.full(durable=True, shared=True)
    overlaps: Literal[True] = True

    def __init__(self, settings: ValkeySettings, barrier: SubscribeBarrier | None = None) -> None:
        self.name = settings.name
        self._settings = settings
        self._keys = Keys(settings.namespace)
        self._barrier = barrier or SubscribeBarrier(settings.timeout_s)
        self._lock = threading.Lock()
        #: By the address of the event loop, which is kept, so that no other one has its address.
        self._loops: dict[int, _PerLoop] = {}
        #: State of event loops that are gone; the next request closes it.
        self._stale: list[_PerLoop] = []

    async def open(self) -> None:
        """Reach the server and load the function library where it is missing. Idempotent."""
        await self._here().session.functions.version(self._keys.root)

    async def close(self) -> None:
        """Close the connections of every event loop. Idempotent; the next request opens new ones."""
        with self._lock:
            loops, self._loops = list(self._loops.values()), {}
        await self._close_stale()
        for one in loops:
            await _close(one)

    async def _close_stale(self) -> None:
        while self._stale:
            await self._stale.pop().session.close()

    async def execute(self, request: rq.Request[R]) -> R:
        here = self._here()
        if self._stale:
            await self._close_stale()
        if self._barrier.is_closed and type(request) is not rq.Extend:  # a renewal must not be late
            await self._barrier.wait()
        reach("valkey.execute", request=request)
        if request.now_ms is None:  # '' makes the server read its own clock
            return cast("R", await _answer(here, request, ""))
        handoff.skip_handoff(request)
        answer = await _answer(here, request, str(request.now_ms))
        await here.subscriber.sync()  # in tests that set the time, hints arrive before the time moves on
        return cast("R", answer)

    def listen(self, topics: Iterable[str]) -> SubscriptionListener:
        return self._here().subscriber.listen(topics)

    def listen_completed(
        self, queue: str, receive: Callable[[list[Completed]], None]
    ) -> SubscriptionListener:
        return self._here().subscriber.listen([f"done:{queue}"], receive)

    async def server_settings(self) -> list[dict[str, str]]:
        """Persistence and memory settings of each server, for ``windlass doctor``."""
        return await server.server_settings(self._here().session)

    def clone(self) -> ValkeyBackend:
        return ValkeyBackend(self._settings, self._barrier)

    def _here(self) -> _PerLoop:
        loop = asyncio.get_running_loop()
        found = self._loops.get(id(loop))
        if found is None:
            session = ValkeySession(self._settings, self._keys)
            found = _PerLoop(loop, session, Adder(session), Subscriber(session, self._barrier))
            with self._lock:
                known = [*self._loops.values(), found]
                self._loops = {id(one.loop): one for one in known if not one.loop.is_closed()}
                self._stale += [one for one in known if one.loop.is_closed()]
        return found


def _answer(here: _PerLoop, request: rq.Request[Any], now: str) -> Awaitable[Any]:
    if type(request) is rq.Add:
        if flows.has_edges(request):
            return flows.add(here.session, request, now)
        return here.adder.add(request.jobs, now)
    return _VERBS[type(request)](here.session, request, now)


async def _close(one: _PerLoop) -> None:
    if one.loop is asyncio.get_running_loop():
        await one.close()
    elif one.loop.is_closed() or not one.loop.is_running():
        await one.session.close()  # its tasks ended with the loop
    else:
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(one.close(), one.loop))
            await asyncio.wait([closing], timeout=_CLOSE_S)
            if closing.done():
                await (one.session.close() if closing.cancelled() else closing)  # a loop that ends cancels it
            else:
                log.warning("another event loop of this client is blocked: it closes its connections later")


def from_url(url: BackendUrl) -> ValkeyBackend:
    """The client that ``url`` describes."""
    return ValkeyBackend(parse(url))

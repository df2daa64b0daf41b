"""Which function carries out which request that writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.backend import flows as fl
from windlass.backend import metrics as mq
from windlass.backend import requests as rq
from windlass.backend import schedules as sq
from windlass.backend import streams as sm
from windlass.backends.sqlite import (
    verbs_changes,
    verbs_duties,
    verbs_flows,
    verbs_lifecycle,
    verbs_limits,
    verbs_metrics,
    verbs_schedules,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from windlass.backends.sqlite.tx import Step

WRITES: dict[type[Any], Callable[[Step, Any], Any]] = {
    rq.Add: verbs_lifecycle.add,
    rq.Claim: verbs_lifecycle.claim,
    rq.Settle: verbs_lifecycle.settle,
    rq.Extend: verbs_lifecycle.extend,
    rq.Reconcile: verbs_lifecycle.reconcile,
    rq.Promote: verbs_duties.promote,
    rq.Recover: verbs_duties.recover,
    rq.Prune: verbs_duties.prune,
    rq.Archive: verbs_duties.archive,
    rq.Elect: verbs_duties.elect,
    rq.Resign: verbs_duties.resign,
    rq.Beat: verbs_duties.beat,
    rq.CancelJobs: verbs_changes.cancel,
    rq.RemoveJobs: verbs_changes.remove,
    rq.RetryJobs: verbs_changes.retry,
    rq.ChangeJob: verbs_changes.change,
    rq.Report: verbs_changes.report,
    rq.PauseQueue: verbs_changes.pause,
    rq.Purge: verbs_changes.purge,
    rq.SetResultTtl: verbs_changes.set_result_ttl,
    rq.CommandWorker: verbs_duties.command_worker,
    sq.PutSchedule: verbs_schedules.put,
    sq.RemoveSchedule: verbs_schedules.remove,
    sq.PauseSchedule: verbs_schedules.pause,
    sq.FireSchedule: verbs_schedules.fire,
    mq.AddMetrics: verbs_metrics.add,
    mq.AddMark: verbs_metrics.add_mark,
    fl.Relay: verbs_flows.relay,
    fl.Signal: verbs_flows.signal,
    sm.AppendStream: verbs_flows.append_stream,
    **verbs_limits.WRITES,
}

#: Verbs after which ``Queues.leased`` still tells the truth: of active jobs they change those alone that they
#: take out of it. Any other verb may change whatever it likes.
KEEPS_LEASED = frozenset((rq.Add, rq.Claim, rq.Settle, rq.Extend, rq.Beat, rq.Elect, mq.AddMetrics))

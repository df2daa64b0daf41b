"""The verb for each request that changes something. Stores implement read-only requests themselves."""

from __future__ import annotations

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.engine import (
    adding,
    changes,
    claiming,
    flows,
    groups,
    leases,
    metrics,
    pruning,
    restoring,
    schedules,
    settling,
    timing,
    unique_keys,
    workers,
)
from windlass.engine.reads import Verbs

VERBS: Verbs = {
    rq.Add: adding.add,
    rq.Restore: restoring.restore,
    rq.Claim: claiming.claim,
    rq.Settle: settling.settle,
    rq.Extend: leases.extend,
    rq.Reconcile: leases.reconcile,
    rq.Promote: timing.promote,
    rq.Recover: leases.recover,
    rq.Prune: pruning.prune,
    rq.Elect: workers.elect,
    rq.Resign: workers.resign,
    rq.Beat: workers.beat,
    rq.CommandWorker: workers.command,
    rq.Archive: workers.archive,
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
    fl.Relay: flows.relay,
    fl.Signal: changes.signal,
    sm.AppendStream: changes.append_stream,
    lrq.SetQueueLimits: groups.set_queue_limits,
    lrq.SetGroupLimits: groups.set_group_limits,
    lrq.PauseGroup: groups.pause_group,
    lrq.Hold: groups.hold,
    lrq.RevokeTask: groups.revoke_task,
    lrq.RestoreTask: groups.restore_task,
    lrq.FreeUniqueKey: unique_keys.free,
    sq.PutSchedule: schedules.put,
    sq.RemoveSchedule: schedules.remove,
    sq.PauseSchedule: schedules.pause,
    sq.FireSchedule: schedules.fire,
    mq.AddMetrics: metrics.add,
    mq.AddMark: metrics.add_mark,
}

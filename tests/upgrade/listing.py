"""Everything that can be read of a store, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backend import Backend
from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mt
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sc
from windlass.backend import stream_requests as sm
from windlass.core.job import JobRef

#: Containers that later releases added: the older ones are written down also when they are empty.
_LATER = ("revoked", "depth", "age")
_EMPTY: tuple[Any, ...] = (None, [], {}, {"buckets": {}})


def plain(value: Any) -> Any:
    """``value`` as JSON has it. Fields with their defaults are left out: a later release may have more."""
    if isinstance(value, msgspec.Struct):
        usual = {field.name: field.default for field in msgspec.structs.fields(type(value))}
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        left_out = {name for name, one in fields.items() if one in (None, usual[name])}
        left_out |= {name for name in _LATER if plain(fields.get(name)) in _EMPTY}
        return {name: plain(one) for name, one in fields.items() if name not in left_out}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


async def listing(store: Backend, now_ms: int) -> dict[str, Any]:
    """All answers of ``store`` at ``now_ms``."""

    async def ask(request: rq.Request[Any]) -> Any:
        request.now_ms = now_ms
        return plain(await store.execute(request))

    async def lines(ref: JobRef) -> dict[str, Any]:
        page = await store.execute(rq.GetLogs(ref=ref, now_ms=now_ms))
        return {"lines": page.lines, "count": page.count}

    found: dict[str, Any] = {"queues": await ask(rq.ListQueues())}
    for queue in [info["name"] for info in found["queues"]]:
        jobs = (await ask(rq.ListJobs(queue=queue, limit=1_000, newest_first=False)))["jobs"]
        refs = [JobRef(queue, job["id"]) for job in jobs]
        found[queue] = {
            "counts": await ask(rq.CountJobs(queue=queue)),
            "jobs": jobs,
            "edges": await ask(fl.GetDependencies(refs=refs)),
            "logs": [await lines(ref) for ref in refs],
            "output": [await ask(sm.ReadStream(ref=ref)) for ref in refs],
            "events": await ask(rq.ReadEvents(queue=queue)),
            "history": await ask(rq.ReadHistory(queue=queue)),
            "groups": await ask(lrq.ListGroups(queue=queue)),
            "limits": await ask(lrq.GetLimits(queue=queue, groups=("g", "h"))),
            "keys": await ask(lrq.ListUniqueKeys(queue=queue)),
            "metrics": await ask(mt.ReadMetrics(queue=queue)),
        }
    return found | {
        "counters": sorted(await ask(rq.ReadCounters())),
        "workers": await ask(rq.ListWorkers()),
        "archivers": await ask(rq.ListArchivers()),
        "schedules": await ask(sc.ListSchedules()),
        "progress": await ask(mt.MetricsProgress()),
        "marks": await ask(mt.ListMarks()),
    }

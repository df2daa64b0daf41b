"""Flows: add a tree, show the graph, cancel or delete all jobs."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.params import JSONBody, QueryParameter

from windlass.api.search import Search
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend.concurrent_requests import gather_limited
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import Changed as ChangeStatus
from windlass.core.states import FINISHED, JobState
from windlass.dashboard import views
from windlass.dashboard.access import of_queue, of_queues
from windlass.dashboard.audit import named, note
from windlass.dashboard.injected import TheStoreView
from windlass.dashboard.lists import counted, holding, listing
from windlass.dashboard.masking import Mask
from windlass.dashboard.paging import BUDGET_MS, READ_AT_ONCE
from windlass.dashboard.params import Cursor, JobId, QueueName, Queues, States, Text, versioned
from windlass.dashboard.problems import ApiError, not_found
from windlass.dashboard.shapes.changes import Added, Changed, ReasonBody
from windlass.dashboard.shapes.flows import Flow, FlowBody, FlowEdge, FlowEntry, FlowNode, FlowPage
from windlass.dashboard.store_view import StoreView
from windlass.flows.producer import FlowProducer
from windlass.flows.tree import JobNode, own_jobs

#: Maximum number of nodes in a graph, and of steps up to the last job of a flow.
_NODES = 1_000
_STEPS_UP = 100
#: Flows that are read between checks of the time. Each may have the maximum number of nodes.
_FLOWS = 4
Anyone = Request[Any, Any, Any]


@post(versioned("/api/flows"), status_code=201, tags=["flows"], access=of_queues("add"))
async def add_flow(store_view: TheStoreView, request: Anyone, data: JSONBody[FlowBody]) -> Added:
    """Add a tree of jobs in one atomic step; answers with its top job, which runs last."""
    store_view.store.capabilities.require(store_view.store.name, "flows")
    node = await FlowProducer(store_view.app).add(_tree(store_view, data))
    nodes = list(node.walk())
    note(request, queue=node.queue_name, id=node.id, count=len(nodes), jobs=named(one.ref for one in nodes))
    return Added(queue=node.queue_name, id=node.id, outcome="queued", state=node.state)


def _tree(store_view: StoreView, body: FlowBody) -> dict[str, Any]:
    store_view.queue(body.queue)
    store_view.check_links(body.queue, body.options)
    return {
        "name": body.task,
        "queue": body.queue,
        "data": body.data,
        "options": body.options,
        "on_failure": body.on_failure,
        "children": [_tree(store_view, child) for child in body.children],
    }


@get("/api/v1/flows", tags=["flows"], access=of_queues())
async def list_flows(
    store_view: TheStoreView,
    queue: Queues = None,
    states: States = None,
    task: Text = None,
    cursor: Cursor = None,
    limit: Annotated[int, QueryParameter(ge=1, le=100, description="Most flows of the answer.")] = 20,
) -> FlowPage:
    """Flows whose last job is in one of these queues and states, newest first, with counts of their jobs.

    A page of large flows may hold fewer than ``limit``. If ``done`` is false, continue with ``next_cursor``.
    """
    store_view.store.capabilities.require(store_view.store.name, "flows")
    for name in queue or []:
        store_view.queue(name)
    infos = [info for info in await store_view.queues() if not queue or info.name in queue]
    listed = listing(store_view, Search(name=task, state=states or [], tops=True))
    items: list[FlowEntry] = []
    scanned, until = 0, listed.clock() + BUDGET_MS
    while True:
        some = min(limit - len(items), _FLOWS)
        found = await listed.page(holding(infos, states or []), cursor, some)
        items += await gather_limited((_flow_entry(store_view, top) for top in found.records), READ_AT_ONCE)
        scanned, cursor = scanned + found.scanned, found.cursor
        if cursor is None or len(items) >= limit or listed.clock() >= until:
            break
    return FlowPage(
        items=items,
        next_cursor=cursor,
        scanned=scanned,
        to_scan=counted(infos, states or []),
        done=cursor is None,
    )


async def _flow_entry(store_view: StoreView, top: JobRecord) -> FlowEntry:
    tree = await store_view.app.queue(top.queue).get_flow(top.id, limit=_NODES)
    nodes = {node.ref: node for node in tree.walk() if store_view.shows(node.queue_name)}
    records = [node.job.record for node in nodes.values()]
    started = [record.started_ms for record in records if record.started_ms is not None]
    return FlowEntry(
        queue=top.queue,
        id=top.id,
        name=top.task,
        state=top.state,
        counts=dict(Counter(JobState(node.state).value for node in nodes.values())),
        jobs=len(nodes),
        truncated=any(node.truncated for node in nodes.values()),
        enqueued_ms=top.enqueued_ms,
        started_ms=min(started, default=None),
        ended_ms=top.finished_ms,
    )


@get(versioned("/api/flows/{queue:str}/{jid:str}"), tags=["flows"], access=of_queue())
async def get_flow(store_view: TheStoreView, queue: QueueName, jid: JobId) -> Flow:
    """The whole flow that a job belongs to: its last job, and all jobs that it waits for."""
    store_view.store.capabilities.require(store_view.store.name, "flows")
    await store_view.job(queue, jid)
    asked = JobRef(queue, jid)
    end = await _end_of(store_view, asked)
    top = await store_view.queue(end.queue).get_flow(end.id, limit=_NODES)
    return _graph(store_view, top, asked)


async def _end_of(store_view: StoreView, ref: JobRef) -> JobRef:
    """Follow the first dependent up to the job for which no other waits."""
    seen = {ref}
    for _ in range(_STEPS_UP):
        found = (await store_view.store.execute(fl.GetDependencies(refs=[ref], values=False, limit=10)))[0]
        above = [
            edge.dependent
            for edge in found.dependents
            if store_view.shows(edge.dependent.queue) and edge.dependent not in seen
        ]
        above = [one for one in above if await store_view.store.get(one) is not None]
        if not above:
            break
        ref = above[0]
        seen.add(ref)
    return ref


def _graph(store_view: StoreView, top: JobNode, asked: JobRef) -> Flow:
    mask = store_view.mask.brief()
    numbers: dict[JobRef, int] = {}
    nodes: list[FlowNode] = []
    edges: dict[tuple[int, int], FlowEdge] = {}
    shown = [node for node in top.walk() if store_view.shows(node.queue_name)]
    for node in shown:
        if node.ref not in numbers:
            numbers[node.ref] = len(nodes)
            nodes.append(_node(node, mask))
        elif node.truncated:
            nodes[numbers[node.ref]].truncated = True
    for node in shown:
        for child in node.children:
            if child.edge is not None and child.ref in numbers:
                key = (numbers[child.ref], numbers[node.ref])
                edges[key] = FlowEdge(
                    child=key[0],
                    dependent=key[1],
                    status=child.edge.status.value,
                    on_failure=child.edge.on_failure.value,
                )
    return Flow(
        root=numbers[top.ref],
        asked=numbers.get(asked, numbers[top.ref]),
        nodes=nodes,
        edges=list(edges.values()),
        truncated=any(node.truncated for node in nodes),
    )


def _node(node: JobNode, mask: Mask) -> FlowNode:
    record = node.job.record
    return FlowNode(
        queue=node.queue_name,
        id=node.id,
        task=record.task,
        state=JobState(node.state),
        progress=views.progress_of(record, mask),
        started_ms=record.started_ms,
        finished_ms=record.finished_ms,
        duration_ms=views.duration_of(record),
        gone=node.gone,
        truncated=node.truncated,
    )


@post(
    versioned("/api/flows/{queue:str}/{jid:str}/cancel"),
    status_code=200,
    tags=["flows"],
    access=of_queue("cancel"),
)
async def cancel_flow(
    store_view: TheStoreView,
    request: Anyone,
    queue: QueueName,
    jid: JobId,
    data: JSONBody[ReasonBody | None] = None,
) -> Changed:
    """Cancel a job and all jobs that it waits for, except those that another job waits for too."""
    store_view.store.capabilities.require(store_view.store.name, "flows")
    await _all_shown(store_view, queue, jid)
    reason = data.reason if data is not None else ""
    note(request, reason=reason)
    count = await store_view.queue(queue).cancel_flow(jid, reason)
    note(request, count=count)
    return Changed(count=count)


@post("/api/v1/flows/{queue:str}/{jid:str}/retry", status_code=200, tags=["flows"], access=of_queue("retry"))
async def retry_flow(store_view: TheStoreView, request: Anyone, queue: QueueName, jid: JobId) -> Changed:
    """Run a flow again from a finished job: that job, and all finished jobs after it."""
    store_view.store.capabilities.require(store_view.store.name, "flows")
    job = await store_view.job(queue, jid)
    if job.state not in FINISHED:
        raise ApiError(
            409,
            "illegal_transition",
            f"cannot retry the flow: job {jid!r} is {job.state}",
            "Wait until it has finished.",
        )
    refs = await _from_here(store_view, JobRef(queue, jid))
    answers = await store_view.store.execute(rq.RetryJobs(refs=refs))
    again = [ref for ref, answer in zip(refs, answers, strict=True) if answer.status is ChangeStatus.OK]
    note(request, count=len(again), jobs=named(again))
    return Changed(count=len(again))


async def _from_here(store_view: StoreView, ref: JobRef) -> list[JobRef]:
    """A job and all finished jobs that wait for it, directly or indirectly.

    Raises an error if one of them is in a queue where the caller may not do this.
    """
    seen: dict[JobRef, None] = {ref: None}
    level = [ref]
    while level and len(seen) < _NODES:
        found = await store_view.store.execute(fl.GetDependencies(refs=level, values=False))
        above = [edge.dependent for one in found for edge in one.dependents]
        level = list(dict.fromkeys(one for one in above if one not in seen))
        seen |= dict.fromkeys(level)
    _check_reached(store_view, {one.queue for one in seen})
    records = await store_view.store.execute(rq.GetJobs(refs=list(seen)))
    return [record.ref for record in records if record is not None and record.state in FINISHED]


@delete(
    versioned("/api/flows/{queue:str}/{jid:str}"), status_code=200, tags=["flows"], access=of_queue("delete")
)
async def delete_flow(store_view: TheStoreView, request: Anyone, queue: QueueName, jid: JobId) -> Changed:
    """Delete a job and all jobs that it waits for. Refused while one of them runs."""
    store_view.store.capabilities.require(store_view.store.name, "flows")
    await _all_shown(store_view, queue, jid)
    count = await store_view.queue(queue).remove_flow(jid)
    note(request, count=count)
    return Changed(count=count)


async def _all_shown(store_view: StoreView, queue: str, jid: str) -> None:
    """Refuse a change that would reach a queue that is hidden, or where it is not allowed.

    This reads exactly the jobs that the change will read, at any depth.
    """
    levels = await own_jobs(store_view.queue(queue), JobRef(queue, jid))
    _check_reached(store_view, {ref.queue for level in levels for ref in level})


def _check_reached(store_view: StoreView, reached: set[str]) -> None:
    """Refuse (404, without their names) if some of the queues are hidden, or (403) not allowed."""
    if not all(store_view.shows(name) for name in reached):
        raise not_found("the flow reaches into queues that are not shown here", "Change its jobs one by one.")
    for name in reached:
        store_view.queue(name)


HANDLERS = [add_flow, list_flows, get_flow, cancel_flow, retry_flow, delete_flow]

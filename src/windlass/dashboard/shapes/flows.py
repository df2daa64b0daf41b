"""Flows as graphs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from windlass.core.states import JobState
from windlass.dashboard.shapes.base import Body, QueueText, Shape, TaskText


class FlowNode(Shape):
    """One job of a flow. ``gone``: its record was pruned or removed."""

    queue: str
    id: str
    task: str
    state: JobState
    progress: Any
    started_ms: int | None
    finished_ms: int | None
    duration_ms: int | None
    gone: bool
    #: It waits for more jobs than are listed.
    truncated: bool


class FlowEdge(Shape):
    """``dependent`` waits for ``child``; both are indexes into ``nodes``."""

    child: int
    dependent: int
    status: str
    on_failure: str


class Flow(Shape):
    """A flow as a graph. ``root`` is the index of its last job, ``asked`` of the requested one."""

    root: int
    asked: int
    nodes: list[FlowNode]
    edges: list[FlowEdge]
    truncated: bool


class FlowEntry(Shape):
    """A flow in a list, identified by its last job. ``name`` is the task of that job."""

    queue: str
    id: str
    name: str
    state: JobState
    #: Its jobs by state, and their number; ``truncated``: there are more than were read.
    counts: dict[str, int]
    jobs: int
    truncated: bool
    enqueued_ms: int
    #: When its first job started, and when its last one ended; null: not yet.
    started_ms: int | None
    ended_ms: int | None


class FlowPage(Shape):
    """Flows, newest first. If ``done`` is false, continue with ``next_cursor``, even without items."""

    items: list[FlowEntry]
    next_cursor: str | None
    #: Records that were read for this page, and how many there are.
    scanned: int
    to_scan: int
    done: bool


class FlowBody(Body):
    """A tree of jobs: the parent runs after its children."""

    task: TaskText
    queue: QueueText
    data: Any = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    on_failure: Literal["fail", "ignore", "continue"] = "fail"
    children: list[FlowBody] = msgspec.field(default_factory=list)

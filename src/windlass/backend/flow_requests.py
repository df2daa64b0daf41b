"""Requests about flows: dependencies between jobs, the outbox, and signals to suspended jobs.

``Add`` adds flows: its jobs name the jobs that they depend on. When a job ends, the same step settles the
edges to its dependents, up to about 1,000 of them. The remaining edges, and edges to another slot of a
cluster, stay in an outbox until ``Relay`` settles them. An edge is settled once, so relaying may be repeated.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import ChangeResult, Request
from windlass.core.edges import RELAY_STEP, Edge
from windlass.core.job import JobRef


class Dependencies(msgspec.Struct):
    """The edges of one job, each list in the order in which they were created.

    Valkey lists ``dependents`` in the order in which it linked them: those of one add queue by queue, and an
    edge that a retry has opened again as the newest. ``depends_on`` is always complete. ``more``: the job has
    more dependents than the request's ``limit``.
    """

    depends_on: list[Edge]
    dependents: list[Edge]
    more: bool = False


class GetDependencies(Request[list[Dependencies]], kw_only=True):
    """The edges of jobs in both directions. A job without edges or without a record has empty lists.

    ``values`` False leaves out the children's values. ``limit`` is the maximum number of dependents per job;
    with 0 they are not read at all.
    """

    needs: ClassVar[str] = "flows"

    refs: list[JobRef]
    values: bool = True
    limit: int = 1_000


class Relayed(msgspec.Struct):
    """How many edges were settled. ``more``: the limit was reached, so run it again."""

    count: int
    more: bool = False


class Relay(Request[Relayed], kw_only=True):
    """Settle up to ``limit`` edges of the outbox, in the order in which their children ended."""

    needs: ClassVar[str] = "flows"

    limit: int = RELAY_STEP


class Signal(Request[ChangeResult], kw_only=True):
    """Store ``data`` with a job under ``name``. It replaces older data of that name.

    A job that is suspended on that name becomes waiting. A finished job answers ``illegal``. Raises
    ``ConfigError`` for the 65th name of a job.
    """

    needs: ClassVar[str] = "signals"

    ref: JobRef
    name: str
    data: bytes
    codec: str = "json"

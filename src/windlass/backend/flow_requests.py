"""Requests about flows: who waits for whom, what is left to relay, signals to suspended jobs.

Flows are added by ``Add``: its jobs name what they depend on. A job that ends settles the edges of those
that wait for it in the same step, about 1,000 of them; the rest, and what crosses from one slot of a cluster
to another, stands in an outbox until ``Relay`` has carried it over. Relaying twice changes nothing: an edge
is settled once.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import ChangeResult, Request
from windlass.core.edges import RELAY_STEP, Edge
from windlass.core.job import JobRef


class Dependencies(msgspec.Struct):
    """The edges of one job, each list in the order of their making.

    ``depends_on`` is always complete. ``more``: it has more dependents than were asked for.
    """

    depends_on: list[Edge]
    dependents: list[Edge]
    more: bool = False


class GetDependencies(Request[list[Dependencies]], kw_only=True):
    """The edges of jobs, both ways. A job without any, or without a record, has empty lists.

    ``values`` False leaves out the children's values. ``limit`` bounds the dependents of each job; with 0
    they are not looked for.
    """

    needs: ClassVar[str] = "flows"

    refs: list[JobRef]
    values: bool = True
    limit: int = 1_000


class Relayed(msgspec.Struct):
    """How many edges were settled. ``more``: a bound was reached, run again."""

    count: int
    more: bool = False


class Relay(Request[Relayed], kw_only=True):
    """Settle up to ``limit`` edges whose children ended before, in the order of those ends."""

    needs: ClassVar[str] = "flows"

    limit: int = RELAY_STEP


class Signal(Request[ChangeResult], kw_only=True):
    """Keep ``data`` with a job under ``name`` (the newest stays, 64 names per job).

    A job that is suspended on that name becomes waiting. A finished job answers ``illegal``.
    """

    needs: ClassVar[str] = "signals"

    ref: JobRef
    name: str
    data: bytes
    codec: str = "json"

"""The list of all special paths: faster paths for some requests.

A special path does the same as the general path, for some requests and in fewer steps. Code that enters one
calls ``took``. The conformance suite counts the paths on every store that has them. A whole run of the suite
fails if a path was never taken, because then no test checks that path.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Path(NamedTuple):
    """Which stores have the path (their names, as in a URL), and what it does."""

    stores: tuple[str, ...]
    what: str


#: Every special path, sorted by name. Describe in one line how the path differs from the general one.
PATHS: Mapping[str, Path] = MappingProxyType(
    {
        "amqp.add_plain": Path(("amqp",), "new jobs are published without asking the coordinator"),
        "amqp.adds_together": Path(("amqp",), "adds of several callers share an entry of the log"),
        "amqp.complete": Path(("amqp",), "completions are logged without waiting for the coordinator"),
        "amqp.direct_reply": Path(("amqp",), "results go directly to the waiting client"),
        "amqp.idle_consumer": Path(("amqp",), "the broker pushes the first message of an idle queue"),
        "amqp.offered": Path(("amqp",), "an idle worker starts a delivered job without a claim"),
        "amqp.on_caller": Path(
            ("amqp",), "small requests use the connection on the thread of their event loop"
        ),
        "amqp.prefetched": Path(
            ("amqp",), "a claim is answered from pushed messages on the thread of the worker"
        ),
        "amqp.prefetching_consumer": Path(
            ("amqp",), "the broker pushes the jobs of the next claims of a busy queue"
        ),
        "file.adds_together": Path(("file",), "adds of several callers share a transaction"),
        "sqlite.add_rows": Path(("sqlite",), "new plain jobs are inserted without a lookup"),
        "sqlite.adds_together": Path(("sqlite",), "adds of several callers share a transaction"),
        "sqlite.complete": Path(("sqlite",), "completions of similar jobs are written together"),
        "sqlite.lease_first": Path(("sqlite",), "jobs that have not run yet are read with few columns"),
        "valkey.add_alone": Path(("valkey",), "a single plain job is added with one read and one write"),
        "valkey.add_plain": Path(
            ("valkey",), "plain jobs of one queue are stored as they came, without unpacking"
        ),
        "valkey.add_together": Path(("valkey",), "requests of several callers share one call"),
        "valkey.complete_run": Path(("valkey",), "completions of one queue are settled as one batch"),
        "valkey.handoff_assigned": Path(("valkey",), "a new plain job is leased directly to an idle worker"),
        "valkey.handoff_begun": Path(("valkey",), "a job delivered with a message starts at once"),
        "valkey.handoff_claimed": Path(("valkey",), "a claim is answered from jobs delivered with a message"),
        "valkey.handoff_registered": Path(("valkey",), "an idle worker registers for the next job"),
        "valkey.lease_plain": Path(("valkey",), "plain jobs are leased without unpacking"),
        "valkey.news": Path(("valkey",), "results arrive with the completion hint"),
        "worker.lane": Path(
            ("amqp", "valkey"), "a second lane settles and claims while the first waits for the store"
        ),
        "worker.lease_thread": Path(
            ("amqp", "file", "memory", "sqlite", "valkey"),
            "a thread with its own client renews leases",
        ),
    }
)

#: How often each path was taken in this process. Concurrent threads may lose a count; only zero matters.
counts: dict[str, int] = dict.fromkeys(PATHS, 0)


def took(name: str) -> None:
    """Count that the path ``name`` of ``PATHS`` is taken."""
    counts[name] += 1

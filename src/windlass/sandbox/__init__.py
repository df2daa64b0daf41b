"""Handlers in child processes: a crash, a leak or an endless loop affects only its own job.

``ProcessPool`` runs a ``SandboxCall`` in a warm child. ``target_of`` names a handler so that the child can
import it. ``requests_to`` connects methods such as ``job.log()`` in the child to the job in the worker.
"""

from __future__ import annotations

from windlass.errors import RemoteError
from windlass.sandbox.pool import ProcessPool, requests_to
from windlass.sandbox.process import OnRequest, SandboxCall
from windlass.sandbox.protocol import JobRequest
from windlass.sandbox.target import target_of

__all__ = ["JobRequest", "OnRequest", "ProcessPool", "RemoteError", "SandboxCall", "requests_to", "target_of"]

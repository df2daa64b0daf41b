"""Old names of modules and of what is in them: they work, with a ``DeprecationWarning`` that says the new
one.

One table for modules, one for names: a module with old names has ``__getattr__ = old_names(__name__)``, and
``install`` lets old modules be imported. Rows are removed in the next release.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

#: Old module -> where it is now. Modules below an old package are found below the new one.
MODULES = {
    "windlass.abort": "windlass.jobs.abort",
    "windlass.app": "windlass.api.app",
    "windlass.backend.flows": "windlass.backend.flow_requests",
    "windlass.backend.limits": "windlass.backend.limit_requests",
    "windlass.backend.metrics": "windlass.backend.metric_requests",
    "windlass.backend.schedules": "windlass.backend.schedule_requests",
    "windlass.backend.streams": "windlass.backend.stream_requests",
    "windlass.batch": "windlass.handlers.batch",
    "windlass.bulk": "windlass.api.bulk",
    "windlass.carry": "windlass.handlers.propagation",
    "windlass.context": "windlass.jobs.context",
    "windlass.core.limits": "windlass.core.limit_rules",
    "windlass.core.metrics": "windlass.core.rollups",
    "windlass.core.schedules": "windlass.core.schedule_rules",
    "windlass.core.unique": "windlass.core.unique_rules",
    "windlass.events": "windlass.api.events",
    "windlass.feed": "windlass.api.event_feed",
    "windlass.fields": "windlass.jobs.fields",
    "windlass.filling": "windlass.handlers.task_defaults",
    "windlass.flowtree": "windlass.flows.tree",
    "windlass.hooks": "windlass.handlers.hooks",
    "windlass.inject": "windlass.handlers.inject",
    "windlass.job": "windlass.jobs.job",
    "windlass.limiter": "windlass.limits.limiter",
    "windlass.metrics": "windlass.api.metrics",
    "windlass.output": "windlass.jobs.live_output",
    "windlass.payload": "windlass.jobs.payload",
    "windlass.plan": "windlass.jobs.prepare",
    "windlass.queue": "windlass.api.queue",
    "windlass.registry": "windlass.handlers.registry",
    "windlass.search": "windlass.api.search",
    "windlass.shutdown": "windlass.api.shutdown",
    "windlass.signature": "windlass.handlers.signature",
    "windlass.steps": "windlass.flows.builder",
    "windlass.sync": "windlass.api.sync",
    "windlass.task": "windlass.api.task",
    "windlass.testing.conformance": "windlass_conformance",
    "windlass.testing.damage": "windlass_conformance.damage",
    "windlass.testing.machine": "windlass_conformance.machine",
    "windlass.testing.own_clock": "windlass_conformance.own_clock",
    "windlass.waiting": "windlass.jobs.results",
}

#: Module -> old name -> where it is now.
NAMES: dict[str, dict[str, str]] = {
    "windlass": {
        "AbortedError": "windlass.errors.AbortedError",
        "AddOutcome": "windlass.jobs.AddOutcome",
        "AttemptEnd": "windlass.handlers.AttemptEnd",
        "Bucket": "windlass.limits.Bucket",
        "CancelResult": "windlass.jobs.CancelResult",
        "Codec": "windlass.serde.Codec",
        "CycleError": "windlass.errors.CycleError",
        "Dependency": "windlass.flows.Dependency",
        "DependencyError": "windlass.errors.DependencyError",
        "Edge": "windlass.flows.Edge",
        "EdgeStatus": "windlass.flows.EdgeStatus",
        "EventType": "windlass.jobs.EventType",
        "ForkedError": "windlass.errors.ForkedError",
        "Group": "windlass.flows.FlowGroup",
        "GroupFullError": "windlass.errors.GroupFullError",
        "GroupInfo": "windlass.limits.GroupInfo",
        "HistoryTrimmedError": "windlass.errors.HistoryTrimmedError",
        "IllegalTransitionError": "windlass.errors.IllegalTransitionError",
        "JobNode": "windlass.flows.JobNode",
        "JobSignal": "windlass.errors.JobSignal",
        "LimiterTimeoutError": "windlass.errors.LimiterTimeoutError",
        "MaxRetriesError": "windlass.errors.MaxRetriesError",
        "OnFailure": "windlass.flows.OnFailure",
        "OrderedGroupError": "windlass.errors.OrderedGroupError",
        "Outgoing": "windlass.handlers.Outgoing",
        "PayloadTooLargeError": "windlass.errors.PayloadTooLargeError",
        "ResultError": "windlass.errors.ResultError",
        "ResultExpiredError": "windlass.errors.ResultExpiredError",
        "ScheduleNotFoundError": "windlass.errors.ScheduleNotFoundError",
        "SignatureError": "windlass.errors.SignatureError",
        "Step": "windlass.flows.Step",
        "StoreFullError": "windlass.errors.StoreFullError",
        "StoreReplacedError": "windlass.errors.StoreReplacedError",
        "StreamChunk": "windlass.jobs.StreamChunk",
        "UniqueMode": "windlass.jobs.UniqueMode",
        "WorkerCrashError": "windlass.errors.WorkerCrashError",
        "content_id": "windlass.jobs.content_id",
        "from_callback": "windlass.handlers.from_callback",
        "register_codec": "windlass.serde.register_codec",
    },
    "windlass.api.app": {"Lifespan": "windlass.api.app_hooks.Lifespan"},
    "windlass.api.queue": {"CHUNK": "windlass.api.queue_adding.CHUNK"},
    "windlass.api.sync": {
        "SyncApp": "windlass.api.app.SyncApp",
        "SyncTask": "windlass.api.task.SyncTask",
    },
    "windlass.backend.local.store": {"Settings": "windlass.backend.local.settings.LocalSettings"},
    "windlass.backend.protocol": {
        "TellingBackend": "windlass.backend.protocol.CompletionHintsBackend",
    },
    "windlass.cli.dashboard": {"Options": "windlass.cli.dashboard_options.DashboardOptions"},
    "windlass.dashboard.settings": {"Settings": "windlass.dashboard.settings.DashboardSettings"},
    "windlass.flows.builder": {
        "Group": "windlass.flows.builder.FlowGroup",
    },
    "windlass.jobs.fields": {"JobFields": "windlass.jobs.fields.RecordFields"},
    "windlass.limits": {
        "KeyVerbs": "windlass.limits.verbs.KeyVerbs",
        "LimitVerbs": "windlass.limits.verbs.LimitVerbs",
    },
    "windlass.sandbox.job": {"Reply": "windlass.sandbox.job.WorkerAnswer"},
    "windlass.schedules": {
        "CodeSchedules": "windlass.schedules.verbs.DeclaredSchedules",
        "Schedules": "windlass.schedules.verbs.Schedules",
        "list_schedules": "windlass.schedules.verbs.list_schedules",
    },
}


def old_names(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: what it had under another name, or before it moved."""
    table = NAMES[module]

    def get(name: str) -> Any:
        new = table.get(name)
        if new is None:
            if _moved(f"{module}.{name}") is not None:
                return importlib.import_module(f"{module}.{name}")
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", new, 3)
        home, _, attribute = new.rpartition(".")
        return getattr(importlib.import_module(home), attribute)

    return get


def _moved(module: str) -> str | None:
    """Where an old module is now; None for any other name."""
    for old, new in MODULES.items():
        if module == old or module.startswith(old + "."):
            return new + module[len(old) :]
    return None


def _warn(old: str, new: str, level: int) -> None:
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=level)


class _OldModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by their old names. They are the modules of the new names, not copies of them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("windlass.") or _moved(fullname) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        new = _moved(module.__name__)
        assert new is not None
        _warn(module.__name__, new, 2)
        sys.modules[module.__name__] = importlib.import_module(new)


def install() -> None:
    """Let old modules be imported. After all others: a module that is there is never looked for here."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())

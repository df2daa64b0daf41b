"""Telemetry as middleware of the app: ``app.use(...)``.

``OpenTelemetry`` (``pip install windlass[otel]``) creates spans and metrics and carries the trace from the
producer to the worker. ``Sentry`` (``pip install windlass[sentry]``) reports errors and spans.
``PrometheusMetrics`` (``pip install windlass[prometheus]``) has counters and histograms. ``JobLog``,
``JsonLines`` and ``JobFields`` write structured logs. Each module is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windlass.telemetry.logs import JobFields, JobLog, JsonLines
    from windlass.telemetry.otel import OpenTelemetry
    from windlass.telemetry.prometheus import PrometheusMetrics
    from windlass.telemetry.sentry import Sentry

__all__ = ["JobFields", "JobLog", "JsonLines", "OpenTelemetry", "PrometheusMetrics", "Sentry"]

_HOMES = {
    "JobFields": "logs",
    "JobLog": "logs",
    "JsonLines": "logs",
    "OpenTelemetry": "otel",
    "PrometheusMetrics": "prometheus",
    "Sentry": "sentry",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

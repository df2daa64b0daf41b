"""The fixtures of the user-facing tests: an app on a store of its own, on every backend."""

from __future__ import annotations

from tests.unit.app.conftest import app, backend_name, clock, queue, timed_app, url

__all__ = ["app", "backend_name", "clock", "queue", "timed_app", "url"]

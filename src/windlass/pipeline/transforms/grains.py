"""Lengths of windows. Imports no Spark, so that readers without a JVM can use it."""

from __future__ import annotations

GRAIN_MS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}

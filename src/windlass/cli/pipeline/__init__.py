"""``windlass pipeline``: the history of a store as tables on Spark, and what can be done with them."""

from __future__ import annotations

# Each module adds its commands to the group.
from windlass.cli.pipeline import filling, reading, upkeep
from windlass.cli.pipeline.common import command

__all__ = ["command", "filling", "reading", "upkeep"]

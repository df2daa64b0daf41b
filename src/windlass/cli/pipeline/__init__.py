"""``windlass pipeline``: copies the history of a store to tables on Spark, and queries them."""

from __future__ import annotations

# Importing these modules adds their commands to the group.
from windlass.cli.pipeline import filling, reading, upkeep
from windlass.cli.pipeline.common import command

__all__ = ["command", "filling", "reading", "upkeep"]

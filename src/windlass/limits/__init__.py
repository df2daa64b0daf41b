"""Limits of queues and groups, unique keys, and named limiters for any code."""

from typing import TYPE_CHECKING

from windlass._renamed import old_names
from windlass.core.limit_rules import Bucket, GroupInfo, GroupLimits, Rate
from windlass.limits.limiter import Limiter

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

__all__ = ["Bucket", "GroupInfo", "GroupLimits", "Limiter", "Rate"]

"""Small things that Celery's users import from ``celery.utils``."""

from windlass.core.ids import new_id as uuid

__all__ = ["uuid"]

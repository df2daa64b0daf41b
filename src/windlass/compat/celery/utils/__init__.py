"""Parts of Celery's API from ``celery.utils``."""

from windlass.core.ids import new_id as uuid

__all__ = ["uuid"]

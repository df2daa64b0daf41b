"""Parts of Celery's API from ``celery.contrib``."""

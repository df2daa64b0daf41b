"""Parts of Celery's API that stand in ``celery.contrib``."""

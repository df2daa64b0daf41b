"""``start_worker``: a worker in this process, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from windlass.compat.celery.app import Celery
from windlass.compat.celery.current import wait_for
from windlass.worker import Worker


@contextmanager
def start_worker(
    app: Celery,
    concurrency: int = 1,
    pool: str = "solo",
    perform_ping_check: bool = True,
    shutdown_timeout: float = 10.0,
    queues: Iterable[str] | str | None = None,
    **needless: Any,
) -> Iterator[Worker]:
    """Run a worker of ``app`` for the duration of the block, for ``queues`` or all queues of the app."""
    names = queues.split(",") if isinstance(queues, str) else list(queues or app.queue_names())
    worker = Worker(names, url_or_app=app.windlass, concurrency=concurrency, grace=shutdown_timeout)
    wait_for(worker.start())
    try:
        yield worker
    finally:
        wait_for(worker.close())

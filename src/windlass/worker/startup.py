"""Steps of a worker's start, before it claims jobs."""

from __future__ import annotations

import logging
from typing import Final

from windlass.api.app import Windlass
from windlass.backend.limit_requests import SetGroupLimits, SetQueueLimits
from windlass.core.limit_rules import GroupLimits, to_rate
from windlass.core.option_values import check_registered, to_backoff
from windlass.core.text import printable
from windlass.errors import StorageError
from windlass.worker.lifecycle import Parts
from windlass.worker.parts import WorkerParts

log: Final = logging.getLogger("windlass.worker")


def check_strategies(shared: WorkerParts) -> None:
    """Check that the backoff strategies of all tasks are registered, since a name may be misspelt."""
    app = shared.app
    if shared.registry.fallback is None and not shared.registry.names():
        log.warning(
            "this worker has no handler and its app no tasks: every job is given back. Pass a handler, "
            "url_or_app= of the app with the tasks, or call register()"
        )
    for task in app.tasks.values() if shared.registry is app.registry else ():
        if task.queue_name in shared.shares.names:
            check_registered(to_backoff(task.job_options.backoff), shared.strategies, task.name)


async def set_limits(shared: WorkerParts, queues: list[str]) -> None:
    """Set the worker's ``limiter`` and ``global_concurrency`` on ``queues``, and the rates of their tasks."""
    concurrency, rate = shared.options.global_concurrency, to_rate(shared.options.limiter, "limiter")
    given = {"concurrency": concurrency, "rate": rate}
    fields = [name for name, value in given.items() if value is not None]
    for queue in queues if fields else ():
        request = SetQueueLimits(queue=queue, fields=fields, concurrency=concurrency, rate=rate)
        await shared.app.store.execute(request)
    for task in shared.app.tasks.values() if shared.registry is shared.app.registry else ():
        if task.rate is not None and task.queue_name in queues:
            limits = GroupLimits(rate=task.rate)
            await shared.app.store.execute(
                SetGroupLimits(queue=task.queue_name, group=task.name, limits=limits)
            )


async def enter_lifespan(parts: Parts, shared: WorkerParts) -> None:
    """Enter the app's lifespan. If that fails, the worker does not start."""
    lifespan, given = shared.app.open_lifespan(), shared.context
    value = await lifespan.__aenter__()

    async def leave() -> None:
        shared.context = given  # the next start, if this one fails, opens other resources
        await lifespan.__aexit__(None, None, None)

    # Leaving it runs application code, which may use all the time that is left.
    parts.opened("the app's lifespan", leave, most_ms=float("inf"))
    if given is None:
        shared.context = value


async def deploy_schedules(app: Windlass) -> bool:
    """Store the schedules of the code; False when the store is unreachable now."""
    try:
        await app.deploy_schedules()
    except StorageError as exc:
        log.warning("the schedules of the code are not in the store yet: %s", printable(str(exc)))
        return False
    return True

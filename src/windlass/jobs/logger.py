"""A logger that adds the job to every line."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from windlass.jobs.fields import RecordFields


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds job id, task, queue and attempt to every line, as fields and as a prefix."""

    def __init__(self, job: RecordFields) -> None:
        super().__init__(
            logging.getLogger("windlass.job"),
            {"job_id": job.id, "task": job.name, "queue": job.queue_name, "attempt": job.attempt},
        )

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = self.extra or {}
        kwargs["extra"] = {**facts, **kwargs.get("extra", {})}
        return f"[{facts.get('task')} {facts.get('job_id')}] {msg}", kwargs

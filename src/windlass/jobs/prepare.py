"""Turns checked options and arguments into new jobs for the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from windlass.core.job import NewJob
from windlass.core.option_values import GRACE_MS, check_spelling, to_unique
from windlass.core.options import JobOptions, StoredOptions, placed
from windlass.jobs.context import root_of

if TYPE_CHECKING:
    from windlass.jobs.interfaces import JobQueue


class PreparedOptions:
    """Checked options in their stored form. Created once and used for many jobs."""

    __slots__ = (
        "delay_ms",
        "expires_in_ms",
        "job_id",
        "linked",
        "priority",
        "result_codec",
        "run_at_ms",
        "stored",
        "unique",
    )

    def __init__(self, options: JobOptions, strategies: Iterable[str] = (), *, by_name: bool = True) -> None:
        """``strategies`` are the names of the app's backoff strategies.

        ``by_name``: the task is not known here, so options that are not given are filled in by the worker.
        """
        #: The options, if they name other jobs.
        self.linked: JobOptions | None = options if options.depends_on or options.parent is not None else None
        stored = options.stored()
        self.stored: StoredOptions = stored if by_name else msgspec.structs.replace(stored, unsaid=0)
        check_spelling(self.stored.backoff, strategies)
        self.unique = to_unique(options.unique)
        if self.unique is not None and self.unique.key is not None:
            fixed = self.unique.stored("", {})
            self.stored, self.unique = msgspec.structs.replace(self.stored, unique=fixed), None
        self.result_codec: str | None = options.result_codec
        self.priority: int = options.priority
        self.delay_ms: int = options.delay_ms
        self.run_at_ms: int | None = options.run_at_ms
        self.expires_in_ms: int | None = options.expires_in_ms
        self.job_id: str | None = options.job_id

    def new_job(self, queue: JobQueue, name: str, packed: dict[str, Any], fresh_id: str) -> NewJob:
        """Return a job to add. ``fresh_id`` is the request's id, and the job's unless one was given."""
        app, stored = queue.app, self.stored
        codecs = app.codecs
        if self.result_codec is not None:
            codecs.output(self.result_codec)  # raises now for a codec that is not accepted, not in the worker
        payload = codecs.pack(packed, app.max_payload_bytes)
        if self.unique is not None:  # the key depends on the arguments
            key = self.unique.stored(name, app.arguments(name, payload))
            stored = msgspec.structs.replace(stored, unique=key)
        new = NewJob(
            queue=queue.name,
            id=self.job_id or fresh_id,
            task=name,
            payload=payload,
            codec=codecs.own.name,
            priority=self.priority,
            options=stored,
            delay_ms=self.delay_ms,
            run_at_ms=self.run_at_ms,
            expires_in_ms=self.expires_in_ms,
            request_id=fresh_id,
        )
        if self.linked is not None:
            new.depends_on, new.parent = self.linked.dependencies(queue.name)
            if new.parent is not None:
                new.options = placed(stored, new.parent.ref, root_of(new.parent.ref))
        codecs.seal_new(new, app.max_payload_bytes)
        return new


def call_options(options: JobOptions, timeout_ms: int | None, *, chosen: bool) -> JobOptions:
    """Return ``options`` for a job whose caller waits ``timeout_ms`` for it and needs the result that long.

    ``chosen``: the caller set ``result_ttl``. The options are unchanged if records are kept long enough
    anyway and no other caller can ask for the job by name, because jobs without special options are the
    fastest.
    """
    if chosen:
        return options
    named = options.job_id is not None or options.unique is not None
    if not named and options.result_ttl is None and (timeout_ms or 0) <= GRACE_MS:
        return options
    return options.merged({"result_ttl": max(timeout_ms or 0, GRACE_MS) / 1000})


def spread_out(news: list[NewJob], span_ms: int) -> None:
    """Distribute the due times of the jobs evenly over ``span_ms``."""
    for index, new in enumerate(news):
        later_ms = index * span_ms // len(news)
        if new.run_at_ms is None:
            new.delay_ms += later_ms
        else:
            new.run_at_ms += later_ms

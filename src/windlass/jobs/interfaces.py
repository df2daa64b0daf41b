"""Protocols of the queue and the app of a job, so that ``jobs`` does not import ``api``.

``Windlass`` and ``Queue`` (in ``api``) implement them. The module of the app registers how an app is created
from a URL, for ``Queue(name, url)``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar, Unpack, cast

from windlass.backend.store import Store
from windlass.core.backoff import BackoffStrategy
from windlass.core.clock import Clock
from windlass.core.ids import JobRef
from windlass.core.job import JobRecord, LogLine, NewJob
from windlass.core.masks import MessageMask
from windlass.core.option_values import WAIT_S
from windlass.core.options import AddOptionsDict, JobOptions, JobOptionsDict
from windlass.core.outcome import CancelResult
from windlass.serde.codecs import Codecs


class JobApp(Protocol):
    """The app of a job: its store, its codecs and its queues."""

    name: str
    store: Store
    clock: Clock
    codecs: Codecs
    max_payload_bytes: int
    messages: MessageMask
    backoff_strategies: dict[str, BackoffStrategy]

    def queue(self, name: str) -> JobQueue:
        """Return the queue of that name."""

    def arguments(self, task: str, payload: bytes) -> dict[str, Any]:
        """Return the arguments of an encoded call by name, or by number where the name is unknown."""

    def typed_result(self, task: str, value: Any) -> Any:
        """Convert a stored result to the return type of its task, if the task is known here."""

    async def close(self) -> None:
        """Disconnect."""


class JobQueue(Protocol):
    """The queue of a job, which executes the job's methods."""

    name: str
    defaults: JobOptions

    @property
    def app(self) -> JobApp:
        """The app that the queue belongs to."""

    @property
    def store(self) -> Store:
        """The app's store. Raises ``ClosedError`` after ``close``."""

    # Returns a ``Job``, which imports this module.
    async def add(self, /, name: str, data: Any = None, **options: Unpack[AddOptionsDict]) -> Any:
        """Add one job."""

    def prepare(self, name: str, data: Any = None, **options: Unpack[JobOptionsDict]) -> NewJob:
        """Return a checked and encoded job without adding it."""

    async def cancel(self, job_id: str, reason: str = "") -> CancelResult:
        """Cancel a job."""

    async def kill(self, job_id: str, reason: str = "killed") -> CancelResult:
        """Fail a job that waits for a retry, without another attempt."""

    async def get_job_logs(self, job_id: str, start: int = 0, limit: int = 1_000) -> tuple[list[str], int]:
        """Return the log lines of a job from ``start``, and the number of lines that are kept."""

    async def get_job_log_lines(
        self, job_id: str, start: int = 0, limit: int = 1_000
    ) -> tuple[list[LogLine], int]:
        """Like ``get_job_logs``, with the time, level, attempt and run of each line."""

    async def remove(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job's record."""

    async def retry(self, job_id: str) -> None:
        """Run a finished job again."""

    async def wait_for(self, ref: JobRef, timeout: float | timedelta | None = WAIT_S) -> JobRecord:
        """Wait until a job has finished and return its record."""

    def result_of(self, record: JobRecord) -> Any:
        """Return the value of a finished job, or raise the error that it stands for."""


AppT = TypeVar("AppT", bound=JobApp)
_openers: list[Callable[[Any], Any]] = []


def open_apps_with(opener: Callable[[Any], Any]) -> None:
    """Register how an app is created from a URL. Called once, by the module of the app."""
    _openers[:] = [opener]


def as_app(url_or_app: str | AppT | None) -> AppT:
    """Return the app itself, or a new one for the URL."""
    return cast("AppT", _openers[0](url_or_app))

"""Protocols of the queue and the app of a job, so that ``jobs`` does not import ``api``.

``Windlass`` and ``Queue`` (in ``api``) have all of this. The app's module says, once, how an app is opened
from a URL: a bare ``Queue(name, url)`` makes the app that it belongs to through ``as_app``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar, Unpack, cast

from windlass.backend.store import Store
from windlass.core.backoff import Strategy
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
    backoff_strategies: dict[str, Strategy]

    def queue(self, name: str) -> JobQueue:
        """The queue of that name."""

    def arguments(self, task: str, payload: bytes) -> dict[str, Any]:
        """The arguments of a packed call by name, as far as the task's signature names them."""

    def typed_result(self, task: str, value: Any) -> Any:
        """A stored result as the annotation of its task says, if the task is known here."""

    async def close(self) -> None:
        """Disconnect."""


class JobQueue(Protocol):
    """The queue of a job: where its verbs are carried out."""

    name: str
    defaults: JobOptions

    @property
    def app(self) -> JobApp:
        """The app that the queue belongs to."""

    @property
    def store(self) -> Store:
        """The app's store; ``ClosedError`` after ``close``."""

    # What it returns is a ``Job``, which is made of this.
    async def add(self, /, name: str, data: Any = None, **options: Unpack[AddOptionsDict]) -> Any:
        """Add one job."""

    def prepare(self, name: str, data: Any = None, **options: Unpack[JobOptionsDict]) -> NewJob:
        """A checked and encoded job that is not added yet."""

    async def cancel(self, job_id: str, reason: str = "") -> CancelResult:
        """Cancel a job."""

    async def kill(self, job_id: str, reason: str = "killed") -> CancelResult:
        """Give a job that waits for a retry no further one."""

    async def get_job_logs(self, job_id: str, start: int = 0, limit: int = 1_000) -> tuple[list[str], int]:
        """Log lines of a job from ``start``, and how many are kept."""

    async def get_job_log_lines(
        self, job_id: str, start: int = 0, limit: int = 1_000
    ) -> tuple[list[LogLine], int]:
        """As ``get_job_logs``, each line with its time, level, attempt and run."""

    async def remove(self, job_id: str, *, force: bool = False) -> None:
        """Delete a job's record."""

    async def retry(self, job_id: str) -> None:
        """Run a finished job again."""

    async def wait_for(self, ref: JobRef, timeout: float | timedelta | None = WAIT_S) -> JobRecord:
        """The record of a job once it finished."""

    def result_of(self, record: JobRecord) -> Any:
        """The value of a finished job, or the error that it means."""


AppT = TypeVar("AppT", bound=JobApp)
_openers: list[Callable[[Any], Any]] = []


def open_apps_with(opener: Callable[[Any], Any]) -> None:
    """How an app is made of a URL. Called once, by the module of the app."""
    _openers[:] = [opener]


def as_app(url_or_app: str | AppT | None) -> AppT:
    """The app itself, or a new one on that URL."""
    return cast("AppT", _openers[0](url_or_app))

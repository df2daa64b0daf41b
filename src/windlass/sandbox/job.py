"""``SandboxJob``: the job of a handler in a child process.

It has the fields of ``windlass.Job``. Its methods send requests over the pipe to the worker, which holds the
lease and executes them. On an event loop, a call sends the request and returns a ``WorkerAnswer`` that can be
awaited. Elsewhere, the call blocks until the answer is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

from windlass._renamed import old_names
from windlass.core.job import LOG_LINE_CHARS
from windlass.core.text import clean_text
from windlass.errors import ConfigError, Suspend
from windlass.jobs.abort import AbortSignal
from windlass.jobs.fields import RecordFields
from windlass.jobs.payload import Call, pack_data, unpack
from windlass.serde import encode_value, get_codec
from windlass.serde.codecs import AnyCodec, Codecs

if TYPE_CHECKING:
    from concurrent.futures import Future

    from windlass.core.job import JobRecord, LogLevel
    from windlass.jobs.job import Job
    from windlass.jobs.logger import JobLogger
    from windlass.sandbox.protocol import Verb

#: Sends a verb and its encoded argument. The future is done when the worker has answered.
Send = Callable[["Verb", bytes], "Future[bytes]"]


#: The worker has already checked which codecs are accepted.
_CODECS = AnyCodec()


class WorkerAnswer:
    """The answer to a request. Awaiting it returns the value, or raises the worker's error."""

    __slots__ = ("_future", "_read")

    def __init__(self, future: Future[bytes], read: Callable[[bytes], Any]) -> None:
        self._future = future
        self._read = read

    def __await__(self) -> Generator[Any, None, Any]:
        data = yield from asyncio.wrap_future(self._future).__await__()
        return self._read(data)

    def wait(self, timeout: float | None = None) -> Any:
        """Block this thread until the answer is there, and return its value."""
        return self._read(self._future.result(timeout))


class SandboxJob(RecordFields):
    """The running job, in a child process."""

    def __init__(self, record: JobRecord, send: Send) -> None:
        self._record = record
        self.abort_signal = AbortSignal()
        #: The worker's shared context stays in the worker.
        self.context: Any = None
        self.discarded = False
        self._send = send
        self._codec = get_codec(record.codec)
        self._call: Call | None = None
        self._progress: Any = None
        self._logger: JobLogger | None = None

    def __repr__(self) -> str:
        return f"<SandboxJob {self.name} {self.id} of {self.queue_name}>"

    # --- fields ------------------------------------------------------------------------------------

    @property
    def _codecs(self) -> Codecs:
        return _CODECS

    @property
    def queue(self) -> str:
        """The queue's name. The queue object exists only in the worker."""
        return self._record.queue

    @property
    def progress(self) -> Any:
        """The last progress that this run reported, or None."""
        return self._progress

    @property
    def run_id(self) -> str | None:
        """The id of this attempt, unique forever."""
        return self._record.token

    @property
    def logger(self) -> JobLogger:
        """A standard logger that adds this job to every line."""
        if self._logger is None:
            from windlass.jobs.logger import JobLogger

            self._logger = JobLogger(cast("Job[Any]", self))
        return self._logger

    @property
    def sync(self) -> SandboxJob:
        """The job itself, since its methods also work in plain functions."""
        return self

    # --- verbs -------------------------------------------------------------------------------------

    def log(self, line: str, level: LogLevel = "info") -> WorkerAnswer:
        """Store a log line with the job."""
        return self._ask("log", [clean_text(line, LOG_LINE_CHARS), level])

    def update_progress(self, progress: Any) -> WorkerAnswer:
        """Report progress: any value that can be stored."""
        reply = self._ask("update_progress", progress)
        self._progress = progress
        return reply

    def update_data(self, data: Any) -> WorkerAnswer:
        """Replace the job's data. Its next attempt gets it."""
        call = unpack(self._codec.decode(self._encode(pack_data(data))))
        reply = self._ask("update_data", data)
        self._call = call
        return reply

    def discard(self) -> WorkerAnswer:
        """Allow no more retries: if this attempt fails, the job fails."""
        self.discarded = True
        return self._ask("discard")

    def stream(self, *chunks: Any) -> WorkerAnswer:
        """Write live output. ``queue.read_stream(job.id)`` receives each chunk, in order."""
        return self._ask("stream", list(chunks))

    def add_child(self, name: str, data: Any = None, **options: Any) -> Any:
        """Add a job that this one waits for. Returns its queue and id. See ``windlass.Job.add_child``."""
        return self._fetch("add_child", {"name": name, "data": data, **options})

    def get_children_values(self) -> Any:
        """Return the results of the jobs that this one waited for: ``"queue:id"`` -> value."""
        return self._fetch("get_children_values", None)

    def get_failed_children(self) -> Any:
        """Return why jobs that this one waited for did not complete: ``"queue:id"`` -> reason."""
        return self._fetch("get_failed_children", None)

    def suspend(self, signal: str, timeout: float | timedelta | None = None) -> NoReturn:
        """End this run until the signal comes or ``timeout`` has passed, by raising ``Suspend``."""
        raise Suspend(signal, timeout)

    def _ask(self, verb: Verb, value: Any = None) -> WorkerAnswer:
        future = self._send(verb, b"" if verb == "discard" else self._encode(value))
        if not _on_loop():
            future.result()
        return WorkerAnswer(future, self._decode)

    def _fetch(self, verb: Verb, value: Any) -> Any:
        """Return the worker's answer: to be awaited on an event loop, elsewhere as a value."""
        reply = WorkerAnswer(self._send(verb, self._encode(value)), self._decode)
        return reply if _on_loop() else reply.wait()

    def _decode(self, data: bytes) -> Any:
        return self._codec.decode(data) if data else None

    def _encode(self, value: Any) -> bytes:
        try:
            return encode_value(self._codec, value)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise ConfigError(
                "value", message=f"a value cannot be stored as {self._codec.name} ({exc})"
            ) from exc


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

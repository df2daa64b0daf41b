"""``RecordFields``: what a job shows of its record, the same in a worker and in its child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass._renamed import old_names
from windlass.core.states import JobState
from windlass.errors import ConfigError, ResultExpiredError
from windlass.jobs.payload import Call, read_call

if TYPE_CHECKING:
    from windlass.core.job import ErrorInfo, JobRecord, JobRef
    from windlass.core.options import StoredOptions
    from windlass.serde.codecs import Codecs


class RecordFields:
    """Read-only fields over ``_record``, as it was last read."""

    __slots__ = ("_call", "_record")

    _record: JobRecord
    #: The decoded arguments, once they were asked for.
    _call: Call | None

    @property
    def _codecs(self) -> Codecs:
        """What reads the stored values."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Its id: yours (``job_id``), or one that was made for it."""
        return self._record.id

    @property
    def name(self) -> str:
        """The task's name."""
        return self._record.task

    @property
    def queue_name(self) -> str:
        """The name of its queue."""
        return self._record.queue

    @property
    def ref(self) -> JobRef:
        """Queue and id as a pair: names the job anywhere."""
        return self._record.ref

    @property
    def record(self) -> JobRecord:
        """The raw record, in milliseconds and bytes."""
        return self._record

    @property
    def call(self) -> Call:
        """Decoded arguments; ``ValueError`` when the stored bytes are not arguments."""
        if self._call is None:
            self._call = read_call(self._codecs, self._record)
        return self._call

    @property
    def data(self) -> Any:
        """What was given to ``queue.add``; for a task's call, its arguments."""
        return self.call.data

    @property
    def payload(self) -> Any:
        """``data``; the stored bytes themselves where those are not arguments."""
        try:
            return self.data
        except (ValueError, ConfigError):
            return self._record.payload

    @property
    def args(self) -> list[Any]:
        """Its positional arguments, as they are stored."""
        return self.call.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its arguments by name, as they are stored."""
        return self.call.kwargs

    @property
    def options(self) -> StoredOptions:
        """Its options in the form that the store keeps: times are milliseconds."""
        return self._record.options

    @property
    def state(self) -> JobState:
        """The state when last read; ``get_state`` asks the store."""
        return self._record.state

    @property
    def priority(self) -> int:
        """Higher runs first."""
        return self._record.priority

    @property
    def attempt(self) -> int:
        """The number of the current or next run: 1 in the first."""
        return self._record.attempts + 1

    @property
    def attempts(self) -> int:
        """Runs that failed so far."""
        return self._record.attempts

    @property
    def fallback(self) -> Any:
        """What this run is to do instead of the usual: the option ``fallbacks`` at this retry, else None."""
        return self._record.options.fallback(self._record.attempts)

    @property
    def max_attempts(self) -> int:
        """The most runs that it gets, the first included."""
        return self._record.options.max_attempts

    @property
    def deliveries(self) -> int:
        """How often it was handed to a worker."""
        return self._record.deliveries

    @property
    def stalled_count(self) -> int:
        """How often its worker was lost while it ran."""
        return self._record.stalls

    @property
    def manual_retries(self) -> int:
        """How often it was retried by hand."""
        return self._record.manual_retries

    @property
    def errors(self) -> list[ErrorInfo]:
        """The error of each failed attempt, oldest first."""
        return self._record.errors

    @property
    def reason(self) -> str | None:
        """Why it failed or was cancelled: ``attempts``, ``stalled``, ``expired``, the reason of a cancel, ...

        None while it has not ended, and for a completed job.
        """
        return self._record.reason or None

    @property
    def failed_reason(self) -> str | None:
        """The message of its last error, also while it retries; None for a cancelled job."""
        if self._record.state is JobState.CANCELLED or not self._record.errors:
            return None
        return self._record.errors[-1].message

    @property
    def stacktrace(self) -> list[str]:
        """The traceback of each failed attempt that has one, oldest first."""
        return [error.traceback for error in self._record.errors if error.traceback]

    @property
    def return_value(self) -> Any:
        """The result of a completed job, None before it completed; ``ResultExpiredError`` past its time."""
        record = self._record
        if record.result_expired:
            raise ResultExpiredError(record.queue, record.id)
        return self._codecs.read_result(record)

    @property
    def enqueued_ms(self) -> int:
        """When it was added, in milliseconds since 1970."""
        return self._record.enqueued_ms

    @property
    def run_at_ms(self) -> int | None:
        """When it is due, while scheduled or retrying."""
        return self._record.due_ms

    @property
    def started_ms(self) -> int | None:
        """When its last run began."""
        return self._record.started_ms

    @property
    def finished_ms(self) -> int | None:
        """When it ended for good."""
        return self._record.finished_ms

    @property
    def worker_id(self) -> str | None:
        """The worker that runs it, or ran it last."""
        return self._record.worker

    @property
    def group(self) -> str | None:
        """The group that it belongs to."""
        return self._record.options.group

    @property
    def cost(self) -> int:
        """What a start takes from the token bucket of its group."""
        return self._record.options.cost

    @property
    def tags(self) -> tuple[str, ...]:
        """Its labels."""
        return self._record.options.tags

    @property
    def trace(self) -> dict[str, str]:
        """What travels with it for tracing."""
        return self._record.options.trace or {}

    @property
    def schedule_name(self) -> str | None:
        """The schedule that made it, if one did."""
        return self._record.options.schedule

    @property
    def slot_ms(self) -> int | None:
        """The slot of the schedule that it was made for; None also when the schedule was run by hand."""
        return self._record.options.slot_ms

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this job: hand it to services that deduplicate."""
        return f"{self.queue_name}:{self.id}:{self._record.enqueued_ms}"

    @property
    def signals(self) -> dict[str, Any]:
        """The signals that came for this job, by name, as of when it was last read."""
        found, read = self._record.signals, self._codecs.read_signal
        return {name: read(self._record.ref, name, value) for name, value in found.items()}

    def timed_out(self, signal: str) -> bool:
        """Whether the last suspension waited for ``signal`` in vain: its ``timeout`` passed."""
        return self._record.awaits == signal and signal not in self._record.signals


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

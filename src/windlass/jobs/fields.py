"""``RecordFields``: the fields of a job, the same in a worker and in its child process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass._renamed import old_names
from windlass.core.option_values import copied
from windlass.core.states import JobState
from windlass.errors import ConfigError, ResultExpiredError
from windlass.jobs.payload import Call, read_call

if TYPE_CHECKING:
    from windlass.core.job import ErrorInfo, JobRecord, JobRef
    from windlass.core.options import StoredOptions
    from windlass.serde.codecs import Codecs


class RecordFields:
    """Read-only fields of ``_record``, as it was last read.

    Records of jobs may share lists and dicts, so properties return copies of them.
    """

    __slots__ = ("_call", "_record")

    _record: JobRecord
    #: The decoded arguments, after the first access.
    _call: Call | None

    @property
    def _codecs(self) -> Codecs:
        """The codecs that read the stored values."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """Its id: the given ``job_id``, or a generated one."""
        return self._record.id

    @property
    def name(self) -> str:
        """The name of its task."""
        return self._record.task

    @property
    def queue_name(self) -> str:
        """The name of its queue."""
        return self._record.queue

    @property
    def ref(self) -> JobRef:
        """Its queue and id as a pair, which identifies it in the store."""
        return self._record.ref

    @property
    def record(self) -> JobRecord:
        """The stored record, with milliseconds and bytes."""
        return self._record

    @property
    def call(self) -> Call:
        """The decoded arguments. Raises ``ValueError`` when the stored bytes are not arguments."""
        if self._call is None:
            self._call = read_call(self._codecs, self._record)
        return self._call

    @property
    def data(self) -> Any:
        """The data given to ``queue.add``; for a task's call, its arguments."""
        return self.call.data

    @property
    def payload(self) -> Any:
        """``data``, or the stored bytes when they cannot be decoded."""
        try:
            return self.data
        except (ValueError, ConfigError):
            return self._record.payload

    @property
    def args(self) -> list[Any]:
        """Its positional arguments, as stored."""
        return self.call.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Its keyword arguments, as stored."""
        return self.call.kwargs

    @property
    def options(self) -> StoredOptions:
        """Its options as stored, with times in milliseconds."""
        return self._record.options

    @property
    def state(self) -> JobState:
        """The state when it was last read; ``get_state`` asks the store."""
        return self._record.state

    @property
    def priority(self) -> int:
        """Its priority. Higher ones run first."""
        return self._record.priority

    @property
    def attempt(self) -> int:
        """The number of the current or next attempt, from 1."""
        return self._record.attempts + 1

    @property
    def attempts(self) -> int:
        """The number of failed attempts."""
        return self._record.attempts

    @property
    def fallback(self) -> Any:
        """The value of the option ``fallbacks`` for this retry; None if there is none."""
        return copied(self._record.options.fallback(self._record.attempts))

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts, including the first."""
        return self._record.options.max_attempts

    @property
    def deliveries(self) -> int:
        """How often it was claimed by a worker."""
        return self._record.deliveries

    @property
    def stalled_count(self) -> int:
        """How often its lease expired while it ran."""
        return self._record.stalls

    @property
    def manual_retries(self) -> int:
        """How often it was retried by hand."""
        return self._record.manual_retries

    @property
    def errors(self) -> list[ErrorInfo]:
        """The error of each failed attempt, oldest first."""
        return list(self._record.errors)

    @property
    def reason(self) -> str | None:
        """Why it failed or was cancelled: ``attempts``, ``stalled``, ``expired``, the reason of a cancel, ...

        None before it has ended, and for a completed job.
        """
        return self._record.reason or None

    @property
    def failed_reason(self) -> str | None:
        """The message of its last error, also while it is retried; None for a cancelled job."""
        if self._record.state is JobState.CANCELLED or not self._record.errors:
            return None
        return self._record.errors[-1].message

    @property
    def stacktrace(self) -> list[str]:
        """The traceback of each failed attempt that has one, oldest first."""
        return [error.traceback for error in self._record.errors if error.traceback]

    @property
    def return_value(self) -> Any:
        """The result of a completed job; None before. Raises ``ResultExpiredError`` when it has expired."""
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
        """When it is due, while it is scheduled or retrying."""
        return self._record.due_ms

    @property
    def started_ms(self) -> int | None:
        """When its last run began."""
        return self._record.started_ms

    @property
    def finished_ms(self) -> int | None:
        """When it ended."""
        return self._record.finished_ms

    @property
    def worker_id(self) -> str | None:
        """The worker that runs it, or ran it last."""
        return self._record.worker

    @property
    def group(self) -> str | None:
        """The group that it belongs to, if any."""
        return self._record.options.group

    @property
    def cost(self) -> int:
        """The number of tokens that a start takes from the bucket of its group."""
        return self._record.options.cost

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return self._record.options.tags

    @property
    def trace(self) -> dict[str, str]:
        """Trace headers and other values that it carries from its producer."""
        return dict(self._record.options.trace or {})

    @property
    def schedule_name(self) -> str | None:
        """The schedule that added it, if any."""
        return self._record.options.schedule

    @property
    def slot_ms(self) -> int | None:
        """The slot of the schedule that it was added for; None also when the schedule was run by hand."""
        return self._record.options.slot_ms

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for all attempts of this job, for services that deduplicate."""
        return f"{self.queue_name}:{self.id}:{self._record.enqueued_ms}"

    @property
    def signals(self) -> dict[str, Any]:
        """The signals that it has received, by name, as of the last read."""
        found, read = self._record.signals, self._codecs.read_signal
        return {name: read(self._record.ref, name, value) for name, value in found.items()}

    def timed_out(self, signal: str) -> bool:
        """Whether the last suspension ended because its ``timeout`` for ``signal`` passed."""
        return self._record.awaits == signal and signal not in self._record.signals


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

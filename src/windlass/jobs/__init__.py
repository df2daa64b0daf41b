"""One job: its public class, how it is prepared, its arguments, results and live output."""

from windlass.core.backoff import Backoff
from windlass.core.ids import content_id
from windlass.core.job import Event, EventType
from windlass.core.option_values import Keep, Priority, Unique, UniqueMode
from windlass.core.options import JobOptions
from windlass.core.outcome import AddOutcome, CancelResult
from windlass.core.states import JobState
from windlass.jobs.context import current_job
from windlass.jobs.gathering import as_completed, gather
from windlass.jobs.job import Job
from windlass.jobs.live_output import StreamChunk

__all__ = [
    "AddOutcome",
    "Backoff",
    "CancelResult",
    "Event",
    "EventType",
    "Job",
    "JobOptions",
    "JobState",
    "Keep",
    "Priority",
    "StreamChunk",
    "Unique",
    "UniqueMode",
    "as_completed",
    "content_id",
    "current_job",
    "gather",
]

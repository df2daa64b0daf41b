"""Converts records to the shapes of the API, with masked values."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from windlass.api.why import Why
from windlass.core.job import ErrorInfo, JobRecord, JobRef, LogLine, QueueInfo, WorkerInfo, retries_of
from windlass.core.masks import DEPTH, key_text
from windlass.core.options import StoredOptions
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.core.stream_rules import Chunk
from windlass.core.text import clean_text
from windlass.dashboard.masking import PREVIEWED_BYTES as PREVIEWED_BYTES
from windlass.dashboard.masking import Mask
from windlass.dashboard.shapes import jobs as shapes
from windlass.dashboard.shapes.wire import DeadJob, Process, Queue, RetryJob, ScheduledJob, WireJob, WorkerJob
from windlass.dashboard.shapes.workers import LostJob, LostWorker, WorkerEntry
from windlass.errors import ConfigError
from windlass.jobs.payload import Call, read_call
from windlass.serde.codecs import Codecs

T = TypeVar("T")

_PREVIEW = 200
#: Maximum length of a chunk of output, in characters.
CHUNK_CHARS = 4_000
#: Maximum length of a message in a list. The job's own page shows all of it.
_MESSAGE = 500


async def each(records: Iterable[JobRecord], show: Callable[[JobRecord, Mask], T], mask: Mask) -> list[T]:
    """Convert each job with ``show``. Yields to other requests after each, since values may be large."""
    shown, brief = [], mask.brief()
    for record in records:
        shown.append(show(record, brief))
        await asyncio.sleep(0)
    return shown


def plain(value: Any) -> Any:
    """The value in JSON types. Other types become text. Raises ``ValueError`` or ``TypeError``."""
    try:
        return msgspec.json.decode(msgspec.json.encode(_with_text_keys(value), enc_hook=str))
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def _with_text_keys(value: Any, depth: int = 0) -> Any:
    """The value with keys that are bytes as text, as the mask compares them: JSON has them in base64."""
    if depth > DEPTH:  # nothing below this depth is shown
        return value
    if isinstance(value, dict):
        return {
            key_text(key) if isinstance(key, bytes) else key: _with_text_keys(item, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_with_text_keys(item, depth + 1) for item in value]
    return value


def _shown(read: Callable[[], Any], codec: str, data: bytes | None, mask: Mask) -> Any:
    """A stored value, not masked yet. Bytes that cannot be decoded are shown as such."""
    if data is None:
        return None
    try:
        return plain(read())
    except (ValueError, TypeError, ConfigError):
        return raw(codec, data, mask)


def raw(codec: str, data: bytes, mask: Mask) -> Any:
    """Bytes that cannot be decoded here. The fields of a signed value are readable without the key."""
    return {"codec": codec, "bytes": len(data), "base64": mask.unread(base64.b64encode(data).decode())}


def progress_of(record: JobRecord, mask: Mask) -> Any:
    """The progress, masked."""
    read = mask.codecs.read_progress
    return mask.hide(_shown(lambda: read(record), record.result_codec, record.progress, mask))


def result_of(record: JobRecord, mask: Mask) -> Any:
    """The result, not masked yet."""
    return _shown(lambda: mask.codecs.read_result(record), record.result_codec, record.result, mask)


def call_of(record: JobRecord, codecs: Codecs) -> Call | None:
    """The arguments; None if the stored bytes are invalid, or in a codec that is not accepted."""
    try:
        return read_call(codecs, record)
    except (ValueError, TypeError, ConfigError):
        return None


def preview(value: Any) -> str:
    """A short text of a value."""
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 1]}…"


def data_of(record: JobRecord, mask: Mask) -> Any:
    """The data of the job, masked."""
    call = call_of(record, mask.codecs)
    if call is None:
        return mask.hide(raw(record.codec, record.payload, mask))
    return mask.hide(plain(call.data))


def args_preview(record: JobRecord, mask: Mask) -> str:
    """A short text of the arguments, masked. For large ones, their size."""
    size = len(record.payload)
    return preview(data_of(record, mask)) if size <= PREVIEWED_BYTES else f"{size:,} bytes"


def last_error(record: JobRecord, mask: Mask) -> shapes.LastError | None:
    if not record.errors:
        return None
    error = record.errors[-1]
    return shapes.LastError(
        error_class=error.error_class, message=mask.text(error.message[:_MESSAGE]), at_ms=error.at_ms
    )


def duration_of(record: JobRecord) -> int | None:
    """How long the last run took, if it has ended."""
    if record.started_ms is None or record.finished_ms is None:
        return None
    return max(record.finished_ms - record.started_ms, 0)


def item_fields(record: JobRecord, mask: Mask) -> dict[str, Any]:
    ran = record.state in (JobState.COMPLETED, JobState.ACTIVE)
    return {
        "queue": record.queue,
        "id": record.id,
        "task": record.task,
        "state": record.state,
        "priority": record.priority,
        "attempt": record.attempts + 1 if ran or not record.attempts else record.attempts,
        "attempts": record.attempts,
        "max_attempts": record.options.max_attempts,
        "enqueued_ms": record.enqueued_ms,
        "ready_ms": record.ready_ms or None,
        "due_ms": record.due_ms,
        "started_ms": record.started_ms,
        "finished_ms": record.finished_ms,
        "duration_ms": duration_of(record),
        "worker": record.worker,
        "progress": progress_of(record, mask),
        "error": last_error(record, mask),
        "reason": record.reason,
        "tags": list(record.options.tags),
        "group": record.options.group,
        "schedule": record.options.schedule,
        "args_preview": args_preview(record, mask),
        "can": actions_of(record),
    }


def item(record: JobRecord, mask: Mask) -> shapes.Item:
    """A job in a list."""
    return shapes.Item(**item_fields(record, mask))


def error_entry(error: ErrorInfo, mask: Mask) -> shapes.ErrorEntry:
    return shapes.ErrorEntry(
        at_ms=error.at_ms,
        attempt=error.attempt,
        error_class=error.error_class,
        message=mask.text(error.message),
        traceback=mask.text(error.traceback),
        fingerprint=error.fingerprint,
    )


def log_line(number: int, line: LogLine, mask: Mask) -> shapes.LogLine:
    """A log line; ``number`` is its index among the lines that are kept."""
    return shapes.LogLine(
        number=number,
        text=mask.text(line.text),
        at_ms=line.at_ms or None,
        level=line.level,
        attempt=line.attempt,
        run=line.run,
    )


def output_chunk(ref: JobRef, codec: str, chunk: Chunk, mask: Mask) -> shapes.OutputChunk:
    """A piece of a job's output, as text of bounded length."""
    try:
        value = plain(mask.codecs.read_chunk(ref, codec, chunk.data))
    except (ValueError, TypeError, ConfigError):
        value = raw(codec, chunk.data, mask)
    shown = mask.hide(value)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown, enc_hook=str).decode()
    kept = clean_text(mask.text(text) if isinstance(shown, str) else text, CHUNK_CHARS)
    return shapes.OutputChunk(index=chunk.index, run=chunk.delivery, delivery=chunk.delivery, text=kept)


def actions_of(record: JobRecord) -> list[str]:
    """The actions that the job's state allows; ``retry_flow`` if another job of its flow depends on it."""
    state = record.state
    pending = state not in FINISHED and state is not JobState.ACTIVE
    can: dict[str, bool] = {
        "retry": state in FINISHED or state is JobState.RETRYING,
        "trigger": state in DUE_LATER,
        "kill": state is JobState.RETRYING,
        "cancel": state not in FINISHED,
        "delete": state is not JobState.ACTIVE,
        "change": pending,
        "signal": state not in FINISHED,
        "again": state in FINISHED,
        "retry_flow": state in FINISHED and record.options.root not in (None, "/".join(record.ref)),
    }
    return [name for name, allowed in can.items() if allowed]


def shown_options(record: JobRecord, mask: Mask) -> StoredOptions:
    """The options of a job, with masked values, and without references to jobs in hidden queues."""
    options = record.options
    parent, root = mask.place(options.parent), mask.place(options.root)
    fallbacks = tuple(mask.hide(one) for one in options.fallbacks)
    return msgspec.structs.replace(options, parent=parent, root=root, fallbacks=fallbacks)


def detail(
    record: JobRecord,
    mask: Mask,
    *,
    children: list[shapes.EdgeEntry],
    parents: list[shapes.EdgeEntry],
    log_lines: int,
) -> shapes.Detail:
    """Everything about one job."""
    call = call_of(record, mask.codecs)
    args, kwargs = (plain(call.args), plain(call.kwargs)) if call is not None else ([], {})
    shown_args, shown_kwargs = mask.hide(args) or [], mask.hide(kwargs) or {}
    result = result_of(record, mask)
    shown_result = mask.hide(result)
    unique = record.options.unique
    if mask.everything:
        shown_args, shown_kwargs = [], {}
    return shapes.Detail(
        **item_fields(record, mask),
        args=shown_args,
        kwargs=shown_kwargs,
        data=data_of(record, mask),
        result=shown_result,
        has_result=record.result is not None,
        result_expired=record.result_expired,
        result_until_ms=record.result_until_ms,
        errors=[error_entry(error, mask) for error in record.errors],
        # The options that were left to the task are internal to the worker.
        options=msgspec.to_builtins(msgspec.structs.replace(shown_options(record, mask), unsaid=0)),
        deliveries=record.deliveries,
        stalls=record.stalls,
        manual_retries=record.manual_retries,
        expires_ms=record.expires_ms,
        lease_until_ms=record.lease_until_ms,
        cancel_reason=record.cancel_reason,
        awaits=record.awaits,
        signals=sorted(record.signals),
        unique_key=unique.key if unique is not None else None,
        trace=record.options.trace or {},
        slot_ms=record.options.slot_ms,
        children=children,
        parents=parents,
        log_lines=log_lines,
        masked=(shown_args, shown_kwargs, shown_result) != (args, kwargs, result),
    )


def why(found: Why, records: dict[JobRef, JobRecord | None]) -> shapes.Why:
    """Why a job is not running. Of the jobs that hold it back, only the visible ones (``records``)."""
    causes = [
        shapes.Cause(
            kind=cause.kind,
            text=cause.text,
            advice=cause.advice,
            until_ms=cause.until_ms,
            limit=cause.limit,
            used=cause.used,
            jobs=[_named(ref, records[ref]) for ref in cause.jobs if ref in records],
            job_count=cause.job_count,
        )
        for cause in found.causes
    ]
    return shapes.Why(
        queue=found.ref.queue,
        id=found.ref.id,
        state=found.state,
        causes=causes,
        place=found.place,
        waiting=found.waiting,
    )


def _named(ref: JobRef, record: JobRecord | None) -> shapes.EdgeEntry:
    return shapes.EdgeEntry(
        queue=ref.queue,
        id=ref.id,
        task=record.task if record is not None else "",
        state=record.state if record is not None else None,
        status="",
        on_failure="",
    )


# --- wire shapes -----------------------------------------------------------------------------


def seconds(ms: int | None) -> float:
    return (ms or 0) / 1000


def wire_job(record: JobRecord, mask: Mask) -> WireJob:
    """A job in the wire format."""
    call = call_of(record, mask.codecs)
    hidden = call is None or mask.everything
    return WireJob(
        jid=record.id,
        class_=record.task,
        args=[] if call is None or hidden else mask.hide(plain(call.args)),
        kwargs={} if call is None or hidden else mask.hide(plain(call.kwargs)),
        queue=record.queue,
        retry=record.options.max_attempts - 1,
        retry_count=retries_of(record),
        enqueued_at=seconds(record.enqueued_ms),
        tags=list(record.options.tags),
        priority=record.priority,
        state=record.state.value,
    )


def scheduled_job(record: JobRecord, mask: Mask) -> ScheduledJob:
    return ScheduledJob(jid=record.id, scheduled_at=seconds(record.due_ms), job=wire_job(record, mask))


def retry_job(record: JobRecord, mask: Mask) -> RetryJob:
    last = record.errors[-1] if record.errors else ErrorInfo()
    return RetryJob(
        jid=record.id,
        retry_at=seconds(record.due_ms),
        retry_count=record.attempts,
        failed_at=seconds(last.at_ms) if last.at_ms else None,
        error_message=mask.text(last.message),
        error_class=last.error_class,
        job=wire_job(record, mask),
    )


def dead_job(record: JobRecord, mask: Mask) -> DeadJob:
    last = record.errors[-1] if record.errors else ErrorInfo()
    return DeadJob(
        jid=record.id,
        died_at=seconds(record.finished_ms),
        retry_count=retries_of(record),
        error_message=mask.text(last.message) or record.reason,
        error_class=last.error_class,
        backtrace=mask.text(last.traceback),
        job=wire_job(record, mask),
        reason=record.reason,
    )


def queue_view(info: QueueInfo, now_ms: int, processed: int, failed: int) -> Queue:
    """A summary of a queue."""
    latency_ms = 0 if info.oldest_ready_ms is None else max(now_ms - info.oldest_ready_ms, 0)
    return Queue(
        name=info.name,
        paused=info.paused,
        size=info.counts.get(JobState.WAITING.value, 0),
        counts={state.value: info.counts.get(state.value, 0) for state in JobState},
        latency_ms=latency_ms,
        processed=processed,
        failed=failed,
    )


def running_job(record: JobRecord, mask: Mask) -> WorkerJob:
    return WorkerJob(
        queue=record.queue,
        id=record.id,
        task=record.task,
        started_ms=record.started_ms,
        progress=progress_of(record, mask),
    )


def facts_of(info: WorkerInfo) -> dict[str, Any]:
    """The fields of ``WorkerStatus``."""
    return {
        "hostname": info.hostname,
        "pid": info.pid,
        "tag": info.tag,
        "queues": list(info.queues),
        "version": info.version,
        "started_ms": info.started_ms,
        "beat_ms": info.beat_ms,
        "busy": info.busy,
        "concurrency": info.concurrency,
        "rss_kb": info.rss_kb,
        "cpu_percent": info.cpu_percent,
        "quiet": info.quiet,
        "leader": info.leader,
        "command": None if info.command is None else info.command.action,
    }


def process_view(info: WorkerInfo, running: list[WorkerJob]) -> Process:
    """A worker process."""
    return Process(identity=info.id, beat=seconds(info.beat_ms), running=running, **facts_of(info))


def worker_entry(info: WorkerInfo, running: list[WorkerJob]) -> WorkerEntry:
    """A worker that is alive."""
    return WorkerEntry(id=info.id, running=running, **facts_of(info))


def lost_worker(info: WorkerInfo, held: list[JobRecord]) -> LostWorker:
    """A lost worker, with the jobs that it held."""
    jobs = [LostJob(queue=one.queue, id=one.id, task=one.task, state=one.state) for one in held]
    return LostWorker(id=info.id, jobs=jobs, **facts_of(info))

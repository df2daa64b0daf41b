"""Every default that users rely on, in one table: a change of one of them is a decision, never a slip.

Durations are seconds here. Where a design had another number, the entry says which.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from windlass import Job, JobOptions, Priority, Queue, Windlass, Worker
from windlass.backend.requests import ListWorkers
from windlass.backends.amqp.messages import DEFAULT_RETRY
from windlass.backends.amqp.names import Names
from windlass.core import job, rollups
from windlass.core.backoff import DEFAULT_BACKOFF
from windlass.core.option_values import (
    DEFAULT_RESULT_TTL_MS,
    GRACE_MS,
    KEEP_COMPLETED,
    KEEP_FAILED,
    PRIORITY_MAX,
    PRIORITY_MIN,
    WAIT_S,
    Unique,
    UniqueMode,
)
from windlass.serde import DEFAULT_MAX_BYTES
from windlass.worker.classify import UNKNOWN_TASK_DELAYS_MS
from windlass.worker.options import QueueSpec, WorkerOptions

DAY = 86_400
_STREAMS = Names("default").streams()


def given(function: Callable[..., Any], parameter: str) -> Any:
    """The default of a parameter."""
    return inspect.signature(function).parameters[parameter].default


def age(stream: str) -> str:
    """How long a stream of the AMQP store keeps its entries."""
    return str(_STREAMS[stream]["x-max-age"])


_OPTIONS, _WORKER = JobOptions(), WorkerOptions()

#: What, as it is, as it has to be.
DEFAULTS: list[tuple[str, Any, Any]] = [
    # Calls that wait: 30 s, as the designs say.
    ("timeout of add_and_wait", given(Queue.add_and_wait, "timeout"), 30),
    ("timeout of job.result", given(Job.result, "timeout"), 30),
    ("timeout of wait_until_finished", given(Job.wait_until_finished, "timeout"), 30),
    ("timeout of task.call", WAIT_S, 30),
    # Jobs.
    ("max_attempts: total runs", _OPTIONS.max_attempts, 3),
    ("max_attempts of an AMQP message without retry, less the first run", DEFAULT_RETRY, 25),
    ("priority", _OPTIONS.priority, 0),
    ("range of priorities", (PRIORITY_MIN, PRIORITY_MAX), (-1_048_576, 1_048_575)),
    (
        "CRITICAL, HIGH, NORMAL, LOW",
        [Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW],
        [1_000_000, 100_000, 0, -100_000],
    ),
    ("delay", (_OPTIONS.delay, _OPTIONS.run_at), (0, None)),
    ("backoff", DEFAULT_BACKOFF.type, "exponential"),
    ("backoff: first delay", DEFAULT_BACKOFF.delay_ms, 2_000),
    ("backoff: longest delay", DEFAULT_BACKOFF.cap_ms, 3_600_000),
    ("backoff: jitter, which shortens", DEFAULT_BACKOFF.jitter, 0.2),
    ("timeout of an attempt", _OPTIONS.timeout, None),
    ("lease of a job: the worker's", _OPTIONS.lease, None),
    ("max_stalls (1 in one design)", _OPTIONS.max_stalls, 2),
    ("stall_delay", _OPTIONS.stall_delay, 0),
    ("cost", _OPTIONS.cost, 1),
    ("lines of traceback", _OPTIONS.backtrace, 50),
    ("expiry", (_OPTIONS.expires_in, _OPTIONS.expires_total), (None, None)),
    ("what a job does when one that it waits for fails", str(_OPTIONS.on_failure), "fail"),
    ("mode of a unique key", Unique().mode, UniqueMode.UNTIL_DONE),
    ("where a task's jobs go", given(Windlass.task, "queue"), "default"),
    # How long things are kept.
    ("result_ttl", DEFAULT_RESULT_TTL_MS, 3_600_000),
    ("grace of a finished record", GRACE_MS, 60_000),
    (
        "completed jobs (for ever in one design)",
        (KEEP_COMPLETED.age_ms, KEEP_COMPLETED.count),
        (DAY * 1000, 10_000),
    ),
    ("failed jobs", (KEEP_FAILED.age_ms, KEEP_FAILED.count), (180 * DAY * 1000, 10_000)),
    ("events of a queue", job.EVENTS_KEPT, 10_000),
    ("attempts in the history", (job.HISTORY_KEPT, job.HISTORY_KEPT_MS), (100_000, DAY * 1000)),
    ("log lines and errors of a job", (job.LOGS_KEPT, job.ERRORS_KEPT), (1_000, 32)),
    ("roll-ups by minute and hour", list(rollups.KEPT_MS.values()), [90 * DAY * 1000, 5 * 365 * DAY * 1000]),
    ("largest payload", DEFAULT_MAX_BYTES, 1_000_000),
    ("AMQP: scheduled_jobs and retries", (age("scheduled_jobs"), age("retries")), ("2592000s", "2592000s")),
    ("AMQP: dead_jobs", age("dead_jobs"), "15552000s"),
    ("AMQP: heartbeats", age("heartbeats"), "300s"),
    ("AMQP: job_metrics", age("job_metrics"), "157680000s"),
    # Workers.
    ("concurrency (1, 5 or 10 in the designs)", _WORKER.concurrency, 16),
    ("order of queues", _WORKER.order, "weighted"),
    (
        "a queue's weight, cap and reserve",
        (QueueSpec().weight, QueueSpec().cap, QueueSpec().reserve),
        (1, None, 0),
    ),
    ("lease: how long a silent worker keeps a job", _WORKER.lease, 30),
    ("how often leases that ran out are looked for", _WORKER.recover_ms, 15_000),
    ("heartbeat", _WORKER.heartbeat, 10),
    ("a worker counts as gone when silent for", ListWorkers().stale_ms, 45_000),
    ("poll, behind notifications (1 to 5 in the designs)", _WORKER.poll, 2),
    ("prune_every", _WORKER.prune_every, 30),
    ("grace at a stop (10 in one design)", (_WORKER.grace, _WORKER.cancel_wait), (20, 5)),
    ("waits of a job whose task is unknown", UNKNOWN_TASK_DELAYS_MS, (5_000, 30_000, 120_000, 600_000)),
    (
        "force of a close and of a pause",
        (given(Worker.close, "force"), given(Worker.pause, "force")),
        (False, False),
    ),
    # Verbs of a queue.
    ("page of get_jobs", given(Queue.get_jobs, "limit"), 100),
    ("page of get_dead_letter_jobs", given(Queue.get_dead_letter_jobs, "limit"), 100),
    ("lines of get_job_logs", given(Queue.get_job_logs, "limit"), 1_000),
    ("drain leaves what is due later", given(Queue.drain, "delayed"), False),
    ("obliterate leaves what runs", given(Queue.obliterate, "force"), False),
    ("remove leaves what runs", given(Queue.remove, "force"), False),
    ("newest first", given(Queue.get_jobs, "newest_first"), True),
]


@pytest.mark.feature("E1", "J8", "R1")
@pytest.mark.parametrize(("found", "wanted"), [pytest.param(f, w, id=what) for what, f, w in DEFAULTS])
def test_a_default_is_what_it_was_promised_to_be(found: Any, wanted: Any) -> None:
    assert found == wanted


def test_every_option_of_a_job_and_of_a_worker_has_its_default_pinned_here() -> None:
    usual = {name: getattr(JobOptions(), name) for name in JobOptions.__struct_fields__}
    assert {name for name, value in usual.items() if value not in (None, (), [], False, 0)} == {
        *("max_attempts", "backoff", "max_stalls", "keep_completed", "keep_failed", "backtrace", "cost"),
        *("on_failure", "said"),
    }
    worker = {name: getattr(WorkerOptions(), name) for name in WorkerOptions.__struct_fields__}
    assert {name for name, value in worker.items() if value not in (None, "", False)} == {
        *("concurrency", "order", "lease", "grace", "cancel_wait", "poll", "prune_every", "heartbeat"),
        *("process_slots", "duties"),
    }

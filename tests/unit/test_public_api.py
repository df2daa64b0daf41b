"""What ``import windlass`` promises. A name that goes, or comes, must be a decision: it changes this list."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

import windlass

PUBLIC = {
    "Windlass", "Queue", "Job", "Worker", "Task", "QueueEvents", "current_job", "gather",
    "as_completed", "graceful_shutdown", "JobOptions", "Unique", "Keep", "Backoff", "Priority",
    "Batch", "Schedule", "QueueSpec", "Depends", "INJECTED", "Rate", "GroupLimits", "Limiter", "FlowProducer",
    "chain", "group", "chord", "step", "RESULT", "JobState", "Event", "Snooze", "Retry", "Cancel",
    "RateLimitError", "Suspend", "WaitForChildren", "UnrecoverableError", "BatchError",
    "WindlassError", "ConfigError", "JobNotFoundError", "JobFailedError", "JobCancelledError",
    "JobTimeoutError", "WaitTimeoutError", "LeaseLostError", "StorageError",
    "UnsupportedByBackendError", "ClosedError", "__version__",
}  # fmt: skip

#: The verbs of the class API.
QUEUE_VERBS = set(
    """
    add add_bulk add_and_wait add_in_transaction get_job get_jobs get_job_counts count get_status
    get_result update_result_ttl cancel revoke remove retry retry_jobs pause resume is_paused clean
    clear drain obliterate get_workers get_job_logs get_dead_letter_jobs search_jobs get_metrics events on
    close set_global_concurrency get_global_concurrency set_global_rate_limit get_global_rate_limit
    remove_global_rate_limit rate_limit set_group_limits get_group_limits remove_group_limits list_groups
    pause_group resume_group rate_limit_group get_unique_holder free_unique_key list_unique_keys
    remove_jobs promote_jobs cancel_jobs get_rollups stats_for_task get_daily_totals get_latency
    get_utilisation upsert_job_scheduler get_job_scheduler get_job_schedulers remove_job_scheduler
    pause_job_scheduler resume_job_scheduler run_job_scheduler signal read_stream get_flow cancel_flow
    remove_flow
    """.split()
)
JOB_VERBS = set(
    """
    log update_progress update_data discard move_to_failed remove retry cancel change_priority
    change_delay promote wait_until_finished result get_state is_completed is_failed is_cancelled
    is_revoked is_active is_waiting is_delayed is_finished refresh
    is_blocked is_suspended stream add_child suspend timed_out get_dependencies get_dependents
    get_children_values get_failed_children complete_in_transaction
    """.split()
)
JOB_FIELDS = set(
    """
    id name queue_name data args kwargs options state priority attempt attempts max_attempts
    deliveries stalled_count manual_retries errors reason failed_reason stacktrace progress return_value
    enqueued_ms run_at_ms started_ms finished_ms worker_id group tags trace idempotency_key run_id logger
    outcome abort_signal context discarded schedule_name slot_ms signals
    """.split()
)
WORKER_VERBS = set(
    """
    register add_queue resize run start wait_until_ready pause resume drain close abort_job is_running
    is_paused is_ready rate_limit on info busy
    """.split()
)


@pytest.mark.feature("Y2")
def test_the_public_names_are_exactly_these() -> None:
    assert set(windlass.__all__) == PUBLIC
    assert len(windlass.__all__) == len(PUBLIC), "named once each"
    assert [name for name in PUBLIC if not hasattr(windlass, name)] == []


@pytest.mark.feature("Y2")
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (windlass.Queue, QUEUE_VERBS),
        (windlass.Job, JOB_VERBS | JOB_FIELDS),
        (windlass.Worker, WORKER_VERBS),
        (windlass.Task, {"enqueue", "call", "options", "sync", "queue", "job_options"}),
        (windlass.QueueEvents, {"on", "start", "close", "wait_until_ready"}),
        (windlass.Windlass, {"queue", "queues", "workers", "tasks", "task", "register", "sync", "close"}),
        (windlass.Windlass, {"use", "around_enqueue", "around_execute", "on_error", "carry", "lifespan"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_each_class_has_its_verbs(kind: type, names: set[str]) -> None:
    assert sorted(name for name in names if not hasattr(kind, name)) == []


def test_every_public_class_and_function_is_documented() -> None:
    missing = [name for name in PUBLIC - {"__version__"} if not inspect.getdoc(getattr(windlass, name))]
    assert missing == []


@pytest.mark.feature("Z15")
def test_errors_form_one_tree_with_stable_codes() -> None:
    errors = [
        value
        for name in PUBLIC
        if isinstance(value := getattr(windlass, name), type) and issubclass(value, Exception)
    ]
    ours = [error for error in errors if issubclass(error, windlass.WindlassError)]
    signals = [error for error in errors if issubclass(error, windlass.errors.JobSignal)]
    assert len(ours) + len(signals) == len(errors)
    codes = [error.code for error in ours]
    assert len(codes) == len(set(codes))
    assert issubclass(windlass.ConfigError, ValueError)
    assert issubclass(windlass.StorageError, ConnectionError)
    assert issubclass(windlass.WaitTimeoutError, TimeoutError)
    assert issubclass(windlass.JobNotFoundError, LookupError)
    assert not issubclass(windlass.errors.JobSignal, windlass.WindlassError), "signals are no errors"


@pytest.mark.feature("A40")
def test_a_producer_loads_neither_the_command_line_nor_stores_that_it_does_not_use() -> None:
    script = (
        "import sys, windlass; windlass.Windlass('memory://').queue('a');"
        "print(*[name for name in ('click', 'rich', 'pytest', 'pyspark', 'windlass.backends.sqlite',"
        " 'windlass.cli', 'windlass.testing', 'multiprocessing.pool') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.feature("Y3")
def test_the_package_is_typed_and_says_its_version() -> None:
    from importlib.metadata import version
    from importlib.resources import files

    assert files("windlass").joinpath("py.typed").is_file()
    assert windlass.__version__ == version("windlass")
    assert importlib.import_module("windlass.testing").__all__

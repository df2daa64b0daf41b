"""A value that cannot work is refused where it is written: the promise of the guide, option by option."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import ConfigError, Windlass, Worker
from windlass.core.ids import new_id
from windlass.core.options import OPTION_NAMES
from windlass.worker.options import WorkerOptions

#: Of every option of a job, a value that a hurried user may write.
JOB: dict[str, Any] = {
    "delay": "5m",
    "run_at": "tomorrow",
    "priority": "high",
    "max_attempts": "3",
    "backoff": "exponentail",
    "timeout": "5m",
    "lease": "1",
    "max_stalls": -1,
    "stall_delay": "x",
    "job_id": "order:7",
    "keep_completed": "for ever",
    "keep_failed": "1d",
    "result_ttl": "1h",
    "tags": "welcome",
    "expires_in": "1h",
    "expires_total": "1h",
    "keep_id": "1d",
    "backtrace": "all",
    "trace": {"a": 1},
    "result_codec": "jsno",
    "lifo": "yes",
    "group": 3,
    "cost": 0,
    "unique": {"mode": "untildone"},
    "depends_on": [3],
    "parent": 3,
    "on_failure": "explode",
    "fallbacks": "gpt",
}
WORKER: dict[str, Any] = {
    "concurrency": "5",
    "order": "stict",
    "limiter": "10/m",
    "global_concurrency": "5",
    "lease": "30s",
    "grace": -1,
    "cancel_wait": "x",
    "poll": "x",
    "recover_every": "x",
    "prune_every": "x",
    "heartbeat": "x",
    "process_slots": 0,
    "max_jobs_per_child": -1,
    "duties": "no",
    "burst": "yes",
    "tag": 3,
    "id": "",
}
APP: dict[str, Any] = {
    "codec": "jsno",
    "result_codec": "jsno",
    "accept": ["jsno"],
    "defaults": {"max_attempts": "3"},
    "max_payload_bytes": "1MB",
    "name": "",
    "mask": "password",
}
TASK: dict[str, Any] = {
    "isolation": "proces",
    "batch": "10",
    "rate": "10/m",
    "cron": "61 * * * *",
    "schedule": {"evry": 3},
}


@pytest.fixture
def app() -> Windlass:
    return Windlass(f"memory://{new_id()}")


def test_the_tables_name_every_option() -> None:
    assert JOB.keys() == OPTION_NAMES
    assert WORKER.keys() == set(WorkerOptions.__struct_fields__)


@pytest.mark.parametrize("option", [*JOB, *TASK])
def test_a_task_refuses_it_when_its_module_is_imported(app: Windlass, option: str) -> None:
    wrong: dict[str, Any] = {option: {**JOB, **TASK}[option]}

    async def send() -> None: ...

    with pytest.raises(ConfigError):
        app.task(**wrong)(send)
    assert app.tasks == {}


@pytest.mark.parametrize("option", JOB)
async def test_options_and_add_refuse_it(app: Windlass, option: str) -> None:
    @app.task
    async def send() -> None: ...

    wrong: dict[str, Any] = {option: JOB[option]}
    with pytest.raises(ConfigError):
        send.options(**wrong)
    with pytest.raises(ConfigError):
        await app.queue("mail").add("send", **wrong)
    assert await app.queue("mail").count() == 0
    await app.close()


@pytest.mark.parametrize("option", WORKER)
def test_a_worker_refuses_it(app: Windlass, option: str) -> None:
    wrong: dict[str, Any] = {option: WORKER[option]}
    with pytest.raises(ConfigError, match=option):
        Worker("mail", url_or_app=app, **wrong)


@pytest.mark.parametrize("option", APP)
def test_an_app_refuses_it(option: str) -> None:
    wrong: dict[str, Any] = {option: APP[option]}
    with pytest.raises(ConfigError):
        Windlass("memory://", **wrong)

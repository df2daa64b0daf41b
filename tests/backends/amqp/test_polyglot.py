"""The examples in five languages, each with its real client, in both directions."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.backends.amqp.servers import broker_url, scratch
from tests.faults.kit import until
from windlass import Job, JobState, Windlass, Worker

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "polyglot"
JARS = "/usr/share/java"
GO_PATH = "/usr/share/gocode"
LANGUAGES = ["python", "javascript", "ruby", "go", "java"]

pytestmark = [pytest.mark.service("rabbitmq"), pytest.mark.timeout(180)]
backend_name = "amqp"


def _javascript(source: Path) -> tuple[list[str], dict[str, str]]:
    """Node finds packages beside a program, so it is put beside those that were installed."""
    home = Path(os.environ.get("WINDLASS_NODE_HOME", str(ROOT / ".node")))
    home.mkdir(exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests in other processes want it too
        if not (home / "node_modules" / "amqplib").exists():
            shutil.copy(EXAMPLES / "package.json", home)
            subprocess.run(["npm", "install", "--silent", "--prefix", str(home)], check=True)
    copy = home / f"{uuid.uuid4().hex}{source.suffix}"
    shutil.copy(source, copy)
    return ["node", str(copy)], {}


def _go(program: str) -> tuple[list[str], dict[str, str]]:
    binary = scratch() / program
    settings = {"GO111MODULE": "off", "GOPATH": GO_PATH, "GOCACHE": str(scratch())}
    subprocess.run(
        ["go", "build", "-o", str(binary), str(EXAMPLES / "go" / program / "main.go")],
        check=True,
        env={**os.environ, **settings},
    )
    return [str(binary)], {}


def _java(program: str) -> tuple[list[str], dict[str, str]]:
    jars = ":".join(f"{JARS}/{name}.jar" for name in ("amqp-client", "gson", "slf4j-api"))
    return ["java", "-cp", jars, str(EXAMPLES / f"{program.title()}.java")], {}


def command(language: str, program: str) -> tuple[list[str], dict[str, str]]:
    """How to run an example, and what its environment needs."""
    match language:
        case "python":
            return [sys.executable, str(EXAMPLES / f"{program}.py")], {}
        case "javascript":
            return _javascript(EXAMPLES / f"{program}.mjs")
        case "plain":
            return _javascript(Path(__file__).with_name(f"{program}.cjs"))
        case "ruby":
            return ["ruby", str(EXAMPLES / f"{program}.rb")], {}
        case "go":
            return _go(program)
    return _java(program)


async def run(language: str, program: str, *words: str) -> str:
    """The output of an example that must succeed."""
    line, settings = await asyncio.to_thread(command, language, program)
    process = await asyncio.create_subprocess_exec(
        *line,
        broker_url(),
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **settings},
    )
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if line[-1].endswith(".mjs"):
            await asyncio.to_thread(Path(line[-1]).unlink)
    assert process.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.feature("N6", "N5", "A3")
@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_producer_enqueues_for_windlass(language: str) -> None:
    queue = f"p{uuid.uuid4().hex[:12]}"
    calls: list[tuple[str, Any]] = []

    async def handler(job: Job[Any]) -> None:
        calls.append((job.name, job.data))

    async with Windlass(broker_url()) as app, Worker(queue, handler, url_or_app=app):
        await (await app.queue(queue).add("first")).result(timeout=30)
        jid = (await run(language, "producer", queue, "Greet", "Ada")).strip()
        await until(lambda: len(calls) == 2, "the job ran")
        job = await app.queue(queue).get_job(jid)
    assert calls[1] == ("Greet", ["Ada"])
    assert job is not None and job.max_attempts == 26


@pytest.mark.feature("N6", "N7")
@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_worker_runs_what_windlass_enqueued(language: str) -> None:
    queue = f"w{uuid.uuid4().hex[:12]}"
    async with Windlass(broker_url()) as app:
        jobs = app.queue(queue)
        good = await jobs.add("Greet", ["Grace"])
        again = await jobs.add("Fail", [], max_attempts=3)
        dead = await jobs.add("Fail", [], max_attempts=1)
        out = await run(language, "worker", queue, "3")
        assert out.split() == ["hello", "Grace"]
        for job, state in ((good, JobState.COMPLETED), (again, JobState.RETRYING), (dead, JobState.FAILED)):

            async def reached(job: Job[Any] = job, state: JobState = state) -> bool:
                return await job.get_state() is state

            await until(reached, f"{job.name} is {state.value}")
        record = await again.refresh()
        assert record.attempts == 1 and record.errors[0].message == "this job always fails"

        async def listed() -> bool:
            return any(w.tag == "polyglot" and queue in w.queues for w in await jobs.get_workers())

        await until(listed, "the worker is listed")


@pytest.mark.feature("N6", "B4")
async def test_the_producer_of_the_description_in_javascript_works_as_it_stands() -> None:
    queue = f"s{uuid.uuid4().hex[:12]}"
    calls: list[tuple[str, Any]] = []

    async def handler(job: Job[Any]) -> None:
        calls.append((job.name, job.data))

    async with Windlass(broker_url()) as app, Worker(queue, handler, url_or_app=app):
        await (await app.queue(queue).add("first")).result(timeout=30)
        await run("plain", "plain_client", queue)
        await until(lambda: len(calls) == 3, "both ran")
    assert calls[1:] == [("SendEmailJob", ["user@example.com", "Hello!"]), ("SendReminderJob", [123])]

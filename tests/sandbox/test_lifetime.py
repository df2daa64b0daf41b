"""Children of real programs: scripts, modules, files, and parents that die."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.sandbox import handlers
from tests.sandbox.conftest import call_to, record, wait_for_end
from windlass.errors import JobTimeoutError, WorkerCrashError
from windlass.sandbox import ProcessPool, RemoteError, SandboxCall, target_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

_HELPERS = """
import asyncio, sys
from windlass.core.job import JobRecord
from windlass.jobs.payload import pack_call
from windlass.sandbox import ProcessPool, SandboxCall, target_of
from windlass.serde import get_codec


def call_to(fn, *args):
    payload = get_codec("json").encode(pack_call(args, {}))
    record = JobRecord(queue="q", id="1", task=fn.__name__, payload=payload)
    return SandboxCall(target=target_of(fn), record=record)
"""

_SCRIPT = (
    _HELPERS
    + """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

def double(point: Point) -> list:
    return [point.x * 2, __name__, type(point).__module__, *sys.argv[1:]]

async def main():
    async with ProcessPool(1) as pool:
        print(await pool.run(call_to(double, {"x": 21})))

if __name__ == "__main__":
    asyncio.run(main())
"""
)

_PARENT = (
    _HELPERS
    + """
import time

def spin():
    while True:
        pass

def hold_the_interpreter():
    import ctypes
    while True:
        ctypes.PyDLL(None).usleep(100_000_000)  # never lets go of the GIL

async def log(request):
    pass

async def main():
    pool = ProcessPool(3)
    await pool.start()
    runs = [asyncio.create_task(pool.run(call_to(fn))) for fn in (spin, hold_the_interpreter)]
    await asyncio.sleep(0)
    print(*pool.pids, flush=True)
    await asyncio.gather(*runs)

if __name__ == "__main__":
    asyncio.run(main())
"""
)


def _run(arguments: list[str], cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.feature("T1")
def test_a_handler_of_a_script_runs_as_windlass_main(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    expected = "[42, '__windlass_main__', '__windlass_main__', 'an argument']"
    assert _run(["script.py", "an argument"], tmp_path) == expected
    assert _run(["-m", "script", "an argument"], tmp_path) == expected


def test_a_handler_without_a_file_is_refused_with_a_reason(tmp_path: Path) -> None:
    code = _HELPERS + "\ndef f(): ...\ntry:\n    target_of(f)\nexcept ValueError as exc:\n    print(exc)\n"
    assert "f cannot run in a child process: this __main__ is not in a file" in _run(["-c", code], tmp_path)


@pytest.mark.feature("T2")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_die_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "parent.py").write_text(_PARENT)
    with subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 3  # one loops, one holds the interpreter, one is idle
        parent.send_signal(number)
        parent.wait(10)
        for pid in pids:
            wait_for_end(pid)


# --- what handlers leave behind ------------------------------------------------------------------------


def _daemon(path: Path) -> int:
    return int(path.read_text())


@pytest.mark.feature("T2")
@pytest.mark.parametrize("how", ["return", "fail", "crash", "exit"])
async def test_a_daemon_that_a_handler_started_ends_with_its_job(
    pool: ProcessPool, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "daemon"
    run = pool.run(call_to(handlers.leave_a_daemon, str(path), how))
    if how == "return":
        assert await run == "done"
        assert not psutil.pid_exists(_daemon(path))  # gone before the job's end is told
    else:
        with pytest.raises(RemoteError if how == "fail" else WorkerCrashError):
            await run
    wait_for_end(_daemon(path))
    assert isinstance(await pool.run(call_to(handlers.pid)), int)


@pytest.mark.feature("T2")
@pytest.mark.parametrize("how", ["timeout", "cancel", "close"])
async def test_a_daemon_that_a_handler_started_ends_when_its_job_is_ended(
    pool: ProcessPool, tmp_path: Path, how: str
) -> None:
    path = tmp_path / "daemon"
    call = call_to(handlers.leave_a_daemon, str(path), "hang")
    run = asyncio.create_task(pool.run(call, timeout=5 if how == "timeout" else None))
    while not path.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    if how == "cancel":
        run.cancel()
    if how == "close":
        await pool.close()
    with pytest.raises((JobTimeoutError, asyncio.CancelledError, WorkerCrashError)):
        await run
    wait_for_end(_daemon(path))


@pytest.mark.feature("T2")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_a_handler_started_ends_with_a_worker_that_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "daemon"
    code = _HELPERS + (
        "from tests.sandbox import handlers\n"
        "async def main():\n"
        "    async with ProcessPool(1) as pool:\n"
        "        await pool.run(call_to(handlers.leave_a_daemon, sys.argv[1], 'hang'))\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT) as worker:
        while not path.exists():
            time.sleep(0.01)
        worker.send_signal(number)
        worker.wait(10)
        wait_for_end(_daemon(path))


# --- other ways to name a handler ----------------------------------------------------------------------


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path


async def _result(pool: ProcessPool, target: str, task: str, *args: Any, takes_job: bool = False) -> Any:
    return await pool.run(SandboxCall(target=target, record=record(task, *args), takes_job=takes_job))


@pytest.mark.feature("T1")
async def test_a_processor_may_be_a_file(pool: ProcessPool, tmp_path: Path) -> None:
    file = tmp_path / "processor.py"
    file.write_text("def handler(job):\n    return job.data\n\nasync def other(x: float):\n    return x\n")
    (tmp_path / "link.py").symlink_to(file)
    assert target_of(tmp_path / "link.py") == target_of(file)
    assert await _result(pool, target_of(file), "any", 5, takes_job=True) == [5]
    assert await _result(pool, target_of(f"{file}:other"), "any", 5) == 5.0


async def test_a_handler_may_be_found_through_the_app(pool: ProcessPool, importable: Path) -> None:
    (importable / "sandboxed_app.py").write_text(
        "from windlass import Windlass\n"
        "app = Windlass('memory://')\n"
        "@app.task(name='double')\n"
        "def twice(x: int) -> int:\n    return 2 * x\n"
        "app.task(name='triple')(lambda x: 3 * x)\n"
    )
    assert await _result(pool, "sandboxed_app:app", "double", 4) == 8
    assert await _result(pool, "sandboxed_app:app", "triple", 4) == 12
    assert await _result(pool, "sandboxed_app:twice", "double", 5) == 10


async def test_a_handler_that_cannot_be_found_is_an_error_of_the_job(
    pool: ProcessPool, importable: Path
) -> None:
    (importable / "sandboxed_empty.py").write_text("nothing = 1\n")
    with pytest.raises(ImportError):
        await _result(pool, "sandboxed_missing:f", "f")
    for name in ("sandboxed_empty:f", "sandboxed_empty:nothing"):
        with pytest.raises(ValueError, match=f"a child process cannot import a function as '{name}'"):
            await _result(pool, name, "f")
    assert await _result(pool, "operator:neg", "neg", 1) == -1

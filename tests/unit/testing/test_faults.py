"""Injected faults: probes in this process and in children, and the faulty backend."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.backend import requests as rq
from windlass.backends.memory import MemoryBackend
from windlass.core.job import JobRef, NewJob
from windlass.core.probe import Probe, reach
from windlass.errors import ConfigError, StorageError
from windlass.testing import FaultyBackend, faults


def new(job_id: str) -> NewJob:
    return NewJob(queue="q", id=job_id, task="t", payload=b"{}")


@pytest.mark.feature("U3")
def test_a_probe_is_installed_for_the_block_only() -> None:
    with faults.probing() as probe:
        reach("here")
        assert probe.count("here") == 1
    reach("here")
    assert probe.count("here") == 1


@pytest.mark.feature("U3")
def test_blocks_can_be_nested() -> None:
    with faults.probing() as outer:
        with faults.probing() as inner:
            reach("here")
        reach("here")
    assert (inner.count("here"), outer.count("here")) == (1, 1)


@pytest.mark.feature("U3")
def test_a_lost_reply_raises_a_storage_error() -> None:
    with faults.probing() as probe:
        probe.arm("here", faults.lose_reply)
        with pytest.raises(StorageError):
            reach("here")
        reach("here")


@pytest.mark.feature("U3")
def test_touch_and_block_talk_through_files(tmp_path: Path) -> None:
    with faults.probing() as probe:
        probe.arm("first", faults.touch(tmp_path / "a"))
        probe.arm("second", faults.block_until(tmp_path / "a"))
        probe.arm("third", faults.block_until(tmp_path / "never", timeout=0.01))
        reach("first")
        reach("second")
        with pytest.raises(TimeoutError):
            reach("third")


@pytest.mark.feature("U3")
def test_the_environment_arms_the_nth_time(tmp_path: Path) -> None:
    text = f"here=lose@3, here=touch:{tmp_path / 'one'}, here=touch:{tmp_path / 'three'}@3, there=lose"
    with faults.probing(faults.parse_probes(text)):
        reach("here")
        assert (tmp_path / "one").exists()
        reach("here")
        with pytest.raises(StorageError):
            reach("here")
        reach("here")
        with pytest.raises(StorageError):
            reach("there")


@pytest.mark.feature("U3")
@pytest.mark.parametrize(
    "text", ["here", "here=", "=kill", "here=explode", "here=kill@0", "here=touch", "here=kill:/tmp/x"]
)
def test_a_misspelt_environment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        faults.parse_probes(text)


@pytest.mark.feature("U3")
def test_without_the_variable_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.ENVIRONMENT_VARIABLE, raising=False)
    assert faults.install_from_environment() is None
    monkeypatch.setenv(faults.ENVIRONMENT_VARIABLE, "here=lose")
    installed = faults.install_from_environment()
    assert isinstance(installed, Probe)
    with pytest.raises(StorageError):
        reach("here")
    with faults.probing():
        pass
    from windlass.core.probe import install

    install(None)


_CHILD = """
from windlass.core.probe import reach
from windlass.testing.faults import install_from_environment
install_from_environment()
for n in range(5):
    reach("step")
    print(n, flush=True)
"""


def run_child(probes: str) -> subprocess.Popen[str]:
    environment = {"WINDLASS_PROBES": probes, "PYTHONPATH": ":".join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD], env=environment, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.feature("U3")
def test_a_child_is_killed_at_the_named_point() -> None:
    with run_child("step=kill@3") as child:
        assert child.stdout is not None
        assert child.stdout.read() == "0\n1\n"
    assert child.returncode == -signal.SIGKILL


@pytest.mark.feature("U3")
def test_a_child_is_frozen_at_the_named_point_until_it_is_continued(tmp_path: Path) -> None:
    with run_child(f"step=touch:{tmp_path / 'there'}@2,step=stop@2") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "0\n"
        faults.block_until(tmp_path / "there")("test", {})
        while "State:\tT" not in Path(f"/proc/{child.pid}/status").read_text():
            pass
        child.send_signal(signal.SIGCONT)
        assert child.stdout.read() == "1\n2\n3\n4\n"
    assert child.returncode == 0


# --- FaultyBackend --------------------------------------------------------------------------------


@pytest.mark.feature("U3", "Z14")
async def test_a_lost_reply_was_carried_out() -> None:
    backend = FaultyBackend(MemoryBackend())
    backend.lose_reply(rq.Add)
    with pytest.raises(StorageError):
        await backend.execute(rq.Add(jobs=[new("a")]))
    (job,) = await backend.execute(rq.GetJobs(refs=[JobRef("q", "a")]))
    assert job is not None


@pytest.mark.feature("U3")
async def test_a_refused_request_was_not_carried_out() -> None:
    backend = FaultyBackend(MemoryBackend())
    backend.refuse(rq.Add, times=2)
    for _ in range(2):
        with pytest.raises(StorageError):
            await backend.execute(rq.Add(jobs=[new("a")]))
    assert (await backend.execute(rq.GetJobs(refs=[JobRef("q", "a")]))) == [None]
    (added,) = await backend.execute(rq.Add(jobs=[new("a")]))
    assert added.outcome == "queued"
    assert (backend.sent["Add"], backend.failed["Add"]) == (3, 2)


@pytest.mark.feature("U3")
async def test_a_fault_can_let_some_requests_pass_first() -> None:
    backend = FaultyBackend(MemoryBackend())
    backend.refuse(rq.Promote, skip=1)
    await backend.execute(rq.Promote())
    with pytest.raises(StorageError):
        await backend.execute(rq.Promote())
    await backend.execute(rq.Promote())


@pytest.mark.feature("U3")
async def test_a_delayed_request_waits_for_its_event() -> None:
    backend, gate = FaultyBackend(MemoryBackend()), asyncio.Event()
    backend.delay(rq.Promote, gate)
    waiting = asyncio.create_task(backend.execute(rq.Promote()))
    await backend.execute(rq.Recover())
    assert not waiting.done()
    gate.set()
    assert (await waiting).count == 0


@pytest.mark.feature("U3")
async def test_clones_share_their_faults_and_their_store() -> None:
    backend = FaultyBackend(MemoryBackend())
    clone = backend.clone()
    await clone.open()
    backend.refuse(rq.Promote)
    with pytest.raises(StorageError):
        await clone.execute(rq.Promote())
    await clone.execute(rq.Add(jobs=[new("a")]))
    assert (await backend.execute(rq.GetJobs(refs=[JobRef("q", "a")]))) != [None]
    await clone.close()
    assert (backend.name, backend.capabilities.durable) == ("memory", False)

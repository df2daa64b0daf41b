"""A store with a long path has its sockets in the directory for temporary files, and leaves nothing there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.backend import Backend, open_backend
from windlass.backend.local import socket_folder
from windlass.backend.local.socket_folder import SocketFolder

#: A client of the store at the URL that listens, reports so and waits to be killed.
_LISTENER = textwrap.dedent(
    """
    import asyncio, sys
    from windlass.backend import open_backend

    async def main(url):
        store = open_backend(url)
        await store.open()
        store.listen(["ready:q"])
        print("ready", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main(sys.argv[1]))
    """
)


@pytest.fixture(params=["sqlite", "file"])
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, empty and with a short name."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def long_url(backend_name: str, tmp_path: Path, name: str) -> str:
    """The URL of a store whose path is too long for sockets."""
    folder = tmp_path / ("d" * 80) / name
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder}/jobs.db" if backend_name == "sqlite" else f"file://{folder}/jobs"


async def listening(url: str) -> Backend:
    """An open client with a socket."""
    store = open_backend(url)
    await store.open()
    store.listen(["ready:q"])
    return store


class Other:
    """Another process that listens."""

    def __init__(self, url: str, temporary: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LISTENER, url],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        """Kill it, unless that was done."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()


@pytest.fixture
def other(backend_name: str, tmp_path: Path, temporary: Path) -> Iterator[Other]:
    """Another process that uses the store ``shared``."""
    process = Other(long_url(backend_name, tmp_path, "shared"), temporary)
    yield process
    process.kill()


async def test_the_folder_of_the_sockets_goes_with_the_last_client(
    backend_name: str, tmp_path: Path, temporary: Path
) -> None:
    url = long_url(backend_name, tmp_path, "jobs")
    first, second = await listening(url), await listening(url)
    assert len(os.listdir(temporary)) == 1
    await first.close()
    assert len(os.listdir(temporary)) == 1, "the second client uses it"
    await second.close()
    assert os.listdir(temporary) == []


async def test_a_folder_that_another_process_uses_stays(
    backend_name: str, tmp_path: Path, temporary: Path, other: Other
) -> None:
    (used,) = os.listdir(temporary)
    for name in ("shared", "apart"):
        store = await listening(long_url(backend_name, tmp_path, name))
        await store.close()
        assert os.listdir(temporary) == [used]
        assert len(os.listdir(temporary / used)) == 1, "the socket of the other process"


async def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next(
    backend_name: str, tmp_path: Path, temporary: Path, other: Other
) -> None:
    other.kill()
    assert len(os.listdir(temporary)) == 1, "it could not clean up"
    store = await listening(long_url(backend_name, tmp_path, "apart"))
    assert len(os.listdir(temporary)) == 1, "its own"
    await store.close()
    assert os.listdir(temporary) == []


async def test_the_folder_of_a_process_that_was_killed_is_used_by_the_next_one_of_its_store(
    backend_name: str, tmp_path: Path, temporary: Path, other: Other
) -> None:
    other.kill()
    store = await listening(long_url(backend_name, tmp_path, "shared"))
    (used,) = os.listdir(temporary)
    assert len(os.listdir(temporary / used)) == 1, "the socket of the dead process is gone, its own is there"
    await store.close()
    assert os.listdir(temporary) == []


def test_a_socket_that_answers_is_left_alone_without_a_lock(temporary: Path) -> None:
    """A process of an older release takes no lock."""
    folder = temporary / f"{socket_folder._prefix()}{'0' * 16}"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as box:
        box.bind(str(folder / "box"))
        _use_once("/" + "x" * 100)
        assert folder.exists()
    _use_once("/" + "x" * 100)
    assert not folder.exists()


def test_a_folder_of_another_name_or_open_to_others_is_left_alone(temporary: Path) -> None:
    prefix = socket_folder._prefix()
    kept = [temporary / f"{prefix}notes", temporary / f"{prefix}{'0' * 16}", temporary / "else"]
    for folder in kept:
        folder.mkdir(mode=0o700)
    kept[1].chmod(0o777)
    _use_once("/" + "x" * 100)
    assert sorted(temporary.iterdir()) == sorted(kept)


def test_no_client_loses_its_folder_while_others_come_and_go(temporary: Path) -> None:
    lost: list[str] = []

    def come_and_go() -> None:
        for _ in range(100):
            folder = SocketFolder("/" + "x" * 100, "/")
            folder.open()
            if not socket_folder._is_at(folder.path, folder.fd):
                lost.append(folder.path)
            folder.close()

    threads = [threading.Thread(target=come_and_go) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert os.listdir(temporary) == []


def _use_once(beside: str) -> None:
    folder = SocketFolder(beside, "/")
    folder.open()
    folder.close()

"""Other systems to compare with. They are installed in a separate environment and run as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import REPORTS, ROOT, console
from benchmarks._stamps import VARIABLE, StampFile

SOURCES = ROOT / "benchmarks" / "peers"
HOME = REPORTS / "peers"
BIN = HOME / "venv" / "bin"


@dataclass(frozen=True, slots=True)
class Peer:
    """A system: how its driver and its worker are started (``{n}`` is the concurrency)."""

    name: str
    ask: tuple[str, ...]
    work: tuple[str, ...]
    #: Configuration of the worker -> concurrency, for systems that are measured with several.
    python: bool = True

    def do(self, url: str, verb: str, count: int, text: str = "-") -> float:
        """Run a verb in a separate process; returns the rate that it measured."""
        done = subprocess.run(
            [*self.ask, verb, str(count), text],
            cwd=ROOT,
            env=_environment(url),
            stdout=subprocess.PIPE,
            check=True,
            timeout=300,
        )
        return float(json.loads(done.stdout.splitlines()[-1])["rate"])

    @contextmanager
    def worker(self, url: str, stamps: StampFile, concurrency: int) -> Iterator[None]:
        """Its worker process, until the block ends."""
        command = [part.format(n=concurrency) for part in self.work]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_environment(url) | {VARIABLE: str(stamps.path), "BENCH_CONCURRENCY": str(concurrency)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            _end(process)


def _python(module: str) -> tuple[str, ...]:
    return (str(BIN / "python"), "-m", f"benchmarks.peers.{module}")


_CELERY = ("worker", "--pool", "threads", "--concurrency", "{n}", "--queues", "bench", "--loglevel", "error")
_QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
_TASKIQ = ("--workers", "1", "--max-async-tasks", "{n}", "--log-level", "ERROR")
_SCRIPT = str(HOME / "node" / "bullmq_peer.mjs")

PEERS = (
    Peer("BullMQ", ("node", _SCRIPT), ("node", _SCRIPT, "work", "{n}"), python=False),
    Peer(
        "Dramatiq",
        _python("dramatiq_peer"),
        (str(BIN / "dramatiq"), "benchmarks.peers.dramatiq_peer", "--processes", "1", "--threads", "{n}"),
    ),
    Peer(
        "Huey",
        _python("huey_peer"),
        (str(BIN / "huey_consumer"), "benchmarks.peers.huey_peer.huey", "-q", "-k", "thread", "-w", "{n}"),
    ),
    Peer(
        "Celery",
        _python("celery_peer"),
        (str(BIN / "celery"), "--app", "benchmarks.peers.celery_peer", *_CELERY, *_QUIET),
    ),
    Peer(
        "taskiq",
        _python("taskiq_peer"),
        (str(BIN / "taskiq"), "worker", "benchmarks.peers.taskiq_peer:broker", *_TASKIQ),
    ),
    Peer("FastStream", _python("faststream_peer"), (*_python("faststream_peer"), "work", "{n}")),
    Peer("Repid", _python("repid_peer"), (*_python("repid_peer"), "work", "{n}")),
)


def installed(names: Sequence[str]) -> list[Peer]:
    """Install the peers of these names. Peers that cannot be installed are left out, with a message."""
    wanted = [peer for peer in PEERS if peer.name.lower() in names]
    found = []
    for kind, install in ((True, _install_python), (False, install_node)):
        group = [peer for peer in wanted if peer.python is kind]
        if group:
            problem = install()
            if problem:
                console.print(f"left out {', '.join(peer.name for peer in group)}: {problem}")
            else:
                found += group
    return sorted(found, key=PEERS.index)


def _install_python() -> str | None:
    wanted = SOURCES / "requirements.txt"
    if _is_current("python.txt", wanted):
        return None
    console.print("installing peers for Python ...")
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(HOME / "venv")],
        [str(BIN / "python"), "-m", "pip", "-qq", "install", "-r", str(wanted)],
    ]
    return _run(steps, HOME, "python.txt", wanted)


def install_node() -> str | None:
    """Install the peers for Node; returns why that failed, if it did."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "node and npm are not installed"
    folder, wanted = HOME / "node", SOURCES / "package.json"
    folder.mkdir(parents=True, exist_ok=True)
    for script in SOURCES.glob("*.mjs"):
        shutil.copy(script, folder)
    if _is_current("node.txt", wanted):
        return None
    console.print("installing peers for Node ...")
    shutil.copy(wanted, folder)
    step = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
    return _run([step], folder, "node.txt", wanted)


def _is_current(stamp: str, wanted: Path) -> bool:
    return (HOME / stamp).exists() and (HOME / stamp).read_text() == wanted.read_text()


def _run(steps: list[list[str]], folder: Path, stamp: str, wanted: Path) -> str | None:
    HOME.mkdir(parents=True, exist_ok=True)
    for step in steps:
        done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            return (done.stderr or done.stdout).strip()[-500:]
    (HOME / stamp).write_text(wanted.read_text())
    return None


def _environment(url: str) -> dict[str, str]:
    plain = url.replace("valkey://", "redis://", 1)
    return os.environ | {"BENCH_URL": plain, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and the processes that it started."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

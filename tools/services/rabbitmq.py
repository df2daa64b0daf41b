"""RabbitMQ servers, each with its own ports, folders and port mapper (epmd).

``python -m tools.services.rabbitmq`` runs one until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.services import show_until_interrupted
from tools.services.ports import reserve_ports

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_S = 90.0
_STOP_S = 30.0


def rabbitmq_binary() -> str | None:
    """Debian's ``rabbitmq-server``: the program itself, not the wrapper that changes the user."""
    return str(_SERVER) if _SERVER.exists() and shutil.which("epmd") else None


class Server:
    """One broker. It keeps its ports and its data when it is killed and started again."""

    def __init__(
        self, binary: str, folder: Path, *settings: str, runtime: str = "", plugins: Sequence[str] = ()
    ) -> None:
        """``settings`` are lines of ``rabbitmq.conf``, ``runtime`` further arguments for Erlang."""
        self._binary = binary
        self._runtime = runtime
        self._plugins = plugins
        self.folder = folder
        self._reserved = reserve_ports(3)
        self.port, self._names_port, self._peers_port = self._reserved.ports
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._names: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> Server:
        """Start the broker; returns when it answers."""
        for name in ("home", "log", "data"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins").write_text(f"[{','.join(self._plugins)}].\n")
        (self.folder / "rabbitmq.conf").write_text("\n".join(["log.file.level = warning", *self._settings]))
        if self._names is None:
            self._names = subprocess.Popen(
                ["epmd", "-port", str(self._names_port), "-address", "127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [self._binary],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._wait_until_up()
        return self

    def _environment(self) -> dict[str, str]:
        data, folder = self.folder / "data", self.folder
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")},
            "HOME": str(folder / "home"),
            "ERL_EPMD_PORT": str(self._names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"windlass{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._peers_port),
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"+sbwt none +sbwtdcpu none +sbwtdio none {self._runtime}",
        }

    def _wait_until_up(self) -> None:
        end = time.monotonic() + _START_S
        while not self._answers():
            if self._process is None or self._process.poll() is not None or time.monotonic() > end:
                output = (self.folder / "output").read_text(errors="replace")[-2_000:]
                self.stop()
                raise RuntimeError(f"the broker on port {self.port} did not start: {output}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        """Whether the broker answers to the protocol header of AMQP."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 2) as probe:
            probe.settimeout(2)
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            return probe.recv(1) == b"\x01"
        return False

    def kill(self) -> None:
        """End it with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """Shut it down in order. Its data is kept."""
        self._end(signal.SIGTERM)

    def restart(self, *, kill: bool = False) -> Server:
        """Stop it and start it again, with the same ports and data."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        return self.start()

    def stop(self) -> None:
        """End it and its port mapper. Idempotent."""
        self._end(signal.SIGKILL)
        if self._names is not None:
            self._names.terminate()
            self._names.wait(_STOP_S)
            self._names = None

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for step in (how, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, step)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # helper processes of the runtime may still be running


@contextlib.contextmanager
def running(binary: str, *settings: str) -> Iterator[Server]:
    """Run a server with its own temporary folder during the block."""
    with tempfile.TemporaryDirectory(prefix="windlass-rabbitmq-") as folder:
        server = Server(binary, Path(folder), *settings)
        try:
            yield server.start()
        finally:
            server.stop()


def main() -> None:
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("no server found: apt-get install rabbitmq-server")
    with running(binary) as server:
        show_until_interrupted(server.url)


if __name__ == "__main__":
    main()

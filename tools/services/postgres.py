"""PostgreSQL servers, each with a Unix socket in its own folder.

``python -m tools.services.postgres`` runs one until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.services import show_until_interrupted

_START_S = 60
#: The server refuses to run as root. Debian's package creates this user.
_USER = "postgres"


def postgres_binaries() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``: Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class Server:
    """One server with a database ``postgres``. ``stop`` deletes its data."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = _USER if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-postgres-"))
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)

    def url(self, database: str = "postgres") -> str:
        """The URL of one of its databases."""
        return f"postgresql://windlass@/{database}?host={self._folder}"

    def start(self) -> Server:
        """Create the data folder and start the server; returns when it answers."""
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-U", "windlass", "--auth=trust", "--no-sync", "-E", "UTF8")
        settings = f"-k {self._folder} -c listen_addresses='' -c fsync=off -c shared_buffers=16MB"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", data, "-w", "-t", str(_START_S), "-l", log, "-o", settings, "start")
        return self

    def stop(self) -> None:
        """Stop the server and delete its folder. Idempotent."""
        data = self._folder / "data"
        if (data / "postmaster.pid").exists():
            self._run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        output = self._folder / "output"
        with output.open("wb") as file:
            done = subprocess.run(
                [str(self._binaries / program), *arguments],
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                check=False,
                timeout=2 * _START_S,
            )
        if done.returncode != 0:
            logs = [output, self._folder / "log"]
            text = "\n".join(log.read_text(errors="replace")[-2_000:] for log in logs if log.exists())
            raise RuntimeError(f"{program} ended with {done.returncode}: {text}")


@contextlib.contextmanager
def running(binaries: Path) -> Iterator[Server]:
    """Run a server during the block."""
    server = Server(binaries)
    try:
        yield server.start()
    finally:
        server.stop()


def main() -> None:
    binaries = postgres_binaries()
    if binaries is None:
        sys.exit("no server found: apt-get install postgresql")
    with running(binaries) as server:
        show_until_interrupted(server.url())


if __name__ == "__main__":
    main()

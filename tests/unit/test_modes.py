"""Who may use the files of a store: its user alone, or a group; and what the others are told."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass import ConfigError, Windlass, Worker
from windlass.backend import open_backend

SCHEMES = ["sqlite:///", "file://"]
#: Users and a group that no machine has; only root can become them.
_WEB, _WORK, _GROUP = 54_001, 54_002, 54_003

#: Imports everything, then becomes the user and uses the store.
_AS_USER = """
import asyncio, os, sys
from windlass import Windlass, Worker
scheme, path, query, user, group, verb, scratch = sys.argv[1:]
os.umask(0o077 if verb == "add" else 0o022)

async def use(url, verb):
    app = Windlass(url)
    async with app:
        if verb == "add":
            print((await app.queue("q").add("note", 1)).id)
        else:
            async def handler(job): return job.data
            await Worker("q", handler, url_or_app=app).drain()
            print([job.state.value for job in await app.queue("q").get_jobs()])

asyncio.run(use(scheme + scratch, "add"))  # whatever is imported late is imported now
asyncio.run(use(scheme + scratch, "work"))
if int(user):
    os.setgroups([int(group)] if int(group) else [])
    os.setresgid(int(user), int(user), int(user))
    os.setresuid(int(user), int(user), int(user))
try:
    asyncio.run(use(scheme + path + query, verb))
except Exception as error:
    print(type(error).__name__, error)
"""


def _use(
    scheme: str, place: Path, scratch: Path, user: int, verb: str, *, query: str = "", group: int = 0
) -> str:
    if os.geteuid() != 0:
        user = group = 0
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _AS_USER,
            scheme,
            str(place),
            query,
            f"{user}",
            f"{group}",
            verb,
            str(scratch),
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def _modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode)
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(".tmp")
    }


async def _work(url: str, folder: Path) -> dict[str, int]:
    """Add and run a job; the modes of all files while a worker is there."""
    app = Windlass(url)

    async def handler(job: object) -> None: ...

    async with app:
        worker = Worker("q", handler, url_or_app=app)
        await worker.start()
        await (await app.queue("q").add("note", 1)).result()
        found = _modes(folder)
        await worker.close()
    return found


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask-000", "umask-022", "umask-077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_new_store_is_for_its_user_alone(scheme: str, tmp_path: Path, umask: int) -> None:
    os.chmod(tmp_path, 0o755)
    modes = await _work(f"{scheme}{tmp_path / 'jobs'}", tmp_path)
    assert len(modes) > 3
    assert not [name for name, mode in modes.items() if mode & 0o077], modes


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_store_for_a_group_is_so_in_all_its_parts(scheme: str, tmp_path: Path, umask: int) -> None:
    modes = await _work(f"{scheme}{tmp_path / 'jobs'}?mode=0660", tmp_path)
    for name, mode in modes.items():
        folder = (tmp_path / name).is_dir()
        assert mode == (0o2770 if folder else 0o660), (name, oct(mode))


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_files_that_are_there_keep_their_mode(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}{tmp_path / 'jobs'}"
    await _work(f"{url}?mode=0644", tmp_path)
    before = _modes(tmp_path)
    await _work(url, tmp_path)
    after = _modes(tmp_path)
    assert {name: after[name] for name in before if name in after} == {
        name: mode for name, mode in before.items() if name in after
    }
    assert any(mode == 0o644 for mode in after.values())


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users can reach into: those of pytest are for its user alone."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-modes-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_users_of_a_group_share_a_store(scheme: str, tmp_path: Path, reachable: Path) -> None:
    shared = reachable / "shared"
    shared.mkdir()
    if os.geteuid() == 0:
        os.chown(shared, 0, _GROUP)
    shared.chmod(0o2770)
    for user, verb in ((_WEB, "add"), (_WORK, "work"), (_WEB, "add"), (_WORK, "work")):
        told = _use(
            scheme, shared / "jobs", tmp_path / f"s{user}", user, verb, query="?mode=0660", group=_GROUP
        )
        assert "Error" not in told
    assert told == "['completed', 'completed']"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_user_without_access_is_told_whose_the_store_is(
    scheme: str, tmp_path: Path, reachable: Path
) -> None:
    place = reachable / "open" / "jobs"
    place.parent.mkdir()
    place.parent.chmod(0o777)
    assert "Error" not in _use(scheme, place, tmp_path / "s1", _WEB, "add")
    told = _use(scheme, place, tmp_path / "s2", _WORK, "work")
    if os.geteuid() == 0:
        assert told.startswith("StorageError")
        assert f"belongs to user {_WEB}" in told
        assert f"runs as user {_WORK}" in told
        assert "?mode=0660" in told


@pytest.mark.parametrize("mode", ["0777", "0400", "660x", "", "9", "0066", "-1"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_modes_that_make_no_sense_are_refused(scheme: str, mode: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mode"):
        open_backend(f"{scheme}{tmp_path / 'jobs'}?mode={mode}")

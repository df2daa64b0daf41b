"""Two namespaces in one file never meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.backends.sqlite.statements import table
from windlass.core.states import JobState

pytestmark = pytest.mark.feature("L15")


@pytest.mark.parametrize(("one", "other"), [("one", "two"), ("App", "app"), ("a.b", "a-b"), ("a", "a_job")])
async def test_they_share_nothing(tmp_path: Path, one: str, other: str) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path, namespace=one) as first, opened(path, namespace=other) as second:
        await add(first, new(id="same"))
        await add(second, new(id="same"))
        await add(second, new(id="more"))
        await first.execute(rq.PauseQueue(queue="q", paused=True))
        assert await claim(first) == []
        assert [job.id for job in await claim(second)] == ["same", "more"]
        purge = rq.Purge(queue="q", states=list(JobState), force=True, forget=True)
        assert (await second.execute(purge)).count == 2
        assert (await first.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1
        assert (await first.execute(rq.ReadEvents(queue="q"))).last_id == 2


async def test_a_hint_stays_within_its_namespace(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with opened(path, namespace="one") as first, opened(path, namespace="two") as second:
        listener = first.listen(["ready:q"])
        await add(second, new())
        assert await listener.wait(20) == frozenset()
        await add(first, new())
        assert await listener.wait(5_000) == {"ready:q"}
        listener.close()


def test_no_two_names_make_the_same_table() -> None:
    names = [table(space, part) for space in ("a", "A", "a_job", "a.b", "a-b") for part in ("job", "log")]
    assert len({name.lower() for name in names}) == len(names)

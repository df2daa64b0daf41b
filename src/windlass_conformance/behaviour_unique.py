"""Unique keys as users of queues see them."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import ConfigError, Job, Unique
from windlass.jobs import AddOutcome, content_id
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, Stage

NEEDS = "unique"


class Seen:
    """A handler that records the data of its jobs."""

    def __init__(self, result: Any = None) -> None:
        self.data: list[Any] = []
        self._result = result

    async def __call__(self, job: Job[Any]) -> Any:
        self.data.append(job.data)
        return self._result


@pytest.mark.feature("D3", "D9", "A14")
async def test_a_unique_job_is_added_once_until_it_is_done(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        first = await queue.add("sync", {"user": 7}, unique="user-7")
        second = await queue.add("sync", {"user": 7}, unique=Unique("user-7"))
        assert (first.outcome, second.outcome) == (AddOutcome.QUEUED, AddOutcome.DUPLICATE)
        assert second.id == first.id
        holder = await queue.get_unique_holder("user-7")
        assert holder is not None
        assert holder.id == first.id
        await stage.work(Seen("done"))
        assert await second.result() == "done"
        assert await queue.get_unique_holder("user-7") is None
        assert (await queue.add("sync", unique="user-7")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D9")
async def test_keys_of_chosen_arguments(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE, unique=Unique.of("user"))
        async def sync(user: int, reason: str = "") -> None: ...

        @stage.app.task(queue=QUEUE, unique=True)
        async def mail(to: str, subject: str) -> None: ...

        outcomes = [
            (await sync.enqueue(1, "login")).outcome,
            (await sync.enqueue(user=1, reason="logout")).outcome,
            (await sync.enqueue(2)).outcome,
            (await mail.enqueue("ada", "hello")).outcome,
            (await mail.enqueue("ada", subject="hello")).outcome,
            (await mail.enqueue("ada", "bye")).outcome,
        ]
        assert outcomes == ["queued", "duplicate", "queued", "queued", "duplicate", "queued"]
        keys = [holder.key for holder in await stage.queue.list_unique_keys()]
        assert f"{sync.name}:{content_id({'user': 1})}" in keys
        with pytest.raises(ConfigError):
            await sync.options(unique=Unique.of("usr")).enqueue(3)


@pytest.mark.feature("D4", "A14")
async def test_a_throttled_job_runs_once_per_window(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen = Seen()
        await stage.work(seen)
        for n in range(6):
            await stage.queue.add("t", n, unique=Unique("k", "throttle", ttl=10))
            await stage.advance(4)
        assert seen.data == [0, 3]


@pytest.mark.feature("D5", "A14")
async def test_a_debounced_job_runs_once_with_the_last_data(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen = Seen()
        await stage.work(seen)
        outcomes = []
        for n in range(4):
            job = await stage.queue.add("t", n, unique=Unique("k", "debounce", ttl=10))
            outcomes.append(job.outcome)
            await stage.advance(5)
        assert outcomes == ["queued", "replaced", "replaced", "replaced"]
        assert job.data == 3
        await stage.advance(5.1)
        assert seen.data == [3]


@pytest.mark.feature("D9", "A14")
async def test_until_start_allows_the_next_while_one_runs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        unique = Unique("k", "until_start")
        inner: list[AddOutcome | None] = []

        async def handler(job: Job[Any]) -> None:
            if job.data == "first":
                inner.append((await stage.queue.add("t", "second", unique=unique)).outcome)

        await stage.queue.add("t", "first", unique=unique)
        assert (await stage.queue.add("t", "again", unique=unique)).outcome is AddOutcome.DUPLICATE
        await stage.work(handler)
        await stage.settle()
        assert inner == [AddOutcome.QUEUED]


@pytest.mark.feature("D8", "A14")
async def test_keep_last_runs_once_more_with_the_newest_data(harness: Harness) -> None:
    async with Stage(harness) as stage:
        unique, gate, seen = Unique("k", "keep_last"), Gate(), []

        async def handler(job: Job[Any]) -> None:
            seen.append(job.data)
            await gate.pass_through()

        await stage.queue.add("t", 0, unique=unique)
        await stage.work(handler)
        await stage.settle()
        outcomes = [(await stage.queue.add("t", n, unique=unique)).outcome for n in (1, 2, 3)]
        assert outcomes == ["queued", "replaced", "replaced"]
        assert seen == [0]
        gate.open()
        await stage.settle()
        assert seen == [0, 3]
        assert await stage.queue.get_unique_holder("k") is None


@pytest.mark.feature("D9")
async def test_a_key_is_freed_by_hand(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add("t", unique="k")
        assert await stage.queue.free_unique_key("k") is True
        assert await stage.queue.free_unique_key("k") is False
        assert (await stage.queue.add("t", unique="k")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D1", "D2", "D6")
async def test_an_id_by_content_joins_what_runs_and_reuses_what_is_done(harness: Harness) -> None:
    async with Stage(harness) as stage:
        data = {"b": 2, "a": 1}
        job_id = content_id(data)
        assert job_id == content_id({"a": 1, "b": 2})
        assert len(job_id) == 16
        first = await stage.queue.add("t", data, job_id=job_id)
        assert (await stage.queue.add("t", data, job_id=job_id)).outcome is AddOutcome.DUPLICATE
        await stage.work(Seen("made"))
        assert await first.result() == "made"
        again = await stage.queue.add("t", data, job_id=job_id)
        assert (again.outcome, again.return_value) == (AddOutcome.CACHED, "made")


@pytest.mark.feature("D3", "D5")
async def test_unique_options_that_cannot_work_are_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        wrong: list[dict[str, Any]] = [
            {"key": "k", "mode": "sometimes"},
            {"key": "k", "mode": "throttle"},
            {"key": "k", "mode": "debounce"},
            {"key": ""},
            {"key": "k", "fields": ["a"]},
            {"key": "k", "ttl": -1},
        ]
        for fields in wrong:
            with pytest.raises(ConfigError):
                Unique(**fields)
        with pytest.raises(ConfigError):
            await stage.queue.add("t", unique=Unique("k", "debounce", ttl=1), delay=5)
        with pytest.raises(ConfigError):
            await stage.queue.add("t", unique=5)  # type: ignore[arg-type]
        assert await stage.queue.count() == 0


@pytest.mark.feature("D8")
async def test_a_replaced_job_tells_what_it_did_not_take(harness: Harness) -> None:
    async with Stage(harness) as stage:
        last = Unique("export", "keep_last")
        first = await stage.queue.add("t", 1, unique=last, delay=60)
        assert first.not_taken == ()
        taken = await stage.queue.add("t", 2, unique=last, delay=5, tags=["red"], group="g")
        assert (taken.outcome, taken.id, taken.not_taken) == (AddOutcome.REPLACED, first.id, ())
        assert (taken.data, taken.tags, taken.group) == (2, ("red",), "g")

        async def failing(job: Job[Any]) -> None:
            raise ConnectionError("not now")

        await stage.work(failing)
        await stage.advance(5.5)
        (job,) = await stage.queue.get_jobs("retrying")
        assert (job.id, job.data) == (first.id, 2)
        left = await stage.queue.add("t", 3, unique=last, delay=5, expires_in=9, group="h")
        assert left.not_taken == ("group", "delay", "expires_in")
        assert (left.data, left.group, left.state) == (3, "g", "retrying")

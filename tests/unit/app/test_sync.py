"""The same verbs for code without an event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
from typing import Any

import pytest

from tests.unit.app.support import work_off
from windlass import (
    RESULT,
    ClosedError,
    ConfigError,
    FlowProducer,
    Job,
    JobState,
    Queue,
    WaitTimeoutError,
    Windlass,
    chain,
    chord,
    group,
)
from windlass.api.app import SyncApp
from windlass.api.sync import PORTAL, SyncJob, SyncQueue
from windlass.api.task import BoundTask, SyncTask, Task
from windlass.core.outcome import CancelResult
from windlass.flows.builder import FlowGroup, Step, SyncGroup, SyncStep
from windlass.flows.producer import SyncFlowProducer

pytestmark = pytest.mark.keeps_threads(
    "windlass-sync", "windlass-sqlite-*", reason="the portal's thread lives as long as the process"
)

VERBS = sorted(
    name for name, value in vars(SyncQueue).items() if not name.startswith("_") and callable(value)
)


@pytest.mark.parametrize("verb", VERBS)
def test_a_sync_queue_has_the_signatures_of_a_queue(verb: str) -> None:
    ours = inspect.signature(getattr(SyncQueue, verb))
    theirs = inspect.signature(getattr(Queue, verb))
    shape = [(p.name, p.kind, p.default) for p in ours.parameters.values()]
    assert shape == [(p.name, p.kind, p.default) for p in theirs.parameters.values()]
    assert not inspect.iscoroutinefunction(getattr(SyncQueue, verb))
    assert getattr(SyncQueue, verb).__doc__


#: Verbs that only make sense on a loop, or that others build on.
_ASYNC_ONLY = {"add_new", "add_planned", "call_planned", "close", "stop_waiting", "wait_for"}
#: Verbs of a handler, for its own job, which has ``job.sync``; and answers that a state gives as well.
_OF_HANDLERS = {"add_child", "log", "stream"}


def _verbs(kind: type) -> set[str]:
    return {
        name
        for name in dir(kind)
        if not name.startswith(("_", "is_")) and inspect.iscoroutinefunction(getattr(kind, name))
    }


@pytest.mark.parametrize(
    ("kind", "ours", "left_out"),
    [
        (Queue, SyncQueue, _ASYNC_ONLY),
        (Job, SyncJob, _OF_HANDLERS),
        (Windlass, SyncApp, set()),
        (Task, SyncTask, set()),
        (BoundTask, SyncTask, set()),
        (BoundTask, Task, set()),
        (Step, SyncStep, set()),
        (FlowGroup, SyncGroup, set()),
        (FlowProducer, SyncFlowProducer, set()),
    ],
)
def test_every_verb_is_there_without_asyncio(kind: type, ours: type, left_out: set[str]) -> None:
    assert {name for name in _verbs(kind) if not callable(getattr(ours, name, None))} == left_out


@pytest.fixture
def sync_app(url: str) -> Any:
    app = Windlass(url)
    yield app
    app.sync.close()


@pytest.mark.feature("A1", "A5", "A28", "A40")
def test_a_script_adds_looks_and_changes_without_asyncio(sync_app: Windlass) -> None:
    queue = sync_app.sync.queue("default")
    job = queue.add("work", {"a": 1}, job_id="one", priority=4)
    assert isinstance(job, SyncJob)
    assert (job.id, job.outcome, job.state) == ("one", "queued", JobState.WAITING)
    assert job.get_state() is JobState.WAITING
    assert queue.add("work", job_id="one").outcome == "duplicate"
    many = queue.add_bulk([{"name": "n"}, {"name": "n", "delay": 60}])
    assert [one.state for one in many] == ["waiting", "scheduled"]
    assert queue.count() == 3
    found = queue.get_job("one")
    assert found is not None
    assert found.job.data == {"a": 1}
    assert queue.get_job("none") is None
    assert [one.id for one in queue.get_jobs("scheduled")] == [many[1].id]
    assert queue.cancel("one", "why not") is CancelResult.CANCELLED
    assert many[0].cancel() == "cancelled"
    assert (queue.get_status("one") or {})["state"] == "cancelled"
    queue.retry("one")
    queue.remove("one")
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    assert queue.get_job_counts()[JobState.SCHEDULED] == 1
    assert many[1].job.queue_name == many[1].queue_name == "default"
    many[1].change_priority(7)
    assert many[1].refresh().priority == 7
    many[1].promote()
    assert many[1].get_state() is JobState.WAITING
    assert queue.kill(many[1].id) is CancelResult.CANCELLED


@pytest.mark.feature("A28", "A31", "A32")
def test_a_script_pages_cleans_and_empties_a_queue(sync_app: Windlass) -> None:
    queue = sync_app.sync.queue("default")
    queue.add_bulk([{"name": "n", "data": {"n": n}} for n in range(5)])
    first = queue.get_jobs("waiting", limit=3)
    rest = queue.get_jobs("waiting", cursor=first.cursor, limit=3)
    assert [job.data["n"] for job in [*first, *rest]] == [4, 3, 2, 1, 0]
    assert rest.cursor is None
    assert [job.data["n"] for job in queue.search_jobs(name="n", data={"n": 3})] == [3]
    first[0].cancel()
    assert len(queue.clean(0, state="cancelled").ids) == 1
    assert queue.drain() == 4
    assert [info.name for info in sync_app.sync.queues()] == ["default"]
    assert sync_app.sync.workers() == []


def test_errors_come_through_as_they_are(sync_app: Windlass) -> None:
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        sync_app.sync.queue("default").add("work", priorty=1)  # type: ignore[call-arg]
    with pytest.raises(WaitTimeoutError):
        sync_app.sync.queue("default").add_and_wait("work", timeout=0.01)

    @sync_app.task
    async def work() -> None: ...

    with pytest.raises(WaitTimeoutError):
        work.sync.call_within(0.01)


@pytest.mark.feature("E1")
def test_a_script_calls_a_task_and_gets_its_result(sync_app: Windlass) -> None:
    import asyncio

    @sync_app.task
    async def double(value: int) -> int:
        return 2 * value

    def work_in_a_thread() -> None:
        async def main() -> None:
            async with Windlass(sync_app.url) as app:
                app.registry = sync_app.registry
                from windlass import Worker

                worker = Worker("default", url_or_app=app)
                await worker.start()
                await asyncio.to_thread(stop.wait)
                await worker.close()

        asyncio.run(main())

    stop = threading.Event()
    thread = threading.Thread(target=work_in_a_thread)
    thread.start()
    try:
        assert double.sync.call(21) == 42
        assert double.sync.call_within(None, 21) == 42
        assert double.sync.options(priority=3).call_within(20, value=1) == 2
        job = double.sync.options(priority=3).enqueue(4)
        assert job.result(timeout=20) == 8
    finally:
        stop.set()
        thread.join()


async def test_inside_a_running_loop_the_sync_verbs_are_refused(app: Windlass) -> None:
    @app.task
    async def work() -> None: ...

    for blocked in (
        lambda: app.sync.queue("default").add("work"),
        lambda: app.sync.queue("default").count(),
        lambda: work.sync.enqueue(),
        lambda: app.sync.close(),
    ):
        with pytest.raises(RuntimeError, match="await the async verb instead"):
            blocked()
    assert await app.queue("default").count() == 0


async def test_a_plain_task_may_enqueue_through_sync_while_the_worker_runs(app: Windlass) -> None:
    """A handler in a thread has no loop of its own: the portal serves it."""

    @app.task(name="child")
    def child() -> str:
        return "child"

    @app.task(name="parent")
    def parent() -> str:
        return child.sync.enqueue().id

    job = await parent.enqueue()
    await work_off(app)
    child_job = await app.queue("default").get_job(await job.result())
    assert child_job is not None
    assert await child_job.result() == "child"


def test_one_thread_serves_all_apps(tmp_path: Any) -> None:
    from windlass.core.ids import new_id

    for _ in range(3):
        app = Windlass(f"memory://t{new_id()}")
        app.sync.queue("default").add("work")
        app.sync.close()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("windlass-sync") == 1


def test_the_portal_starts_again_after_a_stop() -> None:
    async def answer() -> int:
        return 42

    assert PORTAL.run(answer()) == 42
    PORTAL.stop()
    assert PORTAL.run(answer()) == 42


def test_many_threads_share_the_portal(sync_app: Windlass) -> None:
    queue = sync_app.sync.queue("default")
    threads = [threading.Thread(target=lambda: queue.add("work")) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.count() == 20


@pytest.mark.feature("I1", "I4")
def test_a_script_adds_flows_without_asyncio(sync_app: Windlass) -> None:
    @sync_app.task
    async def double(value: int) -> int:
        return 2 * value

    @sync_app.task(name="total")
    async def total(values: list[int]) -> int:
        return sum(values)

    last = chain(double.s(5), double.s(RESULT)).sync.enqueue()
    both = group(double.s(1), double.s(2)).sync.enqueue()
    end = chord([double.s(3), double.s(4)], total.s(RESULT)).sync.enqueue()
    flow = FlowProducer(sync_app)
    tree = {"name": double.name, "data": [6], "children": [{"name": double.name, "data": [7]}]}
    (top,) = flow.sync.add_bulk([tree])
    assert [node.id for node in flow.sync.get_flow("default", top.id).children] == [top.children[0].id]
    PORTAL.run(work_off(sync_app))
    assert [job.result() for job in (last, *both, end)] == [20, 2, 4, 14]
    found = sync_app.sync.queue("default").get_job(flow.sync.add(tree).id)
    assert found is not None
    assert (found.name, found.state) == (double.name, JobState.BLOCKED)


def test_a_flow_producer_of_a_url_is_closed_without_asyncio() -> None:
    flow = FlowProducer("memory://sync-flows")
    flow.sync.add({"name": "work"})
    flow.sync.close()
    with pytest.raises(ClosedError):
        flow.sync.add({"name": "work"})


def test_a_sync_job_has_the_fields_of_a_job() -> None:
    app = Windlass("memory://sync-fields")
    app.task(name="echo")(lambda value: value)
    queue = app.sync.queue("default")
    job = queue.add("echo", [5])
    PORTAL.run(work_off(app))
    found = queue.get_job(job.id)
    assert found is not None
    assert (found.return_value, found.signals) == (5, {})
    app.sync.close()


def test_a_fork_does_not_wait_for_a_thread_of_its_parent() -> None:
    async def answer() -> int:
        return 42

    PORTAL.stop()  # warnings are errors, and some versions of Python warn about forks with threads
    with PORTAL._lock:  # as a thread that the fork does not have
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(PORTAL.run(answer()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert PORTAL.run(answer()) == 42


def test_an_interrupt_ends_the_wait_on_the_loop_as_well() -> None:
    began, ended = threading.Event(), threading.Event()

    async def wait_for_ever() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        began.wait(20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            PORTAL.run(wait_for_ever())
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert ended.wait(20)


@pytest.mark.parametrize("moment", ["before it began", "after it began"])
def test_an_interrupt_while_a_call_is_handed_to_the_loop_ends_it(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended, free = threading.Event(), threading.Event(), threading.Event()
    hand_over = asyncio.run_coroutine_threadsafe

    async def wait_for_ever() -> None:
        began.set()
        await asyncio.Event().wait()

    def interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> Any:
        if moment == "before it began":
            loop.call_soon_threadsafe(free.wait, 20)
        pending = hand_over(coroutine, loop)
        pending.add_done_callback(lambda _: ended.set())
        if moment == "after it began":
            assert began.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PORTAL.run(wait_for_ever())
    free.set()
    assert ended.wait(20)
    assert began.is_set() == (moment == "after it began")

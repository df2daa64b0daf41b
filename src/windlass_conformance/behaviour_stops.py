"""Stops and waits of a worker end, whatever the store does, and what was reported did happen.

Where a driven clock would change the path (threads, timers), these tests run on the system's clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from windlass import Job, JobState, JobTimeoutError, StorageError, Worker
from windlass.backend import requests as rq
from windlass.backend.protocol import Listener
from windlass.core.probe import Probe
from windlass.errors import ClosedError
from windlass.testing.faults import probing
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, LiveStage, Stage, eventually

#: A worker that would wait very long if it was not woken.
PATIENT: dict[str, Any] = {"grace": 600, "cancel_wait": 600}
#: A worker that has little time, and how long its stop may take on a busy machine.
HASTY: dict[str, Any] = {"grace": 0.3, "cancel_wait": 0.2, "heartbeat": 0.1, "poll": 0.1}
BOUND = 0.3 + 0.2 + 2


def gated(gate: Gate, ran: list[str] | None = None) -> Any:
    async def handler(job: Job[Any]) -> str:
        if ran is not None:
            ran.append(job.id)
        await gate.pass_through()
        return "done"

    return handler


def threads() -> set[threading.Thread]:
    """The threads of workers."""
    return {t for t in threading.enumerate() if t.name.startswith(("windlass-leases", "windlass-job"))}


#: Tasks of a worker; a client of a store may have some too.
TASKS = {
    "pump",
    "lane",
    "relay-now",
    "relay",
    "start",
    "close",
    "leases",
    "lease-watch",
    "heartbeat",
    "lead",
    "recover",
    "prune",
}


def tasks() -> list[str]:
    """What workers have under way on this loop."""
    names = (task.get_name() for task in asyncio.all_tasks())
    return [name for name in names if name.removeprefix("windlass-") in TASKS]


async def in_time(call: Any) -> float:
    """How many seconds ``call`` took, without those in which the machine did not let this process run.

    On a busy machine a process may stand still for seconds, which says nothing about what a stop waits for.
    """
    began, stood_still, tick = time.monotonic(), 0.0, 0.02
    running = asyncio.ensure_future(call)
    try:
        async with asyncio.timeout(30):
            while not running.done():
                due = time.monotonic() + tick
                await asyncio.wait([running], timeout=tick)
                stood_still += max(time.monotonic() - due, 0)
            await running
    finally:
        running.cancel()
    return time.monotonic() - began - stood_still


# --- cancelling run() and drain() -----------------------------------------------------------------------


@pytest.mark.feature("V2")
@pytest.mark.parametrize("verb", ["run", "drain"])
async def test_cancelling_a_running_worker_is_a_graceful_close(harness: Harness, verb: str) -> None:
    async with LiveStage(harness) as stage:
        gate, ran, before = Gate(), list[str](), threads()
        worker = await stage.work(gated(gate, ran), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        running = asyncio.create_task(getattr(worker, verb)())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        assert not running.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await job.result(timeout=5), ran) == ("done", [job.id])
        await worker.close()
        await eventually(lambda: threads() <= before)
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3")
async def test_what_ended_before_a_cancel_is_settled(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        let_go, ran = asyncio.Event(), list[str]()
        stage.faults.delay(rq.Settle, let_go)
        worker = await stage.work(lambda job: ran.append(job.id), **PATIENT)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.sent["Settle"] == 1)
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await job.refresh()
        assert (job.state, ran) == (JobState.COMPLETED, [job.id])


@pytest.mark.feature("V2", "V5")
async def test_a_second_cancel_releases_at_once(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(0)  # its first step
        running.cancel()
        await eventually(lambda: not worker.is_running)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await job.refresh()
        assert (job.state, job.attempts) == (JobState.WAITING, 0)
        await worker.close()


@pytest.mark.feature("V2")
async def test_cancelling_a_close_hurries_it(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), **PATIENT)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worker.close(), 0.05)
        assert await job.is_waiting()
        await worker.close()


# --- the bound ------------------------------------------------------------------------------------------


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("pending", ["Claim", "Settle", "Beat", "Elect", "Extend", "Request"])
async def test_a_stop_ends_in_time_when_the_store_does_not_answer(harness: Harness, pending: str) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), lease=1, duties=True, **HASTY)
        await stage.queue.add("n")
        await gate.reached.wait()
        sent = stage.faults.sent.total()
        stage.faults.hang(getattr(rq, pending), times=1_000_000)
        if pending == "Claim":
            worker.resume()
        gate.open()
        assert await in_time(worker.close()) < BOUND + 0.5
        assert not worker.is_running
        if pending in ("Settle", "Request"):
            assert worker.left_behind
        assert stage.faults.sent.total() >= sent
        await worker.close()
        stage.faults.heal()


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("busy", [True, False])
async def test_a_forced_close_ends_though_the_store_refuses_every_call(harness: Harness, busy: bool) -> None:
    """The store refuses without a turn of the loop: a worker that tried again at once would hold the loop."""
    async with LiveStage(harness) as stage:
        gate = Gate()
        worker = await stage.work(gated(gate), lease=5, poll=0.05)
        if busy:
            await stage.queue.add("n")
            await gate.reached.wait()
        refused = asyncio.Event()
        worker.on("error", lambda exc: refused.set())
        stage.faults.refuse(rq.Request, times=1_000_000)
        worker.resume()
        async with asyncio.timeout(20):
            await refused.wait()
        assert await in_time(worker.close(force=True)) < 2.5
        stage.faults.heal()


@pytest.mark.feature("V2", "V3")
async def test_a_stop_does_not_wait_for_a_duty_that_has_much_to_do(harness: Harness) -> None:
    """After many jobs there is much to prune and to roll up: a stop comes between two steps of it."""
    async with LiveStage(harness) as stage:
        much, asked = stage.faults.execute, 0

        async def endless(request: rq.Request[Any]) -> Any:
            nonlocal asked
            answer = await much(request)
            if isinstance(request, rq.Prune):
                asked += 1
                answer.more = True
            return answer

        stage.faults.execute = endless  # type: ignore[method-assign]
        worker = await stage.work(lambda job: "ran", duties=True, prune_every=0.01, **PATIENT)
        assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
        await eventually(lambda: asked > 3)
        assert await in_time(worker.close()) < 2
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3", "J7")
async def test_what_a_stop_abandons_runs_elsewhere_when_its_lease_is_over(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate, told = Gate(), list[str]()
        worker = await stage.work(gated(gate), lease=1, **HASTY)
        worker.on("completed", lambda job, result: told.append("completed"))
        worker.on("lease_lost", lambda job: told.append("lease_lost"))
        job = await stage.queue.add("n")
        await gate.reached.wait()
        stage.faults.hang(rq.Settle, times=1_000_000)
        gate.open()
        await worker.close()
        assert worker.left_behind == ["the answer to Settle"]
        assert (await job.get_state(), told) == (JobState.ACTIVE, ["lease_lost"])
        stage.faults.heal()
        await stage.work(gated(gate), duties=True, recover_every=0.1, poll=0.1)
        assert await job.result(timeout=20) == "done"
        assert job.stalled_count == 1


@pytest.mark.feature("V2", "V5")
async def test_a_thread_that_does_not_stop_is_left_behind_and_named(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        begun, go_on = threading.Event(), threading.Event()

        def stubborn(job: Job[Any]) -> None:
            begun.set()
            go_on.wait(30)

        worker = await stage.work(stubborn, **HASTY)
        job = await stage.queue.add("n")
        await eventually(begun.is_set)
        try:
            assert await in_time(worker.close()) < BOUND + 0.5
            assert worker.left_behind == [f"job {job.id} (n)"]
            assert await job.is_waiting()
        finally:  # else a failure here would also leave the thread and its attempt to the next tests
            go_on.set()
            await eventually(
                lambda: not [task for task in asyncio.all_tasks() if "Attempt.run" in repr(task)]
            )


# --- starting and closing, in any order -------------------------------------------------------------------


def _every_point() -> Iterable[int]:
    return range(1, 8)


async def _check_gone(stage: Stage, worker: Worker, before: set[threading.Thread]) -> None:
    """Nothing of the worker is left: no thread, no task, no heartbeat, no way to start it."""
    await eventually(lambda: threads() <= before and not tasks())
    assert not worker.is_running
    assert await stage.app.workers() == []
    with pytest.raises(ClosedError):
        await worker.start()
    with pytest.raises(ClosedError):
        await worker.run()
    await worker.close()
    await worker.close(force=True)


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("force", [False, True])
async def test_a_close_at_any_point_of_a_start_leaves_nothing_behind(harness: Harness, force: bool) -> None:
    async with LiveStage(harness) as stage:
        for point in _every_point():
            before, closing = threads(), list[asyncio.Task[None]]()
            worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app, heartbeat=0.05)

            def close(worker: Worker = worker, closing: Any = closing) -> None:
                closing.append(asyncio.ensure_future(worker.close(force)))

            with probing(_at("worker.opened", point, lambda: close())) as probe:
                try:
                    await worker.start()
                except ClosedError:
                    assert closing
                await worker.close(force)
            for task in closing:
                await task
            assert probe.count("worker.opened") >= len(closing)
            await _check_gone(stage, worker, before)


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_a_start_that_breaks_at_any_point_is_undone_and_may_be_tried_again(
    harness: Harness, how: str
) -> None:
    async with LiveStage(harness) as stage:
        for point in _every_point():
            before = threads()
            worker = Worker(QUEUE, lambda job: "ran", url_or_app=stage.app, heartbeat=0.05)

            def breaks(how: str = how) -> None:
                if how == "fail":
                    raise StorageError("broken on purpose")
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

            with probing(_at("worker.opened", point, breaks)) as probe:
                try:
                    await worker.start()
                except (StorageError, asyncio.CancelledError):
                    assert probe.count("worker.opened") >= point
                    await eventually(lambda: threads() <= before and not tasks())  # noqa: B023 - used at once
                    assert await stage.app.workers() == []
            await worker.start()
            assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
            await worker.close()
            await _check_gone(stage, worker, before)


def _at(point: str, count: int, action: Callable[[], None]) -> Probe:
    """A probe that does ``action`` at the ``count``-th time that ``point`` is reached."""
    probe = Probe()
    if count > 1:
        probe.arm(point, lambda name, facts: None, times=count - 1)
    probe.arm(point, lambda name, facts: action())
    return probe


@pytest.mark.feature("V2")
async def test_a_worker_that_cannot_listen_does_not_start_and_leaves_nothing_behind(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        before, listen = threads(), stage.faults.listen
        refusals = [StorageError("no more connections")]

        def refuse(topics: Iterable[str]) -> Listener:
            if refusals:
                raise refusals.pop()
            return listen(topics)

        stage.faults.listen = refuse  # type: ignore[method-assign]
        worker = Worker(QUEUE, lambda job: "ran", url_or_app=stage.app, heartbeat=0.05)
        with pytest.raises(StorageError, match="no more connections"):
            await worker.start()
        await eventually(lambda: threads() <= before and not tasks())
        assert await stage.app.workers() == []
        await worker.start()
        assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
        await worker.close()
        await _check_gone(stage, worker, before)


@pytest.mark.feature("V2")
async def test_a_start_that_the_store_does_not_answer_can_be_closed_and_cancelled(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        stage.faults.hang(rq.Request, times=1_000_000)
        for end in ("close", "cancel"):
            before = threads()
            worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app, **HASTY)
            sent = stage.faults.sent.total()
            starting = asyncio.create_task(worker.start())
            others = asyncio.create_task(worker.start())
            await eventually(lambda: stage.faults.sent.total() > sent)  # noqa: B023 - used at once
            if end == "cancel":
                starting.cancel()
            assert await in_time(worker.close()) < BOUND + 0.5
            with pytest.raises((ClosedError, asyncio.CancelledError)):
                await starting
            with pytest.raises((ClosedError, asyncio.CancelledError)):
                await others
            assert threads() <= before
        stage.faults.heal()


@pytest.mark.feature("V2")
async def test_a_worker_that_was_closed_before_its_start_does_not_start(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app)
        await worker.close()
        await worker.close(force=True)
        for verb in (worker.start, worker.run, worker.drain, worker.wait_until_ready):
            with pytest.raises(ClosedError, match="make another"):
                await verb()
        assert await stage.app.workers() == []


# --- leases -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J24", "J3")
async def test_a_handler_is_stopped_before_its_lease_ends_while_a_renewal_is_pending(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        gate, stopped = Gate(), list[float]()

        async def handler(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            except asyncio.CancelledError:
                stopped.append(stage.clock.monotonic_ms())
                raise

        worker = await stage.work(handler, lease=30)
        lost: list[str] = []
        worker.on("lease_lost", lambda job: lost.append(job.id))
        stage.faults.hang(rq.Extend, times=1_000_000)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        began = stage.clock.monotonic_ms()
        # The renewal stays pending; a driven clock would wait for it if it looked at calls under way.
        await stage.advance(26.9)
        assert not stopped
        await stage.advance(0.2)
        await eventually(lambda: (len(stopped), lost) == (1, [job.id]))
        assert stopped[0] - began <= 27_000


@pytest.mark.feature("J24", "J7")
@pytest.mark.parametrize("lease", [1, 2])
async def test_two_workers_never_run_one_job_at_once(harness: Harness, lease: int) -> None:
    async with LiveStage(harness) as stage, LiveStage(harness) as other:
        told: list[tuple[str, float]] = []
        gate, second = Gate(), asyncio.Event()

        async def first(job: Job[Any]) -> None:
            try:
                await gate.pass_through()
            finally:
                told.append(("stopped", time.monotonic()))

        async def heir(job: Job[Any]) -> None:
            told.append(("begun", time.monotonic()))
            second.set()

        worker = await stage.work(first, lease=lease)
        stage.faults.hang(rq.Extend, times=1_000_000)
        await stage.queue.add("n")
        await gate.reached.wait()
        worker.pause()
        await other.work(heir, duties=True, recover_every=0.05, poll=0.05)
        async with asyncio.timeout(20):
            await second.wait()
        assert [what for what, _ in told] == ["stopped", "begun"]


@pytest.mark.feature("J3")
async def test_renewing_goes_on_after_any_error(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        gate = Gate()
        stage.faults.crash(rq.Extend, times=2)
        with probing() as probe:
            worker = await stage.work(gated(gate), lease=6)
            lost: list[str] = []
            worker.on("lease_lost", lambda job: lost.append(job.id))
            job = await stage.queue.add("n")
            await gate.reached.wait()
            await eventually(lambda: probe.count("leases.renewing") >= 4, timeout=20)
        assert (lost, stage.faults.failed["Extend"]) == ([], 2)
        gate.open()
        assert await job.result(timeout=10) == "done"


# --- duties -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J7", "Z14")
@pytest.mark.parametrize("how", ["hang", "refuse", "crash"])
async def test_recovery_does_not_wait_for_an_election_that_cannot_be_reached(
    harness: Harness, how: str
) -> None:
    async with Stage(harness) as stage:
        await harness.start("a", "mail", payload=b"{}")  # its worker never reports again
        ran: list[str] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(job.id)

        stage.clock.set(harness.now_ms / 1000)
        getattr(stage.faults, how)(rq.Elect, times=1_000_000)
        worker = await stage.work(handler, duties=True, recover_every=5)
        await stage.advance(40)
        assert ran == ["a"]
        closing = asyncio.create_task(worker.close(force=True))
        await stage.advance(5)  # a stop does not wait for it either, but its time is the driven clock's
        await closing


@pytest.mark.feature("R3", "Z14")
async def test_a_heartbeat_recovers_its_pace_after_isolated_errors(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(gated(Gate()), heartbeat=10)
        await stage.settle()
        for _ in range(8):
            stage.faults.refuse(rq.Beat)
            before = stage.faults.sent["Beat"]
            await stage.advance(10.1)  # the beat that is refused ...
            await stage.advance(0.5)  # ... and the next one, soon after it
            assert stage.faults.sent["Beat"] == before + 2


# --- what users receive ----------------------------------------------------------------------------------


class Told:
    """Everything that a worker and its app report about the ends of attempts."""

    def __init__(self, stage: Stage) -> None:
        self.events: list[str] = []
        self.hooks: list[str] = []
        stage.app.use(self)

    def ended(self, job: Job[Any], end: Any) -> None:
        self.hooks.append(str(end.outcome))

    def listen(self, worker: Worker) -> None:
        for name in ("completed", "failed", "retrying", "cancelled", "released", "snoozed", "lease_lost"):
            worker.on(name, lambda *args, name=name: self.events.append(name))


@pytest.mark.feature("K2", "J14")
async def test_an_end_is_told_after_the_store_has_taken_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, let_go = Told(stage), asyncio.Event()
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        stage.faults.delay(rq.Settle, let_go)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.sent["Settle"] == 1)
        assert (told.events, told.hooks) == ([], [])
        let_go.set()
        assert await job.result() == "done"
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["completed"], ["completed"])


@pytest.mark.feature("K2", "J14")
async def test_an_end_whose_reply_was_lost_is_told_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told = Told(stage)
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        stage.faults.lose_reply(rq.Settle, times=2)
        job = await stage.queue.add("n")
        await eventually(lambda: stage.faults.failed["Settle"] == 1)
        await stage.advance(60)
        assert await job.is_completed()
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["completed"], ["completed"])


@pytest.mark.feature("K2", "J24")
async def test_an_end_of_a_removed_job_is_told_as_a_lost_lease(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, gate = Told(stage), Gate()
        worker = await stage.work(gated(gate), lease=600)
        told.listen(worker)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        await job.remove(force=True)
        gate.open()
        await eventually(lambda: bool(told.events))
        await stage.settle()
        assert (told.events, told.hooks) == (["lease_lost"], [])


@pytest.mark.feature("K2")
async def test_an_end_that_the_store_refused_is_told_as_the_failure_it_became(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told, errors = Told(stage), list[BaseException]()
        worker = await stage.work(lambda job: "done")
        told.listen(worker)
        worker.on("failed", lambda job, error: errors.append(error))
        stage.faults.crash(rq.Settle, times=2)  # the batch, and the settlement alone
        job = await stage.queue.add("n")
        await eventually(lambda: bool(told.events))
        assert (told.events, told.hooks) == (["failed"], ["failed"])
        assert "the store refused" in str(errors[0])
        assert await job.get_state() is JobState.FAILED


# --- how a stopped attempt ends ---------------------------------------------------------------------------


def _handlers(what: str, begun: threading.Event) -> dict[str, Any]:
    """Handlers that return or raise, as ``what`` says, when they are asked to stop."""

    async def on_loop(job: Job[Any]) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if what == "return":
                return str(job.abort_signal.reason) if job.abort_signal else ""
            raise ValueError("broken by the stop") from None
        raise AssertionError("not reached")

    def in_thread(job: Job[Any]) -> str:
        begun.set()
        assert job.abort_signal is not None
        assert job.abort_signal.wait(30)
        if what == "return":
            return str(job.abort_signal.reason)
        raise ValueError("broken by the stop")

    return {"loop": on_loop, "thread": in_thread}


async def _begin(
    stage: Stage, tmp_path: Any, mode: str, what: str, **options: Any
) -> tuple[Worker, Job[Any]]:
    """A worker whose only job waits to be stopped."""
    limits: dict[str, Any] = {"grace": 0, "cancel_wait": 10}
    if mode == "process":
        task = stage.app.task(queue=QUEUE, isolation="process", name="stop_with", **options)(
            targets.stop_with
        )
        worker = await stage.work(**limits)
        path = tmp_path / "begun"
        job: Job[Any] = await task.enqueue(str(path), what)
        await eventually(path.exists, timeout=20)
        return worker, job
    begun = threading.Event()
    worker = await stage.work(_handlers(what, begun)[mode], **limits)
    job = await stage.queue.add("n", **options)
    await eventually(begun.is_set)
    return worker, job


MODES = ["loop", "thread", "process"]


@pytest.mark.feature("V5", "C9")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handlers_own_error_after_a_shutdown_gives_the_job_back(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        worker, job = await _begin(stage, tmp_path, mode, "raise", max_attempts=1)
        await worker.close()
        await job.refresh()
        assert (job.state, job.attempts, job.errors) == (JobState.WAITING, 0, [])


@pytest.mark.feature("V5", "C9")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_returns_after_a_shutdown_has_completed(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        worker, job = await _begin(stage, tmp_path, mode, "return")
        await worker.close()
        assert await job.result(timeout=5) == "shutdown"


@pytest.mark.feature("C14")
@pytest.mark.parametrize("mode", MODES)
async def test_an_error_after_a_cancel_ends_as_cancelled_on_the_last_attempt_too(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        _, job = await _begin(stage, tmp_path, mode, "raise", max_attempts=1)
        await job.cancel("not needed")
        assert await job.wait_until_finished(timeout=20) is JobState.CANCELLED
        await job.refresh()
        assert (job.attempts, job.errors) == (0, [])


@pytest.mark.feature("C14")
@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_returns_after_a_cancel_has_completed(
    harness: Harness, tmp_path: Any, mode: str
) -> None:
    async with LiveStage(harness) as stage:
        _, job = await _begin(stage, tmp_path, mode, "return")
        await job.cancel("not needed")
        assert await job.result(timeout=20) == "cancel"


@pytest.mark.feature("C9")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["raise", "return"])
async def test_what_a_handler_does_after_its_timeout_is_a_failed_attempt(
    harness: Harness, tmp_path: Any, mode: str, what: str
) -> None:
    async with LiveStage(harness) as stage:
        timeout = 4 if mode == "process" else 0.5  # importing the handler is part of it
        _, job = await _begin(stage, tmp_path, mode, what, max_attempts=1, timeout=timeout)
        assert await job.wait_until_finished(timeout=20) is JobState.FAILED
        await job.refresh()
        assert [error.error_class for error in job.errors] == [JobTimeoutError.__name__]


@pytest.mark.feature("V5")
async def test_a_thread_can_raise_what_its_signal_offers(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        begun = threading.Event()

        def patient(job: Job[Any]) -> str:
            signal = job.abort_signal
            assert signal is not None
            signal.raise_if_aborted()
            begun.set()
            signal.wait(30)
            signal.raise_if_aborted()
            return "not reached"

        worker = await stage.work(patient, grace=0, cancel_wait=10)
        job = await stage.queue.add("n", max_attempts=1)
        await eventually(begun.is_set)
        await worker.close()
        await job.refresh()
        assert (job.state, job.attempts, job.errors) == (JobState.WAITING, 0, [])


# --- a handler that cancels what it finds ---------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "windlass"])
async def test_a_worker_goes_on_though_a_handler_cancels_its_tasks(
    harness: Harness, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    """A handler shares the loop with its worker: a task of the worker that it cancels is started again."""
    async with LiveStage(harness) as stage:
        of_the_test, cancelled = asyncio.all_tasks(), set[str]()

        async def handler(job: Job[Any]) -> str:
            if job.name == "rude":
                for task in asyncio.all_tasks() - of_the_test - {asyncio.current_task()}:
                    if task.get_name().startswith(prefix):
                        cancelled.add(task.get_name().removeprefix("windlass-"))
                        task.cancel()
            return job.name

        worker = await stage.work(handler, concurrency=1, duties=True, heartbeat=0.05, poll=0.1)
        rude = await stage.queue.add("rude")
        await eventually(lambda: bool(cancelled))
        polite = await stage.queue.add("polite")
        assert await polite.result(timeout=10) == "polite"
        assert await rude.result(timeout=10) == "rude"
        kept = {"pump", "lease-watch", "heartbeat", "lead", "recover", "prune"}
        assert kept <= cancelled
        await eventually(lambda: kept <= {name.removeprefix("windlass-") for name in tasks()})
        for name in kept:
            assert f"the worker's task {name} ended unexpectedly and is started again" in caplog.text
        await worker.close()
        assert worker.left_behind == []


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("moment", ["run", "close", "grace"])
async def test_a_worker_stops_in_time_and_says_why_though_a_handler_cancels_every_task(
    harness: Harness, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    """The task that runs the worker and the one that closes it are among those that the handler cancels."""
    async with LiveStage(harness) as stage:
        of_the_test, begun, go_on = asyncio.all_tasks(), asyncio.Event(), asyncio.Event()

        async def rude(job: Job[Any]) -> str:
            begun.set()
            await go_on.wait()
            if moment == "close":
                closings.append(asyncio.ensure_future(worker.close()))
                await asyncio.sleep(0)  # its close is asked for, and has not had its first step
            for task in asyncio.all_tasks() - of_the_test - {asyncio.current_task()}:
                task.cancel()
            return "done"

        worker = await stage.work(rude, concurrency=1, **HASTY)
        closings = [asyncio.ensure_future(worker.run())]
        job = await stage.queue.add("n")
        await begun.wait()
        if moment == "grace":
            closings.append(asyncio.ensure_future(worker.close()))
            await eventually(lambda: not worker.is_running)
        go_on.set()
        await asyncio.wait(closings, timeout=BOUND + 5)
        assert await in_time(worker.close()) < BOUND + 0.5
        assert (worker.is_running, worker.left_behind) == (False, [])
        await _check_gone(stage, worker, set(threading.enumerate()))
        assert await job.get_state() in (JobState.COMPLETED, JobState.WAITING)
        assert "the worker's task pump ended unexpectedly" in caplog.text or moment != "run"

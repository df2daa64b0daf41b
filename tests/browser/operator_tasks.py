"""An operator at work: the tasks that a dashboard is for, done in Chromium, with clicks and calls counted.

    python -m tests.browser.operator_tasks --jobs 200000 --store sqlite

prints a table. The store holds so many finished jobs; a worker runs, a producer adds, another worker dies.
Every task begins at the overview. Typing is no click; a call is a request to the API, streams left out.
With ``--keyboard`` the same tasks are done without a mouse.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar
from urllib.parse import urlsplit

from playwright.sync_api import Locator, Page, Request, expect

from tests.backends.valkey.servers import own_server
from tests.browser.past import work
from tests.browser.site import Site, chromium, serving
from windlass import FlowProducer, Windlass, chord, group, step
from windlass.api.metrics import roll_up
from windlass.core.option_values import Keep
from windlass.core.states import JobState

T = TypeVar("T")
CHUNK = 1_000
#: The jobs of the flow that is followed.
FLOW = 300
MOST_CLICKS = 4
#: The way to anything on a page, by Tab.
MOST_TABS = 120
#: Jobs of the error that is searched for, retried and exported.
EXPORTED = 3
P95_MS = 300
_PATIENCE_MS = 90_000
_YEAR_MS = 365 * 86_400_000


@dataclass
class Done:
    """What one task took."""

    name: str
    clicks: int = 0
    #: Keys that were pressed, those of typed texts left out.
    keys: int = 0
    calls: list[float] = field(default_factory=list)
    #: The route of each call: its path without names and ids.
    routes: list[str] = field(default_factory=list)


def percentile(calls: list[float], percent: int) -> float:
    """Of the milliseconds of calls."""
    return sorted(calls)[max(0, -(-percent * len(calls) // 100) - 1)] if calls else 0.0


def p95(calls: list[float]) -> float:
    return percentile(calls, 95)


def cells(calls: list[float]) -> str:
    """How many, and their median, 95th percentile and longest, as cells of a table."""
    return f"{len(calls)} | {percentile(calls, 50):.0f} | {p95(calls):.0f} | {max(calls, default=0):.0f}"


def route_of(url: str) -> str:
    """The kind of a call: the first parts of its path."""
    path = urlsplit(url).path.partition("/api/")[2].removeprefix("v1/")
    parts = path.split("/")
    return "/".join(part if number in (0, 3) else "*" for number, part in enumerate(parts))


class Operator:
    """A person with a mouse and a keyboard, and a counter beside."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.done: list[Done] = []
        self._address = address
        page.on("requestfinished", self._called)

    def _called(self, request: Request) -> None:
        if "/api/" in request.url and "/api/live" not in request.url and not request.url.endswith("/events"):
            timing = request.timing
            if self.done and timing["responseEnd"] >= 0:
                self.done[-1].calls.append(timing["responseEnd"] - max(timing["requestStart"], 0))
                self.done[-1].routes.append(route_of(request.url))

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Begin at the overview; ends when what was asked for is seen."""
        self.page.goto(self._address + "/")
        expect(self.page.locator("nav footer")).to_contain_text("Live", timeout=_PATIENCE_MS)
        expect(self.page.locator(".bone")).to_have_count(0, timeout=_PATIENCE_MS)
        self.done.append(Done(name))
        yield
        self.page.wait_for_timeout(100)  # answers that are on their way count, too

    def click(self, where: Locator) -> None:
        """One click."""
        where.click()
        self.done[-1].clicks += 1

    def find(self, text: str) -> None:
        """Search for something: a click into the box, and a text."""
        box = self.page.locator("#find")
        self.click(box)
        box.fill(text)
        box.press("Enter")

    def fill(self, where: Locator, text: str) -> None:
        """Write into a field of a form."""
        where.fill(text)

    def undo(self) -> None:
        """Take back what is held back."""
        self.click(self.page.get_by_role("button", name="Undo"))

    def go(self, name: str) -> None:
        """Open a page by the menu."""
        menu = self.page.get_by_role("navigation", name="Views")
        self.click(menu.get_by_role("link", name=re.compile(f"^{name}")))

    def row(self, job_id: str) -> Locator:
        return self.page.locator(f"tr[data-job='{job_id}']")

    def sees(self, where: Locator) -> None:
        expect(where.first).to_be_visible(timeout=_PATIENCE_MS)


class KeyboardOperator(Operator):
    """A person without a mouse: Tab, Enter, and the shortcuts that the help of the pages lists."""

    #: Behind a ``g``.
    _PLACES: ClassVar = {
        "Errors": "e",
        "Schedules": "c",
        "Limits": "l",
        "Flows": "w",
        "Metrics": "m",
        "Processes": "p",
    }

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.done[-1].keys += 1

    def _reach(self, where: Locator) -> None:
        """Tab until the focus is there."""
        self.sees(where)
        for _ in range(MOST_TABS):
            if where.first.evaluate("(element) => element === document.activeElement"):
                return
            self.press("Tab")
        raise AssertionError(f"{MOST_TABS} times Tab do not lead to {where}")

    def click(self, where: Locator) -> None:
        self._reach(where)
        self.press("Enter")

    def find(self, text: str) -> None:
        self.press("/")
        self.page.keyboard.type(text)
        self.press("Enter")

    def fill(self, where: Locator, text: str) -> None:
        self._reach(where)
        self.press("ControlOrMeta+a")
        self.page.keyboard.type(text)

    def undo(self) -> None:
        self.sees(self.page.get_by_role("button", name="Undo"))
        self.press("u")

    def go(self, name: str) -> None:
        self.press("g", self._PLACES[name])


@dataclass
class Scene:
    """What the tasks are about."""

    needle: str
    argument: str
    error: str
    waiting: dict[str, str]
    running: str
    deleted: str
    flow: str
    gate: Path
    lost: str


async def fill(app: Windlass, jobs: int) -> None:
    """So many jobs that have ended, over the last day."""
    dice = random.Random(11)
    now_ms = int(time.time() * 1000)
    steps = -(-jobs // CHUNK)
    for number in range(steps):
        at_ms = now_ms - 86_400_000 + number * (86_000_000 // steps)
        await work(app, dice, at_ms, now_ms, min(CHUNK, jobs - number * CHUNK), Keep(_YEAR_MS, None))
    await roll_up(app.store)


async def prepare(app: Windlass, gate: Path) -> Scene:
    """One thing of each kind that a task is about."""
    lane, other, paused = app.queue("lane-00"), app.queue("nobody-works-here"), app.queue("paused-by-hand")
    limited = app.queue("lane-06")
    await paused.pause()
    await limited.set_global_concurrency(1)
    await limited.add("gated", {"gate": str(gate / "never"), "steps": 1})
    behind = await limited.add("ok")
    children = [await other.add("export"), await lane.add("ok", delay=7_200)]
    blocked = await FlowProducer(app).add(
        chord(group(step("export", queue="nobody-works-here")), step("ok", queue="lane-00"))
    )
    needle = await lane.add("ok", {"customer": {"id": 987_654_321}}, keep_completed={"age": 86_400})
    await needle.wait_until_finished(timeout=30)
    for _ in range(EXPORTED):
        failed = await lane.add("broken", {"customer": 4_711}, max_attempts=1)
        await failed.wait_until_finished(timeout=30)
    steps = [step("ok", {"image": number}, queue="lane-02") for number in range(FLOW - 2)]
    slow = step("gated", {"gate": str(gate), "steps": 1}, queue="lane-02")
    flow = await FlowProducer(app).add(chord(group(*steps, slow), step("ok", queue="lane-02")))
    running = await app.queue("lane-03").add("gated", {"gate": str(gate / "never"), "steps": 1})
    await app.queue("lane-04").upsert_job_scheduler("nightly", {"cron": "0 3 * * *"}, {"name": "ok"})
    await app.mark("release 1.4")
    await (await lane.add("ok")).wait_until_finished(timeout=30)
    await app.mark("release 1.5")
    doomed = await app.queue("doomed").add("gated", {"gate": str(gate / "never"), "steps": 1})
    return Scene(
        needle=needle.id,
        argument="args.customer.id:987654321",
        error='error:"card of customer 4711 was refused"',
        waiting={
            "queue_paused": (await paused.add("export")).id,
            "no_worker": children[0].id,
            "dependencies": blocked.id,
            "scheduled": children[1].id,
            "queue_concurrency": behind.id,
        },
        running=running.id,
        deleted=(await other.add("export", {"day": 2})).id,
        flow=flow.id,
        gate=gate,
        lost=doomed.id,
    )


class Producer(threading.Thread):
    """Adds a few jobs every second."""

    def __init__(self, url: str) -> None:
        super().__init__(name="operator-producer")
        self._url = url
        self._ended = threading.Event()

    def run(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        async with Windlass(self._url) as app:
            while not await asyncio.to_thread(self._ended.wait, 0.3):
                await app.queue("lane-05").add("ok", {"at": time.time()})

    def end(self) -> None:
        self._ended.set()
        self.join()


def _find_things(person: Operator, scene: Scene) -> None:
    with person.task("find a job by its id"):
        person.find(scene.needle)
        person.sees(person.row(scene.needle))
    with person.task("find jobs by the text of an error"):
        person.find(scene.error)
        person.sees(person.page.locator("tr[data-job]", has_text="4711 was refused"))
    with person.task("find a job by an argument"):
        person.find(scene.argument)
        person.sees(person.row(scene.needle))
    for cause, job_id in scene.waiting.items():
        with person.task(f"see why a job waits: {cause.replace('_', ' ')}"):
            person.find(job_id)
            person.click(person.row(job_id).locator("a.name"))
            person.sees(person.page.locator(f"[data-cause={cause}]"))


def _change_things(person: Operator, scene: Scene) -> None:
    page = person.page
    with person.task("retry all jobs of one error"):
        person.go("Errors")
        one = page.locator("[data-error]", has_text="4711 was refused")
        person.click(one.get_by_role("button", name="Retry all"))
        person.click(page.get_by_role("dialog").get_by_role("button", name="Retry", exact=True))
        person.sees(page.get_by_text(re.compile(r"\d+ jobs? retried")))
    with person.task("cancel a running job"):
        person.find(scene.running)
        person.click(person.row(scene.running).locator("a.name"))
        person.click(page.get_by_role("button", name="Cancel", exact=True))
        person.click(page.get_by_role("dialog").get_by_role("button", name="Cancel the job"))
        expect(page.locator(".identity")).to_contain_text("cancelled", timeout=_PATIENCE_MS)
    with person.task("delete a job, and undo it"):
        person.find(scene.deleted)
        person.click(person.row(scene.deleted).get_by_role("button", name=re.compile("^Delete")))
        person.click(page.get_by_role("dialog").get_by_role("button", name="Delete"))
        person.undo()
        expect(page.get_by_role("button", name="Undo")).to_have_count(0, timeout=_PATIENCE_MS)
        person.sees(person.row(scene.deleted))
    with person.task("change a schedule"):
        person.go("Schedules")
        person.click(page.get_by_role("button", name="Change nightly"))
        dialog = page.get_by_role("dialog")
        person.fill(dialog.get_by_label("Cron text"), "30 4 * * *")
        expect(dialog.locator("[data-words]")).to_contain_text("04:30", timeout=_PATIENCE_MS)
        person.click(dialog.get_by_role("button", name="Save"))
        person.sees(page.locator("[data-schedule=nightly]", has_text="30 4 * * *"))
    with person.task("raise a limit"):
        person.go("Limits")
        person.click(page.get_by_role("button", name="Change the limits of lane-06", exact=True))
        dialog = page.get_by_role("dialog")
        person.fill(dialog.get_by_label("Jobs at once"), "20")
        person.click(dialog.get_by_role("button", name="Save"))
        person.sees(page.locator("[data-limits=lane-06]", has_text="of 20"))


def _watch_things(person: Operator, scene: Scene) -> None:
    page = person.page
    with person.task(f"follow a flow of {FLOW} jobs"):
        person.go("Flows")
        person.click(page.locator(f"[data-flow='{scene.flow}']").get_by_role("link").first)
        graph = page.get_by_role("group", name="Graph of the flow")
        person.sees(graph.locator("[data-state=active]"))
        (scene.gate / "step-1").touch()
        (scene.gate / "end").touch()
        expect(graph.locator("[data-state=active]")).to_have_count(0, timeout=_PATIENCE_MS)
    with person.task("export what a search finds"):
        person.find("task:broken state:failed,completed")
        person.sees(page.locator("tr[data-job]"))
        person.click(page.locator("summary", has_text="Export"))
        with page.expect_download() as download:
            person.click(page.get_by_role("link", name=re.compile("^JSON lines")))
        lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
        assert len(lines) >= EXPORTED, lines
    with person.task("compare two deploys"):
        person.go("Metrics")
        person.click(page.get_by_role("button", name="Compare deploys"))
        person.sees(page.get_by_role("region", name="Deploys compared").locator("[data-compared]"))
    with person.task("find the worker that died, and what it ran"):
        person.go("Processes")
        person.sees(page.locator("[data-lost]").locator(f"a[href*='{scene.lost}']"))


@contextmanager
def stage(store: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store."""
    if store == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
    else:
        with own_server(store, folder, "--appendonly", "no") as server:
            yield server.url


def _die(url: str, ready: Callable[[], None]) -> None:
    """A worker takes the job of its queue and is killed."""
    with serving(url, "--lanes", "doomed") as site:
        ready()
        os.kill(site.pid, signal.SIGKILL)


async def _is_running(url: str, job_id: str) -> None:
    """Until the job runs, and the store knows the worker that runs it."""
    async with Windlass(url) as app:
        while True:
            job = await app.queue("doomed").get_job(job_id)
            known = {worker.id for worker in await app.workers()}
            if job is not None and job.state is JobState.ACTIVE and job.record.worker in known:
                return
            await asyncio.sleep(0.05)


async def _on(url: str, do: Callable[[Windlass], Awaitable[T]]) -> T:
    async with Windlass(url) as app:
        return await do(app)


def run(store: str, jobs: int, kind: type[Operator] = Operator) -> list[Done]:
    """All tasks on a store with so many finished jobs, by such an operator."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        gate = folder / "gate"
        gate.mkdir()
        url = ends.enter_context(stage(store, folder))
        asyncio.run(_on(url, lambda app: fill(app, jobs)))  # before a worker may take back leases of the past
        site: Site = ends.enter_context(serving(url))
        scene = asyncio.run(_on(url, lambda app: prepare(app, gate)))
        _die(url, lambda: asyncio.run(_is_running(url, scene.lost)))
        producer = Producer(url)
        producer.start()
        ends.callback(producer.end)
        person = kind(ends.enter_context(chromium()).new_page(), site.address)
        _find_things(person, scene)
        _change_things(person, scene)
        _watch_things(person, scene)
        return person.done


def table(done: list[Done]) -> str:
    """The counts of each task, and of all."""
    head = "| task | clicks | keys | calls | p50, ms | p95, ms | longest, ms |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    lines += [f"| {one.name} | {one.clicks} | {one.keys} | {cells(one.calls)} |" for one in done]
    calls = [ms for one in done for ms in one.calls]
    by_route: dict[str, list[float]] = {}
    for one in done:
        for name, ms in zip(one.routes, one.calls, strict=True):
            by_route.setdefault(name, []).append(ms)
    clicks, keys = sum(one.clicks for one in done), sum(one.keys for one in done)
    lines.append(f"| all | {clicks} | {keys} | {cells(calls)} |")
    lines += ["", "| route | calls | p50, ms | p95, ms | longest, ms |", "|---|---|---|---|---|"]
    slowest = sorted(by_route.items(), key=lambda item: -p95(item[1]))
    lines += [f"| {name} | {cells(ms)} |" for name, ms in slowest]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Do an operator's tasks and count what they take.")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--store", choices=["sqlite", "valkey"], default="sqlite")
    parser.add_argument("--keyboard", action="store_true", help="without a mouse")
    given = parser.parse_args()
    done = run(given.store, given.jobs, KeyboardOperator if given.keyboard else Operator)
    sys.stdout.write(f"{given.jobs:,} finished jobs, {given.store}\n\n{table(done)}\n")
    slow = p95([ms for one in done for ms in one.calls]) >= P95_MS
    many = any(one.clicks > MOST_CLICKS for one in done)
    return int(slow or many)


if __name__ == "__main__":
    sys.exit(main())

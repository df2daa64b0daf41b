"""``scripts/bench against REV``: this tree beside an older revision of it, in one run.

Both run the same workloads with the same installed packages, in turn, again and again: the ratio of each pair
is taken, and the median of the ratios counts. A third column has this tree with ``WINDLASS_SPEEDUPS=off``. A
ratio above 1 means that this tree is faster, or needs less. See ``docs/benchmarks.md``.

Everything is written to ``.reports/bench-against.json``, the table also to ``.reports/bench-against.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from benchmarks._against_stores import STORES, Place, Stores
from benchmarks._common import REPORTS, ROOT, console, machine_facts, scratch
from benchmarks._processes import TREE, search_path
from windlass.speedups import VARIABLE

WANTED = 0.85
PATIENCE_S = 300
#: If the load of the machine is higher than this before a run, the run is not meaningful.
BUSY = 0.5
#: The width of the table, also if the output is not a terminal.
WIDE = 150
STYLES = {"class": "classes", "task": "tasks"}
#: What the rows of the floor have in place of a style, and the style that the floor is recorded with.
FLOOR, FLOOR_OF = "bare SQL", "class"
#: The columns: the tree, and its value of ``WINDLASS_SPEEDUPS``.
VARIANTS = {"old": ("old", ""), "new": ("new", ""), "off": ("new", "off")}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    rounds: int = 7
    #: Measure without speed-ups in every n-th round.
    off_every: int = 1
    add: int = 3_000
    bulk: int = 40_000
    drain: dict[int, int] = field(default_factory=lambda: {1: 5_000, 10: 20_000, 50: 40_000})
    arrivals: int = 300
    calls: int = 500
    bare: int = 40_000


QUICK = Sizes(5, 2, 1_000, 10_000, {1: 1_500, 10: 6_000, 50: 10_000}, 150, 250, 20_000)
SMOKE = Sizes(1, 1, 10, 100, {1: 20, 10: 20, 50: 60}, 5, 5, 1_000)
#: RabbitMQ needs more time per job.
SHARE = {"amqp": 0.3}
#: Stores with all rows of their own workloads, and those of which a waiting job has a size.
WHOLE = {"sqlite", "valkey", "amqp"}
SIZED = {"sqlite", "valkey"}


@dataclass(slots=True)
class Row:
    """One figure of the table: the runs of each column, round by round."""

    store: str
    style: str
    name: str
    unit: str
    #: Whether less is better.
    less: bool = False
    #: Whether it is a floor. Its ratio is that of the floor to the older tree, which shows what is possible.
    floor: bool = False
    runs: dict[str, dict[int, float]] = field(default_factory=dict)

    def median(self, column: str) -> float | None:
        runs = self.runs.get(column)
        return statistics.median(runs.values()) if runs else None

    def ratios(self, column: str) -> list[float]:
        """The ratio to the older tree, for every round that has both values."""
        old, runs = self.runs.get("old", {}), self.runs.get(column, {})
        pairs = [(runs[number], old[number]) for number in runs if number in old]
        return [theirs / ours if self.less else ours / theirs for ours, theirs in pairs]

    def facts(self) -> dict[str, Any]:
        found = asdict(self) | {"runs": {name: list(runs.values()) for name, runs in self.runs.items()}}
        found["medians"] = {name: self.median(name) for name in self.runs}
        found["ratios"] = {name: self.ratios(name) for name in self.runs if name != "old"}
        return found


class Process:
    """A process that runs workloads with the package of one tree."""

    def __init__(self, tree: Path, speedups: str) -> None:
        env = {**os.environ, TREE: str(tree), "PYTHONPATH": search_path(str(tree)), VARIABLE: speedups}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks._against_work"],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._tree = tree

    def ready(self) -> None:
        """Wait until it runs, and check that it has imported the package of its own tree."""
        if (found := self._answer()["tree"]) != str(self._tree / "src"):
            raise RuntimeError(f"the package comes from {found}, not from {self._tree / 'src'}")

    def do(self, work: str, **arguments: object) -> dict[str, float]:
        assert self._process.stdin is not None
        if self._process.poll() is not None:
            raise RuntimeError("the process has ended")
        self._process.stdin.write(json.dumps({"work": work, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        figures: dict[str, float] = self._answer()["figures"]
        return figures

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            self.end()  # a late answer must not be taken for the answer to the next request
            raise TimeoutError(f"no answer within {PATIENCE_S} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def end(self) -> None:
        """End the process. If it is busy, interrupt it, so that it ends the workers that it started."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
                break
            self._process.send_signal(number)
        self._process.wait()
        self._process.stdout.close()


ADD = "W1 add, awaited"


def drain_at(concurrency: int) -> str:
    """The name of the row of a drain."""
    return f"W3 drain at {concurrency}"


#: The figures of one step, by the name and unit of their row, and whether less is better.
Figures = dict[tuple[str, str, bool], float]


class Step(NamedTuple):
    """One measurement."""

    style: str
    measure: Callable[[Process, Place], Figures]
    #: The columns that it measures.
    columns: tuple[str, ...] = tuple(VARIANTS)
    #: The workload of which it is the floor: the figures of the older tree are those of that row.
    floor_of: str = ""


class Steps:
    """The workloads, each with its figures."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def of(self, store: str) -> Iterator[Step]:
        """The steps for a store."""
        if store == "memory":
            yield Step("bare store", self._bare)
            return
        if store == "sqlite":
            yield Step("", self._hop)
        for style in STYLES:
            yield from self._styled(store, style)

    def _styled(self, store: str, style: str) -> Iterator[Step]:
        """The steps for one way of using a store, each before its floor."""
        share, whole = SHARE.get(store, 1), store in WHOLE
        floors = store == "sqlite" and style == FLOOR_OF
        if whole:
            count = int(self._sizes.add * share)
            yield Step(style, partial(self._add, style, count))
            if floors:
                yield self._floor(ADD, "floor_of_adds", count=count)
        yield Step(style, partial(self._bulk, style, int(self._sizes.bulk * share), sized=store in SIZED))
        for concurrency, jobs in self._sizes.drain.items():
            if whole or concurrency == max(self._sizes.drain):
                count = int(jobs * share)
                yield Step(style, partial(self._drain, style, count, concurrency))
                if floors:
                    name = drain_at(concurrency)
                    yield self._floor(name, "floor_of_drain", count=count, concurrency=concurrency)
        if whole:
            yield Step(style, partial(self._idle, style))

    def _floor(self, name: str, work: str, **arguments: int) -> Step:
        """The floor of a workload, with the SQL of this tree."""

        def measure(process: Process, place: Place) -> Figures:
            found = process.do(work, folder=str(place.folder), style=FLOOR_OF, **arguments)
            return {
                (f"{name}, flushed", "jobs/s", False): found["flushed"],
                (f"{name}, no flush", "jobs/s", False): found["unflushed"],
            }

        return Step(FLOOR, measure, ("new",), name)

    def _add(self, style: str, count: int, process: Process, place: Place) -> Figures:
        found = process.do("add", url=place.url, style=style, count=count)
        return {(ADD, "jobs/s", False): found["rate"]}

    def _bulk(self, style: str, count: int, process: Process, place: Place, *, sized: bool) -> Figures:
        """Also the space that each additional waiting job needs."""
        if sized:
            process.do("bulk", url=place.url, style=style, count=min(1_000, count))
        before = place.size()
        rate = process.do("bulk", url=place.url, style=style, count=count)["rate"]
        found = {("W2 bulk add", "jobs/s", False): rate}
        if sized:
            found["W6 waiting job", "bytes", True] = (place.size() - before) / count
        return found

    def _drain(self, style: str, count: int, concurrency: int, process: Process, place: Place) -> Figures:
        found = process.do("drain", url=place.url, style=style, count=count, concurrency=concurrency)
        return {(drain_at(concurrency), "jobs/s", False): found["rate"]}

    def _idle(self, style: str, process: Process, place: Place) -> Figures:
        sizes = self._sizes
        arguments = {"arrivals": sizes.arrivals, "calls": sizes.calls, "stamps": str(place.folder / "stamps")}
        found = process.do("idle", url=place.url, style=style, **arguments)
        return {
            ("W4 start, p50", "ms", True): found["p50"],
            ("W4 start, p99", "ms", True): found["p99"],
            ("W5 call and answer", "calls/s", False): found["rate"],
        }

    def _bare(self, process: Process, place: Place) -> Figures:
        found = process.do("bare", url=place.url, count=self._sizes.bare)
        names = {"single": "add", "many": "bulk add", "drain": "complete and claim 50"}
        return {(name, "jobs/s", False): found[key] for key, name in names.items()}

    def _hop(self, process: Process, place: Place) -> Figures:
        found = process.do("hop", count=self._sizes.add)
        return {("bare hop between threads", "calls/s", False): found["rate"]}


class Bench:
    """One run: its trees, its stores, its rows."""

    def __init__(self, trees: dict[str, Path], stores: Stores, sizes: Sizes, wanted: list[str]) -> None:
        self._trees = trees
        self._stores = stores
        self._sizes = sizes
        self._steps = {store: list(Steps(sizes).of(store)) for store in wanted}
        self.rows: dict[tuple[str, str, str], Row] = {}
        self.errors: list[str] = []

    def run(self, progress: Progress) -> None:
        rounds = [self._columns(number) for number in range(self._sizes.rounds)]
        steps = [step for steps in self._steps.values() for step in steps]
        total = sum(column in step.columns for columns in rounds for step in steps for column in columns)
        task = progress.add_task("", total=total)
        for number, columns in enumerate(rounds):
            for store in self._steps:
                title = f"round {number + 1} of {len(rounds)}: {store}"
                self._round(store, columns, number, partial(_announce, progress, task, title))

    def _round(self, store: str, columns: list[str], number: int, announce: Callable[[str], None]) -> None:
        """Measure a store once in each column. ``announce`` is told of every step before it."""
        with self._processes(columns) as processes:
            for step in self._steps[store]:
                for column in columns:
                    if column in step.columns:
                        announce(f"{step.style or 'hop'}, {column}")
                        self._measure(store, step, column, processes[column], number)

    def _columns(self, number: int) -> list[str]:
        """The columns that a round measures. Their order rotates, so that none is always the first."""
        names = [name for name in VARIANTS if name != "off" or number % self._sizes.off_every == 0]
        return names[::-1] if number % 2 else names

    @contextmanager
    def _processes(self, columns: list[str]) -> Iterator[dict[str, Process]]:
        with ExitStack() as stack:
            found = {}
            for column in columns:
                tree, speedups = VARIANTS[column]
                found[column] = process = Process(self._trees[tree], speedups)
                stack.callback(process.end)
            for process in found.values():
                process.ready()
            yield found

    def _measure(self, store: str, step: Step, column: str, process: Process, number: int) -> None:
        """Run one step of one column. Errors are reported at the end, and the other steps continue."""
        try:
            with self._stores.fresh(store, VARIANTS[column][0]) as place:
                figures = step.measure(process, place)
                if store == "amqp":
                    process.do("remove", url=place.url)
        except (RuntimeError, OSError) as error:
            self.errors.append(f"{store}, {step.style}, {column}, round {number + 1}: {error}")
            return
        for (name, unit, less), value in figures.items():
            new = Row(store, step.style, name, unit, less, floor=bool(step.floor_of))
            row = self.rows.setdefault((store, step.style, name), new)
            row.runs.setdefault(column, {})[number] = value
            if step.floor_of:
                self._set_beside(row, self.rows.get((store, FLOOR_OF, step.floor_of)), number)

    def _set_beside(self, floor: Row, workload: Row | None, number: int) -> None:
        """Set a floor beside the figure that the older tree had for its workload in the same round."""
        old = workload.runs.get("old", {}) if workload else {}
        if number in old:
            floor.runs.setdefault("old", {})[number] = old[number]


def _announce(progress: Progress, task: TaskID, title: str, step: str) -> None:
    progress.update(task, description=f"{title}, {step}", advance=1)


# --- the trees ------------------------------------------------------------------------------------


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def commit_of(revision: str) -> str:
    """The commit id of a revision."""
    try:
        return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()[:12]
    except subprocess.CalledProcessError:
        sys.exit(f"{revision!r} is no revision of this repository")


def check_out(revision: str, folder: Path) -> Path:
    """Unpack the package of a revision into ``folder``."""
    with tarfile.open(fileobj=BytesIO(git("archive", revision, "src"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


# --- the tables -----------------------------------------------------------------------------------


def figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio(ratios: list[float]) -> str:
    """The median, the minimum and the maximum."""
    if not ratios:
        return ""
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def cells(row: Row) -> list[str]:
    new, off = row.ratios("new"), row.ratios("off")
    rated = row.style and not row.floor  # the hop and the floor are no results of this tree
    missed = rated and new and statistics.median(new) < WANTED
    return [
        row.store,
        STYLES.get(row.style, row.style),
        f"{row.name}, {row.unit}",
        *(figure(row.median(column)) for column in ("old", "new")),
        ratio(new) + (" missed" if missed else ""),
        figure(row.median("off")),
        ratio(off),
    ]


def headings(old: str) -> list[str]:
    return ["store", "with", "workload", old, "now", "ratio", "speed-ups off", "ratio"]


def show(rows: list[Row], old: str) -> None:
    table = Table(
        *(Column(one, no_wrap=True) for one in headings(old)),
        title=f"this tree against {old}; wanted: {WANTED} or more",
    )
    for row in rows:
        table.add_row(*(f"[red]{one}[/]" if one.endswith("missed") else one for one in cells(row)))
    Console(width=max(console.width, WIDE)).print(table)


def markdown(rows: list[Row], old: str) -> str:
    head = headings(f"`{old}`")
    lines = [head, ["---"] * len(head), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def save(name: str, bench: Bench, facts: dict[str, Any]) -> None:
    rows = list(bench.rows.values())
    document = facts | {"rows": [row.facts() for row in rows], "errors": bench.errors}
    (REPORTS / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (REPORTS / f"{name}.md").write_text(markdown(rows, facts["old"]), encoding="utf-8")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bench against")
    parser.add_argument("revision", metavar="REV", help="a commit, a tag or a branch")
    parser.add_argument("--stores", default=",".join(STORES), help="stores to measure, separated by commas")
    parser.add_argument("--quick", action="store_true", help="five smaller rounds: about ten minutes")
    parser.add_argument("--smoke", action="store_true", help="tiny: does everything run on both trees?")
    parser.add_argument("--rounds", type=int, help="the number of rounds")
    parser.add_argument(
        "--report", metavar="NAME", default="bench-against", help="the name of the report files"
    )
    found = parser.parse_args()
    found.stores = [name for name in found.stores.split(",") if name]
    if unknown := sorted({*found.stores} - {*STORES}):
        parser.error(f"unknown stores: {', '.join(unknown)}; there are {', '.join(STORES)}")
    return found


def main() -> None:
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    sizes = SMOKE if chosen.smoke else QUICK if chosen.quick else Sizes()
    if chosen.rounds:
        sizes = Sizes(**asdict(sizes) | {"rounds": chosen.rounds})
    facts: dict[str, Any] = {
        "benchmark": "against",
        "old": commit_of(chosen.revision),
        "new": commit_of("HEAD") + (" and changes" if git("status", "--porcelain", "src") else ""),
        "machine": machine_facts(),
        "sizes": asdict(sizes),
    }
    name, began = chosen.report, time.monotonic()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with scratch() as directory, ExitStack() as stack:
        trees = {"old": check_out(facts["old"], directory / "old"), "new": ROOT}
        bench = Bench(trees, Stores(directory, stack, chosen.stores), sizes, chosen.stores)
        try:
            with progress:
                bench.run(progress)
        finally:  # an interrupted run still reports its results
            facts |= {
                "finished": datetime.now(UTC).isoformat(timespec="seconds"),
                "minutes": round((time.monotonic() - began) / 60, 1),
            }
            save(name, bench, facts)
            show(list(bench.rows.values()), facts["old"])
    if facts["machine"]["load_at_start"] > BUSY:
        console.print(f"the machine was busy (load {facts['machine']['load_at_start']:.1f}): measure again")
    for error in bench.errors:
        console.print(error, markup=False)
    console.print(f"{facts['minutes']} minutes; written to {name}.json and {name}.md in .reports")
    sys.exit(1 if bench.errors else 0)


if __name__ == "__main__":
    main()

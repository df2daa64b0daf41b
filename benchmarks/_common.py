"""Shared by the benchmarks: repetitions, medians, ratios, a table, a JSON file with facts of the machine."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from windlass import __version__

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / ".reports"
console = Console()


@dataclass(slots=True)
class Measure:
    """One thing measured several times; ``value`` is the median."""

    name: str
    unit: str
    runs: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return statistics.median(self.runs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure and the one that it is compared with."""

    what: str
    measured: float
    against: str
    ratio: float
    wanted: float
    #: Whether the ratio has to stay below ``wanted`` instead of reaching it.
    below: bool = False

    @property
    def met(self) -> bool:
        return self.ratio < self.wanted if self.below else self.ratio >= self.wanted


class Report:
    """Collects the measures and verdicts of one run, prints them and writes them to a file."""

    def __init__(self, name: str, *, repetitions: int, settings: dict[str, Any]) -> None:
        self.name = name
        self.repetitions = repetitions
        self.settings = settings
        self.measures: dict[str, Measure] = {}
        self.verdicts: list[Verdict] = []
        self._machine = machine_facts()

    def add(self, name: str, unit: str, value: float) -> None:
        """Add one run of a measure."""
        self.measures.setdefault(name, Measure(name, unit)).runs.append(value)

    def rounds(self, title: str, *steps: Callable[[], None]) -> None:
        """Run the steps in turn, several times, so that changes of the machine affect all of them."""
        for number in range(1, self.repetitions + 1):
            with console.status(f"{title} ({number} of {self.repetitions})"):
                for step in steps:
                    step()

    def value(self, name: str) -> float:
        return self.measures[name].value

    def compare(self, name: str, against: str, wanted: float) -> None:
        """Compare one measure with another: at least ``wanted`` times as much.

        The ratio is the median of those of each round: what ran side by side met the same disturbances.
        """
        pairs = zip(self.measures[name].runs, self.measures[against].runs, strict=True)
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        self.verdicts.append(Verdict(name, self.value(name), against, ratio, wanted))

    def bound(self, name: str, limit: float) -> None:
        """Compare a measure with a number that it should stay below."""
        unit = self.measures[name].unit
        self.verdicts.append(
            Verdict(name, self.value(name), f"{limit:g} {unit}", self.value(name), limit, below=True)
        )

    def show(self) -> None:
        """Print both tables."""
        measures = Table("measure", "median", "runs", "unit", title=f"{self.name}: measured")
        for measure in self.measures.values():
            runs = " ".join(_figure(run) for run in measure.runs)
            measures.add_row(measure.name, _figure(measure.value), runs, measure.unit)
        console.print(measures)
        verdicts = Table("what", "measured", "against", "ratio", "wanted", "", title=f"{self.name}: wanted")
        for verdict in self.verdicts:
            sign = "<" if verdict.below else ">="
            verdicts.add_row(
                verdict.what,
                _figure(verdict.measured),
                verdict.against,
                f"{verdict.ratio:.2f}",
                f"{sign} {verdict.wanted:.2f}",
                "[green]met[/]" if verdict.met else "[red]missed[/]",
            )
        console.print(verdicts)

    def save(self) -> Path:
        """Write everything to ``.reports/bench-NAME.json``."""
        REPORTS.mkdir(exist_ok=True)
        path = REPORTS / f"bench-{self.name}.json"
        document = {
            "benchmark": self.name,
            "windlass": __version__,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": self._machine | {"load_at_end": os.getloadavg()[0]},
            "settings": self.settings,
            "measures": [asdict(measure) | {"median": measure.value} for measure in self.measures.values()],
            "verdicts": [asdict(verdict) | {"met": verdict.met} for verdict in self.verdicts],
        }
        path.write_text(json.dumps(document, indent=2) + "\n")
        return path


def machine_facts() -> dict[str, Any]:
    """The facts of the machine that figures depend on."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_at_start": os.getloadavg()[0],
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below ``percent`` of all."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, if it is installed. Written here, because earlier revisions run this too."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on the event loop that ``windlass worker`` uses: uvloop, if it is installed."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


@contextmanager
def scratch() -> Iterator[Path]:
    """A new directory on the disk of the project (the temporary directory may be in memory)."""
    REPORTS.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=REPORTS))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"

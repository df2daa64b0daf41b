"""``scripts/soak``: run a steady load for a long time, and measure the memory of each process.

A worker, a producer and (with ``--dashboard``) a dashboard use one store. The resident memory of each
process, and of the store if it is a server, is read every few seconds. The figures go to a JSON file, the
chart to an SVG file. Growth is the difference between the second third and the last third of the time,
because programs need some memory to warm up. The history log of a server grows to its limit of 100,000 rows
per queue, which takes longer than a soak at a low pace. If its size is known, it is drawn separately and not
judged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tools.services.valkey import free_port
from tools.storm import Settings, StormStore
from tools.storm.actor_handles import ProcessHandle
from tools.storm.fault_injection import ActorPool
from tools.storm.servers import STORES
from windlass import Windlass

_COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")
_HISTORY = "history log"
_PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1_024


@dataclass
class Curve:
    """The memory of one process over time: seconds and megabytes."""

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)

    def thin(self, most: int = 160) -> list[tuple[float, float]]:
        """At most ``most`` points. Each is the highest of its interval, so that no peak is hidden."""
        step = max(-(-len(self.points) // most), 1)
        parts = [self.points[at : at + step] for at in range(0, len(self.points), step)]
        return [(part[0][0], max(mb for _, mb in part)) for part in parts]

    def part(self, first: float, last: float) -> float:
        """The median between two fractions of the time."""
        end = self.points[-1][0]
        inside = [mb for at, mb in self.points if first * end <= at <= last * end]
        return median(inside or [self.points[-1][1]])

    @property
    def growth(self) -> float:
        """By which fraction the last third is above the second."""
        before = self.part(1 / 3, 2 / 3)
        return self.part(2 / 3, 1) / before - 1 if before else 0.0


def rss_mb(pid: int) -> float | None:
    """Resident memory of a process in megabytes; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KB / 1_024
    except (OSError, IndexError):
        return None


async def soak(store: StormStore, seconds: float, pace: float, *, dashboard: bool) -> tuple[list[Curve], int]:
    """Run the load for ``seconds``; returns the curves, and how many jobs were completed."""
    settings = Settings(seed=1, seconds=seconds, pace=pace, lease=15, long_jobs=False, keep=500)
    folder = store.directory / "journals"
    folder.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(store.start)
    pool = ActorPool(store, settings, str(folder))
    page: subprocess.Popen[bytes] | None = None
    try:
        worker, producer = await pool.start_actor("worker", 0), await pool.start_actor("producer", 0)
        pids = {"soak (all in one)": os.getpid()} if store.in_process else {}
        for actor in (worker, producer):
            if isinstance(actor, ProcessHandle):
                pids[actor.role.kind] = actor._process.pid
        if hasattr(store, "pid"):
            pids["store"] = store.pid
        if dashboard:
            page, port = _start_dashboard(store, folder)
            pids["dashboard"] = page.pid
        await pool.wait_until_up()
        curves = await _sample(pids, seconds, store, port if dashboard else None)
        async with Windlass(store.url) as app:
            rows = [row for info in await app.queues() for row in await app.queue(info.name).get_metrics()]
        return curves, sum(row.total for row in rows if row.outcome == "completed")
    finally:
        if page is not None:
            page.terminate()
            page.wait()
        await pool.close()
        await asyncio.to_thread(store.stop)


def _start_dashboard(store: StormStore, folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    command = [sys.executable, "-m", "windlass", "dashboard", "--url", store.url, "--port", str(port)]
    with (folder / "dashboard.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log), port


async def _sample(pids: dict[str, int], seconds: float, store: StormStore, port: int | None) -> list[Curve]:
    folder = store.directory / "journals"
    curves = {name: Curve(name) for name in pids}
    every = max(min(5.0, seconds / 60), 0.25)
    began = time.monotonic()
    while (at := round(time.monotonic() - began, 2)) < seconds:
        history = await asyncio.to_thread(store.history_mb)
        if history is not None:
            curves.setdefault(_HISTORY, Curve(_HISTORY)).points.append((at, round(history, 2)))
        for name, pid in pids.items():
            mb = rss_mb(pid)
            if mb is None:
                raise RuntimeError(f"{name} is gone: see the logs in {folder}")
            of_history = (history or 0.0) if name == "store" else 0.0
            curves[name].points.append((at, round(mb - of_history, 2)))
        if port is not None:
            await asyncio.to_thread(_request_page, port)
        _delete_journals(folder)
        await asyncio.sleep(every)
    return list(curves.values())


def _request_page(port: int) -> None:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/job-queues", timeout=5).read()


def _delete_journals(folder: Path) -> None:
    """Delete all but the first and the newest file of each journal, which a soak does not need."""
    for first in folder.glob("*.0000.jsonl"):
        stem = first.name.removesuffix(".0000.jsonl")
        for old in sorted(folder.glob(f"{stem}.*.jsonl"))[1:-1]:
            old.unlink()


def chart(curves: list[Curve], title: str) -> str:
    """Memory over time as SVG."""
    width, height, left, top = 760, 320, 60, 40
    last = max(curve.points[-1][0] for curve in curves) or 1
    most = max(mb for curve in curves for _, mb in curve.points) * 1.15
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 60}"',
        ' font-family="sans-serif">',
        f'<rect width="{width}" height="{height + 60}" fill="white"/>',
        f'<text x="{left}" y="22" font-size="15">{title}</text>',
    ]
    for step in range(5):
        mb, y = most * step / 4, top + (height - top) * (1 - step / 4)
        lines.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="8" y="{y + 4:.1f}" font-size="11">{mb:.0f} MB</text>')
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        spots = " ".join(
            f"{left + (width - 20 - left) * at / last:.1f},{top + (height - top) * (1 - mb / most):.1f}"
            for at, mb in curve.thin()
        )
        lines.append(f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        x = left + number * 170
        lines.append(f'<text x="{x}" y="{height + 45}" font-size="12" fill="{colour}">{curve.name}</text>')
    lines.append(f'<text x="{width - 90}" y="{height + 20}" font-size="11">{last / 60:.1f} min</text></svg>')
    return "\n".join(lines) + "\n"


def draw_again(figures: Path, out: Path) -> int:
    """Draw the chart of an earlier soak from its figures."""
    kept = json.loads(figures.read_text())
    curves = [Curve(name, [(at, mb) for at, mb in curve["points"]]) for name, curve in kept["curves"].items()]
    title = f"{kept['backend']}: memory over {kept['minutes']:g} minutes, {kept['completed']} jobs"
    (out / f"soak-{kept['backend']}.svg").write_text(chart(curves, title))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--backend", choices=sorted(STORES), default="sqlite")
    parser.add_argument("--draw", metavar="JSON", help="only draw the figures of an earlier soak again")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--pace", type=float, default=20.0, help="steps per second of the producer")
    parser.add_argument("--dashboard", action="store_true", help="also run a dashboard, and send it requests")
    parser.add_argument("--most-growth", type=float, default=0.1, help="growth that still counts as flat")
    parser.add_argument("--out", metavar="DIR", default=".reports", help="folder for the JSON and SVG files")
    asked = parser.parse_args()
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    if asked.draw:
        return draw_again(Path(asked.draw), out)
    with tempfile.TemporaryDirectory(prefix="windlass-soak-") as folder:
        store = STORES[asked.backend](Path(folder))
        curves, completed = asyncio.run(
            soak(store, asked.minutes * 60, asked.pace, dashboard=asked.dashboard)
        )
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
    title = f"{asked.backend}: memory over {asked.minutes:g} minutes, {completed} jobs"
    figures = {
        "backend": asked.backend,
        "minutes": asked.minutes,
        "completed": completed,
        "curves": {
            curve.name: {"growth": round(curve.growth, 4), "points": curve.points} for curve in curves
        },
    }
    (out / f"soak-{asked.backend}.json").write_text(json.dumps(figures) + "\n")
    (out / f"soak-{asked.backend}.svg").write_text(chart(curves, title))
    print(title)
    for curve in curves:
        print(
            f"  {curve.name}: {curve.part(1 / 3, 2 / 3):.1f} MB in the second third, "
            f"{curve.part(2 / 3, 1):.1f} MB in the last ({curve.growth:+.1%})"
        )
    flat = all(curve.growth <= asked.most_growth for curve in curves if curve.name != _HISTORY)
    print("flat" if flat else f"NOT FLAT: something grew by more than {asked.most_growth:.0%}")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())

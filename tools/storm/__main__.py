"""``scripts/storm``: run one seeded storm on one backend, and print its report."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tools.storm import BY_NAME, FAULTS, MUTANTS, Report, Settings, run_storm
from tools.storm.servers import STORES
from windlass.errors import ConfigError

_FAULTS_HELP = f"all, none, or some of {','.join(FAULTS)}; only by name also {','.join(BY_NAME)}"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/storm", description=__doc__)
    parser.add_argument("--backend", choices=sorted(STORES), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.2)
    parser.add_argument("--faults", default="all", help=_FAULTS_HELP)
    parser.add_argument("--mutant", default="", choices=["", *sorted(MUTANTS)], metavar="NAME")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--pace", type=float, default=20.0, help="steps per second of each producer")
    parser.add_argument("--calm", type=float, default=1.2, help="seconds between faults, on average")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds without progress after which it gives up"
    )
    parser.add_argument("--keep", metavar="DIR", help="keep journals, logs and the store here")
    parser.add_argument("--json", metavar="FILE", help="also write the report to this file")
    parser.add_argument("--quiet", action="store_true", help="print only the report")
    return parser


def main() -> int:
    asked = parser().parse_args()
    # SIGTERM ends it as Ctrl-C does, together with the processes that it started.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    settings = Settings(
        seed=asked.seed,
        seconds=asked.minutes * 60,
        workers=asked.workers,
        producers=asked.producers,
        pace=asked.pace,
        calm=asked.calm,
        patience=asked.patience,
        mutant=asked.mutant,
    )
    wanted = None if asked.faults == "all" else [] if asked.faults == "none" else asked.faults.split(",")
    directory = Path(asked.keep or tempfile.mkdtemp(prefix="windlass-storm-"))
    directory.mkdir(parents=True, exist_ok=True)
    logging.getLogger("windlass").setLevel(logging.CRITICAL)  # the actors' processes log to their own files
    began = time.monotonic()
    try:
        store = STORES[asked.backend](directory)
        say = (lambda text: None) if asked.quiet else (lambda text: print(text, flush=True))
        report = asyncio.run(run_storm(store, settings, faults=wanted, say=say))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        if not asked.keep:
            shutil.rmtree(directory, ignore_errors=True)
    print("\n".join(lines_of(report, time.monotonic() - began)))
    if asked.json:
        Path(asked.json).write_text(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    return 0 if report.ok else 1


def lines_of(report: Report, took_s: float) -> list[str]:
    """The report as lines of text."""
    settings = report.settings
    lines = [
        f"storm on {report.backend}, seed {settings.seed}, {settings.seconds:g} s (in all {took_s:.0f} s)",
        f"decisions: {report.decisions}",
        f"left out (the store cannot): {', '.join(report.left_out) or 'nothing'}",
        f"faults: {_pairs(report.faults)} (in all {sum(report.faults.values())})",
        f"jobs acknowledged: {report.acknowledged}, asked for without an answer: {report.unanswered}",
        f"attempts: {report.attempts} ({_pairs(report.outcomes)})",
        f"leases taken back: {report.recovered}, replies lost: {report.lost_replies}",
        f"lost within the replication lag: {report.lost_in_lag}, rows of history gone: {report.history_gone}",
    ]
    if report.ok:
        return [*lines, f"all {report.invariants} invariants hold"]
    lines += [f"BROKEN {name}: {what}" for name, what in report.violations]
    again = f"--backend {report.backend} --seed {settings.seed} --minutes {settings.seconds / 60:g}"
    return [*lines, f"the same decisions again: scripts/storm {again}"]


def _pairs(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


if __name__ == "__main__":
    sys.exit(main())

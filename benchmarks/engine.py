"""``scripts/bench engine``: the CPU time of one call on the memory and the file store.

``--against DIRECTORY`` measures that tree, a worktree of another commit, in alternation. Other load of the
machine affects both, so the ratio counts. See ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import ROOT, Report, console
from benchmarks._engine_cases import CASES

#: A call may cost this much more than in the other tree.
MOST = 1.15


class Bench:
    """One run."""

    def __init__(self, name: str, trees: dict[str, Path], repetitions: int, part: float) -> None:
        self.report = Report(name, repetitions=repetitions, settings={"part": part})
        self._trees = trees
        self._part = part

    def measure(self, case: str) -> None:
        """Measure one case with each tree in turn."""
        self.report.rounds(case, *(self._step(case, name) for name in self._trees))
        if len(self._trees) > 1:
            ours, theirs = self._trees
            self.report.compare(f"{case}, {ours}", f"{case}, {theirs}", 1 / MOST)

    def _step(self, case: str, tree: str) -> Callable[[], None]:
        def step() -> None:
            used_s = self._run(case, self._trees[tree])
            self.report.add(f"{case}, {tree}", "jobs/s of processor", self._jobs(case) / used_s)

        return step

    def _jobs(self, case: str) -> int:
        whole = 20_000 if "worker" not in case and "file" not in case else 5_000
        return max(int(whole * self._part) // 1_000, 1) * 1_000

    def _run(self, case: str, tree: Path) -> float:
        command = [sys.executable, str(ROOT / "benchmarks" / "_engine_cases.py"), case, str(self._jobs(case))]
        environment = os.environ | {"PYTHONPATH": str(tree / "src")}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=300)
        return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bench engine")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to check that everything runs")
    parser.add_argument("--against", type=Path, metavar="DIRECTORY", help="a worktree of another commit")
    parser.add_argument("--only", nargs="+", metavar="CASE", choices=CASES, help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    trees = {"this tree": ROOT}
    if options.against:
        trees["the other"] = options.against.resolve()
    rounds, part = (1, 0.05) if options.smoke else (options.rounds, 1.0)
    bench = Bench("engine-smoke" if options.smoke else "engine", trees, rounds, part)
    for case in options.only or CASES:
        bench.measure(case)
    bench.report.show()
    console.print(f"written to {bench.report.save().name} in .reports")


if __name__ == "__main__":
    main()

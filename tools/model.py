"""Check the models of ``models/`` exhaustively with spin: ``python -m tools.model``.

Each run explores every interleaving of a model with some switches, and reports the number of states and
whether an assertion can be violated. Variants with a defect must be reported: otherwise the result for the
correct model would prove nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1] / "models"
_SPIN_S = 600


@dataclass(frozen=True)
class Run:
    """One model with some switches, and whether its assertions must hold."""

    model: str
    switches: tuple[str, ...] = ()
    holds: bool = True


@dataclass(frozen=True)
class Result:
    """The output of the checker."""

    run: Run
    states: int
    transitions: int
    errors: int
    #: The first violation.
    complaint: str

    @property
    def as_expected(self) -> bool:
        return (self.errors == 0) is self.run.holds


_SMALL = ("-DCLAIMS=3", "-DLOST_ANSWERS=1")

#: Quick enough for the test suite.
SMALL_RUNS = (
    Run("lease.pml", _SMALL),
    Run("lease.pml", (*_SMALL, "-DEAGER_RECOVERY")),
    # No answer is lost here: the late worker completes the job a second time.
    Run("lease.pml", ("-DCLAIMS=3", "-DLOST_ANSWERS=0", "-DNO_FENCING"), holds=False),
    Run("lease.pml", (*_SMALL, "-DNO_MEMORY"), holds=False),
)
RUNS = (Run("lease.pml"), Run("lease.pml", ("-DWORKERS=3", *_SMALL)), *SMALL_RUNS)


def check(run: Run) -> Result:
    """Build the checker of a model and run it."""
    with tempfile.TemporaryDirectory(prefix="windlass-model-") as folder:
        _call(["spin", *run.switches, "-a", str(MODELS / run.model)], folder)
        _call(["gcc", "-O1", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], folder)
        output = _call(["./pan", "-m2000000"], folder)
    return Result(
        run,
        states=_number(r"(\d+) states, stored", output),
        transitions=_number(r"(\d+) transitions", output),
        errors=_number(r"errors: (\d+)", output),
        complaint=next(iter(re.findall(r"^pan:1: (.*?) \(at depth", output, re.MULTILINE)), ""),
    )


def _call(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SPIN_S, check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0 or "max search depth too small" in output:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
    return output


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise RuntimeError(f"the checker did not say {pattern!r}:\n{text}")
    return int(found[1])


def main() -> int:
    results = []
    for run in RUNS:
        result = check(run)
        results.append(result)
        name = " ".join((result.run.model, *result.run.switches))
        verdict = "no violation" if result.errors == 0 else f"violated: {result.complaint}"
        wanted = "" if result.as_expected else "  NOT AS EXPECTED"
        print(
            f"{name}: {result.states} states, {result.transitions} transitions, {verdict}{wanted}", flush=True
        )
    return 0 if all(result.as_expected for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Changes jobs one by one. Each has its own result, and one that fails does not stop the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from windlass.cli.output import Out, styled
from windlass.errors import IllegalTransitionError, JobNotFoundError

#: With more jobs than this, a progress bar is shown.
_MANY = 20


class Answers:
    """The result for each job. ``done`` is the word for success."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._rows: list[tuple[str, str, str]] = []

    def ok(self, job_id: str, outcome: str = "") -> None:
        """It worked."""
        self._rows.append((job_id, outcome or self._done, ""))

    def failed(self, job_id: str, code: str, message: str) -> None:
        """Record an error."""
        self._rows.append((job_id, code, message))

    def report(self, out: Out) -> int:
        """Print the results; returns 1 if any job failed."""
        if out.as_json:
            out.document(
                [
                    {"id": job_id, "outcome": outcome} | ({"error": error} if error else {})
                    for job_id, outcome, error in self._rows
                ]
            )
        else:
            for job_id, outcome, error in self._rows:
                line = styled(error or f"{outcome} {job_id}", "red" if error else "")
                out.text(line)
        return 1 if any(error for _, _, error in self._rows) else 0


async def each(
    ids: Sequence[str], change: Callable[[str], Awaitable[Any]], answers: Answers, out: Out
) -> None:
    """Change every job of ``ids``. ``change`` may return a word for the outcome."""
    with out.progress("Working", len(ids) if len(ids) > _MANY else None) as advance:
        for job_id in ids:
            try:
                outcome = await change(job_id)
            except (JobNotFoundError, IllegalTransitionError) as exc:
                answers.failed(job_id, exc.code, str(exc))
            else:
                answers.ok(job_id, str(outcome) if outcome else "")
            advance(1)

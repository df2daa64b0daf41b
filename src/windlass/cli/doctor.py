"""``windlass doctor``: finds problems and says how to fix them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.api.health import CheckContext, workers_seen
from windlass.backend import health
from windlass.backend.health import Finding, problem
from windlass.cli.checks import CHECKS, set_aside
from windlass.cli.deployment import DEPLOYMENT_CHECKS
from windlass.cli.job_views import now_ms
from windlass.cli.output import Out, styled
from windlass.cli.store_commands import StoreOptions, store_command
from windlass.core.text import many
from windlass.errors import WindlassError

_MARKS = {"fact": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(StoreOptions):
    """``deep``: read all data. ``strict``: warnings count as problems.

    ``repair``: set aside records that cannot be read.
    """

    deep: bool = False
    strict: bool = False
    repair: bool = False


async def run(options: DoctorOptions, out: Out) -> int:
    """Examine the store."""
    findings = await examine(options)
    bad = ("problem", "warning") if options.strict else ("problem",)
    code = int(any(finding.level in bad for finding in findings))
    if out.as_json:
        out.document({"healthy": code == 0, "findings": findings})
    else:
        _draw(findings, out)
    return code


async def examine(options: DoctorOptions) -> list[Finding]:
    """The findings of all checks. A store that cannot be used is a finding too."""
    findings: list[Finding] = []
    try:
        closed = options.app()
        if options.repair:
            findings += health.repair(closed.url)
        findings += health.examine(closed.url, deep=options.deep)
        if any(finding.level == "problem" for finding in findings):
            return findings  # the store cannot be opened, or must not be changed
        async with closed as app:
            if options.repair:
                findings += [finding async for finding in set_aside(app)]
            context = CheckContext(app, options.deep, now_ms(), await app.queues(), *await workers_seen(app))
            for check in (*CHECKS, *DEPLOYMENT_CHECKS):
                findings += [finding async for finding in check(context)]
    except WindlassError as exc:
        findings.append(problem(f"the store cannot be used: {exc}"))
    return findings


def _draw(findings: list[Finding], out: Out) -> None:
    for finding in findings:
        mark, style = _MARKS[finding.level]
        line = styled(f"{mark} ", style)
        line.append(finding.text, style="" if finding.level == "fact" else style)
        out.text(line)
        if finding.advice:
            out.text(f"  → {finding.advice}", "dim")
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    out.text()
    if not problems and not warnings:
        out.text("All is well.", "bold green")
    else:
        out.text(f"{many(problems, 'problem')}, {many(warnings, 'warning')}.", "bold")


@store_command(
    "doctor",
    run,
    examples="""
windlass doctor
windlass doctor --deep                              also check the files of the store
windlass doctor --repair                            set aside records that cannot be read
windlass doctor --strict --json                     for monitoring
""",
)
@click.argument("store", metavar="[URL]", required=False)
@click.option("--deep", is_flag=True, help="Also read all stored data to check its integrity.")
@click.option("--repair", is_flag=True, help="First move unreadable records aside; their bytes are kept.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
def command(**values: Any) -> DoctorOptions:
    """Find problems and explain how to fix each.

    The exit code is 1 if the store cannot be used or may lose jobs (no persistence, eviction), if clocks
    differ too much, if jobs wait and no worker serves them, or if leases expired and no worker took the
    jobs back. Warnings (failed jobs, paused queues, mixed versions, unlimited retention) change the exit
    code only with --strict.
    """
    store = values.pop("store")
    return DoctorOptions(**values | ({"url": store} if store else {}))

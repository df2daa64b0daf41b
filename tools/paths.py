"""``python -m tools.paths``: the special paths, and how often the last complete test run took each.

``scripts/test`` writes the counts to ``.reports/paths.json``, and fails if a path was never taken on a store
that has it. ``--left-out`` lists the contract tests that cannot run in a variant, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from windlass.core.paths import PATHS

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / ".reports" / "paths.json"

Taken = Mapping[str, Mapping[str, int]]


def load_report(path: Path) -> dict[str, Counter[str]]:
    """How often each path was taken, by store and path. Empty if the file does not exist."""
    if not path.exists():
        return {}
    raw = json.loads(path.read_text(encoding="utf-8"))
    return {store: Counter(taken) for store, taken in raw.items()}


def add_to_report(path: Path, taken: Taken) -> None:
    """Add the counts of one part of a run to the counts of earlier parts."""
    whole = load_report(path)
    for store, counts in taken.items():
        whole.setdefault(store, Counter()).update(counts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table(taken: Taken) -> list[tuple[str, str, int, str]]:
    """A row for each path on each store that has it: path, store, count, description."""
    return [
        (name, store, taken.get(store, {}).get(name, 0), path.what)
        for name, path in PATHS.items()
        for store in path.stores
    ]


def never_taken(taken: Taken) -> list[str]:
    """The rows of the table with a count of 0."""
    return [f"{name} on {store}" for name, store, count, _ in table(taken) if not count]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Fail when a path was not taken on a store that has it.")
@click.option("--left-out", is_flag=True, help="List the contract tests that a variant leaves out.")
@click.option("--report", type=click.Path(path_type=Path, dir_okay=False), default=REPORT, hidden=True)
def main(*, check: bool, left_out: bool, report: Path) -> None:
    """Show how often the last whole run of the suite took each special path, on each store."""
    if left_out:
        _print_left_out()
        return
    taken = load_report(report)
    for name, store, count, what in table(taken):
        click.echo(f"{name:<24} {store:<8} {count:>9,}  {what}")
    if check and (missing := never_taken(taken)):
        raise click.ClickException(f"the conformance suite never took {', '.join(missing)}")


def _print_left_out() -> None:
    from windlass_conformance import contract_tests
    from windlass_conformance.variants import VARIANTS, Runs

    for title, runs in (
        ("memory, sqlite, file", Runs({})),
        ("amqp", Runs({}, "amqp")),
        ("valkey", Runs({}, "valkey", moves_clock=False)),
    ):
        for variant_name, variant in VARIANTS.items():
            reasons = {name: runs.why_not(test, variant) for name, test in contract_tests().items()}
            left = {name: reason for name, reason in reasons.items() if reason is not None}
            click.echo(f"{title}, {variant_name}: {len(left)} of {len(reasons)} tests")
            for name, reason in left.items():
                click.echo(f"  {name}: {reason}")


if __name__ == "__main__":
    main()

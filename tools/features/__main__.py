"""``scripts/features``: print, check and publish the feature ledger."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console

from tools.features import render
from tools.features.evidence import RunReport, load_report
from tools.features.ledger import load_ledger
from tools.features.matrix import Matrix, build_matrix, load_proved, lost_proofs, new_proofs

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "docs" / "features.json"
PROVED = ROOT / "docs" / "features-proved.json"
PAGE = ROOT / "docs" / "capabilities.md"
REPORT = ROOT / ".reports" / "features.json"

_path = click.Path(path_type=Path, dir_okay=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print the whole matrix as JSON.")
@click.option("--check", is_flag=True, help="Fail if a row that was proved is not proved any more.")
@click.option("--update", is_flag=True, help="Store what is proved now, for later checks.")
@click.option("--table", is_flag=True, help="Write the capability page of the docs.")
@click.option("--absent", is_flag=True, help="List the rows that a backend neither proves nor refuses.")
@click.option("--group", "groups", multiple=True, help="Show this group only, for example A; repeatable.")
@click.option("--ledger", "ledger_path", type=_path, default=LEDGER, hidden=True)
@click.option("--report", "report_path", type=_path, default=REPORT, hidden=True)
@click.option("--proved", "proved_path", type=_path, default=PROVED, hidden=True)
@click.option("--page", "page_path", type=_path, default=PAGE, hidden=True)
@click.pass_context
def main(  # noqa: PLR0913  one parameter per command-line option
    ctx: click.Context,
    *,
    as_json: bool,
    check: bool,
    update: bool,
    table: bool,
    absent: bool,
    groups: tuple[str, ...],
    ledger_path: Path,
    report_path: Path,
    proved_path: Path,
    page_path: Path,
) -> None:
    """Show which features of the ledger the last run of the test suite proved, on which backend.

    Run scripts/test first: it writes the report that this command reads.
    """
    report = load_report(report_path)
    matrix = build_matrix(load_ledger(ledger_path), report)
    if update or table or check:
        _need_report(report_path)
        _refuse_contradictions(matrix)
    if update:
        _write_json(proved_path, matrix.proved())
    if table:
        page_path.write_text(render.capabilities_page(matrix), encoding="utf-8")
    if check:
        ctx.exit(_check(load_proved(proved_path), matrix))
    if absent:
        _list_absent(matrix)
    elif as_json:
        click.echo(json.dumps(render.as_json(matrix), indent=1))
    elif not (update or table):
        _show(matrix, report, groups or tuple(matrix.ledger.groups))


def _need_report(path: Path) -> None:
    if not path.exists():
        raise click.ClickException("there is no report of a test run; run scripts/test first")


def _refuse_contradictions(matrix: Matrix) -> None:
    for row_id, backend, proof, refusal in matrix.contradictions:
        click.echo(f"{row_id} is both proved and refused on {backend}:\n  {proof}\n  {refusal}")
    if matrix.contradictions:
        raise click.ClickException(
            "the capability table would contradict itself; correct the marks of these tests"
        )


def _check(before: dict[str, list[str]], matrix: Matrix) -> int:
    lost, fresh = lost_proofs(before, matrix), new_proofs(before, matrix)
    for row_id, backend in lost:
        row = matrix.ledger.rows.get(row_id)
        click.echo(f"no longer proved on {backend}: {row_id} {row.title if row else '(not in the ledger)'}")
    if lost:
        click.echo(f"{len(lost)} proofs are gone; restore them, or drop them with scripts/features --update")
        return 1
    rows = matrix.proved()
    click.echo(f"features: {len(rows)} of {len(matrix.ledger.rows)} rows proved, nothing lost")
    if fresh:
        click.echo(f"{len(fresh)} new proofs; keep them with scripts/features --update --table")
    return 0


def _list_absent(matrix: Matrix) -> None:
    for title, demanded in (("demanded", True), ("beyond", False)):
        rows = matrix.absent(demanded=demanded)
        click.echo(f"{title}: {len(rows)} rows are absent somewhere")
        for row, backends in rows:
            where = "everywhere" if len(backends) == len(matrix.backends) else ", ".join(backends)
            click.echo(f"  {row.id:4} {row.title} ({where})")


def _show(matrix: Matrix, report: RunReport, groups: tuple[str, ...]) -> None:
    console = Console()
    for group in groups:
        if group not in matrix.ledger.groups:
            raise click.BadParameter(f"no group {group!r}", param_hint="--group")
        console.print(render.group_table(matrix, group))
    console.print(render.summary_table(matrix))
    if not report.entries:
        console.print("There is no report of a test run yet: run scripts/test first.")


def _write_json(path: Path, value: dict[str, list[str]]) -> None:
    lines = [f" {json.dumps(key)}: {json.dumps(names)}" for key, names in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

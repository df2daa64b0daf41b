"""Hooks that change pages while ``mkdocs`` builds the site (it calls the ``on_...`` functions).

* Links that leave ``docs/`` become plain text: the site contains only the documentation.
* ``<!-- chart: PAGE.md, HEADING -->`` becomes a chart of the table below that heading, so that figures and
  charts cannot differ.
* ``<!-- commands -->`` becomes the help of every command.
* ``<!-- fields: ... -->`` and similar marks become tables made from the code (``docs_reference``).

Pages that are missing in the navigation of ``mkdocs.yml`` are added below "More".
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import click

from tools import docs_reference

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)]*)\)")
_CHART = re.compile(r"<!-- chart: ([\w./-]+), (.+?) -->")
_RATE = re.compile(r"([\d,]+) to ([\d,]+) jobs/s")
_BAR, _GAP, _LEFT, _WIDTH = 14, 12, 330, 420


def on_config(config: Any) -> Any:
    """Add pages that the navigation does not name."""
    docs = Path(config["docs_dir"])
    named = set(_named(config["nav"]))
    rest = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    more = [path for path in rest if path not in named]
    if more:
        config["nav"].append({"More": more})
    return config


def _named(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    if isinstance(nav, dict):
        return [name for value in nav.values() for name in _named(value)]
    return [name for value in nav for name in _named(value)]


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page as the site shows it."""
    docs = Path(config["docs_dir"]).resolve()
    here = (docs / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        target = (here / match[2].partition("#")[0]).resolve()
        return match[0] if target.is_relative_to(docs) else match[1]

    markdown = _OUTSIDE.sub(inside, markdown)
    markdown = _CHART.sub(lambda match: chart(docs / match[1], match[2]), markdown)
    return docs_reference.fill(markdown).replace("<!-- commands -->", commands())


def chart(page: Path, heading: str) -> str:
    """A bar chart of the rows below ``heading`` that compare two rates."""
    rows = rates(page.read_text(), heading)
    if not rows:
        raise ValueError(f"{page.name} has no rates below {heading!r}")
    most = max(max(ours, theirs) for _, ours, theirs in rows)
    height = len(rows) * (2 * _BAR + _GAP) + _GAP
    label = f"{html.escape(heading)}: jobs per second"
    size = f'viewBox="0 0 {_LEFT + _WIDTH + 110} {height}"'
    parts = [f'<svg {size} role="img" aria-label="{label}" style="max-width:100%;font:13px sans-serif">']
    for number, (title, ours, theirs) in enumerate(rows):
        top = _GAP + number * (2 * _BAR + _GAP)
        parts.append(
            f'<text x="{_LEFT - 8}" y="{top + _BAR + 4}" text-anchor="end" fill="currentColor">'
            f"{html.escape(title)}</text>"
        )
        for place, (value, colour) in enumerate(((ours, "#009688"), (theirs, "#9e9e9e"))):
            y, width = top + place * _BAR, max(value / most * _WIDTH, 1)
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 2}" fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{_LEFT + width + 6:.1f}" y="{y + _BAR - 3}" fill="currentColor">{value:,}</text>'
            )
    return "".join([*parts, "</svg>"])


def rates(text: str, heading: str) -> list[tuple[str, int, int]]:
    """(title, ours, theirs) of the rows below a heading, in jobs per second."""
    _, found, rest = text.partition(f"\n## {heading}\n")
    if not found:
        return []
    section = rest.partition("\n## ")[0]
    rows: list[tuple[str, int, int]] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        match = _RATE.search(line)
        if match and line.startswith("|"):
            ours, theirs = (int(number.replace(",", "")) for number in match.groups())
            rows.append((cells[0].replace("`", ""), ours, theirs))
    return rows


def commands() -> str:
    """The help of every command, as Markdown."""
    from windlass.cli.main import COMMANDS, tree

    parts: list[str] = []
    context = click.Context(tree, info_name="windlass")
    for name in COMMANDS:
        command = tree.get_command(context, name)
        assert command is not None
        parts.append(_help(command, context, name, "##"))
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=context)
            parts += [_help(part, inner, word, "###") for word, part in command.commands.items()]
    return "\n".join(parts)


def _help(command: click.Command, parent: click.Context, name: str, level: str) -> str:
    context = click.Context(command, info_name=name, parent=parent, max_content_width=90, terminal_width=90)
    return f"{level} {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"

"""A chart of a benchmark: one row of bars for each workload, drawn as SVG."""

from __future__ import annotations

from html import escape
from pathlib import Path

_WIDTH, _LABEL, _BAR, _GAP, _HEAD = 720, 190, 18, 6, 34
_OURS, _THEIRS, _BARE = "#2f6f9f", "#b9c3cc", "#8aa78a"


def draw(path: Path, title: str, groups: list[tuple[str, list[tuple[str, float, str]]]]) -> None:
    """``groups``: heading -> name, value and unit of each bar. Bars of one group share a scale."""
    parts, y = [_text(12, 24, title, size=16, bold=True)], 48
    for heading, bars in groups:
        parts.append(_text(12, y + 14, heading, bold=True))
        y += _HEAD - _GAP
        most = max(value for _, value, _ in bars)
        for name, value, unit in bars:
            length = max(2, round((_WIDTH - _LABEL - 130) * value / most))
            colour = _OURS if name.startswith("Windlass") else _BARE if name.startswith("bare") else _THEIRS
            parts.append(_text(_LABEL - 8, y + 13, name, end=True))
            parts.append(f'<rect x="{_LABEL}" y="{y}" width="{length}" height="{_BAR}" fill="{colour}"/>')
            figure = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
            parts.append(_text(_LABEL + length + 6, y + 13, f"{figure} {unit}"))
            y += _BAR + _GAP
        y += 12
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        'font-family="system-ui, sans-serif">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        f"{body}\n</svg>\n"
    )


def _text(x: int, y: int, text: str, *, size: int = 12, bold: bool = False, end: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x}" y="{y}" font-size="{size}"{weight}{anchor} fill="#222">{escape(text)}</text>'

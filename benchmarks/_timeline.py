"""A picture of the hops of one call, drawn as SVG: a lane for each process, time from left to right."""

from __future__ import annotations

from html import escape
from pathlib import Path

_WIDTH, _LEFT, _RIGHT, _ROW, _HEAD = 960, 120, 250, 24, 46
_LINE, _DOT, _GRID = "#00796b", "#2f6f9f", "#d5dde2"


def draw(path: Path, title: str, hops: list[tuple[float, str, str]]) -> None:
    """``hops``: when (ms after the call), in which process, and what, sorted by time."""
    lanes = list(dict.fromkeys(role for _, role, _ in hops))
    last = max(at for at, _, _ in hops)
    scale = (_WIDTH - _LEFT - _RIGHT) / last
    parts, y = [_text(12, 24, title, bold=True)], _HEAD
    for lane in lanes:
        top, own = y, [(at, what) for at, role, what in hops if role == lane]
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_WIDTH - 12}" y2="{y}" stroke="{_GRID}"/>')
        parts.append(_text(12, y + 20, lane, bold=True))
        for at, what in own:
            x = round(_LEFT + at * scale)
            parts.append(f'<line x1="{x}" y1="{top}" x2="{x}" y2="{y + 16}" stroke="{_GRID}"/>')
            parts.append(f'<circle cx="{x}" cy="{y + 16}" r="4" fill="{_DOT}"/>')
            parts.append(_text(x + 8, y + 20, f"{at:.2f} ms: {what}"))
            y += _ROW
        y += 14
    body = "\n".join(parts)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img" '
        f'aria-label="{escape(title, quote=True)}" style="max-width:100%;font:13px sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _text(x: int, y: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    fill = _LINE if bold else "#222"
    return f'<text x="{x}" y="{y}"{weight} fill="{fill}">{escape(text)}</text>'

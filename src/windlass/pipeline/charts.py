"""Charts as inline SVG: stacked steps and lines over time, readable in light and dark.

A chart shows windows of equal length, ``step`` milliseconds each, without gaps between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape

_WIDTH, _HEIGHT = 860, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 30, 8, 24
_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
#: Possible distances between two labels on the time axis.
_GAPS = (
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 56, 182, 364)),
)
_MOST_DATES = 8
#: Up to this many values of a line are marked by dots.
_FEW_DOTS = 24
COOL = ("#2f6fb0", "#3aa18b", "#8b6fc0", "#c98a2d", "#5aa3d0", "#7f8c3a")
WARM = ("#d9a62e", "#c8453b", "#7a4b94", "#9c5a2b")

STYLE = """
:root {
  color-scheme: light dark; --ink: #1c232b; --dim: #66717d; --line: #d8dee4; --paper: #fff; --tile: #f4f6f8
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaee; --dim: #98a3ae; --line: #38424c; --paper: #161b20; --tile: #20272e }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 17px; margin: 32px 0 8px }
header p, figcaption { color: var(--dim); margin: 2px 0 16px } figcaption { margin: 0 0 6px }
figcaption b { color: var(--ink) }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin-bottom: 20px }
.tiles div { background: var(--tile); border-radius: 8px; padding: 10px 14px; min-width: 92px }
.tiles b { display: block; font-size: 20px } .tiles span { color: var(--dim); font-size: 13px }
figure { margin: 0 0 26px } svg { width: 100%; height: auto; display: block }
svg text { fill: var(--dim); font-size: 11px } svg .grid { stroke: var(--line) }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { text-align: left; padding: 5px 14px 5px 0; white-space: nowrap }
th, td { border-bottom: 1px solid var(--line) } td:last-child, th:last-child { padding-right: 0 }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
th { color: var(--dim); font-weight: 500 }
figure { overflow-x: auto }
@media (max-width: 640px) { svg { min-width: 580px } svg text { font-size: 15px } }
"""

Series = Mapping[str, Sequence[float | None]]


def stacked(windows: Sequence[int], step: int, series: Series, *, warm: bool = False) -> str:
    """A stacked step chart, one step per window. Missing values count as zero."""
    colours = WARM if warm else COOL
    below = [0.0] * len(windows)
    layers: list[tuple[list[float], list[float], str]] = []
    for n, values in enumerate(series.values()):
        above = [base + (value or 0.0) for base, value in zip(below, values, strict=True)]
        layers.append((below, above, colours[n % len(colours)]))
        below = above
    scale = _Scale(windows, step, max(below, default=0.0))
    shapes = "".join(
        f'<path d="{_steps(scale, windows, low, high)}" fill="{colour}" fill-opacity="0.82"/>'
        for low, high, colour in layers
    )
    return _frame(scale, shapes, list(series), colours)


def lines(
    windows: Sequence[int],
    step: int,
    series: Series,
    *,
    log: bool = False,
    label: Callable[[float], str] | None = None,
) -> str:
    """A line for each series through the middle of its windows, with gaps where there is no value.

    ``label`` formats a value of the axis with its unit; by default a value is a plain count.
    """
    known = [value for values in series.values() for value in values if value is not None]
    scale = _Scale(windows, step, max(known, default=0.0), log=log)
    shapes = "".join(
        f'<path d="{_line(scale, windows, values)}" fill="none" stroke="{COOL[n % len(COOL)]}" '
        'stroke-width="1.8" stroke-linejoin="round" stroke-linecap="round"/>'
        + _dots(scale, windows, values, COOL[n % len(COOL)])
        for n, values in enumerate(series.values())
    )
    return _frame(scale, shapes, list(series), COOL, label)


class _Scale:
    """Converts times and values to coordinates."""

    def __init__(self, windows: Sequence[int], step: int, most: float, *, log: bool = False) -> None:
        self.step = step
        self.first = windows[0] if windows else 0
        self.end = (windows[-1] if windows else 0) + step
        self.log = log
        self.ticks = _log_ticks(most) if log else _ticks(most)
        self.most = max(self.ticks[-1], most, 1e-9)

    def x(self, ms: float) -> float:
        return _LEFT + (ms - self.first) / (self.end - self.first) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = math.log10(1 + value) / math.log10(1 + self.most) if self.log else value / self.most
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(most: float) -> list[float]:
    """Round whole numbers from 0 to ``most`` or a little above."""
    if most <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(most))
    step = next(step * f for f in (0.2, 0.5, 1, 2, 5) if most / (step * f) <= 5)
    step = max(step, 1.0)
    return [step * n for n in range(math.ceil(most / step) + 1)]


def _log_ticks(most: float) -> list[float]:
    return [0.0, *(10.0**n for n in range(max(math.ceil(math.log10(max(most, 10))), 1) + 1))]


def _steps(scale: _Scale, windows: Sequence[int], low: Sequence[float], high: Sequence[float]) -> str:
    """The outline of the area between two rows of heights, without windows of no height."""
    path = []
    for window, bottom, top in zip(windows, low, high, strict=True):
        if top > bottom:
            left, right = scale.x(window), scale.x(window + scale.step)
            path.append(f"M{left:.1f},{scale.y(bottom):.1f} V{scale.y(top):.1f} H{right:.1f}")
            path.append(f"V{scale.y(bottom):.1f} Z")
    return " ".join(path)


def _line(scale: _Scale, windows: Sequence[int], values: Sequence[float | None]) -> str:
    path, pen = [], "M"
    for window, value in zip(windows, values, strict=True):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{scale.x(window + scale.step / 2):.1f},{scale.y(value):.1f}")
        pen = "L"
    return " ".join(path)


def _dots(scale: _Scale, windows: Sequence[int], values: Sequence[float | None], colour: str) -> str:
    """A dot for each value if there are few values, else only for those that no line reaches."""
    few = sum(value is not None for value in values) <= _FEW_DOTS
    around = [None, *values, None]
    dots = []
    for n, (window, value) in enumerate(zip(windows, values, strict=True)):
        if value is not None and (few or (around[n] is None and around[n + 2] is None)):
            x, y = scale.x(window + scale.step / 2), scale.y(value)
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')
    return "".join(dots)


def _frame(
    scale: _Scale,
    shapes: str,
    names: Sequence[str],
    colours: Sequence[str],
    label: Callable[[float], str] | None = None,
) -> str:
    write = label or _short
    grid = "".join(
        f'<path class="grid" d="M{_LEFT},{scale.y(tick):.1f} H{_WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{scale.y(tick) + 4:.1f}" text-anchor="end">{escape(write(tick))}</text>'
        for tick in scale.ticks
    )
    dates = "".join(
        f'<text x="{scale.x(at):.1f}" y="{_HEIGHT - 6}" text-anchor="{_anchor(at, scale)}">'
        f"{_when(at, scale)}</text>"
        for at in _dates(scale)
    )
    legend = "".join(
        f'<tspan fill="{colours[n % len(colours)]}" dx="{12 if n else 0}">&#9632;</tspan> {escape(name)}'
        for n, name in enumerate(names)
    )
    spoken = escape(", ".join(names))
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + 20}" role="img" aria-label="{spoken}">{grid}{shapes}{dates}'
        f'<text x="{_LEFT}" y="{_HEIGHT + 14}">{legend}</text></svg>'
    )


def _dates(scale: _Scale) -> list[int]:
    """Round times within the chart, at most ``_MOST_DATES`` of them."""
    span = scale.end - scale.first
    gap = next((gap for gap in _GAPS if span / gap <= _MOST_DATES), _GAPS[-1] * -(-span // _GAPS[-1] // 8))
    first = -(-scale.first // gap) * gap
    return list(range(first, scale.end + 1, gap))


def _anchor(ms: int, scale: _Scale) -> str:
    """Centre a label below its time, except at the right edge of the chart."""
    return "end" if scale.x(ms) > _WIDTH - _RIGHT - 5 else "middle"


def _when(ms: int, scale: _Scale) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    span = scale.end - scale.first
    if span <= _DAY:
        return moment.strftime("%H:%M")
    if span <= 4 * _DAY:
        return moment.strftime("%d %b %H:%M")
    return moment.strftime("%d %b" if span <= 200 * _DAY else "%d %b %Y")


def _short(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"

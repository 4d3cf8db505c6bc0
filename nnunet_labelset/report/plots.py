"""Small inline SVG plots: scores per method as strips with boxes, curves of the folds."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

# Okabe and Ito: distinct also without red-green vision. A method keeps its colour and its shape in all plots.
METHOD_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
SHAPES = ("circle", "square", "triangle", "diamond")
MAX_POINTS = 250  # of a curve: more cannot be seen, but make the page slow


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def mark(shape: str, x: float, y: float, size: float, colour: str, title: str = "") -> str:
    """A small mark of a given shape; its title appears under the mouse."""
    text = f"<title>{escape(title)}</title>" if title else ""
    style = f'fill="{colour}" fill-opacity="0.55"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}" {style}>{text}</circle>'
    corners = {
        "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        "triangle": ((0, -1.2), (1.2, 1), (-1.2, 1)),
        "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    }[shape]
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{points}" {style}>{text}</polygon>'


def strip_plot(
    title: str, values: Mapping[str, Mapping[str, float]], low: float, high: float, unit: str, width: int = 360
) -> str:
    """One row per method: a mark per case, a box from quartile to quartile, a line at the median.

    `values[method][case]` are the scores; `low` and `high` are the ends of the axis.
    """
    left, right, top, row = 12, 16, 26, 46
    bottom = top + row * len(values)
    scale = (width - left - right) / ((high - low) or 1)
    parts = [f'<text x="{left}" y="15" class="plot-title">{escape(title)}</text>']
    for tick in ticks(low, high):
        x = left + (tick - low) * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 13}" class="tick">{tick:g}</text>')
    parts.append(f'<text x="{width - right}" y="15" class="unit">{escape(unit)}</text>')
    description = []
    for number, (method, scores) in enumerate(values.items()):
        middle = top + row * number + 29
        colour, shape = METHOD_COLOURS[number % len(METHOD_COLOURS)], SHAPES[number % len(SHAPES)]
        name = f"{method} (n = {len(scores)})"
        parts.append(f'<text x="{left}" y="{middle - 15}" class="row">{escape(name)}</text>')
        if not scores:
            parts.append(f'<text x="{left}" y="{middle + 4}" class="tick-left">no scores</text>')
            description.append(f"{method}: no scores")
            continue
        quartiles = np.percentile(list(scores.values()), [25, 50, 75])
        first, median, third = (left + (value - low) * scale for value in quartiles)
        parts.append(f'<rect x="{first:.1f}" y="{middle - 9}" width="{third - first:.1f}" height="18" class="box"/>')
        jitter = random.Random(method)  # the same page every time
        for case, score in sorted(scores.items()):
            x, y = left + (score - low) * scale, middle + jitter.uniform(-6, 6)
            parts.append(mark(shape, x, y, 2.4, colour, f"{case}: {score:.1f} {unit}"))
        parts.append(
            f'<line x1="{median:.1f}" x2="{median:.1f}" y1="{middle - 10}" y2="{middle + 10}" class="median"/>'
        )
        description.append(f"{method}: median {quartiles[1]:.1f}, quartiles {quartiles[0]:.1f} to {quartiles[2]:.1f}")
    label = f"{title}, {unit}. " + "; ".join(description)
    return _svg(width, bottom + 18, label, parts)


def line_plot(
    title: str,
    lines: Sequence[tuple[str, str, Mapping[int, float | None]]],
    unit: str,
    limits: tuple[float, float] | None = None,
    width: int = 540,
    height: int = 210,
) -> str:
    """Curves over epochs: `lines` holds `(name, class for the style sheet, value by epoch)`."""
    points = {(epoch, value) for _, _, line in lines for epoch, value in line.items() if value is not None}
    if not points:
        return ""
    last = max(epoch for epoch, _ in points)
    low, high = limits or (min(value for _, value in points), max(value for _, value in points))
    left, right, top, bottom = 44, 10, 24, height - 32
    across = (width - left - right) / (last or 1)
    up = (bottom - top) / ((high - low) or 1)
    parts = [f'<text x="{left}" y="15" class="plot-title">{escape(title)}</text>']
    parts.append(f'<text x="{width - right}" y="15" class="unit">{escape(unit)}</text>')
    for tick in ticks(low, high, 4):
        y = bottom - (tick - low) * up
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 5}" y="{y + 4:.1f}" class="tick-right">{tick:g}</text>')
    for tick in ticks(0, last):
        if tick == int(tick):
            parts.append(f'<text x="{left + tick * across:.1f}" y="{bottom + 13}" class="tick">{tick:g}</text>')
    parts.append(f'<text x="{width - right}" y="{height - 4}" class="unit">epoch</text>')
    for name, style, line in lines:
        # A gap where a value is missing, not a line across it.
        runs: list[list[str]] = [[]]
        for epoch, value in _thin(line):
            if value is None:
                runs.append([])
            else:
                y = bottom - (min(max(value, low), high) - low) * up
                runs[-1].append(f"{left + epoch * across:.1f},{y:.1f}")
        for run in runs:
            if run:
                shown = " ".join(run if len(run) > 1 else [*run, *run])
                parts.append(f'<polyline points="{shown}" class="{style}"><title>{escape(name)}</title></polyline>')
    return _svg(width, height, f"{title}, {unit} over {last + 1} epochs, {len(lines)} curves", parts)


def _thin(line: Mapping[int, float | None]) -> list[tuple[int, float | None]]:
    """At most MAX_POINTS of a curve, each the mean of its neighbours."""
    items = sorted(line.items())
    step = math.ceil(len(items) / MAX_POINTS)
    if step <= 1:
        return items
    thinned: list[tuple[int, float | None]] = []
    for start in range(0, len(items), step):
        part = items[start : start + step]
        known = [value for _, value in part if value is not None]
        thinned.append((part[len(part) // 2][0], sum(known) / len(known) if known else None))
    return thinned


def _svg(width: int, height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}" role="img" '
        f'aria-label="{escape(label)}"><title>{escape(label)}</title>{"".join(parts)}</svg>'
    )

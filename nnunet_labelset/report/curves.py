"""Curves over epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.report.svg import grid_up, svg, text, ticks, titled

MAX_POINTS = 250  # of a curve: more cannot be seen, but make the page slow


def line_plot(
    title: str,
    lines: Sequence[tuple[str, str, Mapping[int, float | None]]],
    unit: str,
    limits: tuple[float, float] | None = None,
) -> Markup:
    """Curves over epochs: `lines` holds `(name, class for the style sheet, value by epoch)`."""
    points = {(epoch, value) for _, _, line in lines for epoch, value in line.items() if value is not None}
    if not points:
        return Markup("")
    last = max(epoch for epoch, _ in points)
    low, high = limits or (min(value for _, value in points), max(value for _, value in points))
    width, height = 540, 210
    left, right, top, bottom = 44, 10, 24, height - 32
    across = (width - left - right) / (last or 1)
    up = (bottom - top) / ((high - low) or 1)
    parts = [
        *titled(title, unit, left, width - right),
        *grid_up(ticks(low, high, 4), low, up, left, width - right, bottom),
    ]
    for tick in ticks(0, last):
        if tick == int(tick):
            parts.append(text(left + tick * across, bottom + 13, "tick", f"{tick:g}"))
    parts.append(text(width - right, height - 4, "unit", "epoch"))
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
                parts.append(
                    Markup('<polyline points="{}" class="{}"><title>{}</title></polyline>').format(shown, style, name)
                )
    return svg(width, height, f"{title}, {unit} over {last + 1} epochs, {len(lines)} curves", parts)


def _thin(line: Mapping[int, float | None]) -> list[tuple[int, float | None]]:
    """At most MAX_POINTS of a curve, each the mean of its neighbours."""
    items = sorted(line.items())
    step = math.ceil(len(items) / MAX_POINTS)
    if step <= 1:
        return items
    thinned: list[tuple[int, float | None]] = []
    for start in range(0, len(items), step):
        part = items[start : start + step]
        thinned.append((part[len(part) // 2][0], describe(value for _, value in part).mean))
    return thinned

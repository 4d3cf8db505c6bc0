"""Plots as SVG text. The marks of a method are one path, so that thousands of them stay one element of the page."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nnunet_labelset.report.colours import method_class
from nnunet_labelset.report.page import join

DOT, CROSS = "h0", "m-3-3l6 6m0-6l-6 6"  # a line without length is drawn as a dot by its round ends
MAX_POINTS = 250  # of a curve: more cannot be seen, but make the page slow


@dataclass(frozen=True)
class Row:
    """The scores of one method in the order of the cases; None has none, a cross is a missed or invented structure."""

    method: str
    scores: Sequence[float | None]
    crosses: Sequence[bool]
    mean: tuple[float, float, float] | None = None  # and its interval


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def strip_plot(title: str, rows: Sequence[Row], low: float, high: float, unit: str, width: int = 360) -> Markup:
    """One row per method: a mark per case, a box from quartile to quartile, the median, the mean with its interval."""
    left, right, top, height = 12, 16, 26, 50
    bottom = top + height * len(rows)
    scale = (width - left - right) / ((high - low) or 1)
    parts = [*_title(title, unit, left, width - right), *_grid_across(ticks(low, high), low, scale, left, top, bottom)]
    description = []
    for number, row in enumerate(rows):
        middle = top + height * number + 28
        known = [score for score in row.scores if score is not None]
        missed = sum(row.crosses)
        name = f"{row.method} (n = {len(known)}{f', {missed} missed or invented' if missed else ''})"
        parts.append(_text(left, middle - 14, "row", name))
        if not known:
            parts.append(_text(left, middle + 4, "tick-left", "no scores"))
            description.append(f"{row.method}: no scores")
            continue
        quartiles = np.percentile(known, [25, 50, 75])
        first, median, third = (left + (value - low) * scale for value in quartiles)
        parts.append(
            Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="18" class="box"/>').format(
                first, middle - 9, third - first
            )
        )
        jitter = random.Random(row.method)  # the same page every time
        points = [
            None if score is None else (left + (score - low) * scale, middle + jitter.uniform(-6, 6))
            for score in row.scores
        ]
        parts.append(_marks(points, row.crosses, number))
        parts.append(_line(median, middle - 10, median, middle + 10, "median"))
        if row.mean:
            mean, start, end = (left + (value - low) * scale for value in row.mean)
            parts.append(
                Markup('<path class="interval-line" d="M{:.1f} {y}H{:.1f}m0-3v6M{:.1f} {y}m0-3v6"/>').format(
                    start, end, start, y=middle + 15
                )
            )
            parts.append(
                Markup('<circle cx="{:.1f}" cy="{}" r="3" class="dot {}"/>').format(
                    mean, middle + 15, method_class(number)
                )
            )
        description.append(
            f"{row.method}: median {quartiles[1]:.1f}, quartiles {quartiles[0]:.1f} to {quartiles[2]:.1f}"
        )
    return _svg(width, bottom + 18, f"{title}, {unit}. " + "; ".join(description), parts)


def forest_plot(
    title: str,
    methods: Sequence[str],
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float] | None]]],
    low: float,
    high: float,
    unit: str,
    width: int = 720,
) -> Markup:
    """A row per leaf: the mean of every method and its interval. For more leaves than anybody looks at one by one."""
    left, right, top, step = 240, 16, 44, 6
    height = step * len(methods) + 6
    bottom = top + height * len(rows)
    scale = (width - left - right) / ((high - low) or 1)
    parts = [*_title(title, unit, 8, width - right), *_grid_across(ticks(low, high), low, scale, left, top, bottom)]
    for number, method in enumerate(methods):
        place = left + (width - left - right) * number / len(methods)
        parts.append(Markup('<circle cx="{:.1f}" cy="30" r="3" class="dot {}"/>').format(place, method_class(number)))
        parts.append(_text(place + 8, 34, "tick-left", method))
    paths = [("", "") for _ in methods]
    for row, (name, means) in enumerate(rows):
        y = top + height * row
        parts.append(_text(left - 8, y + height / 2 + 4, "tick-right", name))
        for number, mean in enumerate(means):
            if mean:
                middle, start, end = (left + (value - low) * scale for value in mean)
                at = y + 3 + step * (number + 0.5)
                dots, lines = paths[number]
                paths[number] = (f"{dots}M{middle:.1f} {at:.0f}{DOT}", f"{lines}M{start:.1f} {at:.0f}H{end:.1f}")
    for number, (dots, lines) in enumerate(paths):
        style = method_class(number)
        parts.append(Markup('<path class="whiskers {}" d="{}"/>').format(style, lines))
        parts.append(Markup('<path class="marks {}" d="{}"/>').format(style, dots))
    return _svg(width, bottom + 18, f"{title}, {unit}: mean and 95 % interval of {len(rows)} leaves", parts)


def bland_altman(
    title: str, number: int, points: Sequence[tuple[float, float] | None], unit: str, width: int = 360
) -> Markup:
    """Predicted minus reference volume over their mean, with the bias and 1.96 standard deviations around it."""
    known = np.array([point for point in points if point is not None], dtype=float)
    height, left, right, top = 190, 48, 16, 26
    bottom = height - 32
    bias, sd = known[:, 1].mean(), known[:, 1].std(ddof=1) if len(known) > 1 else 0.0
    limits = (bias - 1.96 * sd, bias + 1.96 * sd)
    low, high = min(0.0, known[:, 1].min(), limits[0]), max(0.0, known[:, 1].max(), limits[1])
    low, high = (low, high) if high > low else (-1.0, 1.0)
    last = known[:, 0].max() or 1.0
    across, up = (width - left - right) / (1.05 * last), (bottom - top) / (high - low)
    parts = [
        *_title(title, unit, left, width - right),
        *_grid_up(ticks(low, high, 4), low, up, left, width - right, bottom),
    ]
    parts += [_text(left + tick * across, bottom + 13, "tick", f"{tick:g}") for tick in ticks(0, last, 4)]
    parts.append(_text(width - right, height - 4, "unit", f"mean of both volumes, {unit}"))
    for value, style in ((0.0, "zero"), (bias, "median"), *((limit, "limit") for limit in limits if sd)):
        y = bottom - (value - low) * up
        parts.append(_line(left, y, width - right, y, style))
    places = [None if p is None else (left + p[0] * across, bottom - (p[1] - low) * up) for p in points]
    parts.append(_marks(places, [False] * len(places), number))
    label = f"{title}: n = {len(known)}, bias {bias:.2f} {unit}, limits of agreement {limits[0]:.2f} to {limits[1]:.2f}"
    return _svg(width, height, label, parts)


def rank_plot(ranks: Sequence[tuple[str, float]], distance: float | None, width: int = 360) -> Markup:
    """Mean ranks on a line, best at the left; a bar joins methods closer than the critical `distance`."""
    left, right, top = 150, 20, 34
    order = sorted(range(len(ranks)), key=lambda index: ranks[index][1])
    scale = (width - left - right) / ((len(ranks) - 1) or 1)

    def place(rank: float) -> float:
        return left + (rank - 1) * scale

    bars: list[tuple[float, float]] = []
    for first in order:
        last: float = max(
            (ranks[index][1] for index in order if ranks[index][1] - ranks[first][1] < (distance or 0)), default=0
        )
        if last > ranks[first][1] and (not bars or last > bars[-1][1]):
            bars.append((ranks[first][1], last))
    names = top + 16 + 9 * len(bars)
    height = names + 20.0 * len(order)
    parts = [_line(left, top, width - right, top, "zero")]
    for rank in range(1, len(ranks) + 1):
        parts += [_line(place(rank), top - 4, place(rank), top + 4, "zero"), _text(place(rank), top - 9, "tick", rank)]
    for row, (start, end) in enumerate(bars):
        parts.append(_line(place(start) - 3, top + 12 + 9 * row, place(end) + 3, top + 12 + 9 * row, "clique"))
    for row, index in enumerate(order):
        (method, mean), y = ranks[index], names + 20 * row
        x = place(mean)
        parts.append(_line(x, top, x, y, "zero"))
        parts.append(Markup('<circle cx="{:.1f}" cy="{}" r="4" class="dot {}"/>').format(x, top, method_class(index)))
        # To the left, where the other lines are shorter.
        name = method if len(method) <= 20 else f"{method[:19]}…"
        parts.append(_text(x - 6, y + 4, "unit", f"{name}: {mean:.2f}"))
    words = ", ".join(f"{ranks[index][0]} {ranks[index][1]:.2f}" for index in order)
    return _svg(width, height, f"Mean ranks, 1 is best: {words}", parts)


def line_plot(
    title: str,
    lines: Sequence[tuple[str, str, Mapping[int, float | None]]],
    unit: str,
    limits: tuple[float, float] | None = None,
    width: int = 540,
    height: int = 210,
) -> Markup:
    """Curves over epochs: `lines` holds `(name, class for the style sheet, value by epoch)`."""
    points = {(epoch, value) for _, _, line in lines for epoch, value in line.items() if value is not None}
    if not points:
        return Markup("")
    last = max(epoch for epoch, _ in points)
    low, high = limits or (min(value for _, value in points), max(value for _, value in points))
    left, right, top, bottom = 44, 10, 24, height - 32
    across = (width - left - right) / (last or 1)
    up = (bottom - top) / ((high - low) or 1)
    parts = [
        *_title(title, unit, left, width - right),
        *_grid_up(ticks(low, high, 4), low, up, left, width - right, bottom),
    ]
    for tick in ticks(0, last):
        if tick == int(tick):
            parts.append(_text(left + tick * across, bottom + 13, "tick", f"{tick:g}"))
    parts.append(_text(width - right, height - 4, "unit", "epoch"))
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


def _marks(points: Sequence[tuple[float, float] | None], crosses: Sequence[bool], number: int) -> Markup:
    """All marks of a method; `data-i` are the numbers of their cases, for the name that appears at the pointer."""
    parts = []
    for kind, glyph in (("marks", DOT), ("crosses", CROSS)):
        chosen = [(i, p) for i, p in enumerate(points) if p is not None and crosses[i] == (kind == "crosses")]
        if not chosen:
            continue
        path = "".join(f"M{x:.0f} {y:.0f}{glyph}" for _, (x, y) in chosen)
        drawn = {i for i, _ in chosen}
        others = [i for i in range(len(points)) if i not in drawn]
        # What is shorter: the cases that are drawn, or after "!" those that are not.
        numbers = " ".join(map(str, sorted(drawn) if len(drawn) < len(others) else ["!", *others]))
        parts.append(
            Markup('<path class="{} {}" data-i="{}" d="{}"/>').format(kind, method_class(number), numbers, path)
        )
    return join(parts)


def _title(title: str, unit: str, left: float, right: float) -> list[Markup]:
    return [_text(left, 15, "plot-title", title), _text(right, 15, "unit", unit)]


def _grid_across(
    values: Sequence[float], low: float, scale: float, left: float, top: float, bottom: float
) -> list[Markup]:
    parts = []
    for tick in values:
        x = left + (tick - low) * scale
        parts += [_line(x, top, x, bottom, "grid"), _text(x, bottom + 13, "tick", f"{tick:g}")]
    return parts


def _grid_up(values: Sequence[float], low: float, up: float, left: float, right: float, bottom: float) -> list[Markup]:
    parts = []
    for tick in values:
        y = bottom - (tick - low) * up
        parts += [_line(left, y, right, y, "grid"), _text(left - 5, y + 4, "tick-right", f"{tick:g}")]
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, style)


def _text(x: float, y: float, style: str, content: object) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}">{}</text>').format(x, y, style, content)


def _svg(width: int, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h:g}" width="{w}" height="{h:g}" role="img" '
        'aria-label="{label}">{parts}</svg>'
    ).format(w=width, h=height, label=label, parts=join(parts))

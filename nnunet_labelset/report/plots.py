"""Plots of scores, ranks and volumes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nnunet_labelset.report.colours import method_class
from nnunet_labelset.report.svg import DOT, grid_across, grid_up, line, marks, svg, text, ticks, titled

WIDTH = 360


@dataclass(frozen=True)
class Row:
    """The scores of one method in the order of the cases; None has none, a cross is a missed or invented structure."""

    method: str
    scores: Sequence[float | None]
    crosses: Sequence[bool]
    mean: tuple[float, float, float] | None = None  # and its interval


def strip_plot(title: str, rows: Sequence[Row], low: float, high: float, unit: str) -> Markup:
    """One row per method: a mark per case, a box from quartile to quartile, the median, the mean with its interval."""
    width, left, right, top, height = WIDTH, 12, 16, 26, 50
    bottom = top + height * len(rows)
    scale = (width - left - right) / ((high - low) or 1)
    parts = [*titled(title, unit, left, width - right), *grid_across(ticks(low, high), low, scale, left, top, bottom)]
    description = []
    for number, row in enumerate(rows):
        middle = top + height * number + 28
        known = [score for score in row.scores if score is not None]
        missed = sum(row.crosses)
        name = f"{row.method} (n = {len(known)}{f', {missed} missed or invented' if missed else ''})"
        parts.append(text(left, middle - 14, "row", name, width - left))
        if not known:
            parts.append(text(left, middle + 4, "tick-left", "no scores"))
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
        parts.append(marks(points, row.crosses, number))
        parts.append(line(median, middle - 10, median, middle + 10, "median"))
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
    return svg(width, bottom + 18, f"{title}, {unit}. " + "; ".join(description), parts)


def forest_plot(
    title: str,
    methods: Sequence[str],
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float] | None]]],
    low: float,
    high: float,
    unit: str,
) -> Markup:
    """A row per leaf: the mean of every method and its interval. For more leaves than anybody looks at one by one."""
    width, left, right, top, step = 2 * WIDTH, 240, 16, 44, 6
    height = step * len(methods) + 6
    bottom = top + height * len(rows)
    scale = (width - left - right) / ((high - low) or 1)
    parts = [*titled(title, unit, 8, width - right), *grid_across(ticks(low, high), low, scale, left, top, bottom)]
    for number, method in enumerate(methods):
        place = left + (width - left - right) * number / len(methods)
        parts.append(Markup('<circle cx="{:.1f}" cy="30" r="3" class="dot {}"/>').format(place, method_class(number)))
        parts.append(text(place + 8, 34, "tick-left", method))
    paths = [("", "") for _ in methods]
    for row, (name, means) in enumerate(rows):
        y = top + height * row
        parts.append(text(left - 8, y + height / 2 + 4, "tick-right", name))
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
    return svg(width, bottom + 18, f"{title}, {unit}: mean and 95 % interval of {len(rows)} leaves", parts)


def bland_altman(title: str, number: int, points: Sequence[tuple[float, float] | None], unit: str) -> Markup:
    """Predicted minus reference volume over their mean, with the bias and 1.96 standard deviations around it."""
    known = np.array([point for point in points if point is not None], dtype=float)
    width, height, left, right, top = WIDTH, 190, 48, 16, 26
    bottom = height - 32
    bias, sd = known[:, 1].mean(), known[:, 1].std(ddof=1) if len(known) > 1 else 0.0
    limits = (bias - 1.96 * sd, bias + 1.96 * sd)
    low, high = min(0.0, known[:, 1].min(), limits[0]), max(0.0, known[:, 1].max(), limits[1])
    low, high = (low, high) if high > low else (-1.0, 1.0)
    last = known[:, 0].max() or 1.0
    across, up = (width - left - right) / (1.05 * last), (bottom - top) / (high - low)
    parts = [
        *titled(title, unit, left, width - right),
        *grid_up(ticks(low, high, 4), low, up, left, width - right, bottom),
    ]
    parts += [text(left + tick * across, bottom + 13, "tick", f"{tick:g}") for tick in ticks(0, last, 4)]
    parts.append(text(width - right, height - 4, "unit", f"mean of both volumes, {unit}"))
    for value, style in ((0.0, "zero"), (bias, "median"), *((limit, "limit") for limit in limits if sd)):
        y = bottom - (value - low) * up
        parts.append(line(left, y, width - right, y, style))
    places = [None if p is None else (left + p[0] * across, bottom - (p[1] - low) * up) for p in points]
    parts.append(marks(places, [False] * len(places), number))
    label = f"{title}: n = {len(known)}, bias {bias:.2f} {unit}, limits of agreement {limits[0]:.2f} to {limits[1]:.2f}"
    return svg(width, height, label, parts)


def rank_plot(ranks: Sequence[tuple[str, float]], distance: float | None) -> Markup:
    """Mean ranks on a line, best at the left; a bar joins methods closer than the critical `distance`."""
    width, left, right, top = WIDTH, 150, 20, 34
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
    parts = [line(left, top, width - right, top, "zero")]
    for rank in range(1, len(ranks) + 1):
        parts += [line(place(rank), top - 4, place(rank), top + 4, "zero"), text(place(rank), top - 9, "tick", rank)]
    for row, (start, end) in enumerate(bars):
        parts.append(line(place(start) - 3, top + 12 + 9 * row, place(end) + 3, top + 12 + 9 * row, "clique"))
    for row, index in enumerate(order):
        (method, mean), y = ranks[index], names + 20 * row
        x = place(mean)
        parts.append(line(x, top, x, y, "zero"))
        parts.append(Markup('<circle cx="{:.1f}" cy="{}" r="4" class="dot {}"/>').format(x, top, method_class(index)))
        # To the left, where the other lines are shorter.
        name = method if len(method) <= 20 else f"{method[:19]}…"
        parts.append(text(x - 6, y + 4, "unit", f"{name}: {mean:.2f}"))
    words = ", ".join(f"{ranks[index][0]} {ranks[index][1]:.2f}" for index in order)
    return svg(width, height, f"Mean ranks, 1 is best: {words}", parts)

"""Plots of scores, ranks and volumes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nnunet_labelset.report.colours import method_class
from nnunet_labelset.report.svg import (
    DOT,
    Axis,
    dot,
    grid_across,
    grid_up,
    line,
    marks,
    svg,
    text,
    titled,
)

WIDTH = 360
FOREST_WIDTH = 460
MOST_NAME = 170  # of a forest plot's width
LETTER = 6.2  # the width of one, with some room
NAME_LINE = 15  # the height of a line of names
LONG = 20  # rows: more do not fit into a window


@dataclass(frozen=True)
class PlotRow:
    """The scores of one method in the order of the cases; None has none, a cross is a missed or
    invented structure.
    """

    method: str
    scores: Sequence[float | None]
    crosses: Sequence[bool]
    mean: tuple[float, float, float] | None = None  # and its interval


def strip_plot(title: str, rows: Sequence[PlotRow], low: float, high: float, unit: str) -> Markup:
    """One row per method: a mark per case, a box from quartile to quartile, the median, the mean
    with its interval.
    """
    left, right, top, height = 12, WIDTH - 16, 26, 50
    bottom = top + height * len(rows)
    x = Axis(low, high, left, right)
    parts = [*titled(title, unit, left, right), *grid_across(x, top, bottom)]
    description = []
    for number, row in enumerate(rows):
        middle = top + height * number + 28
        known = [score for score in row.scores if score is not None]
        missed = sum(row.crosses)
        name = (
            f"{row.method} (n = {len(known)}{f', {missed} missed or invented' if missed else ''})"
        )
        parts.append(text(left, middle - 14, "row", name, WIDTH - left))
        if not known:
            parts.append(text(left, middle + 4, "tick-left", "no scores"))
            description.append(f"{row.method}: no scores")
            continue
        first, median, third = np.percentile(known, [25, 50, 75])
        box = Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="18" class="box"/>')
        parts.append(box.format(x(first), middle - 9, x(third) - x(first)))
        jitter = random.Random(row.method)  # the same page every time
        points = [
            None if score is None else (x(score), middle + jitter.uniform(-6, 6))
            for score in row.scores
        ]
        parts.append(marks(points, row.crosses, number))
        parts.append(line(x(median), middle - 10, x(median), middle + 10, "median"))
        if row.mean:
            mean, start, end = map(x, row.mean)
            interval = Markup(
                '<path class="interval-line" d="M{:.1f} {y}H{:.1f}m0-3v6M{:.1f} {y}m0-3v6"/>'
            )
            parts += [
                interval.format(start, end, start, y=middle + 15),
                dot(mean, middle + 15, number),
            ]
        description.append(
            f"{row.method}: median {median:.1f}, quartiles {first:.1f} to {third:.1f}"
        )
    return svg(WIDTH, bottom + 18, f"{title}, {unit}. " + "; ".join(description), parts)


def forest_plot(
    title: str,
    methods: Sequence[str],
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float] | None]]],
    low: float,
    high: float,
    unit: str,
) -> Markup:
    """Draw a row per label: the mean of every method and its interval. A long plot has its axis at
    both ends.
    """
    longest = max(len(name) for name, _ in rows)
    left = min(MOST_NAME, 16 + 5.9 * longest)
    right, step = FOREST_WIDTH - 16, 6
    names, top = _method_names(methods, 8, right, 30)
    top += NAME_LINE if len(rows) > LONG else 0  # of the axis at this end
    height = max(14, step * len(methods) + 6)
    bottom = top + height * len(rows)
    x = Axis(low, high, left, right)
    parts = [*titled(title, unit, 8, right), *grid_across(x, top, bottom)]
    parts += names
    if len(rows) > LONG:
        parts += [text(x(tick), top - 4, "tick", f"{tick:g}") for tick in x.ticks()]
    for row, (name, _) in enumerate(rows):
        y = top + height * (row + 0.5) + 4
        parts.append(text(left - 8, y, "tick-right", name, left - 10))
    for number in range(len(methods)):
        places = top + height / 2 + step * (number - (len(methods) - 1) / 2)
        means = [row_means[number] for _, row_means in rows]
        parts += _forest_marks(means, x, places, height, number)
    words = f"{title}, {unit}: mean and 95 % interval of {len(rows)} labels"
    return svg(FOREST_WIDTH, bottom + 18, words, parts)


def _method_names(
    methods: Sequence[str], left: float, right: float, y: float
) -> tuple[list[Markup], float]:
    """Return the colours and names of the methods from a height on, in as many lines as they need,
    and the height where the plot begins.
    """
    parts = []
    x = left
    for number, method in enumerate(methods):
        width = min(8 + LETTER * len(method), right - left)
        if x > left and x + width > right:
            x, y = left, y + NAME_LINE
        parts += [dot(x + 3, y, number), text(x + 11, y + 4, "tick-left", method, width - 8)]
        x += width + 18
    return parts, y + 22


def _forest_marks(
    means: Sequence[tuple[float, float, float] | None],
    x: Axis,
    first: float,
    height: float,
    number: int,
) -> list[Markup]:
    """Return the means and intervals of one method as two paths."""
    dots = lines = ""
    for row, mean in enumerate(means):
        if mean:
            middle, start, end = map(x, mean)
            y = first + height * row
            dots += f"M{middle:.1f} {y:.0f}{DOT}"
            lines += f"M{start:.1f} {y:.0f}H{end:.1f}"
    path = Markup('<path class="{} {}" d="{}"/>')
    style = method_class(number)
    return [path.format("whiskers", style, lines), path.format("marks", style, dots)]


Point = tuple[float, float] | None  # mean of both volumes, predicted minus reference


@dataclass(frozen=True)
class VolumeAxes:
    """The ends of both axes: the same for all methods, so that their plots can be compared."""

    means: tuple[float, float]
    differences: tuple[float, float]

    @classmethod
    def of(cls, methods: Sequence[Sequence[Point]]) -> VolumeAxes:
        means: list[float] = []
        ends = [0.0]
        for points in methods:
            known = [point for point in points if point is not None]
            means += [mean for mean, _ in known]
            differences = [difference for _, difference in known]
            if differences:
                ends += [*differences, *limits_of_agreement(differences)]
        return cls(means=_padded(means), differences=_padded(ends))


def limits_of_agreement(differences: Sequence[float]) -> tuple[float, float]:
    """Return 1.96 standard deviations around the bias."""
    bias = float(np.mean(differences))
    sd = float(np.std(differences, ddof=1)) if len(differences) > 1 else 0.0
    return bias - 1.96 * sd, bias + 1.96 * sd


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """Return ends with some room, because a mark on the border is cut."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room


def bland_altman(
    title: str, number: int, points: Sequence[Point], unit: str, axes: VolumeAxes
) -> Markup:
    """Draw predicted minus reference volume over their mean, with the bias and the limits of
    agreement.
    """
    height, left, right, top = 206, 48, WIDTH - 16, 26
    bottom = height - 48
    differences = [point[1] for point in points if point is not None]
    bias = float(np.mean(differences))
    limits = limits_of_agreement(differences)
    x = Axis(*axes.means, left, right)
    y = Axis(*axes.differences, bottom, top)
    parts = [*titled(title, unit, left, right), *grid_up(y, left, right)]
    parts += [text(x(tick), bottom + 13, "tick", f"{tick:g}") for tick in x.ticks(4)]
    parts.append(text(right, height - 20, "unit", f"mean of both volumes, {unit}"))
    parts += [line(left, y(0), right, y(0), "zero"), line(left, y(bias), right, y(bias), "median")]
    if limits[0] < limits[1]:
        parts += [line(left, y(limit), right, y(limit), "limit") for limit in limits]
    places = [None if point is None else (x(point[0]), y(point[1])) for point in points]
    parts.append(marks(places, [False] * len(places), number))
    agreement = f"limits of agreement {limits[0]:.2f} to {limits[1]:.2f}"
    parts.append(text(left, height - 4, "tick-left", f"bias {bias:.2f}, {agreement}"))
    words = f"{title}: n = {len(differences)}, bias {bias:.2f} {unit}, {agreement}"
    return svg(WIDTH, height, words, parts)


def rank_plot(ranks: Sequence[tuple[str, float]]) -> Markup:
    """Draw mean ranks on a line, best at the left."""
    left, right, top = 150, WIDTH - 20, 34
    order = sorted(range(len(ranks)), key=lambda index: ranks[index][1])
    x = Axis(1, len(ranks), left, right)
    names = top + 16
    parts = [line(left, top, right, top, "zero")]
    for rank in range(1, len(ranks) + 1):
        parts += [
            line(x(rank), top - 4, x(rank), top + 4, "zero"),
            text(x(rank), top - 9, "tick", rank),
        ]
    for row, index in enumerate(order):
        (method, mean), y = ranks[index], names + 20 * row
        parts += [line(x(mean), top, x(mean), y, "zero"), dot(x(mean), top, index, 4)]
        # To the left, where the other lines are shorter.
        most = int((x(mean) - 6) / LETTER) - len(": 1.00")
        name = method if len(method) <= most else f"{method[: most - 1]}…"
        parts.append(text(x(mean) - 6, y + 4, "unit", f"{name}: {mean:.2f}"))
    words = ", ".join(f"{ranks[index][0]} {ranks[index][1]:.2f}" for index in order)
    return svg(WIDTH, names + 20.0 * len(order), f"Mean ranks, 1 is best: {words}", parts)

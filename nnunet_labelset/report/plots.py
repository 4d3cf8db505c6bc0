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
    ticks,
    titled,
)

WIDTH = 360


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
    """A row per leaf: the mean of every method and its interval. For more leaves than anybody looks
    at one by one.
    """
    left, right, top, step = 240, 2 * WIDTH - 16, 44, 6
    height = step * len(methods) + 6
    bottom = top + height * len(rows)
    x = Axis(low, high, left, right)
    parts = [*titled(title, unit, 8, right), *grid_across(x, top, bottom)]
    for number, method in enumerate(methods):
        place = left + (right - left) * number / len(methods)
        parts += [dot(place, 30, number), text(place + 8, 34, "tick-left", method)]
    dots, lines = [""] * len(methods), [""] * len(methods)
    for row, (name, means) in enumerate(rows):
        y = top + height * row
        parts.append(text(left - 8, y + height / 2 + 4, "tick-right", name))
        for number, mean in enumerate(means):
            if mean:
                middle, start, end = map(x, mean)
                at = y + 3 + step * (number + 0.5)
                dots[number] += f"M{middle:.1f} {at:.0f}{DOT}"
                lines[number] += f"M{start:.1f} {at:.0f}H{end:.1f}"
    for number in range(len(methods)):
        for kind, path in (("whiskers", lines), ("marks", dots)):
            parts.append(
                Markup('<path class="{} {}" d="{}"/>').format(
                    kind, method_class(number), path[number]
                )
            )
    return svg(
        2 * WIDTH,
        bottom + 18,
        f"{title}, {unit}: mean and 95 % interval of {len(rows)} labels",
        parts,
    )


def bland_altman(
    title: str, number: int, points: Sequence[tuple[float, float] | None], unit: str
) -> Markup:
    """Predicted minus reference volume over their mean, with the bias and 1.96 standard deviations
    around it.
    """
    means, differences = np.array([point for point in points if point is not None], dtype=float).T
    height, left, right, top = 206, 48, WIDTH - 16, 26
    bottom = height - 48
    bias, sd = differences.mean(), differences.std(ddof=1) if len(differences) > 1 else 0.0
    limits = (bias - 1.96 * sd, bias + 1.96 * sd)
    low, high = min(0.0, differences.min(), limits[0]), max(0.0, differences.max(), limits[1])
    low, high = (low, high) if high > low else (-1.0, 1.0)
    last = means.max() or 1.0
    x, y = Axis(0, 1.05 * last, left, right), Axis(low, high, bottom, top)
    parts = [*titled(title, unit, left, right), *grid_up(y, left, right)]
    parts += [text(x(tick), bottom + 13, "tick", f"{tick:g}") for tick in ticks(0, last, 4)]
    parts.append(text(right, height - 20, "unit", f"mean of both volumes, {unit}"))
    for value, style in (
        (0.0, "zero"),
        (bias, "median"),
        *((limit, "limit") for limit in limits if sd),
    ):
        parts.append(line(left, y(value), right, y(value), style))
    places = [None if point is None else (x(point[0]), y(point[1])) for point in points]
    parts.append(marks(places, [False] * len(places), number))
    agreement = f"limits of agreement {limits[0]:.2f} to {limits[1]:.2f}"
    parts.append(text(left, height - 4, "tick-left", f"bias {bias:.2f}, {agreement}"))
    return svg(
        WIDTH, height, f"{title}: n = {len(means)}, bias {bias:.2f} {unit}, {agreement}", parts
    )


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
        name = method if len(method) <= 20 else f"{method[:19]}…"
        parts.append(text(x(mean) - 6, y + 4, "unit", f"{name}: {mean:.2f}"))
    words = ", ".join(f"{ranks[index][0]} {ranks[index][1]:.2f}" for index in order)
    return svg(WIDTH, names + 20.0 * len(order), f"Mean ranks, 1 is best: {words}", parts)

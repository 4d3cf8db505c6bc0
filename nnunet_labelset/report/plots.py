"""Colours, each with one meaning, and the plots of scores, ranks and volumes as SVG.

No meaning needs its colour: labels carry numbers, errors patterns, contours line styles, and plots
the names of methods. The marks of a method are one path: thousands of them are one element.
"""

from __future__ import annotations

import colorsys
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.report.page import join

# Paul Tol's muted scheme.
LABEL_COLOURS = (
    "CC6677",
    "332288",
    "DDCC77",
    "117733",
    "88CCEE",
    "882255",
    "44AA99",
    "999933",
    "AA4499",
)
ERROR_KINDS = ("missed", "invented", "wrong label")  # by pattern: rows, columns, squares
ERROR_COLOUR = "#FFEA00"
REFERENCE_COLOUR = "#FFFFFF"
# On the black ground of pictures; the same as those of figures.css at night.
METHOD_COLOURS = ("56B4E9", "E69F00", "2FC79B", "E08BBB", "A79DF5", "D9C640", "E8E8E8")
METHODS = len(METHOD_COLOURS)
GOLDEN_RATIO = 0.618034


def label_colour(label: int) -> str:
    """Return the colour of a foreground label as `#rrggbb`; neighbours never share one."""
    if label <= len(LABEL_COLOURS):
        return "#" + LABEL_COLOURS[label - 1]
    lightness = (0.42, 0.72, 0.56)[label % 3]
    saturation = (0.75, 0.55, 0.9)[label // 3 % 3]
    parts = colorsys.hls_to_rgb(label * GOLDEN_RATIO % 1, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02X}" for part in parts)


def method_colour(number: int) -> str:
    """Return the colour of a method in pictures."""
    return "#" + METHOD_COLOURS[number % METHODS]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def method_class(number: int) -> str:
    """Return the class that gives a method its colour in figures.css."""
    return f"m{number % METHODS}"


DOT, CROSS = "h0", "m-3-3l6 6m0-6l-6 6"  # a line without length is drawn as a dot by its round ends


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` at the places from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        scale = (self.end - self.start) / ((self.high - self.low) or 1)
        return self.start + (value - self.low) * scale

    def ticks(self, about: int = 5) -> list[float]:
        return ticks(self.low, self.high, about)


def marks(
    points: Sequence[tuple[float, float] | None], crosses: Sequence[bool], number: int
) -> Markup:
    """All marks of a method; `data-i` are the numbers of their cases, for the name that appears at
    the pointer.
    """
    parts = []
    for kind, glyph in (("marks", DOT), ("crosses", CROSS)):
        chosen = [
            (i, p)
            for i, p in enumerate(points)
            if p is not None and crosses[i] == (kind == "crosses")
        ]
        if not chosen:
            continue
        path = "".join(f"M{x:.0f} {y:.0f}{glyph}" for _, (x, y) in chosen)
        drawn = {i for i, _ in chosen}
        others = [i for i in range(len(points)) if i not in drawn]
        # What is shorter: the cases that are drawn, or after "!" those that are not.
        numbers = " ".join(map(str, sorted(drawn) if len(drawn) < len(others) else ["!", *others]))
        parts.append(
            Markup('<path class="{} {}" data-i="{}" d="{}"/>').format(
                kind, method_class(number), numbers, path
            )
        )
    return join(parts)


def titled(title: str, unit: str, left: float, right: float) -> list[Markup]:
    return [
        text(left, 15, "plot-title", title, right - left - 24, 7.8),
        text(right, 15, "unit", unit),
    ]


def grid_across(x: Axis, top: float, bottom: float) -> list[Markup]:
    parts = []
    for tick in x.ticks():
        parts += [
            line(x(tick), top, x(tick), bottom, "grid"),
            text(x(tick), bottom + 13, "tick", f"{tick:g}"),
        ]
    return parts


def grid_up(y: Axis, left: float, right: float) -> list[Markup]:
    parts = []
    for tick in y.ticks(4):
        parts += [
            line(left, y(tick), right, y(tick), "grid"),
            text(left - 5, y(tick) + 4, "tick-right", f"{tick:g}"),
        ]
    return parts


def dot(x: float, y: float, number: int, radius: int = 3) -> Markup:
    """In the colour of a method."""
    return Markup('<circle cx="{:.1f}" cy="{}" r="{}" class="dot {}"/>').format(
        x, y, radius, method_class(number)
    )


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(
        x1, y1, x2, y2, style
    )


def text(
    x: float, y: float, style: str, content: object, room: float = 0, letter: float = 5.9
) -> Markup:
    """A line of text; where letters of this width do not have the room, it is made narrower, and
    cut when too long.
    """
    fit: object = ""
    if room and letter * len(str(content)) > room:
        most = int(1.6 * room / letter)
        content = content if len(str(content)) <= most else f"{str(content)[: most - 1]}…"
        fit = Markup(' textLength="{:.0f}" lengthAdjust="spacingAndGlyphs"').format(room)
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}"{}>{}</text>').format(
        x, y, style, fit, content
    )


def svg(width: int, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h:g}" width="{w}" '
        'height="{h:g}" role="img" '
        'aria-label="{label}">{parts}</svg>'
    ).format(w=width, h=height, label=label, parts=join(parts))


WIDTH = 360
FOREST_WIDTH = 460
MOST_NAME = 170  # of a forest plot's width
LETTER = 6.2  # the width of one, with some room
NAME_LINE = 15  # the height of a line of names
MAX_POINTS = 250  # of a curve: more cannot be seen, but make the page slow
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


def line_plot(
    title: str,
    lines: Sequence[tuple[str, str, Mapping[int, float | None]]],
    unit: str,
    limits: tuple[float, float] | None = None,
) -> Markup:
    """Draw curves over epochs: `lines` holds `(name, class for the style, value by epoch)`."""
    points = set()
    for _, _, line in lines:
        points |= {(epoch, value) for epoch, value in line.items() if value is not None}
    if not points:
        return Markup("")
    last = max(epoch for epoch, _ in points)
    values = [value for _, value in points]
    low, high = limits or (min(values), max(values))
    width, height, left, right = 540, 210, 44, 530
    x, y = Axis(0, last, left, right), Axis(low, high, height - 32, 24)
    parts = [*titled(title, unit, left, right), *grid_up(y, left, right)]
    whole = [tick for tick in x.ticks() if tick == int(tick)]
    parts += [text(x(tick), height - 19, "tick", f"{tick:g}") for tick in whole]
    parts.append(text(right, height - 4, "unit", "epoch"))
    curve = Markup('<polyline points="{}" class="{}"><title>{}</title></polyline>')
    for name, style, line in lines:
        parts += [curve.format(" ".join(run), style, name) for run in _runs(line, x, y)]
    return svg(width, height, f"{title}, {unit} over {last + 1} epochs, {len(lines)} curves", parts)


def _runs(line: Mapping[int, float | None], x: Axis, y: Axis) -> list[list[str]]:
    """Return the points of a curve, with a gap where a value is missing, not a line across it."""
    runs: list[list[str]] = [[]]
    for epoch, value in _thin(line):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(f"{x(epoch):.1f},{y(min(max(value, y.low), y.high)):.1f}")
    return [run * 2 if len(run) == 1 else run for run in runs if run]


def _thin(line: Mapping[int, float | None]) -> list[tuple[int, float | None]]:
    """At most MAX_POINTS of a curve, each the mean of its neighbours."""
    items = sorted(line.items())
    step = max(1, math.ceil(len(items) / MAX_POINTS))
    parts = [items[start : start + step] for start in range(0, len(items), step)]
    return [(part[len(part) // 2][0], describe(value for _, value in part).mean) for part in parts]

"""Pieces of plots, as SVG. The marks of a method are one path: thousands of them are one element of
the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from nnunet_labelset.report.colours import method_class
from nnunet_labelset.report.page import join

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

"""Colours, each with one meaning: a label, a method, or an error.

No meaning needs its colour: labels carry numbers, errors patterns, contours line styles, and plots
the names of methods.
"""

from __future__ import annotations

import colorsys

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

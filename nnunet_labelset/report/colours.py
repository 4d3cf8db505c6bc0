"""Colours of leaves, errors and methods; readers without red-green vision can tell the first ones
apart.
"""

from __future__ import annotations

import colorsys

# Paul Tol's muted scheme. Beyond it, colours alone do not tell leaves apart: pictures then carry
# numbers.
LEAF_COLOURS = (
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
# Errors differ by pattern as well: missed in rows, invented in columns, a wrong label in squares.
ERROR_COLOURS = {"missed": "#56B4E9", "invented": "#E69F00", "wrong label": "#FF6FB5"}
CONTOUR_COLOURS = {"reference": "#2FA8FF", "prediction": "#FFB000", "both": "#FFFFFF"}
METHODS = 7  # colours of methods in figures.css
GOLDEN_RATIO = 0.618034


def leaf_colour(leaf: int) -> str:
    """The colour of a foreground leaf, as `#rrggbb`; never the same for two leaves next to each
    other.
    """
    if leaf <= len(LEAF_COLOURS):
        return "#" + LEAF_COLOURS[leaf - 1]
    rgb = colorsys.hls_to_rgb(
        leaf * GOLDEN_RATIO % 1, (0.42, 0.72, 0.56)[leaf % 3], (0.75, 0.55, 0.9)[leaf // 3 % 3]
    )
    return "#" + "".join(f"{round(255 * part):02X}" for part in rgb)


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def method_class(number: int) -> str:
    """The class that gives a method its colour in figures.css."""
    return f"m{number % METHODS}"

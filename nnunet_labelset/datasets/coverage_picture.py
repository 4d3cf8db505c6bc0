"""Coverage as a picture: one cell for each group and leaf, darker where more of the cases are
annotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from nnunet_labelset.datasets.coverage import CoverageRow
from nnunet_labelset.io.files import new_file

MOST_COLUMNS = 20


def _name(row: CoverageRow) -> str:
    name = f"{row.group} ({row.cases})"
    return f"{row.part}: {name}" if row.part else name


def _size(names: Sequence[str], columns: Sequence[str], upright: bool) -> tuple[float, float]:
    """Return width and height of the picture in inches."""
    margin = 0.085 * max(map(len, names)) + 0.3
    width = max(7.0, margin + 0.85 * len(columns) + 0.2)
    heading, line = (2.2, 0.26) if upright else (1.5, 0.42)
    return width, heading + line * len(names)


def draw_coverage(rows: Sequence[CoverageRow], path: str | Path, title: str) -> None:
    """Write the picture; one hue from light to dark, so that it reads without colour vision and in
    print.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    leaves = list(rows[0].counts)
    counts = np.array([[row.counts[leaf] for leaf in leaves] for row in rows])  # (rows, leaves)
    share = counts / np.array([[row.cases] for row in rows])
    names = [_name(row) for row in rows]
    columns = [leaf.replace("_", "\n") for leaf in leaves]
    upright = len(leaves) > MOST_COLUMNS  # many labels read better in rows
    if upright:
        counts = counts.T
        share = share.T
        columns = names
        names = [leaf.replace("_", " ") for leaf in leaves]
    figure = Figure(figsize=_size(names, columns, upright), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    rotation, alignment = (60, "left") if upright else (0, "center")
    axes.set_xticks(range(len(columns)), columns, rotation=rotation, ha=alignment)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, labelsize=9)
    axes.set_xticks(np.arange(-0.5, len(columns)), minor=True)
    axes.set_yticks(np.arange(-0.5, len(names)), minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(which="minor", color="white", linewidth=2)
    for row, column in np.ndindex(counts.shape):
        colour = "white" if share[row, column] > 0.55 else "black"
        axes.text(
            column, row, str(counts[row, column]), color=colour, ha="center", va="center", size=9
        )
    draw_line = axes.axvline if upright else axes.axhline
    for index, (row_before, row_after) in enumerate(pairwise(rows)):
        if row_before.part != row_after.part:
            draw_line(index + 0.5, color="black", linewidth=1)
    figure.suptitle(f"{title}: cases in which each label is annotated", fontsize=10)
    axes.spines[:].set_visible(False)
    with new_file(path) as temporary:
        figure.savefig(temporary, dpi=150)

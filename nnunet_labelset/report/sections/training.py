"""Loss and pseudo-Dice of the folds, two plots per model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.statistics import describe
from nnunet_labelset.report.page import figure, join, legend, paragraph, plots
from nnunet_labelset.report.report import Report
from nnunet_labelset.report.svg import Axis, grid_up, svg, text, titled

TITLE = "Training"
LINES = (
    ("line:solid", "training loss, pseudo-Dice"),
    ("line:dashed", "validation loss"),
)
MAX_POINTS = 250  # of a curve: more cannot be seen, but make the page slow


def body(report: Report) -> Markup:
    parts = []
    for name, folds in report.models.items():
        losses = [
            (f"fold {fold.fold}, {kind}", style, values)
            for fold in folds
            for kind, style, values in (
                ("training", "train", fold.train_loss),
                ("validation", "val", fold.val_loss),
            )
        ]
        pseudo = [(f"fold {fold.fold}", "pseudo", fold.pseudo_dice) for fold in folds]
        drawn = (
            line_plot("Loss", losses, "loss"),
            line_plot("Pseudo-Dice", pseudo, "mean over labels", (0.0, 1.0)),
        )
        figures = [
            figure(f"{name} curves {number}", plot) for number, plot in enumerate(drawn) if plot
        ]
        parts.append(
            Markup("<h3>{}: {} fold(s)</h3>{}").format(
                name, len(folds), plots(figures, "plots two")
            )
        )
    if not parts:
        return Markup("")
    intro = "One line per fold, from nnU-Net's training logs. Point at a line for its fold."
    return paragraph(intro) + legend(LINES) + join(parts)


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

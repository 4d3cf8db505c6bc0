"""The plots of a report: scores per leaf and training curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.nnunet.logs import Curves
from nnunet_labelset.report.page import legend
from nnunet_labelset.report.plots import line_plot, strip_plot
from nnunet_labelset.report.result import Result, spoken, used_metrics


def plots_section(results: Sequence[Result]) -> str:
    """A strip plot for every leaf and metric."""
    parts = []
    for metric in used_metrics(results):
        row = METRICS[metric]
        values: dict[str, dict[str, dict[str, float]]] = {}
        for leaf in results[0].evaluation.structures:
            values[leaf] = {
                result.name: {
                    case: row.scale * value
                    for case in result.cases
                    if (value := result.evaluation.value(case, leaf, metric)) is not None
                }
                for result in results
            }
        plots = [
            strip_plot(spoken(leaf), of, *_axis(of, metric), row.unit)
            for leaf, of in values.items()
            if any(of.values())
        ]
        figures = "".join(f"<figure>{plot}</figure>" for plot in plots)
        if plots:
            parts.append(f'<h3>{row.title} in {row.unit}</h3><div class="plots">{figures}</div>')
    intro = (
        "<p>One mark per case; the box is from quartile to quartile, the line is the median. Every leaf has its own "
        "axis. Point at a mark for its case.</p>"
    )
    return intro + "".join(parts)


def _axis(values: Mapping[str, Mapping[str, float]], metric: str) -> tuple[float, float]:
    """The ends of an axis: shares up to 100 %, distances from 0 mm."""
    scores = [score for of in values.values() for score in of.values()]
    if METRICS[metric].unit == "%":
        return min(90.0, 10 * math.floor(min(scores) / 10)), 100.0
    return 0.0, max(1.0, 1.02 * max(scores))


def curves_section(models: Mapping[str, Sequence[Curves]]) -> str:
    """Loss and pseudo-Dice of the folds, two plots per model."""
    parts = []
    for name, folds in models.items():
        losses = [
            (f"fold {fold.fold}, {kind}", style, values)
            for fold in folds
            for kind, style, values in (("training", "train", fold.train_loss), ("validation", "val", fold.val_loss))
        ]
        pseudo = [(f"fold {fold.fold}", "pseudo", fold.pseudo_dice) for fold in folds]
        plots = (line_plot("Loss", losses, "loss"), line_plot("Pseudo-Dice", pseudo, "mean over leaves", (0.0, 1.0)))
        figures = "".join(f"<figure>{plot}</figure>" for plot in plots if plot)
        parts.append(f'<h3>{escape(name)}: {len(folds)} fold(s)</h3><div class="plots two">{figures}</div>')
    styles = [
        ("2px solid #0072B2", "training loss"),
        ("2px dashed #D55E00", "validation loss"),
        ("2px solid #009E73", "pseudo-Dice"),
    ]
    lines = legend([(f"line:{style}", name) for style, name in styles])
    return (
        "<p>One line per fold, from nnU-Net's training logs. Point at a line for its fold.</p>" + lines + "".join(parts)
    )

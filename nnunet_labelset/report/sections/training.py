"""Loss and pseudo-Dice of the folds, two plots per model."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.report.curves import line_plot
from nnunet_labelset.report.page import figure, join, legend, paragraph, plots
from nnunet_labelset.report.report import Report

TITLE = "Training"
LINES = (
    ("line:solid", "training loss, pseudo-Dice"),
    ("line:dashed", "validation loss"),
)


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

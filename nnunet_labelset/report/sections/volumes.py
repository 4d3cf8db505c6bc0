"""Bland-Altman plots of volumes: does a method draw too much or too little, and does that depend on
the size?
"""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.results import PRESENT
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import details, figure, paragraph, plots
from nnunet_labelset.report.plots import bland_altman
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Volumes"


def body(report: Report) -> Markup:
    unit = "ml" if len(report.first.cases[0].spacing) == 3 else "cm²"
    figures = []
    for leaf in report.structures:
        for number, method in enumerate(report.methods):
            points = [_point(report, method, case, leaf) for case in report.cases]
            if any(point is not None for point in points):
                plot = bland_altman(f"{spoken(leaf)}: {method}", number, points, unit)
                figures.append(figure(f"volume {leaf} {method}", plot))
    if not figures:
        return Markup("")
    intro = paragraph(
        "Predicted minus reference volume over the mean of both, one mark per case (Bland and "
        "Altman). The thick line "
        "is the bias, the dashed ones are 1.96 standard deviations around it. Only voxels of which "
        "the reference says "
        "whether they belong to the label count."
    )
    if len(report.structures) > WIDE:
        return intro + details(f"{len(figures)} plots", plots(figures))
    return intro + plots(figures)


def _point(report: Report, method: str, case: str, leaf: str) -> tuple[float, float] | None:
    """Mean and difference of the two volumes; none where the leaf is nowhere."""
    score = report.score(method, case, leaf)
    if score is None or score.outcome not in PRESENT:
        return None
    reference, difference = score.values["volume_ref"], score.values["volume_difference"]
    return (
        None
        if reference is None or difference is None
        else (reference + difference / 2, difference)
    )

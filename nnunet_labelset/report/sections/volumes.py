"""Bland-Altman plots of volumes: does a method draw too much or too little, and does that depend on
the size?
"""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.results import PRESENT
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import details, figure, join, paragraph, plots
from nnunet_labelset.report.plots import VolumeAxes, bland_altman
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Volumes"


def body(report: Report) -> Markup:
    unit = "ml" if len(report.first.cases[0].spacing) == 3 else "cm²"
    rows = [_figures(report, label, unit) for label in report.structures]
    drawn = [plots(figures) for figures in rows if figures]
    if not drawn:
        return Markup("")
    intro = paragraph(
        "Predicted minus reference volume over the mean of both, one mark per case (Bland and "
        "Altman). The thick line is the bias, the dashed ones are the limits of agreement, 1.96 "
        "standard deviations around it. All methods of a label have the same axes. Only voxels of "
        "which the reference says whether they belong to the label count."
    )
    content = join(drawn)
    if len(report.structures) > WIDE:
        content = details(f"Plots of {len(drawn)} labels", content)
    return intro + content


def _figures(report: Report, label: str, unit: str) -> list[Markup]:
    """Return a plot per method that has volumes of a label."""
    by_method = {}
    for method in report.methods:
        points = [_point(report, method, case, label) for case in report.cases]
        if any(points):
            by_method[method] = points
    if not by_method:
        return []
    axes = VolumeAxes.of(list(by_method.values()))
    figures = []
    for method, points in by_method.items():
        title = f"{spoken(label)}: {method}"
        place = report.methods.index(method)
        plot = bland_altman(title, place, points, unit, axes)
        figures.append(figure(f"volume {label} {method}", plot))
    return figures


def _point(report: Report, method: str, case: str, leaf: str) -> tuple[float, float] | None:
    """Return mean and difference of the two volumes; None where the label is nowhere."""
    score = report.score(method, case, leaf)
    if score is None or score.outcome not in PRESENT:
        return None
    reference, difference = score.values["volume_ref"], score.values["volume_difference"]
    return (
        None
        if reference is None or difference is None
        else (reference + difference / 2, difference)
    )

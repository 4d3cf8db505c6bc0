"""Every score as a mark: a strip plot for each leaf and metric."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import details, figure, join, paragraph, plots, scroll
from nnunet_labelset.report.plots import PlotRow, forest_plot, strip_plot
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Scores per label"


def body(report: Report) -> Markup:
    """A plot per leaf and metric; of many leaves one plot per metric, and the single ones of the
    first metric only.
    """
    many = len(report.structures) > WIDE
    parts = []
    for number, metric in enumerate(report.metrics):
        rows = {
            leaf: [_row(report, method, leaf, metric) for method in report.methods]
            for leaf in report.structures
        }
        rows = {
            leaf: of
            for leaf, of in rows.items()
            if any(score is not None for row in of for score in row.scores)
        }
        if not rows:
            continue
        parts.append(Markup("<h3>{} in {}</h3>").format(metric.title, metric.unit))
        if many:
            means = [(spoken(leaf), [row.mean for row in of]) for leaf, of in rows.items()]
            ends = [end for _, of in means for mean in of if mean for end in mean]
            plot = forest_plot(
                metric.title, report.methods, means, *_axis(ends or [0.0], metric), metric.unit
            )
            parts.append(
                figure(
                    f"{metric.name} of all labels", scroll(f"{metric.title} of all labels", plot)
                )
            )
        if many and number:
            continue
        figures = [
            figure(
                f"{metric.name} {leaf}",
                strip_plot(spoken(leaf), of, *_axis(_scores(of), metric), metric.unit),
            )
            for leaf, of in rows.items()
        ]
        parts.append(
            details(f"Every label: {len(figures)} plots", plots(figures))
            if many
            else plots(figures)
        )
    intro = (
        "Means of all labels with their 95 % intervals; below, each label on its own. "
        if many
        else ""
    )
    intro += (
        "One mark per case, a cross where the label was missed or invented. The box is from "
        "quartile to quartile, its "
        "line the median; below it the mean with its 95 % interval. Every label has its own axis."
    )
    return paragraph(intro) + join(parts)


def _scores(rows: Sequence[PlotRow]) -> list[float]:
    return [score for row in rows for score in row.scores if score is not None]


def _row(report: Report, method: str, leaf: str, metric: Metric) -> PlotRow:
    scores = [report.score(method, case, leaf) for case in report.cases]
    values = [
        None if score is None else metric.scaled(score.values[metric.name]) for score in scores
    ]
    crosses = [
        score is not None and score.outcome in (Outcome.MISSED, Outcome.INVENTED)
        for score in scores
    ]
    found = report.results[method].averages.overall.leaves[leaf].metrics[metric.name]
    if report.compared is not None:
        found = report.compared.cell(method, leaf, metric.name)
    mean = None
    if found.mean is not None and found.low is not None and found.high is not None:
        mean = (metric.scale * found.mean, metric.scale * found.low, metric.scale * found.high)
    return PlotRow(method, values, crosses, mean)


def _axis(scores: Sequence[float], metric: Metric) -> tuple[float, float]:
    """The ends of an axis: shares up to 100 %, distances from 0 mm."""
    if metric.better == "higher":
        return min(90.0, 10 * math.floor(min(scores) / 10)), 100.0
    return 0.0, max(1.0, 1.02 * max(scores))

"""Every score as a mark: a strip plot for each label and metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.averages import Column, label_column
from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import details, figure, join, paragraph, plots, scroll
from nnunet_labelset.report.plots import PlotRow, forest_plot, strip_plot
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Scores per label"
MARKS = (
    "One mark per case, a cross where the label was missed or invented. The box is from quartile "
    "to quartile, its line the median; below it the mean with its 95 % interval. Every label has "
    "its own axis. Point at a mark for its case, or reach a plot with Tab and its marks with the "
    "arrow keys."
)
ABSENT = (
    " A method that rightly predicts nothing where another one invents the label stands at the "
    "best value."
)
Rows = Mapping[str, Sequence[PlotRow]]  # of every label, by method


def body(report: Report) -> Markup:
    """Return a plot per label and metric; of many labels one plot per metric, and the single ones
    of the first metric only.
    """
    many = len(report.structures) > WIDE
    parts = []
    for metric in report.metrics:
        rows = _rows(report, metric)
        if not rows:
            continue
        parts.append(Markup("<h3>{} in {}</h3>").format(metric.title, metric.unit))
        if not many:
            parts.append(_strips(rows, metric))
            continue
        parts.append(_forest(report, rows, metric))
        if metric is report.metrics[0]:
            parts.append(details(f"Every label: {len(rows)} plots", _strips(rows, metric)))
    means = "Means of all labels with their 95 % intervals; below, each label by itself. "
    words = (means if many else "") + MARKS + (ABSENT if report.compared else "")
    return paragraph(words) + join(parts)


def _rows(report: Report, metric: Metric) -> Rows:
    """Return the scores of every label that has any."""
    rows = {}
    cases = {method: result.by_case for method, result in report.results.items()}
    for label in report.structures:
        column = label_column(cases, report.cases, label, metric)
        by_method = [_row(report, method, label, metric, column) for method in report.methods]
        if _scores(by_method):
            rows[label] = by_method
    return rows


def _strips(rows: Rows, metric: Metric) -> Markup:
    figures = []
    for label, by_method in rows.items():
        axis = _axis(_scores(by_method) + _interval_ends(by_method), metric)
        plot = strip_plot(spoken(label), by_method, *axis, metric.unit)
        figures.append(figure(f"{metric.name} {label}", plot))
    return plots(figures)


def _forest(report: Report, rows: Rows, metric: Metric) -> Markup:
    means = []
    ends: list[float] = []
    for label, by_method in rows.items():
        means.append((spoken(label), [row.mean for row in by_method]))
        ends += _interval_ends(by_method)
    axis = _axis(ends or [0.0], metric)
    plot = forest_plot(metric.title, report.methods, means, *axis, metric.unit)
    return figure(f"{metric.name} of all labels", scroll(f"{metric.title} of all labels", plot))


def _interval_ends(rows: Sequence[PlotRow]) -> list[float]:
    ends: list[float] = []
    for row in rows:
        ends += row.mean or ()
    return ends


def _scores(rows: Sequence[PlotRow]) -> list[float]:
    scores: list[float] = []
    for row in rows:
        scores += [score for score in row.scores if score is not None]
    return scores


def _row(report: Report, method: str, label: str, metric: Metric, column: Column) -> PlotRow:
    """Return the values of the cases that count, the same as in the mean."""
    counted = dict(zip(column.cases, column.values[method], strict=True))
    values = []
    crosses = []
    for case in report.cases:
        score = report.score(method, case, label)
        values.append(metric.scaled(counted.get(case)))
        crosses.append(score is not None and score.outcome in (Outcome.MISSED, Outcome.INVENTED))
    return PlotRow(method, values, crosses, _mean(report, method, label, metric))


def _mean(
    report: Report, method: str, label: str, metric: Metric
) -> tuple[float, float, float] | None:
    """Return mean and interval; None with too few cases for one."""
    description = report.results[method].averages.overall.leaves[label].metrics[metric.name]
    if report.compared is not None:
        description = report.compared.cell(method, label, metric.name)
    if description.mean is None or description.low is None or description.high is None:
        return None
    scale = metric.scale
    return scale * description.mean, scale * description.low, scale * description.high


def _axis(scores: Sequence[float], metric: Metric) -> tuple[float, float]:
    """Return the ends of an axis: shares up to 100 %, distances from 0 mm."""
    if metric.better == "higher":
        return min(90.0, 10 * math.floor(min(scores) / 10)), 100.0
    return 0.0, max(1.0, 1.02 * max(scores))

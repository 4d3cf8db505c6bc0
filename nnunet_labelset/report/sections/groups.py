"""Means by protocol and by the columns that were given to `evaluate --group-by`, with intervals and
the test against the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from nnunet_labelset.evaluation.comparison_tables import interval_text
from nnunet_labelset.evaluation.metric import METRICS, Metric
from nnunet_labelset.evaluation.notes import p_text
from nnunet_labelset.evaluation.results import Averages, Comparison
from nnunet_labelset.evaluation.statistics import Difference
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, folded, header, join, number, paragraph, table, text
from nnunet_labelset.report.report import WIDE, Report
from nnunet_labelset.report.sections.headline import interval_cell

TITLE = "Groups"
UNKNOWN = "(not known)"
ByMethod = Mapping[str, Averages | None]
INTRO = (
    "Means over the labels of a case, then over the cases of a group, with 95 % intervals. The "
    "difference to the baseline has its own interval and p, not corrected for the number of groups."
)


def body(report: Report) -> Markup:
    """Return nothing if all cases are in one group."""
    columns = [name for name in report.first.group_columns if len(_groups(report, name)) > 1]
    if not columns:
        return Markup("")
    parts = []
    for column in columns:
        parts.append(Markup("<h3>By {}</h3>").format(column))
        if report.compared is not None:
            parts.append(_means(report.compared, column))
        parts.append(_labels(report, column))
    intro = paragraph(INTRO) if report.compared else Markup("")
    return intro + join(parts)


def _groups(report: Report, column: str) -> list[str]:
    """Return the groups of a column that any method has."""
    names: set[str] = set()
    for result in report.results.values():
        names |= result.averages.groups.get(column, {}).keys()
    return sorted(names)


def _means(compared: Comparison, column: str) -> Markup:
    """Return the means of all methods, and their differences to the baseline."""
    groups: dict[str, list[list[Cell]]] = {}
    for score in compared.groups:
        if score.column != column:
            continue
        metric = METRICS[score.metric]
        row = [header(score.group or UNKNOWN), text(score.method, "name"), text(metric.heading)]
        row += [number(score.n, 0), interval_cell(metric, score)]
        row += _difference_cells(score.difference, metric)
        groups.setdefault(score.group, []).append(row)
    heads = ["group", "method", "metric", "n", "mean [95 %]", "difference [95 %]", "p"]
    return table(f"Means by {column}", heads, list(groups.values()), 3)


def _difference_cells(difference: Difference | None, metric: Metric) -> list[Cell]:
    if difference is None or difference.mean_difference is None:
        return [number(None), number(None)]
    shown = interval_text(metric, difference.mean_difference, difference, "+")
    p = None if difference.p is None else p_text(difference.p)
    return [number(difference.mean_difference, shown=shown), number(difference.p, shown=p)]


def _labels(report: Report, column: str) -> Markup:
    """Return mean (sd) of every label by group; many labels stand in rows and are folded."""
    many = len(report.structures) > WIDE
    names = ["group", report.unit] if many else ["group", "method", "metric"]
    heads = ["cases", *map(spoken, report.structures)]
    if many:
        heads = []
        for metric in report.metrics:
            heads += [f"{method}\n{metric.heading}" for method in report.methods]
    bodies = []
    for group in _groups(report, column):
        averages = {}
        for method, result in report.results.items():
            averages[method] = result.averages.groups.get(column, {}).get(group)
        make_rows = _rows_by_label if many else _rows_by_method
        bodies.append(make_rows(report, group or UNKNOWN, averages))
    content = table(f"Labels by {column}", names + heads, bodies, len(names))
    return folded(f"{len(report.structures)} {report.unit}s by {column}", content, many)


def _rows_by_label(report: Report, group: str, averages: ByMethod) -> list[list[Cell]]:
    rows = []
    for label in report.structures:
        row = [header(group), text(spoken(label), "name")]
        for metric in report.metrics:
            row += [_mean(each, label, metric) for each in averages.values()]
        rows.append(row)
    return rows


def _rows_by_method(report: Report, group: str, averages: ByMethod) -> list[list[Cell]]:
    rows = []
    for metric in report.metrics:
        for method, each in averages.items():
            row = [header(group), text(method, "name"), text(metric.heading)]
            row.append(number(each.n_cases if each else 0, 0))
            rows.append([*row, *(_mean(each, label, metric) for label in report.structures)])
    return rows


def _mean(averages: Averages | None, label: str, metric: Metric) -> Cell:
    if averages is None or label not in averages.leaves:
        return number(None)
    values = averages.leaves[label].metrics[metric.name]
    return number(metric.scaled(values.mean), shown=metric.show_mean(values))

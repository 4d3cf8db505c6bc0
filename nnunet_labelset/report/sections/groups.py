"""Mean (sd) by protocol, and by the columns that were given to `evaluate --group-by`."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import Averages
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, header, join, number, table, text
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Groups"


def body(report: Report) -> Markup:
    """Nothing if all cases are in one group."""
    parts = []
    for column in report.first.group_columns:
        of = {
            method: result.averages.groups.get(column, {})
            for method, result in report.results.items()
        }
        groups = sorted({group for found in of.values() for group in found})
        if len(groups) < 2:
            continue
        bodies = [
            _rows(report, group or "(not known)", {m: of[m].get(group) for m in of})
            for group in groups
        ]
        if len(report.structures) > WIDE:
            names = ["group", report.unit]
            heads = [
                f"{method}\n{metric.heading}"
                for metric in report.metrics
                for method in report.methods
            ]
        else:
            names, heads = ["group", "method", "metric"], ["cases", *map(spoken, report.structures)]
        content = table(f"By {column}", names + heads, bodies, len(names))
        parts.append(Markup("<h3>By {}</h3>{}").format(column, content))
    return join(parts)


def _rows(report: Report, group: str, found: dict[str, Averages | None]) -> list[list[Cell]]:
    if len(report.structures) > WIDE:
        return [
            [header(group), text(spoken(leaf), "name")]
            + [_mean(of, leaf, metric) for metric in report.metrics for of in found.values()]
            for leaf in report.structures
        ]
    return [
        [
            header(group),
            text(method, "name"),
            text(metric.heading),
            number(of.n_cases if of else 0, 0),
        ]
        + [_mean(of, leaf, metric) for leaf in report.structures]
        for metric in report.metrics
        for method, of in found.items()
    ]


def _mean(averages: Averages | None, leaf: str, metric: Metric) -> Cell:
    found = (
        averages.leaves[leaf].metrics[metric.name] if averages and leaf in averages.leaves else None
    )
    return (
        number(metric.scaled(found.mean), shown=metric.show_mean(found)) if found else number(None)
    )

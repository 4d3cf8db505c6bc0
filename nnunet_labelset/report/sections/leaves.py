"""Every label in numbers: all cases of a method, and how often each outcome occurred."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import Evaluation, Outcome
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, folded, header, number, paragraph, table, text
from nnunet_labelset.report.report import WIDE, Report
from nnunet_labelset.report.sections.headline import interval_cell

TITLE = "Labels in numbers"
INTRO = (
    "All cases of a method. Scored: present in reference and prediction. Missed: not predicted. "
    "Invented: predicted where it is known not to be. Undecided: nothing certain in the reference, "
    "but some voxels may be it."
)


def body(report: Report) -> Markup:
    groups = [_rows(method, result, report.metrics) for method, result in report.results.items()]
    heads = []
    for metric in report.metrics:
        heads += [f"{metric.heading}\n{what}" for what in ("mean [95 %]", "sd", "median")]
    columns = ["method", report.unit, *heads, *(outcome.value for outcome in Outcome)]
    count = len(report.structures)
    content = folded(f"{count} {report.unit}s", table(TITLE, columns, groups, 2), count > WIDE)
    return paragraph(INTRO) + content


def _rows(method: str, result: Evaluation, metrics: Sequence[Metric]) -> list[list[Cell]]:
    rows = []
    for label, averages in result.averages.overall.leaves.items():
        cells = [header(method), text(_name(label, result.unions), "name")]
        for metric in metrics:
            values = averages.metrics[metric.name]
            cells += [
                interval_cell(metric, values),
                number(values.sd, shown=metric.show(values.sd)),
                number(values.median, shown=metric.show(values.median)),
            ]
        cells += [number(averages.outcomes[outcome.value], 0) for outcome in Outcome]
        rows.append(cells)
    return rows


def _name(leaf: str, unions: dict[str, tuple[str, ...]]) -> str:
    """Return a name; that of a union with its labels, unless they are its name."""
    members = unions.get(leaf, ())
    return (
        spoken(leaf)
        if not members or leaf == "+".join(members)
        else spoken(f"{leaf} ({' + '.join(members)})")
    )

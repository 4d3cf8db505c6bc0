"""Every leaf in numbers: all cases of a method, and how often each outcome occurred."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import header, number, paragraph, table, text
from nnunet_labelset.report.report import Report
from nnunet_labelset.report.sections.headline import interval_cell

TITLE = "Leaves in numbers"


def body(report: Report) -> Markup:
    groups = []
    for method, result in report.results.items():
        rows = []
        for leaf, found in result.averages.overall.leaves.items():
            rows.append([header(method), text(_name(leaf, result.unions), "name")])
            for metric in report.metrics:
                of = found.metrics[metric.name]
                rows[-1] += [interval_cell(metric, of), number(of.sd, shown=metric.show(of.sd))]
                rows[-1].append(number(of.median, shown=metric.show(of.median)))
            rows[-1] += [number(found.outcomes[outcome.value], 0) for outcome in Outcome]
        groups.append(rows)
    intro = (
        "All cases of a method. Scored: present in reference and prediction. Missed: not "
        "predicted. Invented: "
        "predicted where it is known not to be. Undecided: nothing certain in the reference, but "
        "some "
        "voxels may be it."
    )
    heads = [
        f"{metric.heading}\n{what}"
        for metric in report.metrics
        for what in ("mean [95 %]", "sd", "median")
    ]
    columns = ["method", report.unit, *heads, *(outcome.value for outcome in Outcome)]
    return paragraph(intro) + table(TITLE, columns, groups, 2)


def _name(leaf: str, unions: dict[str, tuple[str, ...]]) -> str:
    """A union is named with its leaves, unless they are its name."""
    members = unions.get(leaf, ())
    return (
        spoken(leaf)
        if not members or leaf == "+".join(members)
        else spoken(f"{leaf} ({' + '.join(members)})")
    )

"""The paper's Table 1: in how many cases each label is annotated, evaluated cases and others."""

from __future__ import annotations

from markupsafe import Markup, escape

from nnunet_labelset.datasets.coverage import coverage_table, describe_label_sets
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, header, number, paragraph, table, text
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Coverage"


def body(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return Markup("")
    evaluated = set(report.cases)
    parts = {
        "not evaluated (training)": [case for case in contract.cases if case not in evaluated],
        "evaluated": [case for case in contract.cases if case in evaluated],
    }
    groups = [coverage_table(contract, cases, part=part) for part, cases in parts.items() if cases]
    leaves = list(groups[0][0].counts)  # with the regions
    if len(leaves) > WIDE:
        found = [row for rows in groups for row in rows]
        columns = ["label", *(f"{row.part}\n{row.group}\nn = {row.cases}" for row in found)]
        lines = [
            [header(spoken(leaf)), *(_shaded(row.counts[leaf], row.cases) for row in found)]
            for leaf in leaves
        ]
        content = table("Coverage", columns, [lines])
    else:
        bodies = [
            [
                [header(row.part), text(row.group), number(row.cases, 0)]
                + [_shaded(row.counts[leaf], row.cases) for leaf in leaves]
                for row in rows
            ]
            for rows in groups
        ]
        content = table("Coverage", ["cases", "group", "n", *map(spoken, leaves)], bodies, 2)
    heading, *sets = describe_label_sets(contract).splitlines() or [""]
    note = paragraph(f"{heading} {'; '.join(map(str.strip, sets))}", "note") if sets else Markup("")
    intro = (
        "Number of cases in which each label is annotated, by protocol. Darker: a larger share of "
        "the group."
    )
    return paragraph(intro) + content + note


def _shaded(count: int, of: int) -> Cell:
    share = count / of if of else 0
    return Cell(escape(count), str(count), style=f"background:rgba(0,114,178,{0.4 * share:.2f})")

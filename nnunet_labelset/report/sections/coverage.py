"""The paper's Table 1: in how many cases each label is annotated, evaluated cases and others."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from nnunet_labelset.contract import Contract
from nnunet_labelset.datasets.coverage import CoverageRow, coverage_table, describe_label_sets
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, details, header, number, paragraph, table, text
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Coverage"
INTRO = (
    "Number of cases in which each label is annotated, by protocol. Darker: a larger share of the "
    "group."
)


def body(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return Markup("")
    evaluated = set(report.cases)
    parts: dict[str, list[str]] = {"not evaluated (training)": [], "evaluated": []}
    for case in contract.cases:
        parts["evaluated" if case in evaluated else "not evaluated (training)"].append(case)
    groups = [coverage_table(contract, cases, part=part) for part, cases in parts.items() if cases]
    labels = list(groups[0][0].counts)  # with the regions
    if len(labels) > WIDE:
        content = details(f"{len(labels)} labels", _rows_by_label(groups, labels))
    else:
        content = _rows_by_group(groups, labels)
    return paragraph(INTRO) + content + _label_sets(contract)


def _rows_by_label(groups: Sequence[Sequence[CoverageRow]], labels: Sequence[str]) -> Markup:
    rows = [row for group in groups for row in group]
    columns = [f"{row.part}\n{row.group}\nn = {row.cases}" for row in rows]
    lines = []
    for label in labels:
        counts = [_shaded(row.counts[label], row.cases) for row in rows]
        lines.append([header(spoken(label)), *counts])
    return table("Coverage", ["label", *columns], [lines])


def _rows_by_group(groups: Sequence[Sequence[CoverageRow]], labels: Sequence[str]) -> Markup:
    def cells(row: CoverageRow) -> list[Cell]:
        counts = [_shaded(row.counts[label], row.cases) for label in labels]
        return [header(row.part), text(row.group), number(row.cases, 0), *counts]

    bodies = [list(map(cells, rows)) for rows in groups]
    return table("Coverage", ["cases", "group", "n", *map(spoken, labels)], bodies, 2)


def _label_sets(contract: Contract) -> Markup:
    """Return what values stand for that may be several labels."""
    heading, *sets = describe_label_sets(contract).splitlines() or [""]
    if not sets:
        return Markup("")
    return paragraph(f"{heading} {'; '.join(map(str.strip, sets))}", "note")


def _shaded(count: int, cases: int) -> Cell:
    share = count / cases if cases else 0
    style = f"background:rgba(110,119,129,{0.4 * share:.2f})"
    return Cell(escape(count), str(count), style=style)

"""Every case with its mean Dice and its known-wrong voxels, and links to all files."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS
from nnunet_labelset.nnunet.names import SUMMARY
from nnunet_labelset.report.page import (
    Cell,
    bullets,
    header,
    join,
    link,
    number,
    paragraph,
    table,
    text,
)
from nnunet_labelset.report.report import Report

TITLE = "Cases and files"
WRITTEN = ("metrics.json", SUMMARY, "per_case.csv", "averages.csv")


def body(report: Report) -> Markup:
    columns = list(report.first.group_columns)
    dice = METRICS["dice"]
    rows = []
    for name in sorted({case for result in report.results.values() for case in result.by_case}):
        found = {method: result.by_case.get(name) for method, result in report.results.items()}
        known = next(case for case in found.values() if case is not None)
        groups = report.first.groups_of(name)
        links = [link(known.reference_file, report.folder, "reference")]
        links += [
            link(case.prediction_file, report.folder, method)
            for method, case in found.items()
            if case
        ]
        row = [header(name), *(text(groups[column], "name") for column in columns)]
        scores = [
            (dice, report.case_mean(method, name) if case else None)
            for method, case in found.items()
        ]
        scores += [
            (KNOWN_WRONG, case.known_wrong_share if case else None) for case in found.values()
        ]
        row += [number(value, shown=metric.show(value)) for metric, value in scores]
        rows.append([*row, Cell(join(links, ", "), kind="name")])
    heads = ["case", *columns, *(f"{method}\nmean {dice.heading}" for method in report.methods)]
    heads += [*(f"{method}\n{KNOWN_WRONG.heading.lower()}" for method in report.methods), "files"]
    intro = paragraph("Mean Dice over the labels that are scored in a case.")
    return intro + table("Cases", heads, [rows], 1 + len(columns)) + _files(report)


def _files(report: Report) -> Markup:
    lines = []
    for method, result in report.results.items():
        folder = Path(report.sources[method]).parent
        links = [
            link(path, report.folder, path.name)
            for name in WRITTEN
            if (path := folder / name).is_file()
        ]
        predictions = link(result.settings.prediction_folder, report.folder)
        lines.append(
            Markup("{}: {}; predictions: {}").format(method, join(links, ", "), predictions)
        )
    lines.append(
        Markup("references: {}").format(link(report.first.settings.reference_folder, report.folder))
    )
    lines.append(
        Markup("data set: {}").format(link(report.first.settings.dataset_json, report.folder))
    )
    return bullets(lines)

"""Every case with its mean Dice and its known-wrong voxels, and links to all files."""

from __future__ import annotations

from collections.abc import Sequence
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
DICE = METRICS["dice"]
WRITTEN = ("metrics.json", SUMMARY, "per_case.csv", "averages.csv", "failures.csv")


def body(report: Report) -> Markup:
    columns = list(report.first.group_columns)
    names: set[str] = set()
    for result in report.results.values():
        names |= result.by_case.keys()
    rows = [_row(report, name, columns) for name in sorted(names)]
    heads = ["case", *columns, *(f"{method}\nmean {DICE.heading}" for method in report.methods)]
    heads += [*(f"{method}\n{KNOWN_WRONG.heading.lower()}" for method in report.methods), "files"]
    intro = paragraph("Mean Dice over the labels that are scored in a case.")
    return intro + table("Cases", heads, [rows], 1 + len(columns)) + _files(report)


def _row(report: Report, name: str, columns: Sequence[str]) -> list[Cell]:
    groups = report.first.groups_of(name)
    row = [header(name), *(text(groups[column], "name") for column in columns)]
    dice: list[Cell] = []
    wrong: list[Cell] = []
    links: list[Markup] = []
    for method, result in report.results.items():
        case = result.by_case.get(name)
        if case is None:
            dice.append(number(None))
            wrong.append(number(None))
            continue
        mean, share = report.case_mean(method, name), case.known_wrong_share
        dice.append(number(mean, shown=DICE.show(mean)))
        wrong.append(number(share, shown=KNOWN_WRONG.show(share)))
        if not links:
            links.append(link(case.reference_file, report.folder, "reference"))
        links.append(link(case.prediction_file, report.folder, method))
    return [*row, *dice, *wrong, Cell(join(links, ", "), kind="name")]


def _files(report: Report) -> Markup:
    lines = []
    for method, result in report.results.items():
        folder = Path(report.sources[method]).parent
        written = [folder / name for name in WRITTEN if (folder / name).is_file()]
        links = [link(path, report.folder, path.name) for path in written]
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

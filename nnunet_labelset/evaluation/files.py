"""Evaluations and comparisons as CSV files and on screen."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN
from nnunet_labelset.evaluation.results import OUTCOMES, Averages, Comparison, Evaluation
from nnunet_labelset.evaluation.statistics import Description, WilcoxonTest
from nnunet_labelset.io.tables import csv_text

COUNTS = ("tp", "fp", "fn", "tn", "n_ref", "n_pred")
OF_CASE = ("known", "known_wrong", "known_wrong_volume", "known_wrong_share")  # the same in every line of a case
SCORE_COLUMNS = ("case", "leaf", "outcome", "union", *METRICS, *COUNTS, *OF_CASE)
DESCRIPTION = tuple(field.name for field in fields(Description))
CELL = ("method", "leaf", "metric", *DESCRIPTION, "n_union", "best", "mark")
TESTED = tuple(field.name for field in fields(WilcoxonTest))
TEST = ("a", "b", "baseline", "leaf", "metric", *TESTED, "p_adjusted", "significant", "better")


def per_case_csv(found: Evaluation) -> str:
    first, *others = SCORE_COLUMNS
    rows = []
    for case in found.cases:
        of_case = [getattr(case, name) for name in OF_CASE]
        for leaf, score in case.leaves.items():
            values = [score.values[name] for name in METRICS]
            counts = [getattr(score, name) for name in COUNTS]
            groups = [case.groups[column] for column in found.group_columns]
            union = "+".join(score.union or ())
            rows.append([case.case, *groups, leaf, score.outcome, union, *values, *counts, *of_case])
    return csv_text([first, *found.group_columns, *others], rows)


def averages_csv(found: Evaluation) -> str:
    groups = [("", "", found.averages.overall)]
    groups += [(column, name, group) for column, of in found.averages.groups.items() for name, group in of.items()]
    rows: list[list[Any]] = []
    for column, name, group in groups:
        for leaf, of_leaf in group.leaves.items():
            counted = [*of_leaf.outcomes.values(), of_leaf.union]
            for metric, description in of_leaf.metrics.items():
                rows.append([column, name, leaf, metric, *asdict(description).values(), *counted])
        empty = [None] * (len(OUTCOMES) + 1)
        rows.append([column, name, "", KNOWN_WRONG.name, *asdict(group.known_wrong).values(), *empty])
    return csv_text(["group_column", "group", "leaf", "metric", *DESCRIPTION, *OUTCOMES, "union"], rows)


def comparison_csv(found: Comparison) -> tuple[str, str]:
    """The cells, then the tests."""
    cells = csv_text(CELL, ([getattr(cell, name) for name in CELL] for cell in found.cells))
    return cells, csv_text(TEST, ([getattr(test, name) for name in TEST] for test in found.tests))


def screen_table(averages: Averages) -> str:
    """Of all cases or of a group: a line per leaf."""
    shown = [METRICS[name] for name in SHOWN if name in averages.mean]
    heads = [head for metric in shown for head in (metric.heading, "n")]
    rows = [["leaf", *heads, *OUTCOMES.values(), "union"]]
    for leaf, found in averages.leaves.items():
        scores = [
            text
            for metric in shown
            for text in (metric.show_mean(found.metrics[metric.name]), found.metrics[metric.name].n)
        ]
        rows.append([leaf, *map(str, [*scores, *found.outcomes.values(), found.union])])
    rows.append(["mean", *(text for metric in shown for text in (metric.show(averages.mean[metric.name]), ""))])
    widths = [max(len(row[column]) for row in rows[:-1]) for column in range(len(rows[0]))]
    lines = [[field.rjust(width) for field, width in zip(row, widths, strict=False)] for row in rows]
    table = "\n".join(
        "  ".join([row[0].ljust(widths[0]), *line[1:]]).rstrip() for row, line in zip(rows, lines, strict=True)
    )
    wrong = KNOWN_WRONG.show_mean(averages.known_wrong)
    return f"{table}\nknown wrong: {wrong} % of the voxels of which anything is known"

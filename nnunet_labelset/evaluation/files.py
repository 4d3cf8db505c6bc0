"""Evaluations and comparisons as CSV files and on screen."""

from __future__ import annotations

from dataclasses import fields
from itertools import zip_longest
from typing import Any

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN
from nnunet_labelset.evaluation.results import OUTCOMES, Averages, Comparison, Evaluation
from nnunet_labelset.evaluation.statistics import Description, Difference
from nnunet_labelset.io.tables import csv_text

COUNTS = ("tp", "fp", "fn", "tn", "n_ref", "n_pred")
OF_CASE = (
    "known",
    "known_wrong",
    "known_wrong_volume",
    "known_wrong_share",
)  # the same in every line of a case
SCORE_COLUMNS = ("case", "leaf", "outcome", "union", *METRICS, *COUNTS, *OF_CASE)
DESCRIPTION = tuple(field.name for field in fields(Description))
CELL = ("method", "leaf", "metric", *DESCRIPTION, "n_union", "best", "mark")
TESTED = tuple(field.name for field in fields(Difference))
TEST = ("a", "b", "baseline", "leaf", "metric", *TESTED, "p_adjusted", "significant", "better")


def per_case_csv(found: Evaluation) -> str:
    columns = [SCORE_COLUMNS[0], *found.group_columns, *SCORE_COLUMNS[1:]]
    rows = []
    for case in found.cases:
        of_case = {**vars(case), "known_wrong_share": case.known_wrong_share}
        for leaf, score in case.leaves.items():
            of_leaf = {**vars(score), "leaf": leaf, "union": "+".join(score.union or ())}
            row = {**of_case, **of_leaf, **score.values, **case.groups}
            rows.append([row[name] for name in columns])
    return csv_text(columns, rows)


def averages_csv(found: Evaluation) -> str:
    groups = [("", "", found.averages.overall)]
    groups += [
        (column, name, group)
        for column, of in found.averages.groups.items()
        for name, group in of.items()
    ]
    rows: list[list[Any]] = []
    for column, name, group in groups:
        for leaf, of_leaf in group.leaves.items():
            counted = [*of_leaf.outcomes.values(), of_leaf.union]
            for metric, description in of_leaf.metrics.items():
                rows.append([column, name, leaf, metric, *vars(description).values(), *counted])
        empty = [None] * (len(OUTCOMES) + 1)
        rows.append([column, name, "", KNOWN_WRONG.name, *vars(group.known_wrong).values(), *empty])
    return csv_text(
        ["group_column", "group", "leaf", "metric", *DESCRIPTION, *OUTCOMES, "union"], rows
    )


def comparison_csv(found: Comparison) -> tuple[str, str]:
    """The cells, then the tests."""
    cells = csv_text(CELL, ([getattr(cell, name) for name in CELL] for cell in found.cells))
    return cells, csv_text(TEST, ([getattr(test, name) for name in TEST] for test in found.tests))


def screen_table(averages: Averages, unit: str) -> str:
    """Of all cases or of a group: a line per leaf, or whatever the `unit` is."""
    shown = [METRICS[name] for name in SHOWN if name in averages.mean]
    heads = [head for metric in shown for head in (metric.heading, "n")]
    rows: list[list[Any]] = [[unit, *heads, *OUTCOMES.values(), "union"]]
    for leaf, found in averages.leaves.items():
        of_leaf = [(metric, found.metrics[metric.name]) for metric in shown]
        scores = [text for metric, of in of_leaf for text in (metric.show_mean(of), of.n)]
        rows.append([leaf, *scores, *found.outcomes.values(), found.union])
    rows.append(
        [
            "mean",
            *(text for metric in shown for text in (metric.show(averages.mean[metric.name]), "")),
        ]
    )
    columns = list(zip_longest(*rows, fillvalue=""))
    first, *others = (max(len(str(cell)) for cell in column) for column in columns)
    form = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    lines = [form.format(*cells).rstrip() for cells in zip(*columns, strict=True)]
    wrong = KNOWN_WRONG.show_mean(averages.known_wrong)
    return "\n".join([*lines, f"known wrong: {wrong} % of the voxels of which anything is known"])

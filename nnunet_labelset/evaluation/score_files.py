"""Evaluations and comparisons as CSV files and on screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN, Metric
from nnunet_labelset.evaluation.notes import mm_range
from nnunet_labelset.evaluation.results import Averages, Case, Comparison, Evaluation, Outcome
from nnunet_labelset.evaluation.statistics import Description, Difference
from nnunet_labelset.io.tables import csv_text
from nnunet_labelset.io.text import SCREEN_WIDTH, aligned, some

COUNTS = ("tp", "fp", "fn", "tn", "n_ref", "n_pred")
BOUNDS = ("dice_low", "dice_high")
# the same in every line of a case
OF_CASE = (
    "worst_distance",
    "known",
    "known_wrong",
    "known_wrong_volume",
    "known_wrong_share",
)
SCORE_COLUMNS = (
    "case",
    "label",
    "outcome",
    *METRICS,
    "tolerance",
    *BOUNDS,
    *COUNTS,
    *OF_CASE,
)
DESCRIPTION = tuple(field.name for field in fields(Description))
AGREEMENT = ("bias", "agreement_low", "agreement_high", "ccc")
CELL = ("method", "leaf", "metric", *DESCRIPTION, "n_absent", "best", "mark")
TESTED = tuple(field.name for field in fields(Difference))
TEST_COLUMNS = (
    "a",
    "b",
    "baseline",
    "leaf",
    "metric",
    *TESTED,
    "p_adjusted",
    "significant",
    "better",
    "non_inferior",
)


def per_case_csv(evaluation: Evaluation) -> str:
    columns = [SCORE_COLUMNS[0], *evaluation.group_columns, *SCORE_COLUMNS[1:]]
    rows = []
    for case in evaluation.cases:
        case_fields = {**vars(case), "known_wrong_share": case.known_wrong_share}
        groups = evaluation.groups_of(case.case)
        for label, score in case.leaves.items():
            score_fields = {**vars(score), "label": label, "outcome": score.outcome.value}
            row = {**case_fields, **score_fields, **score.values, **groups}
            rows.append([row[name] for name in columns])
    return csv_text(columns, rows)


def averages_csv(evaluation: Evaluation) -> str:
    """Return one row per group, label and metric; the label `mean` is the mean over labels."""
    columns = ["group_column", "group", "label", "metric", *DESCRIPTION]
    columns += [outcome.value for outcome in Outcome]
    rows: list[list[Any]] = []
    for column, name, averages in _all_averages(evaluation):
        group = [column, name]
        empty = [None] * len(Outcome)
        for label, label_averages in averages.leaves.items():
            outcomes = label_averages.outcomes.values()
            for metric, description in label_averages.metrics.items():
                rows.append([*group, label, metric, *vars(description).values(), *outcomes])
        for metric, description in averages.mean.items():
            rows.append([*group, "mean over labels", metric, *vars(description).values(), *empty])
        wrong = vars(averages.known_wrong).values()
        rows.append([*group, "", KNOWN_WRONG.name, *wrong, *empty])
    return csv_text(columns, rows)


def agreement_csv(evaluation: Evaluation) -> str:
    """Return bias, limits of agreement and concordance of the volumes, by group and label."""
    rows: list[list[Any]] = []
    for column, name, averages in _all_averages(evaluation):
        for label, label_averages in averages.leaves.items():
            volumes = label_averages.agreement
            if volumes is not None:
                rows.append([column, name, label, *vars(volumes).values()])
    return csv_text(["group_column", "group", "label", "n", *AGREEMENT], rows)


def _all_averages(evaluation: Evaluation) -> Iterator[tuple[str, str, Averages]]:
    yield "", "", evaluation.averages.overall
    for column, groups in evaluation.averages.groups.items():
        for name, averages in groups.items():
            yield column, name, averages


FAILURE = 0.5  # Dice: what is below, unless another threshold is asked for


@dataclass(frozen=True)
class Failure:
    """A score below the threshold."""

    case: str
    label: str
    outcome: Outcome
    dice: float


def failures(evaluation: Evaluation, threshold: float) -> list[Failure]:
    """Return the labels with a Dice below the threshold, the worst first."""
    low_scores = []
    for case in evaluation.cases:
        for label, score in case.leaves.items():
            value = score.values["dice"]
            if value is not None and value < threshold:
                low_scores.append(Failure(case.case, label, score.outcome, value))
    return sorted(low_scores, key=lambda failure: (failure.dice, failure.case, failure.label))


def failures_csv(found: Sequence[Failure]) -> str:
    rows = [[each.case, each.label, each.outcome.value, each.dice] for each in found]
    return csv_text(["case", "label", "outcome", "dice"], rows)


def failures_line(found: Sequence[Failure], threshold: float) -> str:
    """Return one line for the screen."""
    if not found:
        return f"no Dice below {100 * threshold:g} %"
    worst = [f"{each.case} {each.label} ({100 * each.dice:.1f}, {each.outcome})" for each in found]
    return f"Dice below {100 * threshold:g} %: {len(found)}, the worst first: {some(worst)}"


def comparison_csv(compared: Comparison) -> tuple[str, str]:
    """Return the cells, then the tests; an empty label is the whole case."""
    heads = {"leaf": "label"}
    return (
        csv_text(
            [heads.get(name, name) for name in CELL],
            ([getattr(cell, name) for name in CELL] for cell in compared.cells),
        ),
        csv_text(
            [heads.get(name, name) for name in TEST_COLUMNS],
            ([getattr(test, name) for name in TEST_COLUMNS] for test in compared.tests),
        ),
    )


def screen_table(averages: Averages, unit: str, labels: Sequence[str]) -> str:
    """Return a line per label, or whatever the `unit` is; the mean stands before what is not part
    of it.
    """
    metrics = [METRICS[name] for name in SHOWN if name in averages.mean]
    head = [unit]
    mean_row = ["mean"]
    for metric in metrics:
        mean = averages.mean[metric.name]
        head += [metric.heading, "n"]
        mean_row += [metric.show_mean(mean), str(mean.n)]
    outcomes = _shown_outcomes(averages)
    head += [outcome.value for outcome in outcomes]
    mean_row += [""] * len(outcomes)
    unions = [name for name in averages.leaves if name not in labels]
    rows = [_screen_row(label, averages, metrics, outcomes) for label in labels]
    union_rows = [_screen_row(union, averages, metrics, outcomes) for union in unions]
    lines = aligned([head, *rows, mean_row, *union_rows], names=1, width=SCREEN_WIDTH)
    wrong = KNOWN_WRONG.show_mean(averages.known_wrong)
    words = "% of the voxels with at least one excluded label"
    return "\n".join([*lines, f"known wrong: {wrong} {words}"])


def _shown_outcomes(averages: Averages) -> list[Outcome]:
    """Return the outcomes that occur, and those that are always of interest."""
    always = (Outcome.SCORED, Outcome.MISSED, Outcome.INVENTED)
    counts = [label_averages.outcomes for label_averages in averages.leaves.values()]
    return [
        outcome
        for outcome in Outcome
        if outcome in always or any(count[outcome.value] for count in counts)
    ]


def _screen_row(
    label: str, averages: Averages, metrics: Sequence[Metric], outcomes: Sequence[Outcome]
) -> list[str]:
    label_averages = averages.leaves[label]
    row = [label]
    for metric in metrics:
        description = label_averages.metrics[metric.name]
        row += [metric.show_mean(description), str(description.n)]
    return [*row, *(str(label_averages.outcomes[outcome.value]) for outcome in outcomes)]


def screen_notes(cases: Sequence[Case]) -> list[str]:
    """Return what the mean is, and what distances depend on."""
    mean = "mean: over the labels of a case, then over the cases; without unions and regions"
    return [mean, *measurement_notes(cases)]


def measurement_notes(cases: Sequence[Case]) -> list[str]:
    """Return the tolerance of NSD and the distance of missed labels, as they were used."""
    tolerances: set[float] = set()
    for case in cases:
        tolerances |= {
            score.tolerance for score in case.leaves.values() if score.tolerance is not None
        }
    worst = [case.worst_distance for case in cases if case.worst_distance is not None]
    lines = []
    if tolerances:
        lines.append(f"tolerance of NSD: {mm_range((min(tolerances), max(tolerances)))}")
    if worst:
        shown = mm_range((min(worst), max(worst)))
        lines.append(f"distance of missed and invented labels: {shown}")
    return lines

"""The scores of several methods on the same cases: the one rule for means, tests and ranks.

A label counts in a case if at least one method or the reference has it. A method that is right
about its absence has the best value there, and a missed or invented label the worst, so that no
prediction can remove a case for the other methods. The mean of a metric is over the labels of a
case, then over the cases; unions and regions that were asked for are no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, Metric
from nnunet_labelset.evaluation.results import Case, Outcome, Score

Cases = Mapping[str, Mapping[str, Case]]  # by method, then by name


@dataclass(frozen=True)
class Column:
    """The values of every method, `values[method][place]`, in the same cases."""

    cases: tuple[str, ...]
    values: dict[str, list[float]]
    n_absent: dict[str, int]  # how often a method is right about the absence

    def subjects(self, subjects: Mapping[str, str]) -> list[str] | None:
        """Return the patients of the cases; None if every case is a patient of its own."""
        return [subjects[case] for case in self.cases] if subjects else None


def row_of(scores: Sequence[Score | None], metric: Metric) -> list[float] | None:
    """Return the values of all methods for a label of a case, None where it does not count."""
    outcomes = [score.outcome for score in scores if score is not None]
    if len(outcomes) < len(scores) or not all(outcome.is_compared for outcome in outcomes):
        return None
    if all(outcome is Outcome.ABSENT for outcome in outcomes):
        return None
    row = []
    for score in scores:
        assert score is not None
        absent = score.outcome is Outcome.ABSENT
        value = metric.perfect if absent else score.values[metric.name]
        if value is None:  # undefined by the reference, such as one without a known surface
            return None
        row.append(value)
    return row


def label_column(results: Cases, cases: Sequence[str], label: str, metric: Metric) -> Column:
    """Return the values of a label, region or union."""
    rows: dict[str, list[float]] = {}
    n_absent = dict.fromkeys(results, 0)
    for case in cases:
        scores = [by_case[case].leaves.get(label) for by_case in results.values()]
        row = row_of(scores, metric)
        if row is None:
            continue
        rows[case] = row
        for method, score in zip(results, scores, strict=True):
            n_absent[method] += score is not None and score.outcome is Outcome.ABSENT
    return _column(results, rows, n_absent)


def mean_column(
    results: Cases, cases: Sequence[str], labels: Sequence[str], metric: Metric
) -> Column:
    """Return the means over the labels of each case."""
    rows = {}
    for case in cases:
        label_rows = label_rows_of(results, case, labels, metric)
        if label_rows:
            rows[case] = np.mean(label_rows, axis=0).tolist()
    return _column(results, rows, dict.fromkeys(results, 0))


def label_rows_of(
    results: Cases, case: str, labels: Sequence[str], metric: Metric
) -> list[list[float]]:
    """Return the values of all methods for every label that counts in a case."""
    leaves = [by_case[case].leaves for by_case in results.values()]
    rows = (row_of([scores.get(label) for scores in leaves], metric) for label in labels)
    return [row for row in rows if row is not None]


def known_wrong_column(results: Cases, cases: Sequence[str]) -> Column:
    """Return the shares of known-wrong voxels, in the cases in which anything is known."""
    rows = {}
    for case in cases:
        shares = [by_case[case].known_wrong_share for by_case in results.values()]
        known = [share for share in shares if share is not None]
        if len(known) == len(shares):
            rows[case] = known
    return _column(results, rows, dict.fromkeys(results, 0))


def case_column(
    results: Cases, cases: Sequence[str], labels: Sequence[str], metric: Metric
) -> Column:
    """Return a metric of whole cases: the mean over the labels, or the known-wrong voxels."""
    if metric is KNOWN_WRONG:
        return known_wrong_column(results, cases)
    return mean_column(results, cases, labels, metric)


def _column(results: Cases, rows: Mapping[str, list[float]], n_absent: dict[str, int]) -> Column:
    values = {method: [row[place] for row in rows.values()] for place, method in enumerate(results)}
    return Column(cases=tuple(rows), values=values, n_absent=n_absent)

"""Which cases count, what a mean is, and the averages of an evaluation and its groups.

A label counts in a case if at least one method or the reference has it. A method that is right
about its absence has the best value there, and a missed or invented label the worst, so that no
prediction can remove a case for the other methods. The mean of a metric is over the labels of a
case, then over the cases; unions and regions that were asked for are no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN, Metric
from nnunet_labelset.evaluation.results import (
    PRESENT,
    VERSION,
    AllAverages,
    Averages,
    Case,
    Evaluation,
    LeafAverages,
    Outcome,
    Score,
    Settings,
)
from nnunet_labelset.evaluation.statistics import Agreement, Description, agreement, describe

METHOD = "evaluated"  # the averages of one method follow the rules for several
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
    outcomes = [score.outcome if score else Outcome.NOT_ANNOTATED for score in scores]
    if not all(outcome.is_compared for outcome in outcomes) or set(outcomes) == {Outcome.ABSENT}:
        return None
    values = [_value(score, metric) for score in scores]
    # one that is undefined is so by the reference, such as one without a known surface
    row = [value for value in values if value is not None]
    return row if len(row) == len(values) else None


def _value(score: Score | None, metric: Metric) -> float | None:
    """Return the value of a label; the best one where the method is right about its absence."""
    assert score is not None
    return metric.perfect if score.outcome is Outcome.ABSENT else score.values[metric.name]


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


def average(
    cases: Sequence[Case],
    leaves: Sequence[str],
    unions: Iterable[str],
    metrics: Sequence[str],
    subjects: Mapping[str, str],
    intervals: bool = False,
) -> Averages:
    """Return n, mean, standard deviation and median per label, and how often each outcome
    occurred.
    """
    results = {METHOD: {case.case: case for case in cases}}
    names = [case.case for case in cases]

    def described(column: Column, metric: Metric) -> Description:
        interval = intervals and metric.name in (*SHOWN, KNOWN_WRONG.name)
        return metric.describe(column.values[METHOD], interval, column.subjects(subjects))

    def label_averages(label: str) -> LeafAverages:
        scores = [case.leaves[label] for case in cases if label in case.leaves]
        return LeafAverages(
            outcomes=_outcome_counts(scores),
            agreement=_volume_agreement(scores),
            metrics={name: of_label(label, scores, METRICS[name]) for name in metrics},
        )

    def of_label(label: str, scores: Sequence[Score], metric: Metric) -> Description:
        if not metric.better:
            return _undirected(scores, metric.name)
        return described(label_column(results, names, label, metric), metric)

    directed = [METRICS[name] for name in metrics if METRICS[name].better]
    structures = (*leaves, *unions)
    # labels of as many cases follow each other: their bootstrap intervals need the same samples
    counts = {label: _number_of_cases(cases, label) for label in structures}
    by_label = {label: label_averages(label) for label in sorted(counts, key=counts.__getitem__)}
    return Averages(
        n_cases=len(cases),
        leaves={label: by_label[label] for label in structures},
        mean={
            metric.name: described(case_column(results, names, leaves, metric), metric)
            for metric in directed
        },
        known_wrong=described(case_column(results, names, leaves, KNOWN_WRONG), KNOWN_WRONG),
    )


def _number_of_cases(cases: Sequence[Case], label: str) -> int:
    """Return in how many cases reference or prediction has a label."""
    return sum(label in case.leaves and case.leaves[label].outcome in PRESENT for case in cases)


def _undirected(scores: Sequence[Score], metric: str) -> Description:
    """Describe a metric in the cases in which the reference tells whether the label is there."""
    return describe(score.values[metric] for score in scores if score.outcome.is_compared)


def _outcome_counts(scores: Sequence[Score]) -> dict[str, int]:
    counts = Counter(score.outcome for score in scores)
    return {outcome.value: counts[outcome] for outcome in Outcome}


def _volume_agreement(scores: Sequence[Score]) -> Agreement | None:
    """Compare the volumes in the cases in which reference or prediction has the label."""
    pairs = [
        (score.values["volume_ref"], score.values["volume_difference"])
        for score in scores
        if score.outcome in PRESENT
    ]
    volumes = [pair for pair in pairs if None not in pair]
    reference = [volume for volume, _ in volumes]
    predicted = [volume + difference for volume, difference in volumes]  # type: ignore[operator]
    return agreement(reference, predicted)  # type: ignore[arg-type]


def evaluation(
    cases: Sequence[Case],
    labels: Mapping[str, int],
    leaves: Sequence[str],
    unions: Mapping[str, tuple[str, ...]],
    groups: Mapping[str, Mapping[str, str]],
    settings: Settings,
    missing: Sequence[str] = (),
    extra: Sequence[str] = (),
    subjects: Mapping[str, str] | None = None,
) -> Evaluation:
    """Return the content of metrics.json (docs/evaluation.md) from the scores of all cases."""
    by_column = {"protocol": {case.case: case.protocol for case in cases}, **groups}
    patients = subjects or {}
    return Evaluation(
        version=VERSION,
        settings=settings,
        labels=dict(labels),
        leaves=tuple(leaves),
        unions=dict(unions),
        groups={column: dict(entries) for column, entries in by_column.items()},
        subjects=dict(patients),
        missing_predictions=tuple(missing),
        extra_predictions=tuple(extra),
        cases=tuple(cases),
        averages=AllAverages(
            overall=average(cases, leaves, unions, settings.metrics, patients, intervals=True),
            groups={
                column: {
                    group: average(members, leaves, unions, settings.metrics, patients, True)
                    for group, members in _members(cases, entries).items()
                }
                for column, entries in by_column.items()
            },
        ),
    )


def _members(cases: Sequence[Case], entries: Mapping[str, str]) -> dict[str, list[Case]]:
    """Return the cases of every group, sorted by its name; "" has those without an entry."""
    members: dict[str, list[Case]] = {}
    for case in cases:
        members.setdefault(entries.get(case.case, ""), []).append(case)
    return dict(sorted(members.items()))

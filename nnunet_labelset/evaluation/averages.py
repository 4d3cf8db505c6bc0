"""Many cases in short: the averages of an evaluation, and of its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, SHOWN, Metric
from nnunet_labelset.evaluation.paired import Column, case_column, label_column
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

    by_label: dict[str, LeafAverages] = {}
    for label in (*leaves, *unions):
        scores = [case.leaves[label] for case in cases if label in case.leaves]
        counts = Counter(score.outcome for score in scores)
        by_label[label] = LeafAverages(
            outcomes={outcome.value: counts[outcome] for outcome in Outcome},
            agreement=_volume_agreement(scores),
            metrics={
                name: described(label_column(results, names, label, METRICS[name]), METRICS[name])
                if METRICS[name].better
                else describe(score.values[name] for score in scores if score.outcome.is_compared)
                for name in metrics
            },
        )
    directed = [METRICS[name] for name in metrics if METRICS[name].better]
    return Averages(
        n_cases=len(cases),
        leaves=by_label,
        mean={
            metric.name: described(case_column(results, names, leaves, metric), metric)
            for metric in directed
        },
        known_wrong=described(case_column(results, names, leaves, KNOWN_WRONG), KNOWN_WRONG),
    )


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

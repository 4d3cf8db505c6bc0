"""Groups of cases in a comparison: the mean of every method, and the test against the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nnunet_labelset.evaluation.metric import METRICS, Metric
from nnunet_labelset.evaluation.paired import Cases, mean_column
from nnunet_labelset.evaluation.results import Evaluation, GroupScore
from nnunet_labelset.evaluation.statistics import wilcoxon_test


def group_scores(
    results: Mapping[str, Evaluation], cases: Sequence[str], metrics: Sequence[str], baseline: str
) -> tuple[GroupScore, ...]:
    """Return one score per column, group, metric and method; a column needs two groups or more."""
    first = next(iter(results.values()))
    scores: list[GroupScore] = []
    for column, entries in first.groups.items():
        groups: dict[str, list[str]] = {}
        for case in cases:
            groups.setdefault(entries.get(case, ""), []).append(case)
        if len(groups) < 2:
            continue
        for group, members in sorted(groups.items()):
            for name in metrics:
                scores += _scores(results, (column, group), members, METRICS[name], baseline)
    return tuple(scores)


def _scores(
    results: Mapping[str, Evaluation],
    place: tuple[str, str],
    cases: Sequence[str],
    metric: Metric,
    baseline: str,
) -> Iterator[GroupScore]:
    first = next(iter(results.values()))
    by_method: Cases = {method: result.by_case for method, result in results.items()}
    means = mean_column(by_method, cases, first.leaves, metric)
    patients = means.subjects(first.subjects)
    column, group = place
    for method, values in means.values.items():
        difference = None
        if method != baseline:
            difference = wilcoxon_test(means.values[baseline], values, patients)
        yield GroupScore(
            **vars(metric.describe(values, interval=True, subjects=patients)),
            column=column,
            group=group,
            metric=metric.name,
            method=method,
            difference=difference,
        )

"""Result sets of the same cases side by side, as in the paper's Table 2, with tests and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.averages import (
    Cases,
    Column,
    case_column,
    label_column,
    label_rows_of,
    mean_column,
)
from nnunet_labelset.evaluation.metric import (
    COMPARED,
    KNOWN_WRONG,
    METRICS,
    SHOWN,
    Metric,
    mm_range,
)
from nnunet_labelset.evaluation.read_results import (
    check_same_references,
    check_same_settings,
    common_cases,
    same_labels,
)
from nnunet_labelset.evaluation.results import (
    VERSION,
    Case,
    Cell,
    Comparison,
    Detection,
    Evaluation,
    GroupScore,
    Outcome,
    PairedTest,
    Rank,
)
from nnunet_labelset.evaluation.statistics import (
    EFFECT,
    FEW_CASES,
    WILCOXON_TEST,
    Description,
    Difference,
    holm,
    mean_ranks,
    wilcoxon_test,
)
from nnunet_labelset.io.text import some


@dataclass(frozen=True)
class ComparisonOptions:
    """How result sets are compared; `margins` of non-inferiority are by metric, not scaled."""

    baseline: str
    alpha: float = 0.01
    correct: bool = False
    metrics: Sequence[str] | None = None
    margins: Mapping[str, float] = field(default_factory=dict)


def comparison(
    results: Mapping[str, Evaluation],
    options: ComparisonOptions | str,
    sources: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare evaluations by method name; a text as options is the baseline."""
    if isinstance(options, str):
        options = ComparisonOptions(options)
    metrics = _chosen_metrics(results, options.metrics)
    _check_margins(options.margins, metrics)
    leaves = same_labels(results)
    cases = common_cases(results)
    check_same_references(results, cases)
    first = next(iter(results.values()))
    unions = _all_unions(results)
    structures = (*leaves, *unions)
    by_method: Cases = {method: result.by_case for method, result in results.items()}
    cells: list[Cell] = []
    tests: list[PairedTest] = []
    columns = {
        name: _columns(by_method, cases, leaves, structures, name)
        for name in (*metrics, KNOWN_WRONG.name)
    }
    measured = _measured(columns, options.baseline, first.subjects)
    for name, metric_columns in columns.items():
        metric_tests = _tests(metric_columns, name, options, measured)
        tests += metric_tests
        for leaf, column in metric_columns.items():
            cells += _cells(column, leaf, name, metric_tests, measured)
    used: list[Case] = []
    for by_case in by_method.values():
        used += map(by_case.__getitem__, cases)
    compared = Comparison(
        version=VERSION,
        methods=tuple(results),
        baseline=options.baseline,
        sources=dict(sources or {}),
        alpha=options.alpha,
        correction="holm" if options.correct else "none",
        margins=dict(options.margins),
        cap=first.settings.cap,
        worst_distances=_range(case.worst_distance for case in used),
        tolerances=_tolerance_range(used),
        leaves=leaves,
        unions=unions,
        metrics=tuple(metrics),
        cases=tuple(cases),
        n_subjects=_number_of_subjects(first, cases),
        left_out=_left_out(by_method, cases),
        cells=tuple(cells),
        tests=tuple(tests),
        detection=tuple(_detection(by_method, cases, structures)),
        ranks=_all_ranks(by_method, cases, leaves, metrics, first.subjects),
        groups=_group_scores(results, cases, metrics, options.baseline),
        notes=(),
    )
    return replace(compared, notes=tuple(notes(compared)))


def _check_margins(margins: Mapping[str, float], metrics: Sequence[str]) -> None:
    if unused := sorted(set(margins) - set(metrics)):
        raise LabelSetError(
            f"--margin {unused[0]}: not compared: add it to --metrics, which are {some(metrics)}"
        )


def _all_unions(results: Mapping[str, Evaluation]) -> dict[str, tuple[str, ...]]:
    unions: dict[str, tuple[str, ...]] = {}
    for result in results.values():
        unions |= result.unions
    return unions


def _left_out(results: Cases, cases: Sequence[str]) -> dict[str, tuple[str, ...]]:
    used = set(cases)
    return {method: tuple(sorted(set(by_case) - used)) for method, by_case in results.items()}


def _number_of_subjects(evaluation: Evaluation, cases: Sequence[str]) -> int | None:
    if not evaluation.subjects:
        return None
    return len({evaluation.subjects[case] for case in cases})


def _range(values: Iterable[float | None]) -> tuple[float, ...]:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else ()


def _tolerance_range(cases: Sequence[Case]) -> tuple[float, ...]:
    ranges = [_range(score.tolerance for score in case.leaves.values()) for case in cases]
    return _range([end for ends in ranges for end in ends])


def _columns(
    results: Cases,
    cases: Sequence[str],
    leaves: Sequence[str],
    structures: Sequence[str],
    name: str,
) -> dict[str | None, Column]:
    """Return the columns of a metric by structure; None is the whole case."""
    metric = COMPARED[name]
    whole: dict[str | None, Column] = {None: case_column(results, cases, leaves, metric)}
    if metric is KNOWN_WRONG:
        return whole
    return {leaf: label_column(results, cases, leaf, metric) for leaf in structures} | whole


def _chosen_metrics(results: Mapping[str, Evaluation], wanted: Sequence[str] | None) -> list[str]:
    """Return the metrics that all evaluations have; how they were computed must be the same."""
    check_same_settings(results)
    common = set.intersection(*(set(result.settings.metrics) for result in results.values()))
    if wanted is None:
        return [name for name in SHOWN if name in common]
    for name in wanted:
        if name not in METRICS:
            raise LabelSetError(f"no metric '{name}'{did_you_mean(name, METRICS)}")
        if not METRICS[name].better:
            raise LabelSetError(f"'{name}' cannot be compared: it has no better/worse direction")
        if name not in common:
            raise LabelSetError(
                f"'{name}' was not computed for all result sets: evaluate them again with it"
            )
    return list(dict.fromkeys(wanted))


@dataclass(frozen=True)
class _Measured:
    """What takes time: every method in short, and every pair of methods, by metric and structure
    (None: the whole case).
    """

    described: dict[tuple[str, str | None, str], Description]  # metric, structure, method
    differences: dict[tuple[str, str | None, str, str], Difference]  # and two methods


def _measured(
    columns: Mapping[str, Mapping[str | None, Column]], baseline: str, subjects: Mapping[str, str]
) -> _Measured:
    """Describe and compare the methods. Columns of as many cases follow each other: their bootstrap
    intervals need the same samples.
    """
    measured = _Measured({}, {})
    entries = [(name, leaf, columns[name][leaf]) for name in columns for leaf in columns[name]]
    for name, leaf, column in sorted(entries, key=lambda entry: len(entry[2].cases)):
        patients = column.subjects(subjects)
        for method, values in column.values.items():
            description = COMPARED[name].describe(values, True, patients)
            measured.described[name, leaf, method] = description
        for a, b in _pairs(column, baseline):
            difference = wilcoxon_test(column.values[a], column.values[b], patients)
            measured.differences[name, leaf, a, b] = difference
    return measured


def _pairs(column: Column, baseline: str) -> list[tuple[str, str]]:
    """Return all pairs of methods; the baseline is the first of its pairs."""
    pairs = combinations(column.values, 2)
    return [(b, a) if b == baseline else (a, b) for a, b in pairs]


def _tests(
    columns: Mapping[str | None, Column],
    metric: str,
    options: ComparisonOptions,
    measured: _Measured,
) -> list[PairedTest]:
    """Test every pair of methods on every structure. Holm's families: the tests of the labels
    against the baseline, and the others.
    """
    tests = []
    for a, b in _pairs(columns[None], options.baseline):
        for leaf in columns:
            difference = measured.differences[metric, leaf, a, b]
            tests.append(
                PairedTest(
                    **vars(difference),
                    a=a,
                    b=b,
                    baseline=options.baseline in (a, b),
                    leaf=leaf,
                    metric=metric,
                    p_adjusted=difference.p,
                    significant=False,
                    better=_better(difference, metric, a, b),
                    non_inferior=_non_inferior(difference, metric, options.margins.get(metric)),
                )
            )
    return _corrected(tests, options)


def _better(difference: Difference, metric: str, a: str, b: str) -> str | None:
    """Return the better method by the rank sum that the test itself looks at, not by the mean."""
    if not difference.effect:
        return None
    b_is_better = (difference.effect > 0) == (COMPARED[metric].better == "higher")
    return b if b_is_better else a


def _non_inferior(difference: Difference, metric: str, margin: float | None) -> bool | None:
    """Tell whether the 95 % interval of the difference excludes that b is worse by the margin."""
    if margin is None or difference.low is None or difference.high is None:
        return None
    if COMPARED[metric].better == "higher":
        return difference.low > -margin
    return difference.high < margin


def _corrected(tests: Sequence[PairedTest], options: ComparisonOptions) -> list[PairedTest]:
    """Return the tests with their significance. Means over labels are a family of their own."""
    families: dict[tuple[bool, bool], list[int]] = {}
    for index, test in enumerate(tests):
        whole_mean = test.leaf is None and test.metric != KNOWN_WRONG.name
        families.setdefault((test.baseline, whole_mean), []).append(index)
    corrected = list(tests)
    for family in families.values():
        p_values = [tests[index].p for index in family]
        adjusted = holm(p_values) if options.correct else p_values
        for index, p in zip(family, adjusted, strict=True):
            significant = p is not None and p < options.alpha
            corrected[index] = replace(tests[index], p_adjusted=p, significant=significant)
    return corrected


def _cells(
    column: Column,
    leaf: str | None,
    metric: str,
    tests: Sequence[PairedTest],
    measured: _Measured,
) -> list[Cell]:
    described = {method: measured.described[metric, leaf, method] for method in column.values}
    best = COMPARED[metric].best(description.mean for description in described.values())
    marks = {
        test.b: "better" if test.better == test.b else "worse"
        for test in tests
        if test.baseline and test.significant and test.leaf == leaf
    }
    return [
        Cell(
            **vars(description),
            method=method,
            leaf=leaf,
            metric=metric,
            n_absent=column.n_absent[method],
            best=best is not None and description.mean == best,
            mark=marks.get(method, ""),
        )
        for method, description in described.items()
    ]


def _detection(
    results: Cases, cases: Sequence[str], structures: Sequence[str]
) -> Iterable[Detection]:
    for method, by_case in results.items():
        for leaf in structures:
            scores = [by_case[case].leaves.get(leaf) for case in cases]
            outcomes = [score.outcome for score in scores if score]
            n_found = sum(score.found for score in scores if score)
            n_present = outcomes.count(Outcome.SCORED) + outcomes.count(Outcome.MISSED)
            yield Detection(
                method=method,
                leaf=leaf,
                found=n_found,
                missed=n_present - n_found,
                invented=outcomes.count(Outcome.INVENTED),
                absent=outcomes.count(Outcome.ABSENT),
            )


def _all_ranks(
    results: Cases,
    cases: Sequence[str],
    leaves: Sequence[str],
    metrics: Sequence[str],
    subjects: Mapping[str, str],
) -> tuple[Rank, ...]:
    """Return the ranks by every metric; two methods need none."""
    if len(results) < 3:
        return ()
    ranks: list[Rank] = []
    for metric in metrics:
        ranks += _ranks(results, cases, leaves, metric, subjects)
    return tuple(ranks)


def _ranks(
    results: Cases,
    cases: Sequence[str],
    leaves: Sequence[str],
    metric: str,
    subjects: Mapping[str, str],
) -> list[Rank]:
    """Rank the methods within every case and label; their mean over the labels of a case, then
    over the cases. Unions are left out: their labels would count twice.
    """
    rows = {case: label_rows_of(results, case, leaves, METRICS[metric]) for case in cases}
    ranked = {case: label_rows for case, label_rows in rows.items() if label_rows}
    patients = [subjects[case] for case in ranked] if subjects else None
    found = mean_ranks(list(ranked.values()), METRICS[metric].better == "higher", patients)
    return [
        Rank(method=method, metric=metric, n=n, mean_rank=mean_rank, first=first)
        for method, (n, mean_rank, first) in zip(results, found, strict=False)
    ]


def _group_scores(
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
                place = (column, group)
                scores += _group_rows(results, place, members, METRICS[name], baseline)
    return tuple(scores)


def _group_rows(
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


EFFECT_NOTE = (
    f"The effect r is the {EFFECT} of the differences, positive if the first method has the larger "
    "values."
)
INTERVALS = f"95 % intervals: Student's t below {FEW_CASES} cases, else BCa bootstrap"
BEST_NOTE = "The best mean is bold."
FLOOR_OF = 30  # differing pairs; with more, the smallest possible p-value does not matter


def p_text(p: float) -> str:
    """`0.012`, `0.00006`: no exponents in a table."""
    if p >= 0.001:
        return f"{p:.3f}"
    if p >= 1e-4:
        return f"{p:.1g}"
    return f"{p:.5f}" if p >= 1e-5 else "<0.00001"


def notes(compared: Comparison) -> list[str]:
    """Return all that applies to this comparison."""
    lines = [
        f"Mean (standard deviation); {_units(compared)}.",
        BEST_NOTE,
        f"A label counts in the n of {len(compared.cases)} cases in which the reference or at "
        "least one method has it, the same for all methods.",
        "Mean: over the labels of a case, then over the cases; unions and regions are not part "
        "of it.",
        f"* better, † worse than {compared.baseline} ({WILCOXON_TEST}, p < {compared.alpha:g}).",
        _correction(compared),
        f"{KNOWN_WRONG.title}: voxels predicted outside of their label-set, as a percentage of "
        "voxels with at least one excluded label.",
    ]
    lines += filter(None, (check(compared) for check in CHECKS))
    for method, cases in compared.left_out.items():
        if cases:
            lines.append(
                f"{len(cases)} case(s) of {method} are not in all result sets and were left out."
            )
    return lines


def _units(compared: Comparison) -> str:
    metrics = [METRICS[name] for name in compared.metrics]
    words = {"%": "percent"}
    return ", ".join(f"{each.title} in {words.get(each.unit, each.unit)}" for each in metrics)


def _tolerance(compared: Comparison) -> str:
    if "nsd" not in compared.metrics or not compared.tolerances:
        return ""
    return f"Tolerance of NSD: {mm_range(compared.tolerances)}."


def _distance(compared: Comparison) -> str:
    if not any(METRICS[name].is_distance for name in compared.metrics):
        return ""
    if not compared.worst_distances:
        return "The distance of a missed or invented label is the diagonal of the image."
    which = "the diagonal of the image" if compared.cap is None else "--cap"
    worst = mm_range(compared.worst_distances)
    return f"The distance of a missed or invented label is {which}: {worst}."


def _absence(compared: Comparison) -> str:
    if not any(cell.n_absent for cell in compared.cells):
        return ""
    return (
        "A method that rightly predicts nothing where another one invents a label has the best "
        "value there: its mean may be higher than in its own evaluation."
    )


def _subjects(compared: Comparison) -> str:
    if compared.n_subjects is None:
        return ""
    return (
        f"The cases are of {compared.n_subjects} patients: intervals draw whole patients, and "
        "tests compare the means of patients."
    )


def _margins(compared: Comparison) -> str:
    if not compared.margins:
        return ""
    shown = ", ".join(
        f"{METRICS[name].show(margin)} {METRICS[name].unit} {METRICS[name].title}"
        for name, margin in compared.margins.items()
    )
    return f"Non-inferior: the 95 % interval of the difference excludes a loss of {shown}."


def _correction(compared: Comparison) -> str:
    if compared.correction == "none":
        return "p-values are not corrected for multiple tests."
    family_tests = [
        test
        for test in compared.tests
        if test.baseline and test.p is not None and (test.leaf or test.metric == KNOWN_WRONG.name)
    ]
    sizes = Counter(test.metric for test in family_tests)
    family = ", ".join(f"{size} of {COMPARED[metric].title}" for metric, size in sizes.items())
    return (
        f"p-values are corrected by Holm's method over the tests against {compared.baseline} "
        f"({family}); pairs of other methods, and means over labels, are families of their own."
    )


def _floor(compared: Comparison) -> str:
    """The smallest p-value that so few pairs can have: all differences on one side."""
    most = max((test.n_pairs - test.n_zero for test in compared.tests), default=0)
    if not 0 < most <= FLOOR_OF:
        return ""
    floor = np.format_float_positional(2.0 ** (1 - most), precision=3, fractional=False, trim="-")
    return f"With at most {most} differing pairs, the smallest possible p-value is {floor}."


CHECKS = (_floor, _tolerance, _distance, _absence, _subjects, _margins)

"""`nnunet_labelset compare`: result sets of the same cases side by side, as in the paper's Table 2,
with tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from nnunet_labelset.errors import LabelSetError, did_you_mean
from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS, SHOWN
from nnunet_labelset.evaluation.notes import notes
from nnunet_labelset.evaluation.results import (
    ABSENT,
    INVENTED,
    MISSED,
    SCORED,
    VERSION,
    Cell,
    Comparison,
    Detection,
    Evaluation,
    PairedTest,
    Rank,
)
from nnunet_labelset.evaluation.statistics import (
    critical_difference,
    describe,
    holm,
    mean_ranks,
    wilcoxon_test,
)
from nnunet_labelset.io.text import some

Column = dict[str, list[float]]  # by method; the same cases for all of them


def comparison(
    results: Mapping[str, Evaluation],
    baseline: str,
    alpha: float = 0.01,
    correct: bool = False,
    metrics: Sequence[str] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare evaluations by method name; means and tests are over the cases in which all methods
    have a score.
    """
    methods = tuple(results)
    names = _chosen_metrics(results, metrics)
    leaves, cases = _check_same_leaves(results), _common_cases(results)
    unions = {
        name: members for result in results.values() for name, members in result.unions.items()
    }
    _check_same_references(results, cases)
    structures = (*leaves, *unions)
    cells: list[Cell] = []
    tests: list[PairedTest] = []
    ranks: list[Rank] = []
    for metric in (*names, KNOWN_WRONG.name):
        compared = [""] if metric == KNOWN_WRONG.name else structures
        columns = {leaf: _column(results, cases, leaf, metric) for leaf in compared}
        found = _tests(
            {leaf: column for leaf, (column, _) in columns.items()},
            metric,
            baseline,
            alpha,
            correct,
        )
        tests += found
        for leaf, (column, n_union) in columns.items():
            cells += _cells(column, leaf, metric, found, n_union)
        if len(methods) > 2 and metric in METRICS:
            ranks += _ranks(results, cases, structures, metric)
    ranked = {rank.metric: rank.n for rank in ranks}
    made = Comparison(
        version=VERSION,
        methods=methods,
        baseline=baseline,
        sources=dict(sources or {}),
        alpha=alpha,
        correction="holm" if correct else "none",
        cap=next(iter(results.values())).settings.cap,
        leaves=leaves,
        unions=unions,
        metrics=tuple(names),
        cases=tuple(cases),
        left_out={
            method: tuple(sorted(set(results[method].by_case) - set(cases))) for method in methods
        },
        cells=tuple(cells),
        tests=tuple(tests),
        detection=tuple(_detection(results, cases, structures)),
        ranks=tuple(ranks),
        critical_difference={
            metric: critical_difference(len(methods), n, alpha) for metric, n in ranked.items()
        },
        notes=(),
    )
    return replace(made, notes=tuple(notes(made)))


def _chosen_metrics(results: Mapping[str, Evaluation], wanted: Sequence[str] | None) -> list[str]:
    """The metrics that all evaluations have; how they were computed must be the same."""
    for what in ("cap", "tolerance"):
        if len({repr(getattr(result.settings, what)) for result in results.values()}) > 1:
            shown = ", ".join(
                f"{name}: {getattr(result.settings, what)}" for name, result in results.items()
            )
            raise LabelSetError(
                f"evaluated with different --{what} ({shown}): their distances cannot be compared"
            )
    common = set.intersection(*(set(result.settings.metrics) for result in results.values()))
    if wanted is None:
        return [name for name in SHOWN if name in common]
    for name in wanted:
        if name not in METRICS:
            raise LabelSetError(f"no metric '{name}'{did_you_mean(name, METRICS)}")
        if not METRICS[name].better:
            raise LabelSetError(
                f"'{name}' cannot be compared: neither more nor less of it is better"
            )
        if name not in common:
            raise LabelSetError(
                f"'{name}' was not computed for all result sets: evaluate them again with it"
            )
    return list(dict.fromkeys(wanted))


def _column(
    results: Mapping[str, Evaluation], cases: Sequence[str], leaf: str, metric: str
) -> tuple[Column, int]:
    """The scores of every method where all have one, and how many of these cases have a union
    there.
    """
    rows = {
        case: [result.value(case, leaf, metric) for result in results.values()] for case in cases
    }
    used = {case: row for case, row in rows.items() if None not in row}
    column = {method: [row[place] for row in used.values()] for place, method in enumerate(results)}
    first = next(iter(results.values()))
    return column, sum(first.is_union(case, leaf) for case in used)  # type: ignore[return-value]


def _tests(
    columns: Mapping[str, Column], metric: str, baseline: str, alpha: float, correct: bool
) -> list[PairedTest]:
    """Every pair of methods on every leaf. Holm's families: the tests against the baseline, and the
    others.
    """
    tests = []
    methods = list(next(iter(columns.values())))
    for a, b in combinations(methods, 2):
        if b == baseline:
            a, b = b, a
        for leaf, column in columns.items():
            found = wilcoxon_test(column[a], column[b])
            up = (
                found.effect or 0
            )  # the sign of the rank sum that the test itself looks at, not that of the mean
            better = (
                None if not up else b if (up > 0) == (COMPARED[metric].better == "higher") else a
            )
            tests.append(
                PairedTest(
                    **vars(found),
                    a=a,
                    b=b,
                    baseline=baseline in (a, b),
                    leaf=leaf,
                    metric=metric,
                    p_adjusted=found.p,
                    significant=False,
                    better=better,
                )
            )
    for of_baseline in (True, False):
        family = [index for index, test in enumerate(tests) if test.baseline == of_baseline]
        p_values = [tests[index].p for index in family]
        for index, p in zip(family, holm(p_values) if correct else p_values, strict=True):
            tests[index] = replace(
                tests[index], p_adjusted=p, significant=p is not None and p < alpha
            )
    return tests


def _cells(
    column: Column, leaf: str, metric: str, tests: Sequence[PairedTest], n_union: int
) -> list[Cell]:
    described = {method: describe(values, interval=True) for method, values in column.items()}
    best = COMPARED[metric].best(found.mean for found in described.values())
    marks = {
        test.b: "better" if test.better == test.b else "worse"
        for test in tests
        if test.baseline and test.significant and test.leaf == leaf
    }
    return [
        Cell(
            **vars(found),
            method=method,
            leaf=leaf,
            metric=metric,
            n_union=n_union,
            best=best is not None and found.mean == best,
            mark=marks.get(method, ""),
        )
        for method, found in described.items()
    ]


def _detection(
    results: Mapping[str, Evaluation], cases: Sequence[str], structures: Sequence[str]
) -> list[Detection]:
    found = []
    for method, result in results.items():
        for leaf in structures:
            outcomes = [
                score.outcome for case in cases if (score := result.by_case[case].leaves.get(leaf))
            ]
            counts = (outcomes.count(outcome) for outcome in (SCORED, MISSED, INVENTED, ABSENT))
            found.append(Detection(method, leaf, *counts))
    return found


def _ranks(
    results: Mapping[str, Evaluation], cases: Sequence[str], structures: Sequence[str], metric: str
) -> list[Rank]:
    """Ranks of the methods within every case and leaf, their mean over the leaves of a case, then
    over the cases.
    """
    scores = []
    for case in cases:
        rows = (
            [result.value(case, leaf, metric) for result in results.values()] for leaf in structures
        )
        if complete := [
            [value for value in row if value is not None] for row in rows if None not in row
        ]:
            scores.append(complete)
    found = mean_ranks(scores, METRICS[metric].better == "higher")
    return [
        Rank(method, metric, *of_method) for method, of_method in zip(results, found, strict=False)
    ]


def _check_same_leaves(results: Mapping[str, Evaluation]) -> tuple[str, ...]:
    (first, expected), *others = ((method, result.leaves) for method, result in results.items())
    for method, leaves in others:
        if leaves != expected:
            raise LabelSetError(
                f"different labels: '{first}' has {some(expected, 20)}; '{method}' has {some(leaves, 20)}"
            )
    return expected


def _common_cases(results: Mapping[str, Evaluation]) -> list[str]:
    names = {method: set(result.by_case) for method, result in results.items()}
    common = sorted(set.intersection(*names.values()))
    if not common:
        examples = "; ".join(
            f"'{method}' has {some(sorted(cases), 2)}" for method, cases in names.items()
        )
        raise LabelSetError(f"the result sets have no case in common: {examples}")
    if len(common) < 2:
        raise LabelSetError(
            f"the result sets have only the case '{common[0]}' in common: a comparison needs two or more"
        )
    return common


def _check_same_references(results: Mapping[str, Evaluation], cases: Sequence[str]) -> None:
    """The same reference under the same contract: its voxels were counted alike."""
    (first, expected), *others = results.items()
    for case in cases:
        for method, result in others:
            one, two = expected.by_case[case], result.by_case[case]
            alike = {leaf: (score.n_ref, score.union) for leaf, score in one.leaves.items()}
            found = {leaf: (score.n_ref, score.union) for leaf, score in two.leaves.items()}
            differs = sorted(
                leaf for leaf in {**alike, **found} if alike.get(leaf) != found.get(leaf)
            )
            if differs or one.known != two.known:
                raise LabelSetError(
                    f"case '{case}'{', ' + differs[0] if differs else ''}: '{first}' and '{method}' were scored "
                    f"against different references or protocols: evaluate both against the same folder"
                )

"""Methods against each other: the answer in words, the headline, the comparison with its tests, and
the groups of cases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.averages import mean_column
from nnunet_labelset.evaluation.compare import INTERVALS, p_text
from nnunet_labelset.evaluation.comparison_tables import interval_text
from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.results import Averages, Comparison, Outcome, PairedTest
from nnunet_labelset.evaluation.results import Cell as ComparedCell
from nnunet_labelset.evaluation.score_folder import measurement_notes
from nnunet_labelset.evaluation.statistics import Description, Difference
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import (
    WIDE,
    Cell,
    Report,
    bullets,
    details,
    figure,
    folded,
    header,
    join,
    number,
    paragraph,
    plots,
    scroll,
    table,
    text,
)
from nnunet_labelset.report.plots import forest_plot, rank_plot

DICE = METRICS["dice"]
MEAN_ROW = "mean over the labels"
ORDER = "In each row, the methods from top to bottom in the order of their names above."


def answer_section(report: Report) -> Markup:
    """Return a sentence for every method against the baseline, and the plot."""
    if report.compared is None or DICE.name not in report.compared.metrics:
        return Markup("")
    sentences = [sentence(report, test) for test in _baseline_tests(report.compared)]
    return bullets(sentences, "answer") + _forest(report)


def _baseline_tests(compared: Comparison) -> list[PairedTest]:
    return [
        test
        for test in compared.tests
        if test.baseline and test.leaf is None and test.metric == DICE.name
    ]


def sentence(report: Report, test: PairedTest) -> str:
    """Return who is better by how much, in how many cases, or that nothing can be said."""
    if test.mean_difference is None or test.p_adjusted is None:
        return f"{test.b} and {test.a}: nothing can be said, they have no case that differs"
    p = p_text(test.p_adjusted)
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    facts = f"Dice {_signed_difference(test)}, {_case_count(report, test)}, {p}"
    if not test.significant:
        return f"Nothing can be said about {test.b} and {test.a}: {facts}"
    is_better = test.better == test.b
    return f"{test.b} is {'better' if is_better else 'worse'} than {test.a}: {facts}"


def _signed_difference(test: PairedTest) -> str:
    assert test.mean_difference is not None
    shown = f"{DICE.scale * test.mean_difference:+.1f}"
    if test.low is None or test.high is None:
        return shown
    return f"{shown} [{DICE.scale * test.low:+.1f}, {DICE.scale * test.high:+.1f}]"


def _case_count(report: Report, test: PairedTest) -> str:
    """Return in how many of the compared cases `b` has the higher mean Dice, by the same values as
    the test.
    """
    by_method = {method: result.by_case for method, result in report.results.items()}
    column = mean_column(by_method, report.cases, report.first.leaves, DICE)
    pairs = zip(column.values[test.a], column.values[test.b], strict=True)
    higher = sum(b > a for a, b in pairs)
    return f"higher in {higher} of {len(column.cases)} cases"


def _forest(report: Report) -> Markup:
    """Return labels in rows, the mean first; every method with its interval."""
    compared = report.compared
    assert compared is not None
    rows = []
    ends: list[float] = []
    for leaf in (None, *compared.leaves):
        name = MEAN_ROW if leaf is None else spoken(leaf)
        cells = [compared.cell(method, leaf, DICE.name) for method in report.methods]
        intervals = [_scaled_interval(cell) for cell in cells]
        rows.append((name, intervals))
        for interval in intervals:
            ends += interval or ()
    if not ends:
        return paragraph("Too few cases for intervals.", "note")
    low = 10 * (min(ends) // 10)
    plot = forest_plot(DICE.title, report.methods, rows, low, 100.0, DICE.unit)
    return figure("Dice of all labels", scroll("Dice of all labels and methods", plot), ORDER)


def _scaled_interval(cell: Description) -> tuple[float, float, float] | None:
    if cell.mean is None:
        return None
    low = cell.mean if cell.low is None else cell.low
    high = cell.mean if cell.high is None else cell.high
    return DICE.scale * cell.mean, DICE.scale * low, DICE.scale * high


def headline_section(report: Report) -> Markup:
    """Return a table with one column per method: it fits on a phone."""
    ranked = _ranked_metrics(report)
    rows = [
        *_mean_rows(report),
        *_rank_rows(report, ranked),
        [header(KNOWN_WRONG.heading), *_best(_known_wrong(report), KNOWN_WRONG)],
        *_outcome_rows(report),
    ]
    return join(
        [
            table("Overview", ["score", *report.methods], [rows], kind="overview"),
            paragraph(
                f"Means over the labels of a case, then over the cases, with {INTERVALS}. Known "
                "wrong: voxels predicted as a label that their annotation excludes, as a "
                "percentage of voxels with at least one excluded label. Found (with overlap), "
                "missed and invented: in cases in which it is annotated.",
                "note",
            ),
            _measurement(report),
            _ranks(report, ranked),
        ]
    )


def _measurement(report: Report) -> Markup:
    """Return what distances depend on; the notes of a comparison have it as well."""
    lines = measurement_notes([report.first.by_case[case] for case in report.cases])
    return bullets(lines) if lines else Markup("")


def _mean_rows(report: Report) -> Iterator[list[Cell]]:
    for metric in report.metrics:
        means = list(report.means(metric.name).values())
        yield [header(metric.heading), *_best(means, metric)]


def _ranked_metrics(report: Report) -> list[Metric]:
    ranks = report.compared.ranks if report.compared else ()
    names = {rank.metric for rank in ranks}
    return [metric for metric in report.metrics if metric.name in names]


def _rank_rows(report: Report, ranked: list[Metric]) -> Iterator[list[Cell]]:
    words = Markup('{:.2f} <span class="interval">first in {:.0f} %</span>')
    ranks = report.compared.ranks if report.compared else ()
    for metric in ranked:
        by_method = {rank.method: rank for rank in ranks if rank.metric == metric.name}
        cells = []
        for method in report.methods:
            rank = by_method[method]
            shown = words.format(rank.mean_rank, 100 * rank.first)
            cells.append(number(rank.mean_rank, shown=shown))
        yield [header(f"Mean rank by {metric.title}"), *cells]


def _outcome_rows(report: Report) -> Iterator[list[Cell]]:
    structures = "Regions" if report.unit == "region" else "Labels"
    if report.first.unions:
        structures += " and unions"
    for outcome, word in (
        (Outcome.SCORED, "found"),
        (Outcome.MISSED, "missed"),
        (Outcome.INVENTED, "invented"),
    ):
        counts = [number(_outcomes(report, method, outcome), 0) for method in report.methods]
        yield [header(f"{structures} {word}"), *counts]


def _best(found: list[Description], metric: Metric) -> list[Cell]:
    """Means with their intervals, the best in bold."""
    best = metric.best(of.mean for of in found) if len(found) > 1 else None
    return [interval_cell(metric, of, of.mean is not None and of.mean == best) for of in found]


def interval_cell(metric: Metric, found: Description, best: bool = False) -> Cell:
    """Mean and its interval."""
    shown = Markup('<span class="best">{}</span>' if best else "{}").format(metric.show(found.mean))
    if found.low is not None:
        ends = (metric.show(found.low), metric.show(found.high))
        shown += Markup(' <span class="interval">[{}, {}]</span>').format(*ends)
    return number(metric.scaled(found.mean), shown=shown)


def _known_wrong(report: Report) -> list[Description]:
    if report.compared is not None:
        name = KNOWN_WRONG.name
        return [report.compared.cell(method, None, name) for method in report.methods]
    return [result.averages.overall.known_wrong for result in report.results.values()]


def _outcomes(report: Report, method: str, outcome: Outcome) -> int:
    """Count an outcome; a prediction without overlap has missed the label."""
    count = 0
    for case in report.cases:
        for score in report.results[method].by_case[case].leaves.values():
            missed = score.outcome is Outcome.SCORED and not score.found
            count += (Outcome.MISSED if missed else score.outcome) is outcome
    return count


def _ranks(report: Report, ranked: list[Metric]) -> Markup:
    """Pictures of the mean ranks, where there are three methods or more."""
    if report.compared is None or not ranked:
        return Markup("")
    figures = []
    for metric in ranked:
        of = [
            (rank.method, rank.mean_rank)
            for rank in report.compared.ranks
            if rank.metric == metric.name
        ]
        picture = rank_plot(of)
        figures.append(
            figure(f"ranks {metric.name}", picture, f"Mean ranks by {metric.title}; 1 is best.")
        )
    return plots(figures)


WHOLE_CASE = f"{KNOWN_WRONG.heading}\nof a case"
MARKS = {"better": "*", "worse": "†", "": ""}
MOST_TESTS = 100  # that are listed
TEST_HEADS = ("a", "b", "metric", "pairs", "mean of b - a [95 %]", "p", "effect r", "significant")


def comparison_section(report: Report) -> Markup:
    compared = report.compared
    if compared is None:
        return Markup("")
    metrics = [METRICS[name] for name in compared.metrics]
    # None is the whole case: the mean over its labels.
    structures = [*compared.leaves, None, *compared.unions]
    many = len(structures) > WIDE
    if many:
        columns = [report.unit, "metric", *compared.methods]
        groups = _scores_by_label(compared, structures, metrics)
    else:
        names = [f"{_heading(leaf)}\n{_count(compared, leaf)}" for leaf in structures]
        columns = ["method", "metric", *names, WHOLE_CASE]
        groups = _scores_by_method(compared, structures, metrics)
    content = table("Comparison", columns, groups, 2)
    return (
        folded(f"Scores of {len(structures)} {report.unit}s", content, many)
        + bullets(compared.notes)
        + _tests(compared, report.unit)
    )


def _scores_by_label(
    compared: Comparison, structures: Sequence[str | None], metrics: Sequence[Metric]
) -> list[list[list[Cell]]]:
    def row(name: str, leaf: str | None, metric: Metric) -> list[Cell]:
        cells = [compared.cell(method, leaf, metric.name) for method in compared.methods]
        scores = [score_cell(cell, metric) for cell in cells]
        return [header(name), text(metric.heading), *scores]

    groups = []
    for leaf in structures:
        name = f"{_heading(leaf)} ({_count(compared, leaf)})"
        groups.append([row(name, leaf, metric) for metric in metrics])
    return [*groups, [row(WHOLE_CASE, None, KNOWN_WRONG)]]


def _scores_by_method(
    compared: Comparison, structures: Sequence[str | None], metrics: Sequence[Metric]
) -> list[list[list[Cell]]]:
    groups = []
    for method in compared.methods:
        rows = []
        wrong = score_cell(compared.cell(method, None, KNOWN_WRONG.name), KNOWN_WRONG)
        for metric in metrics:
            cells = [compared.cell(method, leaf, metric.name) for leaf in structures]
            scores = [score_cell(cell, metric) for cell in cells]
            rows.append([header(method), text(metric.heading), *scores, wrong])
            wrong = text("", "")  # in the first row only
        groups.append(rows)
    return groups


def _heading(leaf: str | None) -> str:
    return "mean" if leaf is None else spoken(leaf)


def score_cell(found: ComparedCell, metric: Metric) -> Cell:
    """Mean (sd), the best in bold, its mark, and in the title what else is known."""
    mean = Markup('<span class="best">{}</span>' if found.best else "{}").format(
        metric.show(found.mean)
    )
    sign = Markup('<sup class="mark">{}</sup>').format(MARKS[found.mark]) if found.mark else ""
    interval = (
        ""
        if found.low is None
        else f"; 95 % interval {metric.show(found.low)} to {metric.show(found.high)}"
    )
    shown = Markup('<span title="n = {}{}">{}{}{}</span>').format(
        found.n, interval, mean, sign, metric.show_sd(found)
    )
    return number(metric.scaled(found.mean), shown=shown)


def _count(compared: Comparison, leaf: str | None) -> str:
    cells = [
        compared.cell(method, leaf, metric)
        for method in compared.methods
        for metric in compared.metrics
    ]
    counts = {cell.n for cell in cells}
    words = f"n = {min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")
    return words.replace(" ", "\N{NO-BREAK SPACE}")


def _tests(compared: Comparison, unit: str) -> Markup:
    """Return every pair of methods; of very many tests those with the smallest p."""
    tests = list(compared.tests)
    words = f"All {len(tests)} pairwise tests"
    if len(tests) > MOST_TESTS:
        smallest_first = sorted(tests, key=lambda test: 2.0 if test.p is None else test.p)
        tests = smallest_first[:MOST_TESTS]
        total = len(compared.tests)
        words = (
            f"The {MOST_TESTS} of {total} pairwise tests with the smallest p (compare writes all)"
        )
    rows = [_test_row(test) for test in tests]
    return details(words, table("Tests", [*TEST_HEADS[:2], unit, *TEST_HEADS[2:]], [rows], 4))


def _test_row(test: PairedTest) -> list[Cell]:
    metric = COMPARED[test.metric]
    p = None if test.p_adjusted is None else p_text(test.p_adjusted)
    return [
        header(test.a),
        text(test.b, "name"),
        text(spoken(test.leaf) if test.leaf else "mean, whole case"),
        text(metric.heading),
        number(test.n_pairs, 0),
        number(test.mean_difference, shown=difference_text(test, metric)),
        number(test.p_adjusted, shown=p),
        number(test.effect, 2),
        text("yes" if test.significant else "no"),
    ]


def difference_text(test: PairedTest, metric: Metric) -> Markup | None:
    """Return `+1.23 [+0.45, +2.01]`, or None where there is no difference."""
    if test.mean_difference is None:
        return None
    digits = metric.digits + 1
    shown = Markup("{:+.{}f}").format(metric.scale * test.mean_difference, digits)
    if test.low is None or test.high is None:
        return shown
    ends = [f"{metric.scale * end:+.{digits}f}" for end in (test.low, test.high)]
    return shown + Markup(' <span class="interval">[{}, {}]</span>').format(*ends)


UNKNOWN = "(not known)"
ByMethod = Mapping[str, Averages | None]
GROUPS_NOTE = (
    "Means over the labels of a case, then over the cases of a group, with 95 % intervals. The "
    "difference to the baseline has its own interval and p, not corrected for the number of groups."
)


def groups_section(report: Report) -> Markup:
    """Return nothing if all cases are in one group."""
    columns = [name for name in report.first.group_columns if len(_groups(report, name)) > 1]
    if not columns:
        return Markup("")
    parts = []
    for column in columns:
        parts.append(Markup("<h3>By {}</h3>").format(column))
        if report.compared is not None:
            parts.append(_group_means(report.compared, column))
        parts.append(_group_labels(report, column))
    intro = paragraph(GROUPS_NOTE) if report.compared else Markup("")
    return intro + join(parts)


def _groups(report: Report, column: str) -> list[str]:
    """Return the groups of a column that any method has."""
    names: set[str] = set()
    for result in report.results.values():
        names |= result.averages.groups.get(column, {}).keys()
    return sorted(names)


def _group_means(compared: Comparison, column: str) -> Markup:
    """Return the means of all methods, and their differences to the baseline."""
    groups: dict[str, list[list[Cell]]] = {}
    for score in compared.groups:
        if score.column != column:
            continue
        metric = METRICS[score.metric]
        row = [header(score.group or UNKNOWN), text(score.method, "name"), text(metric.heading)]
        row += [number(score.n, 0), interval_cell(metric, score)]
        row += _difference_cells(score.difference, metric)
        groups.setdefault(score.group, []).append(row)
    heads = ["group", "method", "metric", "n", "mean [95 %]", "difference [95 %]", "p"]
    return table(f"Means by {column}", heads, list(groups.values()), 3)


def _difference_cells(difference: Difference | None, metric: Metric) -> list[Cell]:
    if difference is None or difference.mean_difference is None:
        return [number(None), number(None)]
    shown = interval_text(metric, difference.mean_difference, difference, "+")
    p = None if difference.p is None else p_text(difference.p)
    return [number(difference.mean_difference, shown=shown), number(difference.p, shown=p)]


def _group_labels(report: Report, column: str) -> Markup:
    """Return mean (sd) of every label by group; many labels stand in rows and are folded."""
    many = len(report.structures) > WIDE
    names = ["group", report.unit] if many else ["group", "method", "metric"]
    heads = ["cases", *map(spoken, report.structures)]
    if many:
        heads = []
        for metric in report.metrics:
            heads += [f"{method}\n{metric.heading}" for method in report.methods]
    bodies = []
    for group in _groups(report, column):
        averages = {}
        for method, result in report.results.items():
            averages[method] = result.averages.groups.get(column, {}).get(group)
        make_rows = _groups_by_label if many else _groups_by_method
        bodies.append(make_rows(report, group or UNKNOWN, averages))
    content = table(f"Labels by {column}", names + heads, bodies, len(names))
    return folded(f"{len(report.structures)} {report.unit}s by {column}", content, many)


def _groups_by_label(report: Report, group: str, averages: ByMethod) -> list[list[Cell]]:
    rows = []
    for label in report.structures:
        row = [header(group), text(spoken(label), "name")]
        for metric in report.metrics:
            row += [_group_mean(each, label, metric) for each in averages.values()]
        rows.append(row)
    return rows


def _groups_by_method(report: Report, group: str, averages: ByMethod) -> list[list[Cell]]:
    rows = []
    for metric in report.metrics:
        for method, each in averages.items():
            row = [header(group), text(method, "name"), text(metric.heading)]
            row.append(number(each.n_cases if each else 0, 0))
            rows.append([*row, *(_group_mean(each, label, metric) for label in report.structures)])
    return rows


def _group_mean(averages: Averages | None, label: str, metric: Metric) -> Cell:
    if averages is None or label not in averages.leaves:
        return number(None)
    values = averages.leaves[label].metrics[metric.name]
    return number(metric.scaled(values.mean), shown=metric.show_mean(values))

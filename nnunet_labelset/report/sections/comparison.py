"""The paper's Table 2 with its notes and tests."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.notes import p_text
from nnunet_labelset.evaluation.results import Cell as Score
from nnunet_labelset.evaluation.results import Comparison, PairedTest
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, bullets, details, folded, header, number, table, text
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Comparison"
WHOLE_CASE = f"{KNOWN_WRONG.heading}\nof a case"
MARKS = {"better": "*", "worse": "†", "": ""}
MOST_TESTS = 100  # that are listed
TEST_HEADS = ("a", "b", "metric", "pairs", "mean of b - a [95 %]", "p", "effect r", "significant")


def body(report: Report) -> Markup:
    compared = report.compared
    if compared is None:
        return Markup("")
    metrics = [METRICS[name] for name in compared.metrics]
    # None is the whole case: the mean over its labels.
    structures = [*compared.leaves, None, *compared.unions]
    many = len(structures) > WIDE
    if many:
        columns = [report.unit, "metric", *compared.methods]
        groups = _rows_by_label(compared, structures, metrics)
    else:
        names = [f"{_name(leaf)}\n{_count(compared, leaf)}" for leaf in structures]
        columns = ["method", "metric", *names, WHOLE_CASE]
        groups = _rows_by_method(compared, structures, metrics)
    content = table("Comparison", columns, groups, 2)
    return (
        folded(f"Scores of {len(structures)} {report.unit}s", content, many)
        + bullets(compared.notes)
        + _tests(compared, report.unit)
    )


def _rows_by_label(
    compared: Comparison, structures: Sequence[str | None], metrics: Sequence[Metric]
) -> list[list[list[Cell]]]:
    def row(name: str, leaf: str | None, metric: Metric) -> list[Cell]:
        cells = [compared.cell(method, leaf, metric.name) for method in compared.methods]
        scores = [score_cell(cell, metric) for cell in cells]
        return [header(name), text(metric.heading), *scores]

    groups = []
    for leaf in structures:
        name = f"{_name(leaf)} ({_count(compared, leaf)})"
        groups.append([row(name, leaf, metric) for metric in metrics])
    return [*groups, [row(WHOLE_CASE, None, KNOWN_WRONG)]]


def _rows_by_method(
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


def _name(leaf: str | None) -> str:
    return "mean" if leaf is None else spoken(leaf)


def score_cell(found: Score, metric: Metric) -> Cell:
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

"""The answer in words, and one plot of all labels and methods."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.averages import mean_column
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.notes import p_text
from nnunet_labelset.evaluation.results import Comparison, PairedTest
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import bullets, figure, paragraph, scroll
from nnunet_labelset.report.plots import forest_plot
from nnunet_labelset.report.report import Report

TITLE = "Answer"
DICE = METRICS["dice"]
MEAN = "mean over the labels"
ORDER = "In each row, the methods from top to bottom in the order of their names above."


def body(report: Report) -> Markup:
    """Return a sentence for every method against the baseline, and the plot."""
    if report.compared is None or DICE.name not in report.compared.metrics:
        return Markup("")
    sentences = [answer(report, test) for test in _baseline_tests(report.compared)]
    return bullets(sentences, "answer") + _forest(report)


def _baseline_tests(compared: Comparison) -> list[PairedTest]:
    return [
        test
        for test in compared.tests
        if test.baseline and test.leaf is None and test.metric == DICE.name
    ]


def answer(report: Report, test: PairedTest) -> str:
    """Return who is better by how much, in how many cases, or that nothing can be said."""
    if test.mean_difference is None or test.p_adjusted is None:
        return f"{test.b} and {test.a}: nothing can be said, they have no case that differs"
    p = p_text(test.p_adjusted)
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    facts = f"Dice {_difference(test)}, {_case_count(report, test)}, {p}"
    if not test.significant:
        return f"Nothing can be said about {test.b} and {test.a}: {facts}"
    is_better = test.better == test.b
    return f"{test.b} is {'better' if is_better else 'worse'} than {test.a}: {facts}"


def _difference(test: PairedTest) -> str:
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
        name = MEAN if leaf is None else spoken(leaf)
        cells = [compared.cell(method, leaf, DICE.name) for method in report.methods]
        intervals = [_interval(cell) for cell in cells]
        rows.append((name, intervals))
        for interval in intervals:
            ends += interval or ()
    if not ends:
        return paragraph("Too few cases for intervals.", "note")
    low = 10 * (min(ends) // 10)
    plot = forest_plot(DICE.title, report.methods, rows, low, 100.0, DICE.unit)
    return figure("Dice of all labels", scroll("Dice of all labels and methods", plot), ORDER)


def _interval(cell: Description) -> tuple[float, float, float] | None:
    if cell.mean is None:
        return None
    low = cell.mean if cell.low is None else cell.low
    high = cell.mean if cell.high is None else cell.high
    return DICE.scale * cell.mean, DICE.scale * low, DICE.scale * high

"""The paper's Table 2 with its notes and tests."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import COMPARED, KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.notes import p_text
from nnunet_labelset.evaluation.results import Cell as Score
from nnunet_labelset.evaluation.results import Comparison
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, bullets, details, header, number, table, text
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Comparison"
MARKS = {"better": "*", "worse": "†", "": ""}
MOST_TESTS = 100  # that are listed


def body(report: Report) -> Markup:
    compared = report.compared
    if compared is None:
        return Markup("")
    methods, structures = compared.methods, compared.structures
    metrics = [METRICS[name] for name in compared.metrics]
    whole = ("", KNOWN_WRONG)  # of the case, not of a leaf
    if len(structures) > WIDE:
        columns = [report.unit, "metric", *methods]
        lines = [*((leaf, metric) for leaf in structures for metric in metrics), whole]
        rows = [
            [
                header(f"{_name(leaf)} ({_count(compared, leaf)})" if leaf else _name(leaf)),
                text(metric.heading),
            ]
            + [score_cell(compared.cell(method, leaf, metric.name), metric) for method in methods]
            for leaf, metric in lines
        ]
        groups = [rows[start : start + len(metrics)] for start in range(0, len(rows), len(metrics))]
    else:
        columns = [
            "method",
            "metric",
            *(f"{_name(leaf)}\n{_count(compared, leaf)}" for leaf in structures),
            _name(""),
        ]
        groups = [
            [
                [header(method), text(metric.heading)]
                + [
                    score_cell(compared.cell(method, leaf, metric.name), metric)
                    for leaf in structures
                ]
                + [
                    score_cell(compared.cell(method, "", KNOWN_WRONG.name), KNOWN_WRONG)
                    if not row
                    else text("", "")
                ]
                for row, metric in enumerate(metrics)
            ]
            for method in methods
        ]
    return (
        table("Comparison", columns, groups, 2)
        + bullets(compared.notes)
        + _tests(compared, report.unit)
    )


def _name(leaf: str) -> str:
    return spoken(leaf) or f"{KNOWN_WRONG.heading}\nof a case"


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
    union = f" u{found.n_union}" if found.n_union and found.n_union < found.n else ""
    shown = Markup('<span title="n = {}{}">{}{}{}{}</span>').format(
        found.n, interval, mean, sign, metric.show_sd(found), union
    )
    return number(metric.scaled(found.mean), shown=shown)


def _count(compared: Comparison, leaf: str) -> str:
    cells = [
        compared.cell(method, leaf, metric)
        for method in compared.methods
        for metric in compared.metrics
    ]
    counts, unions = {cell.n for cell in cells}, max(cell.n_union for cell in cells)
    words = f"n = {min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")
    words += f", u = {unions}" if unions and leaf in compared.leaves else ""
    return words.replace(" ", "\N{NO-BREAK SPACE}")


def _tests(compared: Comparison, unit: str) -> Markup:
    """Every pair of methods; of very many tests those with the smallest p."""
    tests = sorted(
        compared.tests, key=lambda test: 2.0 if test.p_adjusted is None else test.p_adjusted
    )
    chosen = tests[:MOST_TESTS] if len(tests) > MOST_TESTS else list(compared.tests)
    rows = []
    for test in chosen:
        metric = COMPARED[test.metric]
        difference: object = None
        if test.mean_difference is not None:
            digits = metric.digits + 1
            ends = [
                f"{metric.scale * end:.{digits}f}"
                for end in (test.low, test.high)
                if end is not None
            ]
            interval = (
                Markup(' <span class="interval">[{}, {}]</span>').format(*ends)
                if len(ends) == 2
                else ""
            )
            difference = Markup("{:.{}f}{}").format(
                metric.scale * test.mean_difference, digits, interval
            )
        rows.append(
            [
                *(
                    header(test.a),
                    text(test.b, "name"),
                    text(spoken(test.leaf) or "whole case"),
                    text(metric.heading),
                ),
                number(test.n_pairs, 0),
                number(test.mean_difference, shown=difference),
                number(
                    test.p_adjusted,
                    shown=None if test.p_adjusted is None else p_text(test.p_adjusted),
                ),
                number(test.effect, 2),
                text("yes" if test.significant else "no"),
            ]
        )
    columns = [
        "a",
        "b",
        unit,
        "metric",
        "pairs",
        "mean of b - a [95 %]",
        "p",
        "effect r",
        "significant",
    ]
    which = (
        f"The {len(rows)} of {len(tests)} pairwise tests with the smallest p (compare writes all)"
    )
    words = which if len(rows) < len(tests) else f"All {len(rows)} pairwise tests"
    return details(words, table("Tests", columns, [rows], 4))

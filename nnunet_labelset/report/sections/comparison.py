"""The paper's Table 2 and its tests as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, METRICS, Metric
from nnunet_labelset.evaluation.results import Cell, Comparison
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.report import page
from nnunet_labelset.report.page import number, table, text
from nnunet_labelset.report.result import WIDE, spoken

MARKS = {"better": "*", "worse": "†", "": ""}


def comparison_section(comparison: Comparison) -> str:
    """The paper's Table 2: mean (sd), best in bold, significant differences from the baseline marked."""
    cells = {(cell.method, cell.leaf, cell.metric): cell for cell in comparison.cells}
    methods, leaves, metrics = comparison.methods, comparison.structures, comparison.metrics
    if len(leaves) > WIDE:
        columns = ["leaf", "metric", *methods]
        rows = [
            [text(spoken(leaf)), metric_cell(metric), *(score_cell(cells[method, leaf, metric]) for method in methods)]
            for leaf in leaves
            for metric in metrics
        ]
    else:
        columns = ["method", "metric", *(f"{spoken(leaf)}\n{_count(cells, methods, leaf, metrics)}" for leaf in leaves)]
        rows = [
            [text(method), metric_cell(metric), *(score_cell(cells[method, leaf, metric]) for leaf in leaves)]
            for method in methods
            for metric in metrics
        ]
    corrected = "" if comparison.correction == "none" else f", corrected by {comparison.correction.capitalize()}"
    cap = "" if comparison.cap is None else f" HD95 is at most {comparison.cap:g} mm."
    intro = (
        f"<p>Mean (standard deviation) over {len(comparison.cases)} cases, each leaf where it is annotated.{cap} "
        "Best mean in bold. <b>*</b> significantly better, <b>&dagger;</b> significantly worse than "
        f"{escape(comparison.baseline)} (two-sided Wilcoxon signed-rank test, p &lt; "
        f"{comparison.alpha:g}{escape(corrected)}).</p>"
    )
    starts = range(0, len(rows), len(metrics))
    return intro + table("Table 2", columns, rows, 2, starts) + _tests(comparison)


def metric_cell(metric: str) -> page.Cell:
    return text(METRICS.get(metric, KNOWN_WRONG).heading, "text")


def score_cell(cell: Cell) -> page.Cell:
    return description_cell(METRICS[cell.metric], cell.description, cell.best, cell.mark)


def description_cell(metric: Metric, found: Description, best: bool = False, mark: str = "") -> page.Cell:
    if found.mean is None:
        return number(None)
    mean = f'<span class="best">{metric.show(found.mean)}</span>' if best else metric.show(found.mean)
    sign = f'<sup class="mark">{MARKS[mark]}</sup>' if mark else ""
    shown = f'<span title="n = {found.n}">{mean}{sign}{metric.show_sd(found)}</span>'
    return page.Cell(shown, repr(metric.scale * found.mean))


def _count(cells: Mapping[tuple[str, str, str], Any], methods: Sequence[str], leaf: str, metrics: Sequence[str]) -> str:
    counts = {cells[method, leaf, metric].n for method in methods for metric in metrics}
    return f"n = {min(counts)}" + (f" to {max(counts)}" if len(counts) > 1 else "")


def _tests(comparison: Comparison) -> str:
    rows = []
    for test in comparison.tests:
        scale = METRICS.get(test.metric, KNOWN_WRONG).scale
        difference = test.mean_difference
        rows.append(
            [
                *(text(test.a), text(test.b), text(spoken(test.leaf), "text"), metric_cell(test.metric)),
                number(test.n_pairs, 0),
                number(None if difference is None else scale * difference, 2),
                number(test.p_adjusted, shown=None if test.p_adjusted is None else f"{test.p_adjusted:.2g}"),
                number(test.effect, 2),
                text("yes" if test.significant else "no", "text"),
            ]
        )
    if not rows:
        return ""
    columns = ["a", "b", "leaf", "metric", "pairs", "mean of b - a", "p", "effect", "significant"]
    return f"<details><summary>All {len(rows)} pairwise tests</summary>{table('Tests', columns, rows, 4)}</details>"

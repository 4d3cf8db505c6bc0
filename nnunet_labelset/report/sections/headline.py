"""The answer first: means with intervals, ranks, known-wrong voxels and detection of every
method.
"""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, Metric
from nnunet_labelset.evaluation.notes import INTERVALS
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.evaluation.score_files import measurement_notes
from nnunet_labelset.evaluation.statistics import Description
from nnunet_labelset.report.page import (
    Cell,
    bullets,
    figure,
    header,
    join,
    number,
    paragraph,
    plots,
    table,
)
from nnunet_labelset.report.plots import rank_plot
from nnunet_labelset.report.report import Report

TITLE = "Overview"


def body(report: Report) -> Markup:
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

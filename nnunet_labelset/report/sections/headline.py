"""The answer first: means with intervals, ranks, known-wrong voxels and detection of every method."""

from __future__ import annotations

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import KNOWN_WRONG, Metric
from nnunet_labelset.evaluation.notes import FEW_CASES, FEW_NOTE
from nnunet_labelset.evaluation.results import INVENTED, MISSED, SCORED
from nnunet_labelset.evaluation.statistics import Description, describe
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
    """One column per method, so that it fits on a phone."""
    ranks = (
        {(rank.method, rank.metric): rank for rank in report.compared.ranks}
        if report.compared
        else {}
    )
    ranked = [metric for metric in report.metrics if any(name == metric.name for _, name in ranks)]
    rows = [
        [header(metric.heading), *_best(list(report.means(metric.name).values()), metric)]
        for metric in report.metrics
    ]
    for metric in ranked:
        found = [ranks[method, metric.name] for method in report.methods]
        words = Markup('{:.2f} <span class="interval">first in {:.0f} %</span>')
        cells = [
            number(rank.mean_rank, shown=words.format(rank.mean_rank, 100 * rank.first))
            for rank in found
        ]
        rows.append([header(f"Mean rank by {metric.title}"), *cells])
    shares = [
        [of.by_case[case].known_wrong_share for case in report.cases]
        for of in report.results.values()
    ]
    rows.append(
        [
            header(KNOWN_WRONG.heading),
            *_best([describe(of, interval=True) for of in shares], KNOWN_WRONG),
        ]
    )
    what = ("Regions" if report.unit == "region" else "Leaves") + (
        " and unions" if report.first.unions else ""
    )
    for outcome, word in ((SCORED, "found"), (MISSED, "missed"), (INVENTED, "invented")):
        counts = (number(_outcomes(report, method, outcome), 0) for method in report.methods)
        rows.append([header(f"{what} {word}"), *counts])
    stale = Markup("<strong>Scores are out of date:</strong> {}")
    return join(
        [
            bullets(map(stale.format, report.stale), "notes warning") if report.stale else "",
            table("Overview", ["", *report.methods], [rows], kind="overview"),
            paragraph(
                "Means with 95 % intervals (BCa bootstrap over the cases); a case counts with the mean over the leaves "
                "that all methods have a score of. Known wrong: voxels predicted as a leaf that their annotation "
                "excludes, of those of which anything is known. Found, missed and invented: in cases in which it is "
                "annotated.",
                "note",
            ),
            paragraph(FEW_NOTE, "note")
            if report.compared is None and len(report.cases) < FEW_CASES
            else "",
            _ranks(report, ranked),
        ]
    )


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


def _outcomes(report: Report, method: str, outcome: str) -> int:
    cases = (report.results[method].by_case[case] for case in report.cases)
    return sum(score.outcome == outcome for case in cases for score in case.leaves.values())


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
        picture = rank_plot(of, report.compared.critical_difference.get(metric.name))
        figures.append(
            figure(f"ranks {metric.name}", picture, f"Mean ranks by {metric.title}; 1 is best.")
        )
    note = "A bar joins methods whose mean ranks differ by less than the critical difference (Nemenyi)."
    return plots(figures) + paragraph(note, "note")

"""Every label: its scores as plots, its volumes, its numbers, and the table of all scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from nnunet_labelset.evaluation.averages import Column, label_column
from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import PRESENT, Evaluation, Outcome, Score
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.overview import interval_cell
from nnunet_labelset.report.page import (
    WIDE,
    Cell,
    Report,
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
from nnunet_labelset.report.plots import PlotRow, VolumeAxes, bland_altman, forest_plot, strip_plot

MARKS = (
    "One mark per case, a cross where the label was missed or invented. The box is from quartile "
    "to quartile, its line the median; below it the mean with its 95 % interval. Every label has "
    "its own axis. Point at a mark for its case, or reach a plot with Tab and its marks with the "
    "arrow keys."
)
ABSENT = (
    " A method that rightly predicts nothing where another one invents the label stands at the "
    "best value."
)
Rows = Mapping[str, Sequence[PlotRow]]  # of every label, by method


def strips_section(report: Report) -> Markup:
    """Return a plot per label and metric; of many labels one plot per metric, and the single ones
    of the first metric only.
    """
    many = len(report.structures) > WIDE
    parts = []
    for metric in report.metrics:
        rows = _plot_rows(report, metric)
        if not rows:
            continue
        parts.append(Markup("<h3>{} in {}</h3>").format(metric.title, metric.unit))
        if not many:
            parts.append(_strips(rows, metric))
            continue
        parts.append(_forest(report, rows, metric))
        if metric is report.metrics[0]:
            parts.append(details(f"Every label: {len(rows)} plots", _strips(rows, metric)))
    means = "Means of all labels with their 95 % intervals; below, each label by itself. "
    words = (means if many else "") + MARKS + (ABSENT if report.compared else "")
    return paragraph(words) + join(parts)


def _plot_rows(report: Report, metric: Metric) -> Rows:
    """Return the scores of every label that has any."""
    rows = {}
    cases = {method: result.by_case for method, result in report.results.items()}
    for label in report.structures:
        column = label_column(cases, report.cases, label, metric)
        by_method = [_plot_row(report, method, label, metric, column) for method in report.methods]
        if _known_scores(by_method):
            rows[label] = by_method
    return rows


def _strips(rows: Rows, metric: Metric) -> Markup:
    figures = []
    for label, by_method in rows.items():
        axis = _axis(_known_scores(by_method) + _interval_ends(by_method), metric)
        plot = strip_plot(spoken(label), by_method, *axis, metric.unit)
        figures.append(figure(f"{metric.name} {label}", plot))
    return plots(figures)


def _forest(report: Report, rows: Rows, metric: Metric) -> Markup:
    means = []
    ends: list[float] = []
    for label, by_method in rows.items():
        means.append((spoken(label), [row.mean for row in by_method]))
        ends += _interval_ends(by_method)
    axis = _axis(ends or [0.0], metric)
    plot = forest_plot(metric.title, report.methods, means, *axis, metric.unit)
    return figure(f"{metric.name} of all labels", scroll(f"{metric.title} of all labels", plot))


def _interval_ends(rows: Sequence[PlotRow]) -> list[float]:
    ends: list[float] = []
    for row in rows:
        ends += row.mean or ()
    return ends


def _known_scores(rows: Sequence[PlotRow]) -> list[float]:
    scores: list[float] = []
    for row in rows:
        scores += [score for score in row.scores if score is not None]
    return scores


def _plot_row(report: Report, method: str, label: str, metric: Metric, column: Column) -> PlotRow:
    """Return the values of the cases that count, the same as in the mean."""
    counted = dict(zip(column.cases, column.values[method], strict=True))
    values = []
    crosses = []
    for case in report.cases:
        score = report.score(method, case, label)
        values.append(metric.scaled(counted.get(case)))
        crosses.append(score is not None and score.outcome in (Outcome.MISSED, Outcome.INVENTED))
    return PlotRow(method, values, crosses, _mean_interval(report, method, label, metric))


def _mean_interval(
    report: Report, method: str, label: str, metric: Metric
) -> tuple[float, float, float] | None:
    """Return mean and interval; None with too few cases for one."""
    description = report.results[method].averages.overall.leaves[label].metrics[metric.name]
    if report.compared is not None:
        description = report.compared.cell(method, label, metric.name)
    if description.mean is None or description.low is None or description.high is None:
        return None
    scale = metric.scale
    return scale * description.mean, scale * description.low, scale * description.high


def _axis(scores: Sequence[float], metric: Metric) -> tuple[float, float]:
    """Return the ends of an axis: shares up to 100 %, distances from 0 mm."""
    if metric.better == "higher":
        return min(90.0, 10 * math.floor(min(scores) / 10)), 100.0
    return 0.0, max(1.0, 1.02 * max(scores))


def volumes_section(report: Report) -> Markup:
    unit = "ml" if len(report.first.cases[0].spacing) == 3 else "cm²"
    rows = [_volume_plots(report, label, unit) for label in report.structures]
    drawn = [plots(figures) for figures in rows if figures]
    if not drawn:
        return Markup("")
    intro = paragraph(
        "Predicted minus reference volume over the mean of both, one mark per case (Bland and "
        "Altman). The thick line is the bias, the dashed ones are the limits of agreement, 1.96 "
        "standard deviations around it. All methods of a label have the same axes. Only voxels of "
        "which the reference says whether they belong to the label count."
    )
    content = join(drawn)
    if len(report.structures) > WIDE:
        content = details(f"Plots of {len(drawn)} labels", content)
    return intro + content


def _volume_plots(report: Report, label: str, unit: str) -> list[Markup]:
    """Return a plot per method that has volumes of a label."""
    by_method = {}
    for method in report.methods:
        points = [_volume_point(report, method, case, label) for case in report.cases]
        if any(points):
            by_method[method] = points
    if not by_method:
        return []
    axes = VolumeAxes.of(list(by_method.values()))
    figures = []
    for method, points in by_method.items():
        title = f"{spoken(label)}: {method}"
        place = report.methods.index(method)
        plot = bland_altman(title, place, points, unit, axes)
        figures.append(figure(f"volume {label} {method}", plot))
    return figures


def _volume_point(report: Report, method: str, case: str, leaf: str) -> tuple[float, float] | None:
    """Return mean and difference of the two volumes; None where the label is nowhere."""
    score = report.score(method, case, leaf)
    if score is None or score.outcome not in PRESENT:
        return None
    reference, difference = score.values["volume_ref"], score.values["volume_difference"]
    return (
        None
        if reference is None or difference is None
        else (reference + difference / 2, difference)
    )


OUTCOMES_NOTE = (
    "All cases of a method. Scored: present in reference and prediction. Missed: not predicted. "
    "Invented: predicted where it is known not to be. Undecided: nothing certain in the reference, "
    "but some voxels may be it."
)


def leaves_section(report: Report) -> Markup:
    groups = [
        _number_rows(method, result, report.metrics) for method, result in report.results.items()
    ]
    heads = []
    for metric in report.metrics:
        heads += [f"{metric.heading}\n{what}" for what in ("mean [95 %]", "sd", "median")]
    columns = ["method", report.unit, *heads, *(outcome.value for outcome in Outcome)]
    count = len(report.structures)
    content = folded(
        f"{count} {report.unit}s", table("Labels in numbers", columns, groups, 2), count > WIDE
    )
    return paragraph(OUTCOMES_NOTE) + content


def _number_rows(method: str, result: Evaluation, metrics: Sequence[Metric]) -> list[list[Cell]]:
    rows = []
    for label, averages in result.averages.overall.leaves.items():
        cells = [header(method), text(_name_with_members(label, result.unions), "name")]
        for metric in metrics:
            values = averages.metrics[metric.name]
            cells += [
                interval_cell(metric, values),
                number(values.sd, shown=metric.show(values.sd)),
                number(values.median, shown=metric.show(values.median)),
            ]
        cells += [number(averages.outcomes[outcome.value], 0) for outcome in Outcome]
        rows.append(cells)
    return rows


def _name_with_members(leaf: str, unions: dict[str, tuple[str, ...]]) -> str:
    """Return a name; that of a union with its labels, unless they are its name."""
    members = unions.get(leaf, ())
    return (
        spoken(leaf)
        if not members or leaf == "+".join(members)
        else spoken(f"{leaf} ({' + '.join(members)})")
    )


DIFFERENCE: dict[int, list[str]] = {1: [], 2: ["difference\nsecond - first"]}
ROWS_SHOWN = 25  # at a time
FACTOR = 100  # numbers are stored in hundredths
WORDS = {outcome: outcome.value for outcome in (Outcome.MISSED, Outcome.INVENTED)}


def all_scores_section(report: Report) -> Markup:
    metric = report.metrics[0]
    total, rows = _worst_rows(report, metric)
    heads = [
        "case",
        report.unit,
        *report.methods,
        *DIFFERENCE.get(len(report.methods), ["range"]),
    ]
    options = join(
        Markup('<option value="{}">{}</option>').format(index, row.heading)
        for index, row in enumerate(report.metrics)
    )
    tools = Markup(
        '<div class="tools" hidden><label>Search <input type="search" placeholder="case, label, '
        'protocol"></label>'
        '<label>Metric <select>{}</select></label><button type="button" '
        'data-by="-1">Previous</button>'
        '<button type="button" data-by="1">Next</button><output aria-live="polite"></output></div>'
    ).format(options)
    without = Markup(
        '<noscript><p class="note">The {} worst of {} rows by {}; all are in per_case.csv (see '
        "Files).</p></noscript>"
    ).format(len(rows), total, metric.heading)
    content = table("All scores", heads, [rows], 2, "scores")
    return Markup('<div id="scores-area">{}{}{}</div>{}').format(
        tools, without, content, _script_data(report)
    )


def _worst_rows(report: Report, metric: Metric) -> tuple[int, list[list[Cell]]]:
    """The number of rows, and those with the lowest scores of the first method: what is shown
    without scripts.
    """
    first = report.methods[0]
    values = {place: report.value(first, *place, metric.name) for place in _places(report)}
    scored = [place for place, value in values.items() if value is not None]
    scored.sort(key=lambda place: (values[place], place[0]))
    if metric.better == "lower":
        scored.reverse()
    rows = []
    for case, leaf in scored[:ROWS_SHOWN]:
        cells = [
            header(case),
            text(spoken(leaf)),
        ]
        known: list[float | None] = []
        for method in report.methods:
            score, value = (
                report.score(method, case, leaf),
                report.value(method, case, leaf, metric.name),
            )
            word = WORDS.get(score.outcome, "") if score else ""
            shown = f"{metric.show(value)} {word}".strip()
            cells.append(number(value, shown=shown, kind="alarm" if word else ""))
            known.append(value)
        if len(report.methods) > 1:
            cells.append(_difference_cell(known, metric))
        rows.append(cells)
    return len(scored), rows


def _difference_cell(values: Sequence[float | None], metric: Metric) -> Cell:
    """Second minus first of two methods, the range of more."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return number(None)
    if len(values) == 2:
        difference = known[1] - known[0]
        return number(metric.scale * difference, shown=metric.show(difference, "+"))
    return number(metric.scale * (max(known) - min(known)), metric.digits)


def _places(report: Report) -> list[tuple[str, str]]:
    """The rows: case and leaf."""
    return [(case, leaf) for case in report.cases for leaf in report.structures]


def _script_data(report: Report) -> Markup:
    """The numbers for the script: strings of numbers are the smallest and are read only when they
    are asked for.
    """
    places, codes = _places(report), {outcome: str(code) for code, outcome in enumerate(WORDS, 1)}
    scores = [[report.score(method, *place) for place in places] for method in report.methods]
    content: dict[str, Any] = {
        "methods": report.methods,
        "structures": [spoken(name) for name in report.structures],
        "cases": report.cases,
        "groups": [" ".join(report.first.groups_of(case).values()) for case in report.cases],
        "rows": ROWS_SHOWN,
        "factor": FACTOR,
        "words": ["", *WORDS.values()],
        "outcomes": [
            "".join(codes.get(score.outcome, "0") if score else "0" for score in of)
            for of in scores
        ],
        "metrics": [
            {
                "digits": metric.digits,
                "better": metric.better,
                "values": [_hundredths(of, metric) for of in scores],
            }
            for metric in report.metrics
        ],
    }
    # no name can end the script
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return Markup('<script type="application/json" id="scores-data">{}</script>').format(
        Markup(text)
    )


def _hundredths(scores: Sequence[Score | None], metric: Metric) -> str:
    values = (score.values[metric.name] if score else None for score in scores)
    return ",".join(
        "" if value is None else str(round(FACTOR * metric.scale * value)) for value in values
    )

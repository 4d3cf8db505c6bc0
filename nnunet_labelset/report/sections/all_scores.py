"""Every score: case by leaf by method, to be searched and sorted. The numbers are text, few rows
are elements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import Outcome, Score
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, header, join, number, table, text
from nnunet_labelset.report.report import Report

TITLE = "All scores"
DIFFERENCE: dict[int, list[str]] = {1: [], 2: ["difference\nsecond - first"]}
ROWS = 25  # at a time
FACTOR = 100  # numbers are stored in hundredths
WORDS = {outcome: outcome.value for outcome in (Outcome.MISSED, Outcome.INVENTED)}


def body(report: Report) -> Markup:
    metric = report.metrics[0]
    total, rows = _worst(report, metric)
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
        tools, without, content, _data(report)
    )


def _worst(report: Report, metric: Metric) -> tuple[int, list[list[Cell]]]:
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
    for case, leaf in scored[:ROWS]:
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
            cells.append(_difference(known, metric))
        rows.append(cells)
    return len(scored), rows


def _difference(values: Sequence[float | None], metric: Metric) -> Cell:
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


def _data(report: Report) -> Markup:
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
        "rows": ROWS,
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
                "values": [_numbers(of, metric) for of in scores],
            }
            for metric in report.metrics
        ],
    }
    # no name can end the script
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return Markup('<script type="application/json" id="scores-data">{}</script>').format(
        Markup(text)
    )


def _numbers(scores: Sequence[Score | None], metric: Metric) -> str:
    values = (score.values[metric.name] if score else None for score in scores)
    return ",".join(
        "" if value is None else str(round(FACTOR * metric.scale * value)) for value in values
    )

"""Every score: case by leaf by method, to be searched and sorted. The numbers are text, few rows are elements."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import Metric
from nnunet_labelset.evaluation.results import INVENTED, MISSED, OUTCOMES
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, header, join, number, table, text
from nnunet_labelset.report.report import Report

TITLE = "All scores"
ROWS = 25  # at a time
FACTOR = 100  # numbers are stored in hundredths
WORDS = {outcome: OUTCOMES[outcome] for outcome in (MISSED, INVENTED)}


def body(report: Report) -> Markup:
    metric = report.metrics[0]
    total, rows = _worst(report, metric)
    heads = ["case", "leaf", *report.methods, *(["difference"] if len(report.methods) > 1 else [])]
    options = join(
        Markup('<option value="{}">{}</option>').format(index, row.heading) for index, row in enumerate(report.metrics)
    )
    tools = Markup(
        '<div class="tools" hidden><label>Search <input type="search" placeholder="case, leaf, protocol"></label>'
        '<label>Metric <select>{}</select></label><button type="button" data-by="-1">Previous</button>'
        '<button type="button" data-by="1">Next</button><output aria-live="polite"></output></div>'
    ).format(options)
    without = Markup(
        '<noscript><p class="note">The {} worst of {} rows by {}; all are in per_case.csv (see Files).</p></noscript>'
    ).format(len(rows), total, metric.heading)
    content = table("All scores", heads, [rows], 2, "scores")
    return Markup('<div id="scores-area">{}{}{}</div>{}').format(tools, without, content, _data(report))


def _worst(report: Report, metric: Metric) -> tuple[int, list[list[Cell]]]:
    """The number of rows, and those with the lowest scores of the first method: what is shown without scripts."""
    first = report.methods[0]
    keys = [
        (report.value(first, case, leaf, metric.name), number, leaf)
        for number, case in enumerate(report.cases)
        for leaf in report.structures
    ]
    scored = sorted((key for key in keys if key[0] is not None), key=lambda key: (key[0], key[1]))
    if metric.better == "lower":
        scored.reverse()
    rows = []
    for _, place, leaf in scored[:ROWS]:
        case = report.cases[place]
        values = [report.value(method, case, leaf, metric.name) for method in report.methods]
        known = [value for value in values if value is not None]
        union = (score := report.score(first, case, leaf)) is not None and score.union is not None
        cells = [header(case), text(spoken(leaf) + (" (union)" if union else ""))]
        for method, value in zip(report.methods, values, strict=True):
            score = report.score(method, case, leaf)
            word = WORDS.get(score.outcome, "") if score else ""
            shown = f"{metric.show(value)} {word}".strip()
            cells.append(number(value, shown=shown, kind="alarm" if word else ""))
        if len(values) > 1:
            cells.append(number(metric.scale * (max(known) - min(known)) if len(known) > 1 else None, metric.digits))
        rows.append(cells)
    return len(scored), rows


def _data(report: Report) -> Markup:
    """The numbers for the script: strings of numbers are the smallest and are read only when they are asked for."""
    words = list(WORDS.values())
    outcomes = []
    for method in report.methods:
        found = (report.score(method, case, leaf) for case in report.cases for leaf in report.structures)
        outcomes.append(
            "".join(str(1 + words.index(WORDS[s.outcome])) if s and s.outcome in WORDS else "0" for s in found)
        )
    unions = (report.score(report.methods[0], case, leaf) for case in report.cases for leaf in report.structures)
    content: dict[str, Any] = {
        "methods": report.methods,
        "structures": [spoken(name) for name in report.structures],
        "cases": report.cases,
        "groups": [" ".join(report.first.by_case[case].groups.values()) for case in report.cases],
        "rows": ROWS,
        "factor": FACTOR,
        "words": ["", *words],
        "outcomes": outcomes,
        "unions": "".join("1" if score and score.union else "0" for score in unions),
        "metrics": [
            {
                "digits": metric.digits,
                "better": metric.better,
                "values": [_numbers(report, method, metric) for method in report.methods],
            }
            for metric in report.metrics
        ],
    }
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")  # no name can end the script
    return Markup('<script type="application/json" id="scores-data">') + Markup(text) + Markup("</script>")


def _numbers(report: Report, method: str, metric: Metric) -> str:
    values = (report.value(method, case, leaf, metric.name) for case in report.cases for leaf in report.structures)
    return ",".join("" if value is None else str(round(FACTOR * metric.scale * value)) for value in values)

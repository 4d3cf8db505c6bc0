"""Labels with a low Dice, the worst first, with links to the pictures of their cases."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.score_files import FAILURE, Failure, failures
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.page import Cell, header, number, paragraph, table, text
from nnunet_labelset.report.report import Report
from nnunet_labelset.report.sections.pictures import case_anchors

TITLE = "Failures"
DICE = METRICS["dice"]
MOST = 50  # that are listed


def body(report: Report) -> Markup:
    entries: list[tuple[str, Failure]] = []
    for method, result in report.results.items():
        entries += [(method, failure) for failure in failures(result, FAILURE)]
    below = f"Dice below {100 * FAILURE:g} %"
    if not entries:
        return paragraph(f"No label of any case has a {below}.")
    entries.sort(key=lambda entry: entry[1].dice)
    anchors = case_anchors(report)
    rows = [_row(method, failure, anchors) for method, failure in entries[:MOST]]
    words = f"{len(entries)} with a {below}, the worst first."
    if len(entries) > MOST:
        words += f" The first {MOST} are listed; all are in failures.csv."
    if not set(anchors) >= {failure.case for _, failure in entries}:
        words += " A case without a link was not drawn: --cases or --worst draws it."
    heads = ["case", report.unit, "method", "outcome", DICE.heading]
    return paragraph(words) + table(TITLE, heads, [rows], 4)


def _row(method: str, failure: Failure, anchors: Mapping[str, str]) -> list[Cell]:
    name: object = failure.case
    if failure.case in anchors:
        name = Markup('<a href="#{}">{}</a>').format(anchors[failure.case], failure.case)
    return [
        header(name),
        text(spoken(failure.label)),
        text(method, "name"),
        text(failure.outcome.value),
        number(failure.dice, shown=DICE.show(failure.dice)),
    ]

"""Cases with slices: the worst, the median, and those on which the methods disagree most."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, median

from markupsafe import Markup
from tqdm import tqdm

from nnunet_labelset.contract import Contract
from nnunet_labelset.errors import LabelSetError
from nnunet_labelset.evaluation.metric import METRICS
from nnunet_labelset.evaluation.results import Outcome
from nnunet_labelset.io.text import spoken
from nnunet_labelset.report.colours import ERROR_KINDS, label_colour, method_colour
from nnunet_labelset.report.overlays import DrawnCase, find_image
from nnunet_labelset.report.page import (
    Cell,
    details,
    figure,
    header,
    join,
    legend,
    link,
    number,
    paragraph,
    plots,
    scroll,
    table,
)
from nnunet_labelset.report.painting import Painter
from nnunet_labelset.report.report import WIDE, Report

TITLE = "Drawn cases"
ERROR_WORDS = {
    "missed": "missed: background predicted where it cannot be",
    "invented": "invented: predicted on background",
    "wrong label": "wrong label",
}


def body(report: Report) -> Markup:
    contract = report.contract
    if contract is None:
        return paragraph(f"No pictures: {report.no_contract}", "note")
    anchors = case_anchors(report)
    if not anchors:
        return Markup("")
    reasons = choose_cases(report)
    parts = []
    for case, anchor in tqdm(anchors.items(), desc="Drawing", unit="case", disable=None):
        heading = Markup("<h3>{} &ndash; {}</h3>").format(case, ", ".join(reasons[case]))
        try:
            content = _case(report, contract, case, anchor)
        except (LabelSetError, OSError) as error:  # moved or closed since they were evaluated
            content = paragraph(f"No pictures: {error}", "note")
        block = Markup('<div class="case" id="{}">{}{}</div>')
        parts.append(block.format(anchor, heading, content))
    return join([_intro(report), _legends(report, contract), *parts])


def case_anchors(report: Report) -> dict[str, str]:
    """Return where a drawn case stands in the page, for links."""
    if report.contract is None:
        return {}
    return {case: f"case{place}" for place, case in enumerate(choose_cases(report))}


def choose_cases(report: Report) -> dict[str, list[str]]:
    """Cases to draw, and why: those that were named, or the worst, the median and the most disputed
    ones.
    """
    if report.wanted_cases:
        return {case: ["asked for"] for case in report.wanted_cases}
    if not report.worst:
        return {}
    chosen: dict[str, list[str]] = {}
    ranked = rank_cases(report, report.best_method)
    for place, case in enumerate(ranked[: report.worst], 1):
        chosen.setdefault(case, []).append("worst case" if place == 1 else f"worst case {place}")
    if ranked:
        chosen.setdefault(ranked[len(ranked) // 2], []).append("median case")
    if disputed := most_disputed(report):
        chosen.setdefault(disputed, []).append("largest disagreement between methods")
    return chosen


def rank_cases(report: Report, method: str) -> list[str]:
    """Return cases from worst to best: the mean, over their scored labels and unions, of Dice minus
    the label's median.

    A case in which only an easy label is annotated is not good for that, nor is one bad whose
    labels are all hard.
    """
    differences: dict[str, list[float]] = {}
    for label in report.structures:
        scores = {case: report.value(method, case, label, "dice") for case in report.cases}
        known = {case: score for case, score in scores.items() if score is not None}
        middle = median(known.values()) if known else 0.0
        for case, score in known.items():
            differences.setdefault(case, []).append(score - middle)
    ranks = {case: mean(values) for case, values in differences.items()}
    return sorted(ranks, key=lambda case: (ranks[case], case))


def most_disputed(report: Report) -> str | None:
    """Return the case with the largest range of Dice between methods, on average over its labels
    and unions.
    """
    ranges = {case: _dice_ranges(report, case) for case in report.cases}
    means = {case: mean(values) for case, values in ranges.items() if values}
    if not any(means.values()):
        return None
    return max(means, key=lambda case: (means[case], case))


def _dice_ranges(report: Report, case: str) -> list[float]:
    """Return the range of Dice between methods, for every label that two or more have scored."""
    ranges = []
    for label in report.structures:
        scores = [report.value(method, case, label, "dice") for method in report.methods]
        known = [score for score in scores if score is not None]
        if len(known) > 1:
            ranges.append(max(known) - min(known))
    return ranges


def _intro(report: Report) -> Markup:
    words = (
        "Each view is the slice with the most errors among those through the bulk of what is "
        "drawn, cropped to what the reference labels. Reference and errors are hatched where the "
        "reference leaves several labels possible; there, only what is known to be wrong is an "
        "error."
    )
    if not report.wanted_cases:
        best = ", the method with the best mean Dice" if len(report.methods) > 1 else ""
        rule = "ranked by the mean difference of a label's Dice from its median over all cases"
        words = f"Worst and median cases of {report.best_method}{best}, {rule}. {words}"
    return paragraph(words)


def _legends(report: Report, contract: Contract) -> Markup:
    """Return what stays in view above the pictures; the names of many labels are folded."""
    names = [
        (label_colour(label), f"{label} {spoken(name)}")
        for label, name in enumerate(contract.leaf_names)
        if label
    ]
    signs = [(f"pattern: {kind.split()[0]}", ERROR_WORDS[kind]) for kind in ERROR_KINDS]
    signs += [("hatch", "not (completely) annotated"), ("contour:solid #fff", "reference")]
    for place, method in enumerate(report.methods):
        signs.append((f"contour:dashed {method_colour(place)}", method))
    labels = legend(names)
    if len(names) > WIDE:
        labels = details(f"Numbers of the {len(names)} labels", labels)
    content = Markup("{}{}").format(legend(signs), labels)
    return Markup('<div class="legends">{}</div>').format(scroll("Legend of the pictures", content))


def _case(report: Report, contract: Contract, case: str, anchor: str) -> Markup:
    first = report.first.by_case[case]
    files = [result.by_case[case].prediction_file for result in report.results.values()]
    image = find_image(first.reference_file, case, report.first.settings.file_ending)
    drawn = DrawnCase(first.reference_file, files, contract.protocol(case), image)
    painter = Painter(drawn, anchor)
    figures = [_given_figures(report, painter, case, image)]
    for place, method in enumerate(report.methods):
        dice = report.case_mean(method, case)
        score = "" if dice is None else f", mean Dice {METRICS['dice'].show(dice)} %"
        caption = Markup("{}{}").format(link(files[place], report.folder, method), score)
        figures.append(_method_figures(painter, place, case, method, caption))
    groups = report.first.groups_of(case)
    known = [f"{column}: {value}" for column, value in groups.items() if value]
    rows = [plots(row, "pictures") for row in figures]
    scores = _scores(report, case)
    head = [paragraph(", ".join(known), "note"), scores, painter.slider(), painter.definitions()]
    return join([*head, *rows])


def _given_figures(report: Report, painter: Painter, case: str, image: Path | None) -> list[Markup]:
    """Return image and reference."""
    reference_file = report.first.by_case[case].reference_file
    seen: object = "no image beside the references"
    if image is not None:
        seen = link(image, report.folder, "image")
    image_label = f"Image of case {case}" if image else f"No image of {case}"
    drawn_image = painter.picture(image_label)
    drawn_reference = painter.picture(f"Reference of case {case}", painter.reference())
    return [
        figure(f"{case} image", drawn_image, seen),
        figure(
            f"{case} reference", drawn_reference, link(reference_file, report.folder, "reference")
        ),
    ]


def _method_figures(
    painter: Painter, place: int, case: str, method: str, caption: Markup
) -> list[Markup]:
    """Return prediction, contours and errors of a method."""
    drawn = painter.case
    counts = drawn.error_counts[place].items()
    errors = ", ".join(f"{count:,} voxels {kind}" for kind, count in counts)
    if drawn.errors_outside[place]:
        errors += f" ({drawn.errors_outside[place]:,} of them outside of the pictures)"
    figures = []
    for kind, layer, words, shown in (
        ("prediction", painter.prediction(place), "prediction", caption),
        ("contours", painter.contours(place), "contours", f"{method}: contours"),
        ("errors", painter.errors(place), errors, f"{method}: {errors}"),
    ):
        picture = painter.picture(f"{method} on case {case}: {words}", layer)
        figures.append(figure(f"{case} {method} {kind}", picture, shown))
    return figures


def _scores(report: Report, case: str) -> Markup:
    """Return the Dice of all labels that a case has; many of them stand in rows and are folded."""
    scores = report.first.by_case[case].leaves
    labels = [name for name, score in scores.items() if score.outcome is not Outcome.NOT_ANNOTATED]
    dice = METRICS["dice"]

    def cell(method: str, label: str) -> Cell:
        value = report.value(method, case, label, dice.name)
        return number(value, shown=dice.show(value))

    if len(labels) > WIDE:
        rows = []
        for label in labels:
            rows.append([header(spoken(label)), *(cell(each, label) for each in report.methods)])
        content = table(f"Dice of {case}", [dice.heading, *report.methods], [rows])
        return details(f"Dice of {len(labels)} labels", content)
    rows = []
    for method in report.methods:
        rows.append([header(method), *(cell(method, label) for label in labels)])
    return table(f"Dice of {case}", [dice.heading, *map(spoken, labels)], [rows])
